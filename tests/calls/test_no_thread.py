"""No thread can be started for an asynchronous call: the call never was, and nothing writes where it would have."""

from __future__ import annotations

import contextlib
import errno
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LARGE = 800_000


@contextlib.contextmanager
def no_more_threads() -> Iterator[None]:
    """There is no address space for the stack of another thread, and those of threads that have ended are taken."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), before[1]))
    over = threading.Event()
    started = []
    try:
        with contextlib.suppress(RuntimeError):
            while True:
                thread = threading.Thread(target=over.wait)
                thread.start()
                started.append(thread)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        over.set()
        for thread in started:
            thread.join()


def call(comm: Any, kind: str, x: np.ndarray[Any, Any], other: int) -> Any:
    if kind == "all_reduce":
        return comm.all_reduce(x, async_op=True)
    if kind == "a list":
        return comm.all_reduce([x[:10], x[10:]], async_op=True)
    if (kind == "send") == (comm.rank == 0):
        return comm.send(x, other, async_op=True)
    return comm.recv(x, other, async_op=True)


def without_a_thread(comm: Any, kind: str, count: int) -> str:
    other = 1 - comm.rank
    x = np.full(count, comm.rank + 1.0)
    text = ""
    if comm.rank == 0:
        dropped = np.full(count, 5.0)
        with no_more_threads(), pytest.raises(OSError, match="thread") as caught:
            call(comm, kind, dropped, other)
        assert caught.value.errno == errno.EAGAIN, caught.value
        text = str(caught.value)
    call(comm, kind, x, other).wait()
    if comm.rank == 0:
        assert (dropped == 5).all(), "the call that has failed has written all the same"
    expected = {"all_reduce": 3, "a list": 3, "send": 1, "recv": 2}[kind]
    assert (x == expected).all(), x
    assert comm.all_reduce(np.ones(10))[0] == 2
    return text


def a_callback_without_a_thread(comm: Any) -> None:
    called = threading.Event()
    work = comm.all_reduce(np.ones(1000), async_op=True)
    if comm.rank == 0:
        with no_more_threads(), pytest.raises(OSError, match="ulimit"):
            work.add_done_callback(lambda work: called.set())
        assert not called.is_set()
    work.add_done_callback(lambda work: called.set())
    assert called.wait(20), "the callback did not come"
    assert work.result()[0] == 2


def test_no_thread_for_a_callback(groups: Any) -> None:
    """Only that callback is refused; the call goes on, and another may be added."""
    groups(2, "shm").run(a_callback_without_a_thread, limit=20)


@pytest.mark.parametrize("count", [1000, LARGE])
@pytest.mark.parametrize("kind", ["all_reduce", "a list", "send", "recv"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_call_never_was(groups: Any, transport: str, kind: str, count: int) -> None:
    text, _ = groups(2, transport).run(without_a_thread, kind, count, limit=20)
    assert "ulimit" in text
