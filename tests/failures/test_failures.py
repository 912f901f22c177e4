"""Waits that end: deadlines, timeouts of a wait, Ctrl-C, forks, and closing with collectives in flight."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from typing import Any

import collectives
import numpy as np
import pool
import pytest
from pool import NOTICED, Outcome, Pools

PROCESSES = ["shm", "tcp"]


def call_late(comm: Any, late: int, timeout: float) -> list[Any]:
    """All but one call with a timeout; the late one calls when it is told to."""
    pool.say("ready")
    if comm.rank == late:
        pool.hear()
    began = time.monotonic()
    try:
        x = comm.all_reduce(np.ones(10), timeout=timeout, name="gradient")
        # A rank that comes late may find all it needs, and then has the right result; no more than that.
        assert comm.rank == late
        assert np.all(x == comm.size)
        comm.all_reduce(np.ones(10), timeout=timeout)
    except Exception as error:
        return [type(error).__name__, str(error), error.peer, time.monotonic() - began]  # type: ignore[attr-defined]
    return ["returned"]


@pytest.mark.parametrize("transport", PROCESSES)
def test_deadline_names_a_stopped_rank(pools: Pools, transport: str) -> None:
    group = pools.get(3, transport)
    group.start(call_late, 1, 1.2)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[1].signal(signal.SIGSTOP)
    try:
        end = time.monotonic() + 20
        outcomes = [group.ranks[r].outcome(end) for r in (0, 2)]
    finally:
        group.ranks[1].signal(signal.SIGCONT)
    group.broken = True
    for outcome in outcomes:
        name, text, peer, took = outcome.value
        assert name == "DeadlineError", outcome
        assert "rank 1" in text
        assert "gradient" in text
        assert "timeout" in text
        assert peer == 1
        assert 1.1 <= took < 1.2 + NOTICED  # reported by another, whose clock began a little earlier
    # When it goes on it must receive the report, and get no result.
    group.ranks[1].tell("go on")
    late = group.ranks[1].outcome(time.monotonic() + 20).value
    assert late[0] in ("DeadlineError", "PeerError"), late
    assert late[3] < 1.2 + NOTICED


def call_late_in_thread(comm: Any, timeout: float) -> list[Any]:
    if comm.rank == 1:
        return []
    began = time.monotonic()
    with pytest.raises(Exception, match="rank 1") as info:
        comm.barrier(timeout=timeout)
    return [type(info.value).__name__, time.monotonic() - began]


def test_deadline_between_threads(pools: Pools) -> None:
    for rank, value in enumerate(pools.get(3, "local").run(call_late_in_thread, 0.7)):
        if rank != 1:
            assert value[0] == "DeadlineError"
            assert 0.6 <= value[1] < 0.7 + NOTICED


thread_of_rank_1: queue.SimpleQueue[int] = queue.SimpleQueue()


def last_call_sooner(comm: Any, timeout: float) -> float:
    x = np.ones(4, np.float32)
    if comm.rank == 1:
        thread_of_rank_1.put(threading.get_native_id())
    else:  # only a call that does not wait is kept for the next one
        pool.await_sleep(os.getpid(), thread_of_rank_1.get(timeout=pool.LIMIT))
    comm.all_reduce(x)
    began = time.monotonic()
    if comm.rank == 0:
        with pytest.raises(collectives.DeadlineError, match="rank 1"):
            comm.all_reduce(x, timeout=timeout)
    return time.monotonic() - began


def test_deadline_of_the_last_call_again_with_another_timeout(pools: Pools) -> None:
    took = pools.get(2, "local").run(last_call_sooner, 0.7)[0]
    assert 0.6 <= took < 0.7 + NOTICED


def barrier_alone(comm: Any) -> float:
    began = time.monotonic()
    with pytest.raises(Exception, match="rank 1") as info:
        comm.barrier()
    assert type(info.value).__name__ == "DeadlineError"
    return time.monotonic() - began


def test_timeout_of_the_communicator(groups: Any) -> None:
    group = groups(2, "shm", timeout=6.0)
    group.ranks[0].call(barrier_alone)
    outcome = group.ranks[0].outcome(time.monotonic() + 20)
    assert outcome.error is None, outcome.text
    assert 6.0 <= outcome.value < 6.0 + NOTICED


def wait_in_slices(comm: Any) -> list[Any]:
    x = np.full(1000, comm.rank + 1.0)
    if comm.rank == 1:
        pool.say("ready")
        pool.hear()
        comm.all_reduce(x)
        return [x[0]]
    work = comm.all_reduce(x, async_op=True)
    took = []
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            work.wait(0.2)
        took.append(time.monotonic() - began)
        assert not work.done()
    with pytest.raises(TimeoutError):
        work.wait(0)
    pool.say("ready")
    result = work.result(20)
    assert result is x
    assert work.done()
    work.wait()
    work.wait(0)
    assert all(0.2 <= t < 0.2 + NOTICED for t in took), took
    return [x[0]]


@pytest.mark.parametrize("transport", PROCESSES)
def test_wait_with_timeout_leaves_the_work_pending(pools: Pools, transport: str) -> None:
    group = pools.get(2, transport)
    group.start(wait_in_slices)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[1].tell("go on")
    outcomes = group.collect(20)
    assert [o.value for o in outcomes] == [[3.0], [3.0]], outcomes


def fork_and_call(comm: Any, in_flight: bool) -> list[str]:
    """Every rank forks; the child may not call, the parent goes on."""
    import collectives

    comm.barrier()
    x = np.full(300_000, comm.rank + 1.0)
    work = comm.all_reduce(x, async_op=True) if in_flight else None
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        texts = []
        calls = [
            lambda: comm.all_reduce(np.ones(3)),
            lambda: comm.all_reduce([np.ones(3)]),
            lambda: comm.barrier(async_op=True),
        ]
        for call in calls:
            try:
                call()
                texts.append("no error")
            except collectives.ForkedError as error:
                texts.append(f"ForkedError {error}")
            except BaseException as error:
                texts.append(repr(error))
        comm.close()
        os.write(write, "\n".join(texts).encode())
        os._exit(0)
    os.close(write)
    text = b""
    while piece := os.read(read, 65536):
        text += piece
    os.close(read)
    os.waitpid(child, 0)
    if work is not None:
        work.wait()
        assert x[0] == x[-1] == sum(range(1, comm.size + 1))
    assert comm.all_reduce(np.ones(5000))[0] == comm.size
    return text.decode().split("\n")


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("transport", PROCESSES)
def test_fork(pools: Pools, transport: str, in_flight: bool) -> None:
    for texts in pools.get(3, transport).run(fork_and_call, in_flight, limit=30):
        assert len(texts) == 3
        assert all(t.startswith("ForkedError") and "spawn" in t for t in texts), texts


def fork_and_wait(comm: Any) -> None:
    """The victim has a child that outlives it and holds whatever it inherited."""
    comm.barrier()
    if comm.rank == 1:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            signal.pause()
            os._exit(0)
        pool.say(child)
        pool.hear()
    pool.say("ready")
    while True:
        comm.all_reduce(np.ones(10))


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_child_of_the_dead_does_not_hide_the_death(pools: Pools, transport: str) -> None:
    group = pools.get(3, transport)
    group.start(fork_and_wait)
    child = group.ranks[1].event()
    try:
        for survivor in (0, 2):
            assert group.ranks[survivor].event() == "ready"
        since = time.monotonic()
        group.ranks[1].signal(signal.SIGKILL)
        group.broken = True
        end = time.monotonic() + 10
        for survivor in (0, 2):
            outcome: Outcome = group.ranks[survivor].outcome(end)
            assert type(outcome.error).__name__ == "PeerError", outcome
            assert outcome.ended - since < NOTICED
    finally:
        os.kill(child, signal.SIGKILL)
    group.ranks[1].close(0)


def call_all_but_last(comm: Any, asynchronous: bool) -> None:
    pool.say("ready")
    if comm.rank == comm.size - 1:
        pool.hear()
    if asynchronous:
        comm.all_reduce(np.ones(10), async_op=True).wait()
    else:
        comm.all_reduce(np.ones(10))
    # The last one may have found all it needs in the first call.
    assert comm.rank == comm.size - 1
    comm.barrier()


def exit_by_a_handler(comm: Any) -> None:
    """As programs do that want to leave in good order when they are told to end."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(3)

    before = signal.signal(signal.SIGTERM, leave)
    pool.say("ready")
    try:
        comm.recv(np.ones(3), 1 - comm.rank)
    except SystemExit as error:
        raise RuntimeError(f"SystemExit {error.code}") from error
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("transport", PROCESSES)
def test_an_interruption_is_called_by_what_it_was(pools: Pools, transport: str) -> None:
    group = pools.get(2, transport)
    group.start(exit_by_a_handler)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[1].await_sleep()
    group.ranks[0].signal(signal.SIGTERM)
    first, second = group.collect(20)
    group.broken = True
    assert "SystemExit 3" in str(first.error), first
    assert type(second.error).__name__ == "PeerError", second
    assert "SystemExit" in str(second.error) and "Ctrl-C" not in str(second.error)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize("transport", PROCESSES)
def test_ctrl_c(pools: Pools, transport: str, asynchronous: bool) -> None:
    group = pools.get(3, transport)
    group.start(call_all_but_last, asynchronous)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[1].await_sleep()
    since = time.monotonic()
    group.ranks[0].signal(signal.SIGINT)
    end = time.monotonic() + 20
    first, second = group.ranks[0].outcome(end), group.ranks[1].outcome(end)
    assert isinstance(first.error, KeyboardInterrupt), first
    assert first.ended - since < NOTICED
    assert type(second.error).__name__ == "PeerError", second
    assert second.error.peer == 0  # type: ignore[union-attr]
    assert "Ctrl-C" in str(second.error)
    assert second.ended - since < NOTICED
    group.ranks[2].tell("go on")
    third = group.ranks[2].outcome(end)
    assert type(third.error).__name__ == "PeerError", third
    group.broken = True


def close_in_flight(comm: Any) -> list[str]:
    import collectives

    if comm.rank != 0:
        pool.say("ready")
        pool.hear()
        try:
            for _ in range(21):  # some of the barriers of rank 0 may have got through before it closed
                comm.barrier()
        except collectives.CollectivesError as error:
            return [type(error).__name__, str(error)]
        return ["no error"]
    works = [comm.barrier(async_op=True) for _ in range(20)]
    comm.close()
    found = []
    for work in works:
        assert work.done()
        try:
            work.wait(5)
            found.append("no error")
        except collectives.CollectivesError as error:
            found.append(type(error).__name__)
    pool.say("closed")
    return found


@pytest.mark.parametrize("transport", PROCESSES)
def test_close_with_works_in_flight(pools: Pools, transport: str) -> None:
    """Nothing hangs: the works fail, and the others get the error when they call."""
    group = pools.get(3, transport)
    group.start(close_in_flight)
    for rank in group.ranks:
        assert rank.event() in ("ready", "closed")
    for rank in group.ranks[1:]:
        rank.tell("go on")
    outcomes = group.collect(20)
    for outcome in outcomes:
        assert outcome.error is None, outcome.text
    assert outcomes[0].value == ["ClosedError"] * 20
    for outcome in outcomes[1:]:
        assert outcome.value[0] in ("ClosedError", "PeerError"), outcome.value
        assert "rank 0" in outcome.value[1]


def drop_works(comm: Any) -> float:
    """Handles that are not kept: the arrays stay until the collective is over."""
    for i in range(50):
        comm.all_reduce(np.full(1000, float(i)), async_op=True)
        comm.all_reduce([np.full(10, 1.0), np.full(70_000, 2.0)], async_op=True)
    return float(comm.all_reduce(np.ones(3))[0])


@pytest.mark.parametrize("transport", ["local", *PROCESSES])
def test_dropped_handles(pools: Pools, transport: str) -> None:
    assert pools.get(3, transport).run(drop_works) == [3.0, 3.0, 3.0]
