"""What rank 0 and the other ranks have in common when they meet (see `_startup.rendezvous`)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Container
from types import TracebackType
from typing import Any, TypedDict

from .. import errors
from . import wire
from .ended import EndedRanksReader
from .environment import Environment
from .loop import Loop, Timer
from .wire import Deadline, Message, Task, WireError

_MOMENT = 0.5  # seconds for a launcher to see that a rank has ended
_LOOKS = (0.02, 0.25)  # seconds between looks for ranks that have ended: the first, and at most


class Fault(TypedDict):
    """Attributes of an error: the rank at fault, and where it runs, as far as that is known."""

    peer: int
    host: str | None
    pid: int | None


class Rendezvous:
    """The meeting of all ranks of a job; a context manager that tells the others when its body raises.

    Attributes:
        loop: drives the meeting; other tasks may be added to it and make progress during `exchange`.
        deadline: the point at which starting fails.
        loopback: whether every rank came by a loopback address.
        local_address: the address of this rank on the way to the others, ``""`` in a world of one.
        job: random name of this start of this job.
        places: host name and process number of the other ranks that have said so.
    """

    def __init__(self, environment: Environment, deadline: Deadline) -> None:
        self.environment = environment
        self.rank = environment.rank
        self.size = environment.size
        self.loop = Loop()
        self.deadline = deadline
        self.loopback = True
        self.local_address = ""
        self.job = ""
        self.places: dict[int, tuple[str, int]] = {}
        self._ended = EndedRanksReader(environment.launcher_fd, self.size, environment.token)
        self._watch: Timer | None = None

    def exchange(
        self, value: Any, what: str = "values", accepted: Callable[[int, Any], bool] | None = None
    ) -> list[Any]:
        """Gives the values of all ranks, by rank.

        Args:
            value: must be JSON.
            what: for the text of errors.
            accepted: whether a value of a rank is of the form that the caller can use; any, by default.

        Raises:
            PeerError: a rank died or failed, or sent a value that is not accepted.
            DeadlineError: a rank did not come to this round in time.
        """
        values = self._round(value, what)
        for rank, given in enumerate(values):
            if accepted is not None and not accepted(rank, given):
                raise errors.PeerError(
                    f"{self.show(rank)} sent {wire.shown(repr(given))} where its {what} should be. Is another program "
                    "in this job, or another version?",
                    rank=self.rank,
                    **self.blame(rank),
                )
        return values

    def _round(self, value: Any, what: str) -> list[Any]:
        return [value]

    def watch(self, here: Container[int], pause: float = _LOOKS[0]) -> None:
        """Lets the loop raise when the launcher says that a rank has ended which did not come, until `unwatch`.

        Args:
            here: ranks that came, whose end is seen by their connections.
            pause: seconds to the next look.

        Raises:
            PeerError: a rank had ended before.
        """
        if not self._ended.useful:
            return
        for rank, pid, how in self._ended.new():
            if rank != self.rank and rank not in here:
                place = own_place()
                where = f"rank {rank} (host {place['hostname']}, pid {pid})"
                raise errors.PeerError(
                    f"{where} {how} before the job had started. Look at its output for the reason",
                    rank=self.rank,
                    peer=rank,
                    host=place["hostname"],
                    pid=pid,
                )
        self._watch = self.loop.later(pause, lambda: self.watch(here, min(1.5 * pause, _LOOKS[1])))

    def ask_launcher(self, here: Container[int]) -> None:
        """When a connection has ended: raises as `watch` does when the launcher says why, for which it has a moment."""
        patience = Deadline(_MOMENT)
        while self._ended.useful and patience.remaining():
            self.unwatch()
            self.watch(here)
            time.sleep(_LOOKS[0])

    def unwatch(self) -> None:
        """All ranks are there: from now on their ends are seen by their connections."""
        if self._watch is not None:
            self.loop.forget(self._watch)
            self._watch = None

    def blame(self, rank: int) -> Fault:
        """The attributes of an error of which another rank is the cause."""
        host, pid = self.places.get(rank, (None, None))
        return {"peer": rank, "host": host, "pid": pid}

    def show(self, rank: int) -> str:
        """A rank, for the text of errors."""
        place = self.places.get(rank)
        return f"rank {rank}" if place is None else f"rank {rank} (host {place[0]}, pid {place[1]})"

    def heard(self, rank: int, message: Message) -> None:
        """Takes note of where a rank runs, from a message that it wrote `own_place` into."""
        host, pid = message.get("hostname"), message.get("pid")
        if isinstance(host, str) and isinstance(pid, int):
            self.places[rank] = (host, pid)

    def abort(self, error: BaseException) -> None:
        """Tells the other ranks that this one failed, as well as it can."""

    def close(self) -> None:
        """Closes every connection of the meeting and all tasks of its loop."""
        self.loop.close()

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self.abort(error)
        finally:
            self.close()


class ToldError(WireError):
    """The other side said why it failed."""

    def __init__(self, description: Message) -> None:
        super().__init__(str(description.get("text")))
        self.description = description

    def rebuild(self, rank: int) -> errors.CollectivesError:
        name = self.description.get("type")
        kind = getattr(errors, name) if name in errors.__all__ else errors.PeerError
        peer, host, pid = (self.description.get(key) for key in ("peer", "hostname", "pid"))
        made: errors.CollectivesError = kind(
            str(self),
            rank=rank,
            peer=peer if isinstance(peer, int) else None,
            host=host if isinstance(host, str) else None,
            pid=pid if isinstance(pid, int) else None,
        )
        return made


def own_place() -> Message:
    """Where this rank runs."""
    return {"hostname": socket.gethostname(), "pid": os.getpid()}


def describe(error: BaseException, rank: int) -> Message:
    """An error of this rank, for the other ranks."""
    if isinstance(error, errors.CollectivesError):
        place = {"hostname": error.host, "pid": error.pid}
        return {"type": type(error).__name__, "text": str(error), "peer": error.peer, **place}
    place = own_place()
    where = f"rank {rank} (host {place['hostname']}, pid {place['pid']})"
    text = f"{where} could not start: {type(error).__name__}: {error}"
    return {"type": "PeerError", "text": text, "peer": rank, **place}


def read_all(sock: socket.socket, arrived: Callable[[Message], None]) -> Task[None]:
    while True:
        message = yield from wire.receive(sock)
        if isinstance(message.get("error"), dict):
            raise ToldError(message["error"])
        arrived(message)


def name_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
