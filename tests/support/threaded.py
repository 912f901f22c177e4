"""Ranks and other work in threads of one process."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import collectives

Errors = tuple[type[BaseException], ...]


def in_threads(bodies: Sequence[Callable[[], Any]], expected: Errors = ()) -> list[Any]:
    """What each of the bodies returns, or raises, where that is expected.

    Other errors are raised when all have ended.
    """
    results: list[Any] = [None] * len(bodies)
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            results[i] = bodies[i]()
        except expected as error:
            results[i] = error
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def on_ranks(n: int, work: Callable[[Any], Any], expected: Errors = (), timeout: float | None = 60) -> list[Any]:
    """What `work(communicator)` returns, as `in_threads`, on each rank of a group of threads."""

    def guarded(comm: Any) -> Any:
        try:
            return work(comm)
        except expected:
            raise
        except BaseException:
            comm.close()  # so that the others do not wait for it
            raise

    comms = collectives.local_group(n, timeout=timeout)
    try:
        return in_threads([functools.partial(guarded, comm) for comm in comms], expected)
    finally:
        for comm in comms:
            comm.close()
