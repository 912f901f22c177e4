"""The key-value store of torch.distributed."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from .._startup import recorder
from .._startup.by_store import patience
from .._startup.wire import Deadline


def connect(host: str, port: int, seconds: float) -> Any:
    """A client of a ``TCPStore`` that another process serves; each call waits for at most so many seconds.

    Raises:
        ImportError: torch is not installed, or was built without ``torch.distributed``.
        RuntimeError: the store does not answer.
    """
    from torch.distributed import TCPStore

    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=seconds), wait_for_workers=False)


def is_lost(error: RuntimeError) -> bool:
    """Whether an error of a client means that the connection broke, not that the time is over."""
    from torch.distributed import DistNetworkError

    return isinstance(error, DistNetworkError)


def address(store: Any, key: str, rank: int, size: int, deadline: Deadline) -> tuple[str, int]:
    """An address of rank 0, or of the server of the store, by which the others reach it.

    Args:
        key: of the job; what the ranks have to tell each other for this is written beside it.
    """
    found = base(store)
    host, port = getattr(found, "host", None), getattr(found, "port", None)
    if isinstance(host, str) and isinstance(port, int):
        return host, port
    # A file, say, has no address; where all are on one machine, they need none that others can reach.
    with timeout_kept(store):
        store.set_timeout(timedelta(seconds=patience(deadline)))
        store.set(f"{key}/{rank}", recorder.machine())
        machines = {bytes(store.get(f"{key}/{other}")) for other in range(size)} if rank == 0 else set()
    return ("127.0.0.1" if len(machines) <= 1 else socket.gethostname()), 0


def base(store: Any) -> Any:
    """The store below prefixes."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


@contextlib.contextmanager
def timeout_kept(store: Any) -> Iterator[None]:
    """Restores the limit of the calls of a store."""
    before = store.timeout
    try:
        yield
    finally:
        store.set_timeout(before)
