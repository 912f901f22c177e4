"""Being told that an asynchronous call is over: callbacks, futures, `await`, `wait_all`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import collectives
import numpy as np
import pool
import pytest
from pool import Pools
from threaded import on_ranks

TRANSPORTS = ("local", "shm", "tcp")
LIMIT = 60.0  # seconds for what happens at once
WAITING = 5  # callbacks that wait at a time, each for the next


def start(comm: Any, value: float = 1, **options: Any) -> Any:
    return comm.all_reduce(np.full(3, value), async_op=True, **options)


def wait(event: threading.Event, what: str) -> None:
    assert event.wait(LIMIT), f"{what} did not come"


# --- callbacks --------------------------------------------------------------------------------------------------------


def a_callback_waits_for_another_collective(comm: Any) -> None:
    inner, sums, over = comm.dup(), [], threading.Event()

    def call(work: Any) -> None:
        sums.extend([work.result()[0], inner.all_reduce(np.ones(3))[0], start(inner).result()[0]])
        over.set()

    start(comm).add_done_callback(call)
    wait(over, "the callback")
    assert sums == [comm.size] * 3
    inner.close()


def callbacks_wait_for_each_other(comm: Any) -> None:
    """The first gets what it waits for from the last, so all run at a time."""
    over = [threading.Event() for _ in range(WAITING + 1)]
    seen = []

    def call(i: int, work: Any) -> None:
        seen.append(over[i + 1].wait(LIMIT))
        over[i].set()

    over[WAITING].set()
    for i in range(WAITING):
        start(comm).add_done_callback(functools.partial(call, i))
    wait(over[0], "the first callback")
    assert seen == [True] * WAITING


def many_callbacks(comm: Any) -> None:
    """Between blocking calls, which hold Python's lock while they take the engine's."""
    works, each = 1000, 10
    lists: list[list[int]] = [[] for _ in range(works)]
    for numbers in lists:
        work = start(comm)
        for i in range(each):
            work.add_done_callback(functools.partial(lambda numbers, i, work: numbers.append(i), numbers, i))
        assert comm.all_reduce(np.ones(1))[0] == comm.size
    after = threading.Event()
    start(comm).add_done_callback(lambda work: after.set())
    wait(after, "the last callback")
    end = time.monotonic() + LIMIT
    while sum(map(len, lists)) < works * each and time.monotonic() < end:
        time.sleep(0.01)  # a poll: another thread may still be inside the one before the last
    # Sorted, since one that the scheduler interrupts for some milliseconds is taken to be waiting, and is overtaken.
    assert [sorted(numbers) for numbers in lists] == [list(range(each))] * works


def a_finished_work_calls_back_by_another_thread(comm: Any) -> None:
    work, threads, over = start(comm), [], threading.Event()
    work.wait()

    def call(work: Any) -> None:
        threads.append((threading.get_ident(), signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        over.set()

    work.add_done_callback(call)
    wait(over, "the callback")
    assert threads[0][0] != threading.get_ident()
    assert not threads[0][1], "a program that a callback starts would have these signals blocked"


def wrong_arguments(comm: Any) -> None:
    work = start(comm)
    with pytest.raises(TypeError, match="pass a function"):
        work.add_done_callback(None)
    with pytest.raises(ValueError, match="timeout is -1"):
        collectives.wait_all([work], timeout=-1)
    work.wait()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "body",
    [
        a_callback_waits_for_another_collective,
        callbacks_wait_for_each_other,
        many_callbacks,
        a_finished_work_calls_back_by_another_thread,
        wrong_arguments,
    ],
)
def test_callbacks(pools: Pools, transport: str, body: Callable[[Any], None]) -> None:
    pools.get(2, transport).run(body)


def test_a_callback_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is reported once, with the call, and nothing else happens."""
    reports: list[tuple[str, str]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: reports.append((str(args.object), repr(args.exc_value))))

    def bad(work: Any) -> None:
        raise ValueError("no such bucket")

    def run(comm: Any) -> None:
        after = threading.Event()
        work = start(comm, name="grad")
        work.add_done_callback(bad)
        work.add_done_callback(lambda work: after.set())
        wait(after, "the callback after the one that raised")
        assert comm.all_reduce(np.ones(3))[0] == comm.size

    on_ranks(2, run)
    assert len(reports) == 2, reports
    for where, error in reports:
        assert "bad" in where and "all_reduce #" in where and "'grad'" in where, where
        assert error == "ValueError('no such bucket')"


def test_a_callback_sees_the_error() -> None:
    def run(comm: Any) -> Any:
        if comm.rank == 1:
            comm.close()
            return None
        errors, over = [], threading.Event()

        def call(work: Any) -> None:
            try:
                work.result()
            except collectives.CollectivesError as error:
                errors.append(error)
            over.set()

        work = start(comm, name="grad")
        work.add_done_callback(call)
        wait(over, "the callback")
        with pytest.raises(collectives.CollectivesError) as caught:
            collectives.wait_all([work])
        assert str(caught.value) == str(errors[0]) == str(work.future().exception(0))
        with pytest.raises(type(errors[0])):
            asyncio.run(awaited(work))
        return errors[0].name

    assert on_ranks(2, run) == ["grad", None]


# --- the end ----------------------------------------------------------------------------------------------------------


def test_close_waits_for_callbacks() -> None:
    def run(comm: Any) -> list[str]:
        events: list[str] = []
        begun = threading.Event()

        def close() -> None:
            comm.close()
            events.append("closed")

        closer = threading.Thread(target=close)

        def call(work: Any) -> None:
            closer.start()
            begun.set()
            closer.join(0.2)  # it does not end before this callback has returned
            events.append("returned")

        work = start(comm)
        work.add_done_callback(call)
        wait(begun, "the callback")
        closer.join()
        with pytest.raises(collectives.ClosedError):
            work.add_done_callback(call)
        assert work.future().result(0)[0] == comm.size
        return events

    assert on_ranks(2, run) == [["returned", "closed"]] * 2


def test_close_waits_for_works_with_callbacks() -> None:
    """As for those whose handles were dropped: so nobody need keep the handle of a work with a callback."""
    called = []

    def run(comm: Any) -> None:
        start(comm).add_done_callback(lambda work: called.append(work.result()[0]))
        comm.close()

    on_ranks(2, run)
    assert called == [2, 2]


def test_a_callback_may_close() -> None:
    def run(comm: Any) -> None:
        works = [start(comm) for _ in range(3)]
        collectives.wait_all(works)
        both, closed = threading.Barrier(2), []

        def call(work: Any) -> None:
            both.wait(LIMIT)  # two callbacks that close do not wait for each other
            comm.close()
            closed.append(comm.closed)

        for work in works[:2]:
            work.add_done_callback(call)
        comm.close()
        assert closed == [True, True]

    on_ranks(2, run)


def test_nothing_is_left() -> None:
    def run(comm: Any) -> None:
        works = [start(comm) for _ in range(1000)]
        count = []
        for work in works:
            work.add_done_callback(count.append)
        collectives.wait_all(works)
        comm.close()
        assert len(count) == 1000

    on_ranks(2, run)  # what is made once for the process
    gc.collect()
    before = pool.census()
    on_ranks(2, run)
    gc.collect()
    end = time.monotonic() + LIMIT
    while pool.census() != before and time.monotonic() < end:
        time.sleep(0.01)  # a poll: a thread that was joined is in /proc for a moment more
    assert pool.census() == before


IN_FLIGHT = """
import sys
import numpy as np, collectives

def say(text):
    sys.stdout.write(text + "\\n")  # at once, since callbacks may run side by side
    sys.stdout.flush()

comms = collectives.local_group(2)
works = []
for i in range(50):
    for comm in comms:
        works.append((comm, comm.all_reduce(np.ones(20_000), async_op=True, name=f"sum {i}")))

def call(comm, i, work):
    total = work.result()[0]
    if i == 98:
        raise RuntimeError("wanted")
    say(f"called {i} {total}")

for i, (comm, work) in enumerate(works):
    work.add_done_callback(lambda work, comm=comm, i=i: call(comm, i, work))
never = comms[0].all_reduce(np.ones(3), async_op=True)
never.add_done_callback(lambda work: say(f"failed {type(work.future().exception()).__name__}"))
"""

FORKED = """
import os, threading
import numpy as np, collectives

def in_turn():
    comms = collectives.local_group(2)
    works = [comm.all_reduce(np.ones(3), async_op=True) for comm in comms]
    over = [threading.Event() for _ in works]
    for work, event in zip(works, over):
        work.add_done_callback(lambda work, event=event: event.set())
    assert all(event.wait(60) for event in over)
    return comms, works

comms, works = in_turn()
child = os.fork()
if child == 0:
    try:
        works[0].add_done_callback(print)
    except collectives.ForkedError:
        in_turn()
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
in_turn()
"""


def program(text: str) -> tuple[list[str], str]:
    """The lines that the program prints and what it writes to stderr; it has to end with 0."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_callbacks_when_the_program_ends() -> None:
    """Those of all works run, also of works that are still in flight then; the program ends with 0."""
    lines, errors = program(IN_FLIGHT)
    assert sorted(lines) == sorted([f"called {i} 2.0" for i in range(100) if i != 98] + ["failed PeerError"])
    assert errors.count("RuntimeError: wanted") == 1, errors
    assert errors.count("Exception ignored in") == 1, errors
    assert "sum 49" in errors


def test_a_forked_child_has_no_callbacks() -> None:
    """It cannot add one to a work of its parent, and has a pool of its own for its own works."""
    assert program(FORKED)[0] == []


# --- futures and coroutines -------------------------------------------------------------------------------------------


async def awaited(work: Any) -> Any:
    return await work


async def gather(comm: Any) -> list[Any]:
    works = [start(comm, i, name=f"sum {i}") for i in range(100)]
    return await asyncio.gather(*works)


def gathered(comm: Any) -> None:
    assert [sums[0] for sums in asyncio.run(gather(comm))] == [i * comm.size for i in range(100)]


async def cancel(comm: Any) -> float:
    """A task that is cancelled while the other rank has not come: the operation goes on."""
    if comm.rank == 0:
        work = start(comm)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(awaited(work), 0.01)
        comm.send(np.ones(1), 1)
        return float((await work)[0])
    comm.recv(np.ones(1), 0)
    return float((await start(comm))[0])


def cancelled(comm: Any) -> None:
    assert asyncio.run(cancel(comm)) == comm.size


def futures(comm: Any) -> None:
    x = [np.full(3, float(i)) for i in range(10)]
    made = {comm.all_reduce(a, async_op=True).future(): i for i, a in enumerate(x)}
    assert not any(future.cancel() for future in made)
    for future in concurrent.futures.as_completed(made, LIMIT):
        assert future.result() is x[made[future]]
        assert future.result()[0] == comm.size * made[future]


def wait_for_all(comm: Any) -> None:
    """Of different calls and communicators; results come in the order of the works."""
    inner = comm.dup()
    parts = comm.all_gather(np.full(2, comm.rank), counts=2, async_op=True)
    results = collectives.wait_all([start(comm, 2), parts, comm.barrier(async_op=True), start(inner, 3)])
    assert results[0][0] == 2 * comm.size
    assert results[1].tolist() == [0, 0, 1, 1]
    assert results[2] is None
    assert results[3][0] == 3 * comm.size
    if comm.rank == 0:
        work = start(inner)
        with pytest.raises(TimeoutError):
            collectives.wait_all([work], timeout=0.01)
        comm.barrier()
        assert collectives.wait_all(iter([work]), timeout=LIMIT)[0][0] == comm.size
    else:
        comm.barrier()
        start(inner).wait()
    assert collectives.wait_all([]) == []
    inner.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("body", [gathered, cancelled, futures, wait_for_all])
def test_waiting(pools: Pools, transport: str, body: Callable[[Any], None]) -> None:
    pools.get(2, transport).run(body)
