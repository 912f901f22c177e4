"""Arrays that a signal handler changes while their rank waits for the lengths and types of the others."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import collectives
import numpy as np
import pytest
import torch
from pool import Pools


@contextlib.contextmanager
def when_it_waits(comm: Any, act: Callable[[], None]) -> Iterator[None]:
    """Does something once in a signal handler, when the rank is in its next call."""

    def handler(*_: Any) -> None:
        if comm.recorder()[-1]["state"] == "done":
            # Not in the call yet. Only now, since on a slow machine a timer that repeats interrupts the handler itself.
            signal.setitimer(signal.ITIMER_REAL, 0.02)
        else:
            act()

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def call(comm: Any, collective: str, out: Any) -> Any:
    if collective == "scatter":
        return comm.scatter(None if comm.rank == 0 else np.arange(8.0) + 1, 1, out=out)
    return getattr(comm, collective)(np.arange(2.0) + 2 * comm.rank + 1, out=out)


def output_that_changes(comm: Any, collective: str, what: str) -> Any:
    """Rank 0 gives its output other memory, or another meaning."""
    with comm.dup() as other:
        if comm.rank != 0:
            other.barrier()  # returns when rank 0 is in its handler
            call(comm, collective, None)
            return None
        out: Any = torch.zeros(4, dtype=torch.float64) if what == "memory" else np.zeros(4)
        old = out.detach() if what == "memory" else np.zeros(4)

        def change() -> None:
            if what == "memory":
                out.data = torch.zeros(4, dtype=torch.float64)
            elif what == "dtype":
                out.dtype = np.int64
            else:
                out.flags.writeable = False
            other.barrier()

        with when_it_waits(comm, change):
            try:
                call(comm, collective, out)
            except ValueError as error:
                return str(error), out.tolist()
        return out.tolist(), old.tolist()


@pytest.mark.parametrize("collective", ["all_gather", "gather", "scatter"])
def test_an_output(pools: Pools, collective: str) -> None:
    pool = pools.get(2, "shm")
    assert pool.run(output_that_changes, collective, "memory")[0] == ([1.0, 2.0, 3.0, 4.0], [0.0] * 4)
    text, values = pool.run(output_that_changes, collective, "dtype")[0]
    assert "dtype int64" in text and values == [0] * 4
    text, values = pool.run(output_that_changes, collective, "nothing to be written")[0]
    assert "read-only" in text and values == [0.0] * 4


def input_that_changes(comm: Any, collective: str) -> str:
    """Rank 0 makes fewer and wider elements of those of its input: its memory is too short for a result of as many."""
    x = np.ones((4, 8), np.float32)

    def change() -> None:
        x.dtype = np.complex128
        other.barrier()

    with comm.dup() as other:
        if comm.rank != 0:
            other.barrier()
        with when_it_waits(comm, change) if comm.rank == 0 else contextlib.nullcontext():
            try:
                getattr(comm, collective)(x)
            except collectives.CollectivesError as error:
                return type(error).__name__
    return "no error"


@pytest.mark.parametrize("collective", ["all_gather", "gather"])
def test_an_input(collective: str) -> None:
    assert collectives.spawn(input_that_changes, 2, (collective,), timeout=10.0) == ["MismatchError"] * 2
