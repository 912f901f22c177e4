"""What ``init(bootstrap=...)`` accepts: a file each in this folder, found by being there.

A file has one object, ``BOOTSTRAP``, which knows by the module of an object's type whether it serves it, and imports
nothing of the library that the object comes from.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol

from ..by_store import Meeting
from ..environment import Environment, read_environment, read_token
from ..launchers import Job
from ..wire import Deadline

KEY = "collectives/bootstrap"


class Bootstrap(Protocol):
    """A kind of object by which ranks meet."""

    NAME: ClassVar[str]
    """As users write it, for errors."""

    def accepts(self, value: Any) -> bool:
        """Whether this serves the object."""

    def job(self, value: Any, rank: int | None, size: int | None) -> Job:
        """The job of the object, in which the ranks meet by it.

        Args:
            rank, size: what the caller of ``init`` said.

        Raises:
            ValueError: the object says another rank or size, or none and neither did the caller.
        """


@functools.cache
def bootstraps() -> tuple[Bootstrap, ...]:
    """All that there are files for."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").BOOTSTRAP for name in names)


def job_of(value: Any, rank: int | None, size: int | None) -> Job:
    """The job of an object that was given as ``bootstrap=``.

    Raises:
        TypeError: nothing serves such an object.
        ValueError: as `Bootstrap.job`.
    """
    for bootstrap in bootstraps():
        if bootstrap.accepts(value):
            return bootstrap.job(value, rank, size)
    names = ", ".join(bootstrap.NAME for bootstrap in bootstraps())
    raise TypeError(f"bootstrap= is {value!r} of type {type(value).__name__}; accepted are {names}")


def agree(name: str, said: tuple[int, int], rank: int | None, size: int | None) -> None:
    """Raises ValueError where the caller of ``init`` says another rank or size than the object."""
    for what, own, other in (("rank", rank, said[0]), ("size", size, said[1])):
        if own is not None and own != other:
            raise ValueError(
                f"{what}={own!r} was given, and {name} of bootstrap= says {what} {other}; leave {what}= out"
            )


@contextlib.contextmanager
def meet_by_store(
    job: Any,
    store: Any,
    where: Callable[[Deadline], tuple[str, int]],
    is_lost: Callable[[RuntimeError], bool],
    token: str | bytes | None,
    timeout: float | None,
    arguments: dict[str, Any],
) -> Iterator[Environment]:
    """What `meet` of a job does whose object is a store, or has one with the methods of torch's.

    Args:
        job: has rank, size and place.
        store: see `Meeting.meet`.
        where: finds the address of rank 0, or of the server of the store.
        is_lost: tells errors of the store apart, see `Meeting`.
        token, timeout, arguments: as for `read_environment`.
    """
    if job.size == 1:
        yield read_environment(rank=0, size=1, token=token, timeout=timeout, **arguments)
        return
    deadline = Deadline(read_environment(rank=0, size=1, timeout=timeout).start_timeout)
    meeting = Meeting(
        job.rank,
        job.size,
        *where(deadline),
        key=KEY,
        place=job.place,
        caller="collectives.init(bootstrap=)",
        is_lost=is_lost,
    )
    with meeting.meet(store, deadline, read_token(token), timeout, arguments) as environment:
        yield environment
