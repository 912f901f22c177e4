"""The world that this process is in: there is one, whoever needs it first makes it, and the others find it here.

It is held until all its communicators are closed, so a program need not keep what ``init`` returns.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

from .environment import Environment

if TYPE_CHECKING:
    from ..communicator import Communicator

_OWN = ("collectives", "tensorflow", "keras", "torch")  # packages whose frames are not the program's


@dataclass(frozen=True, eq=False)
class Joined:
    """A world.

    Attributes:
        maker: the function that made it, and where the program called that, for errors.
        environment: how this process was started.
        communicators: of its ranks in this process, by rank.
        pid: of the process that made it; a forked child has another.
    """

    maker: str
    environment: Environment
    communicators: tuple[Communicator, ...]
    pid: int

    @property
    def open(self) -> list[Communicator]:
        """Its communicators that are not closed."""
        return [communicator for communicator in self.communicators if not communicator.closed]

    def describe(self) -> str:
        """What this process is in it, who made it and how, as a clause."""
        first = self.communicators[0]
        ranks = ", ".join(str(communicator.rank) for communicator in self.open or self.communicators)
        several = len(self.open) > 1
        replicas = f" and replicas={count}" if (count := self.environment.replicas) is not None else ""
        return (
            f"this process {'has ranks' if several else 'is rank'} {ranks} of {first.size}, by {self.maker} with "
            f"transport={self.environment.transport!r}{replicas}"
        )


_records: list[Joined] = []  # at most one with open communicators


def current() -> Joined | None:
    """The world of this process, or of the one that it was forked from; None if there is none, or it is closed."""
    return next((record for record in list(_records) if record.open), None)


def keep(maker: str, environment: Environment, communicators: list[Communicator]) -> Joined:
    """Records the world that has just been made."""
    kept = replace(environment, lookup=None, deadline=None)  # a lookup holds a connection
    record = Joined(f"{maker}{_place()}", kept, tuple(communicators), os.getpid())
    _records[:] = [record]
    return record


def forget(communicator: Communicator) -> None:
    """Called when a communicator has been closed: lets go of a world that has no other."""
    for record in list(_records):
        if any(one is communicator for one in record.communicators) and not record.open:
            with contextlib.suppress(ValueError):  # another thread has closed another replica
                _records.remove(record)


def _place() -> str:
    """`` at train.py:12``: the line of the program that is being run; "" where there is none, as in a door's thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _OWN:
            return f" at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
