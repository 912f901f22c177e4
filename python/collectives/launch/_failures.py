"""Exceptions of functions that run as ranks: how they travel, and which of several is the root cause."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable

from ..errors import ClosedError, CollectivesError, DeadlineError, PeerError

_SETTLE = 2.0  # seconds to wait for the root cause after a rank has reported that another one failed
_CAUSE = 1  # a failure at this distance or less is the root cause


class RemoteError(Exception):
    """Shows the traceback of a rank as the cause of the exception that is raised here."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"\n\nin rank {rank}:\n{text}")


class Failures:
    """The failures of the ranks of one job."""

    def __init__(self) -> None:
        self._found: list[tuple[int, int, BaseException]] = []  # (how far from the cause, arrival, error)
        self._end: float | None = None

    def add(self, error: BaseException) -> None:
        """Adds the exception of a rank, with a `RemoteError` as its cause, or one made here for a rank that died."""
        # A rank's own exception or its death is the cause; a PeerError of a rank only tells that another has failed.
        if isinstance(error, PeerError) and error.__cause__ is None:
            distance = _CAUSE  # the rank died: this error was made here, not raised by a rank
        elif isinstance(error, DeadlineError):
            distance = 2
        elif isinstance(error, (PeerError, ClosedError)):
            distance = 3
        else:
            distance = 0
        self._found.append((distance, len(self._found), error))

    def patience(self) -> float | None:
        """Seconds to wait for further reports, 0 or less when the root cause is known; None: nothing has failed."""
        if not self._found:
            return None
        if min(failure[0] for failure in self._found) <= _CAUSE:
            return 0.0
        self._end = time.monotonic() + _SETTLE if self._end is None else self._end
        return self._end - time.monotonic()

    def root_cause(self) -> BaseException | None:
        """The failure that is nearest to the root cause; None where nothing has failed."""
        return min(self._found, key=lambda item: item[:2])[2] if self._found else None


def pickled(error: BaseException, dumps: Callable[[object], bytes] = pickle.dumps) -> bytes:
    """The pickled exception; empty where it cannot be pickled and unpickled, or would end the parent (SystemExit)."""
    if not isinstance(error, Exception):
        return b""
    try:
        payload = dumps(error)
        pickle.loads(payload)  # noqa: S301 (our own)
    except Exception:
        return b""
    return payload


def rebuilt(rank: int, payload: bytes, text: str) -> BaseException:
    """The exception of a rank from what `pickled` made of it, with its traceback `text` as the cause."""
    try:
        raised: BaseException = pickle.loads(payload)  # noqa: S301 (from a rank, which may run code anyway)
    except Exception:
        raised = CollectivesError(f"rank {rank} failed by an exception that cannot be pickled:\n{text}", rank=rank)
    raised.__cause__ = RemoteError(rank, text)
    return raised
