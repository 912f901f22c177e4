"""The part of the rendezvous that rank 0 and the other ranks share (see `_startup.rendezvous`)."""

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

_LAUNCHER_DELAY = 0.5  # seconds for a launcher to notice that a rank has ended
_POLL_PAUSES = (0.02, 0.25)  # seconds between polls for ranks that have ended: the first, and at most


class Fault(TypedDict):
    """Attributes of an error: the rank at fault, and where it runs, as far as that is known."""

    peer: int
    host: str | None
    pid: int | None


class Rendezvous:
    """Exchanges values between all ranks of a job; a context manager that reports an error of its body to the others.

    Attributes:
        loop: runs the rendezvous; other tasks may be added to it and make progress during `exchange`.
        deadline: the point at which starting fails.
        loopback: whether every rank came by a loopback address.
        local_address: the address of this rank on the way to the others, ``""`` in a world of one.
        job: random name of this start of this job.
        locations: host name and process number of the other ranks, as far as known.
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
        self.locations: dict[int, tuple[str, int]] = {}
        self._ended = EndedRanksReader(environment.launcher_fd, self.size, environment.token)
        self._monitor_timer: Timer | None = None

    def exchange(
        self, value: Any, what: str = "values", accepted: Callable[[int, Any], bool] | None = None
    ) -> list[Any]:
        """Gives the values of all ranks, by rank.

        Args:
            value: must be JSON.
            what: the name of the values in errors.
            accepted: whether a value of a rank has the form that the caller expects; any, by default.

        Raises:
            PeerError: a rank died or failed, or sent a value that is not accepted.
            DeadlineError: a rank did not come to this round in time.
        """
        values = self._round(value, what)
        for rank, given in enumerate(values):
            if accepted is not None and not accepted(rank, given):
                raise errors.PeerError(
                    f"{self.show(rank)} sent {wire.printable(repr(given))} where its {what} should be. Is another "
                    "program in this job, or another version?",
                    rank=self.rank,
                    **self.fault_of(rank),
                )
        return values

    def _round(self, value: Any, what: str) -> list[Any]:
        return [value]

    def monitor_launcher(self, here: Container[int], pause: float = _POLL_PAUSES[0]) -> None:
        """Makes the loop raise when a rank ends before it connects, as the launcher tells; until `stop_monitoring`.

        Args:
            here: ranks that have connected, and whose connections show their end.
            pause: seconds until the next poll.

        Raises:
            PeerError: a rank had ended before.
        """
        if not self._ended.useful:
            return
        for rank, pid, how in self._ended.new():
            if rank != self.rank and rank not in here:
                location = own_location()
                where = f"rank {rank} (host {location['hostname']}, pid {pid})"
                raise errors.PeerError(
                    f"{where} {how} before the job had started. Look at its output for the reason",
                    rank=self.rank,
                    peer=rank,
                    host=location["hostname"],
                    pid=pid,
                )
        self._monitor_timer = self.loop.later(
            pause, lambda: self.monitor_launcher(here, min(1.5 * pause, _POLL_PAUSES[1]))
        )

    def ask_launcher(self, here: Container[int]) -> None:
        """After the end of a connection: gives the launcher a moment to tell why, and raises as `monitor_launcher`."""
        patience = Deadline(_LAUNCHER_DELAY)
        while self._ended.useful and patience.remaining():
            self.stop_monitoring()
            self.monitor_launcher(here)
            time.sleep(_POLL_PAUSES[0])

    def stop_monitoring(self) -> None:
        """To be called when all ranks are connected: from then on their connections show their end."""
        if self._monitor_timer is not None:
            self.loop.forget(self._monitor_timer)
            self._monitor_timer = None

    def fault_of(self, rank: int) -> Fault:
        """The attributes of an error that another rank has caused."""
        host, pid = self.locations.get(rank, (None, None))
        return {"peer": rank, "host": host, "pid": pid}

    def show(self, rank: int) -> str:
        """The name of a rank in errors, with its host and process number if known."""
        location = self.locations.get(rank)
        return f"rank {rank}" if location is None else f"rank {rank} (host {location[0]}, pid {location[1]})"

    def note_location(self, rank: int, message: Message) -> None:
        """Stores the location of a rank from a message with its `own_location`."""
        host, pid = message.get("hostname"), message.get("pid")
        if isinstance(host, str) and isinstance(pid, int):
            self.locations[rank] = (host, pid)

    def abort(self, error: BaseException) -> None:
        """Reports the failure of this rank to the others, as far as it can."""

    def close(self) -> None:
        """Closes every connection of the rendezvous and all tasks of its loop."""
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


class ReportedError(WireError):
    """The other side failed and reported why."""

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


def own_location() -> Message:
    """Host name and process number of this rank."""
    return {"hostname": socket.gethostname(), "pid": os.getpid()}


def describe(error: BaseException, rank: int) -> Message:
    """An error of this rank, for the other ranks."""
    if isinstance(error, errors.CollectivesError):
        location = {"hostname": error.host, "pid": error.pid}
        return {"type": type(error).__name__, "text": str(error), "peer": error.peer, **location}
    location = own_location()
    where = f"rank {rank} (host {location['hostname']}, pid {location['pid']})"
    text = f"{where} could not start: {type(error).__name__}: {error}"
    return {"type": "PeerError", "text": text, "peer": rank, **location}


def read_all(sock: socket.socket, arrived: Callable[[Message], None]) -> Task[None]:
    while True:
        message = yield from wire.receive(sock)
        if isinstance(message.get("error"), dict):
            raise ReportedError(message["error"])
        arrived(message)


def name_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
