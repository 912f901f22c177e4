"""Failures stay within the group: who dies, disagrees, comes late or leaves concerns the groups that it is in."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pool
import pytest
from collectives import _core
from pool import NOTICED, TRANSPORTS, Pools

PROCESSES = ["shm", "tcp"]


def fails(call: Any) -> Any:
    """The error of a call that is made until it fails; a rank that only sends may get through at first."""
    for _ in range(10_000):
        try:
            call()
        except Exception as error:
            return error
    raise AssertionError("no error")


def killed(comm: Any, busy: bool) -> list[Any]:
    """Rank 1 of 4 dies. Groups: 0 and 1; 2 and 3; 3, 2 and 1."""
    import collectives

    pairs = comm.split(comm.rank // 2)
    tail = comm.new_group([3, 2, 1])
    bystander = comm.new_group([3, 0, 2])
    spare = comm.new_group([2, 0, 3])
    works = []
    if comm.rank > 1:
        # One that this rank waits for first, and another; both are under way when the rank dies.
        works = [tail.barrier(async_op=True), comm.barrier(async_op=True)]
    pool.say("ready")
    if comm.rank == 1:
        while busy:
            pairs.all_reduce(np.ones(1000))
        pool.hear()
    if comm.rank == 0:
        error = fails(lambda: pairs.all_reduce(np.ones(1000)))
        expected = [1, "rank 1 ("]
    else:
        error = fails(works[0].wait)
        world_error = fails(works[1].wait)
        assert isinstance(world_error, collectives.PeerError)
        assert world_error.peer == 1
        expected = [2, "rank 2 (world rank 1, "]
    ended = time.monotonic()
    assert isinstance(error, collectives.PeerError), error
    assert error.peer == expected[0]
    assert expected[1] in str(error), error
    # The others go on, and can be split on; the groups of the dead stay what they are.
    for _ in range(50):
        assert bystander.all_reduce(np.full(1000, comm.rank))[0] == 5
    if comm.rank != 0:
        assert pairs.all_reduce(np.full(100_000, comm.rank))[0] == 5
        with pytest.raises(collectives.PeerError, match="failed before"):
            tail.barrier()
    # The memory of groups that the dead one was in is used again.
    del tail
    for _ in range(100):
        with bystander.split(bystander.rank // 2) as group:
            group.all_reduce(np.ones(10_000))
    spare.close()
    return [ended]


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("transport", PROCESSES)
def test_killed(pools: Pools, transport: str, busy: bool) -> None:
    group = pools.get(4, transport)
    group.start(killed, busy)
    for rank in group.ranks:
        assert rank.event() == "ready"
    since = time.monotonic()
    group.ranks[1].signal(signal.SIGKILL)
    outcomes = group.collect(30)
    # One that fails keeps the others waiting, so all are shown.
    wrong = {r: outcomes[r].text or outcomes[r].error for r in (0, 2, 3) if outcomes[r].error is not None}
    assert not wrong, "\n".join(f"rank {r}: {text}" for r, text in wrong.items())
    for survivor in (0, 2, 3):
        assert outcomes[survivor].value[0] - since < NOTICED


def disagree(comm: Any, asynchronous: bool) -> None:
    import collectives

    rows = comm.split(comm.rank // 2)
    other = comm.dup()
    evens = comm.split(comm.rank % 2)
    works = [comm.all_reduce(np.full(50_000, comm.rank), async_op=True) for _ in range(5)]
    if comm.rank < 2:
        x = np.ones(10, np.float32 if comm.rank == 0 else np.float64)
        with pytest.raises(collectives.MismatchError, match="dtype: rank 0 has float32, rank 1 has float64"):
            rows.all_reduce(x, async_op=True).wait() if asynchronous else rows.all_reduce(x)
        with pytest.raises(collectives.MismatchError, match="failed before"):
            rows.barrier()
    else:
        # The sibling of the same split, which has the same number.
        for _ in range(20):
            assert rows.all_reduce(np.full(2000, comm.rank))[0] == 5
    for work in works:
        assert work.result()[0] == 6
    for _ in range(20):
        assert other.all_reduce(np.full(300, comm.rank))[0] == 6
        assert evens.all_reduce(np.ones(70_000))[0] == 2
    # A new one in place of the one that failed.
    rows.close()
    with comm.split(comm.rank // 2) as again:
        assert again.all_reduce(np.ones(10))[0] == 2


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_mismatch(pools: Pools, transport: str, asynchronous: bool) -> None:
    for _ in range(3):
        pools.get(4, transport).run(disagree, asynchronous)


def two_fail_at_once(comm: Any) -> None:
    """Two groups of the same ranks fail while both have messages on the way; the third one's go through."""
    import collectives

    first, second, third = comm.dup(), comm.dup(), comm.dup()
    large = [np.ones(1 << 20) for _ in range(3)]
    all_three = zip((first, second, third), large, strict=True)
    works = [group.all_reduce(x, async_op=True, algorithm="ring") for group, x in all_three]
    third.barrier()  # so that all have begun
    bad = 10 + (comm.rank == 0)
    errors = [fails(lambda g=g: g.all_reduce(np.ones(bad), async_op=True).wait()) for g in (first, second)]
    assert all(isinstance(e, collectives.MismatchError) for e in errors), errors
    assert works[2].result()[-1] == comm.size
    for _ in range(10):
        assert third.all_reduce(np.ones(100_000))[-1] == comm.size
        assert comm.all_reduce(np.ones(10))[-1] == comm.size


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_groups_fail_at_once(pools: Pools, transport: str) -> None:
    for _ in range(5):
        pools.get(3, transport).run(two_fail_at_once)


def late(comm: Any) -> None:
    import collectives

    group, other = comm.dup(), comm.split(0, -comm.rank)
    small = comm.dup()
    if comm.rank != 2:
        for slow, count in ((small, 100), (group, 1 << 20)):  # the second in the middle of its messages
            with pytest.raises(collectives.DeadlineError, match=r"rank 2\b"):
                slow.all_reduce(np.ones(count), timeout=0.4)
    assert other.all_reduce(np.ones(200_000))[0] == comm.size
    assert comm.all_reduce(np.ones(200_000))[0] == comm.size
    if comm.rank == 2:
        with pytest.raises(collectives.DeadlineError):
            group.all_reduce(np.ones(1 << 20))
    comm.barrier()
    small.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_deadline(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(late)


def one_closes(comm: Any, dropped: bool) -> float:
    import collectives

    group = comm.new_group([2, 1, 0])
    others = comm.split(comm.rank % 2)
    work = comm.barrier(async_op=True)
    if comm.rank == 1:
        group.barrier()
        if dropped:
            del group
        else:
            group.close()
        comm.barrier()
    else:
        group.barrier()
        comm.barrier()
        began = time.monotonic()
        for call in (lambda: group.all_reduce(np.ones(100_000)), group.barrier):
            with pytest.raises(collectives.PeerError, match=r"rank 1 .*has left the group"):
                call()
        assert time.monotonic() - began < NOTICED
    work.wait()
    assert others.all_reduce(np.ones(10))[0] == others.size
    assert comm.all_reduce(np.ones(10))[0] == 3
    return 0


@pytest.mark.parametrize("dropped", [False, True], ids=["closed", "dropped"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_closed_by_one(pools: Pools, transport: str, dropped: bool) -> None:
    pools.get(3, transport).run(one_closes, dropped)


def closed_at_once(comm: Any) -> None:
    """All but rank 0 leave while it may still be making the group, and it gets the error all the same."""
    import collectives

    for _ in range(60):
        group = comm.dup()
        if comm.rank != 0:
            group.close()
            continue
        with pytest.raises(collectives.PeerError, match="has left the group"):
            group.barrier(timeout=10)
    comm.barrier()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_closed_at_once(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(closed_at_once)


def all_close(comm: Any) -> None:
    """In good order and all at once, right behind a collective whose last messages others may still be reading."""
    for i in range(100):
        with comm.split(0, i * comm.rank) as group:
            group.all_reduce(np.ones([10, 20_000, 300_000][i % 3]), algorithm="ring" if i % 2 else "auto")
            group.broadcast(np.ones(20_000), root=i % comm.size)
    comm.barrier()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("n", [2, 4])
def test_closed_by_all(pools: Pools, transport: str, n: int) -> None:
    pools.get(n, transport).run(all_close)


def close_the_parent(comm: Any) -> None:
    child = comm.split(comm.rank % 2)
    grandchild = child.dup()
    comm.close()
    for _ in range(10):
        child.all_reduce(np.ones(20_000))
        grandchild.barrier()
    child.close()
    assert grandchild.all_reduce(np.ones(200_000))[0] == grandchild.size
    with grandchild.dup() as more:
        more.barrier()
    pool.say("done")
    if pool.hear() == "end":
        return
    with pytest.raises(Exception, match="has left the group" if comm.rank == 0 else "is gone: ") as info:
        grandchild.barrier()
    assert type(info.value).__name__ == "PeerError"
    grandchild.close()


@pytest.mark.parametrize("transport", PROCESSES)
def test_children_outlive_their_parent(groups: Any, transport: str) -> None:
    """Also for what the ranks notice of each other: that one ends in good order, and that one is killed."""
    group = groups(4, transport)
    group.start(close_the_parent)
    for rank in group.ranks:
        assert rank.event() == "done"
    group.ranks[3].signal(signal.SIGKILL)
    group.ranks[3].process.wait()
    group.ranks[2].tell("end")
    assert group.ranks[2].outcome(time.monotonic() + 20).error is None
    group.ranks[2].link.close()  # its process comes to an end, and leaves the group
    group.ranks[2].process.wait(20)
    for survivor in (0, 1):
        group.ranks[survivor].tell("go on")
        outcome = group.ranks[survivor].outcome(time.monotonic() + 20)
        assert outcome.error is None, outcome.text


def interrupted(comm: Any) -> str:
    group = comm.split(0, -comm.rank)
    pool.say("ready")
    if comm.rank == 1:
        pool.hear()
    try:
        group.barrier()
        result = "returned"
    except KeyboardInterrupt:
        result = "KeyboardInterrupt"
    except Exception as error:
        result = f"{type(error).__name__} {error}"
    pool.say("over")
    assert comm.all_reduce(np.ones(10))[0] == 3
    return result


@pytest.mark.parametrize("transport", PROCESSES)
def test_ctrl_c(pools: Pools, transport: str) -> None:
    group = pools.get(3, transport)
    group.start(interrupted)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[0].signal(signal.SIGINT)
    assert group.ranks[0].event() == "over"
    # Rank 2 waits too and gets the error. Were rank 1 first, all had come to the barrier, and rank 2 might return.
    assert group.ranks[2].event() == "over"
    group.ranks[1].tell("go on")
    assert group.ranks[1].event() == "over"
    values = [outcome.value for outcome in group.collect(20)]
    assert values[0] == "KeyboardInterrupt", values
    for value in values[1:]:
        assert value.startswith("PeerError rank"), values
        assert "rank 2 (world rank 0" in value
        assert "Ctrl-C" in value


def fork(comm: Any) -> str:
    group = comm.split(0, -comm.rank)
    symmetric = group.empty(1000)
    symmetric[...] = comm.rank
    read, write = os.pipe()
    propose = functools.partial(_core._propose, comm)
    child = os.fork()
    if child == 0:
        text = []
        # The last is the first thing that dup() does: it must not wait for a lock that no thread of the child has.
        for call in (group.barrier, comm.dup, lambda: group.split(0), lambda: group.new_group([0]), propose):
            try:
                call()
                text.append("no error")
            except BaseException as error:
                text.append(type(error).__name__)
        group.close()
        del group, symmetric, call, propose
        os.write(write, " ".join(text).encode())
        os._exit(0)
    os.close(write)
    text = b""
    while piece := os.read(read, 65536):
        text += piece
    os.close(read)
    os.waitpid(child, 0)
    assert (symmetric == comm.rank).all()
    assert group.all_reduce(symmetric)[0] == sum(range(comm.size))
    with group.dup() as more:
        more.barrier()
    return text.decode()


@pytest.mark.parametrize("transport", PROCESSES)
def test_fork(pools: Pools, transport: str) -> None:
    assert pools.get(3, transport).run(fork) == [" ".join(["ForkedError"] * 5)] * 3


def blocked_thread(comm: Any) -> list[str]:
    """A thread waits in a group with the victim while the main thread uses one without."""
    with_victim = comm.dup()
    without = comm.split(comm.rank if comm.rank == 1 else 0)
    heard: list[str] = []
    pool.say("ready")
    if comm.rank == 1:
        pool.hear()

    def wait() -> None:
        heard.append(type(fails(with_victim.barrier)).__name__)

    thread = threading.Thread(target=wait)
    thread.start()
    # All go on until the threads of all are over.
    while without.all_reduce(np.array([thread.is_alive()]), "max")[0]:
        assert without.all_reduce(np.ones(10_000))[0] == 2
    thread.join()
    return heard


@pytest.mark.parametrize("transport", PROCESSES)
def test_killed_while_a_thread_waits(pools: Pools, transport: str) -> None:
    group = pools.get(3, transport)
    group.start(blocked_thread)
    for rank in group.ranks:
        assert rank.event() == "ready"
    since = time.monotonic()
    group.ranks[1].signal(signal.SIGKILL)
    outcomes = group.collect(20)
    for survivor in (0, 2):
        assert outcomes[survivor].value == ["PeerError"], outcomes[survivor].text
        assert outcomes[survivor].ended - since < NOTICED + 1
