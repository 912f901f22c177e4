"""The errors of the library; the Python layer and the C++ core both raise them.

Wrong arguments raise ``TypeError`` or ``ValueError`` instead.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "ClosedError",
    "CollectivesError",
    "DeadlineError",
    "ForkedError",
    "MismatchError",
    "PeerError",
]


class CollectivesError(RuntimeError):
    """The base of every error of this library; catch it to catch all of them. It is a ``RuntimeError``.

    The text says what happened and what to do; the attributes say the same to programs, each ``None`` when it is
    unknown or does not apply. Instances can be pickled and keep their attributes.

    Attributes:
        rank: the rank that raised the error.
        peer: the rank at fault.
        collective: the collective that failed, for example ``"all_reduce"``.
        sequence: its number among the collectives of the communicator, from 0.
        name: the caller's name of the tensor or of the call.
        age: seconds for which the collective had been pending.
        host, pid: the machine and the process of ``peer``.
        bytes_done: how many bytes of the tensors this rank had copied, reduced, sent or received by then.
    """

    rank: int | None
    peer: int | None
    collective: str | None
    sequence: int | None
    name: str | None
    age: float | None
    host: str | None
    pid: int | None
    bytes_done: int | None

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        peer: int | None = None,
        collective: str | None = None,
        sequence: int | None = None,
        name: str | None = None,
        age: float | None = None,
        host: str | None = None,
        pid: int | None = None,
        bytes_done: int | None = None,
    ) -> None:
        # Only the message goes into `args`: an exception is pickled as its class, its args and its __dict__, so the
        # attributes travel without any code here.
        super().__init__(message)
        self.rank = rank
        self.peer = peer
        self.collective = collective
        self.sequence = sequence
        self.name = name
        self.age = age
        self.host = host
        self.pid = pid
        self.bytes_done = bytes_done


class MismatchError(CollectivesError):
    """Ranks disagree: about a collective (op, dtype, shape, order of calls) or about how the job was started.

    Every rank of the communicator raises it and the communicator is closed. Make the ranks issue the same collectives,
    in the same order and with the same arguments; the text names the ranks and both values.
    """


class PeerError(CollectivesError):
    """Another rank died, closed its connection or failed; ``peer`` says which.

    Look at the output of that rank first: it failed for its own reason. The communicator is unusable afterwards.
    """


class DeadlineError(CollectivesError):
    """A deadline passed while waiting for other ranks; the text names who is missing.

    Find out what the missing rank does (it may be stopped, busy or gone), or allow more time by ``timeout=`` or
    ``COLLECTIVES_TIMEOUT`` (seconds).
    """


class ClosedError(CollectivesError):
    """The communicator was closed by ``close()`` or by an earlier failure. Make a new one by ``collectives.init()``."""


class ForkedError(CollectivesError):
    """The communicator belongs to the parent of this forked process. Call it there, or use ``collectives.spawn``."""


class BackendError(CollectivesError):
    """CUDA or NCCL reported an error; the text has its code and its message."""
