"""How the ranks of ``init`` meet: by what its caller says, by our variables, or by what started this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .bootstraps import job_of
from .environment import Environment, has_rendezvous, read_environment
from .launchers import Job, find_job
from .log import says_found
from .say import say

_told: list[str] = []  # what was printed: once is enough for a program that starts several times


@contextlib.contextmanager
def meet(place: dict[str, Any], bootstrap: Any, others: dict[str, Any]) -> Iterator[Environment]:
    """The launch environment; a context manager to be left when all ranks have connected.

    Args:
        place: the arguments rank, size and rendezvous of ``init``, None where they are not given.
        bootstrap: its argument of that name.
        others: its other arguments.

    Raises:
        ValueError, TypeError: as ``init``.
    """
    job = _find(place, bootstrap)
    if job is None:
        yield read_environment(**place, **others)
        return
    if bootstrap is None and (place["rendezvous"] is not None or has_rendezvous()):
        chosen = {"rank": job.rank, "size": job.size, "rendezvous": place["rendezvous"]}
        _tell(job, "the rendezvous that was given")
        yield read_environment(**chosen, **others)
        return
    _tell(job, getattr(job, "place", ""))
    with job.meet(**others) as environment:
        yield environment


def _find(place: dict[str, Any], bootstrap: Any) -> Job | None:
    if bootstrap is not None:
        if place["rendezvous"] is not None:
            raise ValueError("rendezvous= and bootstrap= were given, and each says where the ranks meet; leave one out")
        return job_of(bootstrap, place["rank"], place["size"])
    return find_job() if place["rank"] is None and place["size"] is None else None


def _tell(job: Job, where: str) -> None:
    """On rank 0, prints what was found: the first thing to look at where ranks are missing."""
    text = f"collectives: {getattr(job, 'found', '')}; ranks meet at {where}"
    if job.rank == 0 and where and hasattr(job, "found") and says_found() and text not in _told:
        _told.append(text)
        say(text)
