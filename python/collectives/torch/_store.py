"""The key-value store of torch.distributed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


def connect(host: str, port: int, seconds: float) -> Any:
    """A client of a ``TCPStore`` that another process serves; each call waits for at most so many seconds.

    Raises:
        ImportError: torch is not installed, or was built without ``torch.distributed``.
        RuntimeError: the store does not answer.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=seconds), wait_for_workers=False)


def is_lost(error: RuntimeError) -> bool:
    """Whether an error of a client means that the connection broke, not that the time is over."""
    from torch.distributed import DistNetworkError

    return isinstance(error, DistNetworkError)
