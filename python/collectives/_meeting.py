"""What rank 0 and the other ranks have in common when they meet (see `_rendezvous`)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any

from . import _wire, errors
from ._environment import Environment
from ._loop import Loop
from ._wire import Deadline, Message, Task, WireError


class Rendezvous:
    """The meeting of all ranks of a job; a context manager that tells the others when its body raises.

    Attributes:
        loop: drives the meeting; other tasks may be added to it and make progress during `exchange`.
        deadline: the point at which starting fails.
        loopback: whether every rank came by a loopback address.
        local_address: the address of this rank on the way to the others, ``""`` in a world of one.
        job: random name of this start of this job.
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

    def exchange(self, value: Any, what: str = "values") -> list[Any]:
        """Gives the values of all ranks, by rank. `value` must be JSON; `what` is for the text of errors.

        Raises:
            PeerError: a rank died or failed.
            DeadlineError: a rank did not come to this round in time.
        """
        return [value]

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
        peer = self.description.get("peer")
        made: errors.CollectivesError = kind(str(self), rank=rank, peer=peer if isinstance(peer, int) else None)
        return made


def describe(error: BaseException, rank: int) -> Message:
    if isinstance(error, errors.CollectivesError):
        return {"type": type(error).__name__, "text": str(error), "peer": error.peer}
    text = f"rank {rank} could not start: {type(error).__name__}: {error}"
    return {"type": "PeerError", "text": text, "peer": rank}


def read_all(sock: socket.socket, arrived: Callable[[Message], None]) -> Task[None]:
    while True:
        message = yield from _wire.receive(sock)
        if isinstance(message.get("error"), dict):
            raise ToldError(message["error"])
        arrived(message)


def name_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
