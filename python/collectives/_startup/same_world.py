"""Whether the world of this process is the one that somebody who comes later asks for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from .. import _core
from ..errors import CollectivesError, ForkedError
from . import settings
from .environment import MAX_SIZE, read_place
from .joined import Joined
from .launchers import find_job

_CHECKS: dict[str, Callable[[Any, str], object]] = {  # of the arguments of init()
    "rank": lambda value, source: settings.integer(value, source, 0, MAX_SIZE - 1),
    "size": lambda value, source: settings.integer(value, source, 1, MAX_SIZE),
    "rendezvous": settings.address,
    "token": settings.token,
    "transport": settings.transport,
    "timeout": settings.seconds,
    "replicas": lambda value, _: settings.replicas(value, MAX_SIZE),
    "compare_shapes": settings.flag,
}


def refuse_parents(record: Joined) -> None:
    """Raises ForkedError in a child of the process that made the world."""
    if record.pid != os.getpid():
        first = record.communicators[0]
        raise ForkedError(
            f"this process was forked from rank {first.rank} of {first.size}, and cannot be that rank as well; say "
            "which job it joins: init(rank=, size=, rendezvous=), or init(size=1) for none",
            rank=first.rank,
        )


def refuse_other(record: Joined, asked: dict[str, Any]) -> None:
    """Raises CollectivesError unless what is asked for is true of the world, and it can be used.

    `asked`: arguments of ``init``. Without a rank and a size, those that the environment gives are meant.
    """
    first = record.communicators[0]
    environment = record.environment
    if len(record.open) < len(record.communicators):
        raise another(record, "and its other ranks here are closed")
    about = _core._describe(first)
    has: dict[str, object] = {
        "rank": environment.rank,
        "size": environment.size,
        "transport": environment.transport,
        "timeout": about["timeout"],
        "compare_shapes": about["compare_shapes"],
    }
    if environment.size > 1:
        has |= {"rendezvous": environment.rendezvous, "token": environment.token}
    wanted = {name: _CHECKS[name](value, f"{name}=") for name, value in asked.items() if value is not None}
    replicas = wanted.pop("replicas", None)
    if replicas != environment.replicas:
        raise another(record, f"and replicas={replicas} was asked for")
    for name, value in wanted.items():
        if name in has and value != has[name]:
            said = "another token=" if name == "token" else f"{name}={asked[name]!r}"
            raise another(record, f"and {said} was asked for")
    if "rank" not in wanted and "size" not in wanted:
        for name, (value, source) in _place_by_environment().items():
            if value != has[name]:
                raise another(record, f"and {source} is {value}")
    refuse_failed(record)


def refuse_failed(record: Joined) -> None:
    """Raises CollectivesError where a collective of the world has failed, so that no other can be made."""
    if any(_core._describe(communicator)["failed"] for communicator in record.communicators):
        raise CollectivesError(
            f"{record.describe()}, and that world has failed; close() it, then init() makes another, or shrink() it",
            rank=record.communicators[0].rank,
        )


def another(record: Joined, difference: str) -> CollectivesError:
    """The error for one who asks for another world than that of this process; `difference` goes into the sentence."""
    several = len(record.open) > 1
    use = "those communicators" if several else "that communicator (collectives.world())"
    return CollectivesError(
        f"{record.describe()}, {difference}; use {use}, or close() {'them all' if several else 'it'} first",
        rank=record.communicators[0].rank,
    )


def _place_by_environment() -> dict[str, tuple[int, str]]:
    """Rank and size of this process, where our variables or a launcher's give them, and the names of the variables."""
    with contextlib.suppress(ValueError):  # a launcher's wrong variables are no matter where a world exists
        if (job := find_job()) is not None:
            return {"rank": (job.rank, job.RANK_VARIABLE), "size": (job.size, job.SIZE_VARIABLE)}
    return read_place()
