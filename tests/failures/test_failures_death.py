"""Ranks that die: every survivor raises PeerError that names the dead one, within a second, whatever it was doing."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
import pool
import pytest
import tiers
from deaths import assert_noticed, kill
from pool import NOTICED, Outcome, Pools

VICTIM = 1
TRANSPORTS = ["shm", "tcp"]
PARTS = ["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"]
CALLS = ["all_reduce", "large all_reduce", "list", "broadcast", "large broadcast", "reduce", "large reduce", "barrier"]
WAYS = [(name, asynchronous) for name in CALLS for asynchronous in (False, True)]
WAYS += [("scan", True), ("large scan", False), ("exscan", False), ("large exscan", True)]
WAYS += [(name, True) for name in PARTS] + [(f"large {name}", False) for name in PARTS]


def start_parts(comm: Any, collective: str, x: Any, root: int, **more: Any) -> Any:
    """One of the vector collectives, of an array that can be split evenly."""
    if collective in ("gather", "scatter"):
        more["root"] = root
    if collective == "scatter" and comm.rank != root:
        x = None
    return getattr(comm, collective)(x, **more)


def start(comm: Any, name: str, root: int, **more: Any) -> Any:
    """One of the collectives, as the survivors call it."""
    large = np.ones(1 << 20, np.float32)
    small = np.ones(10, np.float32)
    if name == "list":
        return comm.all_reduce([small, large], **more)
    x = large if name.startswith("large") else small
    if name.split()[-1] in PARTS:
        return start_parts(comm, name.split()[-1], x[: x.size // comm.size * comm.size], root, **more)
    if name.endswith("scan"):
        return getattr(comm, name.split()[-1])(x, **more)
    if name.endswith("all_reduce"):
        return comm.all_reduce(x, **more)
    if name.endswith("broadcast"):
        return comm.broadcast(x, root, **more)
    if name.endswith("reduce"):
        return comm.reduce(x, "sum", root, **more)
    return comm.barrier(**more)


def call_or_wait(comm: Any, name: str, root: int, asynchronous: bool) -> str:
    """On survivors: calls. On the victim: only says so and waits for its end."""
    pool.say("ready")
    if comm.rank == VICTIM:
        pool.hear()
        return "alive"
    if asynchronous:
        works = [start(comm, name, root, async_op=True) for _ in range(3)]
        for work in works[1:]:
            try:
                work.wait()
            except Exception as error:
                assert type(error).__name__ == "PeerError", error
        works[0].wait()
    else:
        # A root that only sends may be through before it can know.
        for _ in range(10_000):
            start(comm, name, root)
    return "returned"


@pytest.mark.pairwise
@pytest.mark.parametrize(("name", "asynchronous"), WAYS, ids=lambda w: {False: "blocking", True: "async"}.get(w, w))
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_killed_while_others_wait(pools: Pools, transport: str, name: str, asynchronous: bool) -> None:
    group = pools.get(3, transport)
    group.start(call_or_wait, name, VICTIM, asynchronous)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[2].await_sleep()
    since = kill(group, VICTIM)
    outcomes = group.collect(20)
    assert isinstance(outcomes[VICTIM].error, pool.RankDied)
    assert_noticed(outcomes, VICTIM, since)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("n", [2, 5])
def test_killed_in_groups_of_other_sizes(pools: Pools, transport: str, n: int) -> None:
    group = pools.get(n, transport)
    group.start(call_or_wait, "large all_reduce", 0, False)
    for rank in group.ranks:
        assert rank.event() == "ready"
    since = kill(group, VICTIM)
    assert_noticed(group.collect(20), VICTIM, since)


def loop(comm: Any, seed: int) -> int:
    """Collectives of all kinds until something fails; every result is checked."""
    rng = random.Random(seed)
    total = sum(range(1, comm.size + 1))
    pool.say("looping")
    pending: list[Any] = []
    for _ in range(10**9):
        kind = rng.choice(["all_reduce", "broadcast", "reduce", "barrier", "list", "async", *PARTS])
        x = np.full(rng.choice([1, 10, 3000, 100_000, 700_000]), comm.rank + 1, np.float32)
        root = rng.randrange(comm.size)
        if kind == "barrier":
            comm.barrier()
        elif kind == "broadcast":
            comm.broadcast(x, root)
            assert x[0] == x[-1] == root + 1
        elif kind in PARTS:
            x = np.resize(x, -(-x.size // comm.size) * comm.size)
            result = start_parts(comm, kind, x, root)
            if kind in ("scatter", "reduce_scatter"):
                assert result[0] == result[-1] == (root + 1 if kind == "scatter" else total)
            elif kind != "gather" or comm.rank == root:
                assert (result[:: result.size - 1] == (1, comm.size)).all()
        elif kind == "list":
            y = np.full(17, comm.rank + 1, np.float32)
            comm.all_reduce([y, x])
            assert x[0] == x[-1] == y[0] == y[-1] == total
        elif kind == "async":
            pending.append((comm.all_reduce(x, async_op=True), x))
            if len(pending) > 3:
                for work, array in reversed(pending):
                    work.wait()
                    assert array[0] == array[-1] == total
                pending.clear()
        elif kind == "all_reduce":
            comm.all_reduce(x)
            assert x[0] == x[-1] == total
        else:
            comm.reduce(x, "sum", root)
            assert comm.rank != root or x[0] == x[-1] == total
    return 0


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("trial", range(tiers.few(5, full=10)))
def test_killed_at_any_instant(pools: Pools, transport: str, trial: int) -> None:
    rng = random.Random(1000 + trial)
    n = rng.choice([2, 3, 4])
    victim = rng.randrange(n)
    group = pools.get(n, transport)
    group.start(loop, trial)
    for rank in group.ranks:
        assert rank.event() == "looping"
    time.sleep(rng.uniform(0, 0.3))  # the instant, not a wait for something
    since = kill(group, victim)
    assert_noticed(group.collect(20), victim, since)


def leave(comm: Any, how: str) -> None:
    """The victim goes in one of several ways; the others call until that shows."""
    comm.barrier()
    if comm.rank == VICTIM:
        if how == "os._exit":
            os._exit(0)
        if how == "raises":
            raise pool.Leave("on purpose")
        if how == "closes":
            comm.close()
            return
        if how == "drops":
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
    while True:
        comm.all_reduce(np.ones(10))


@pytest.mark.pairwise
@pytest.mark.parametrize("how", ["os._exit", "raises", "closes", "drops"])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("n", [2, 3])
def test_leaves_early(pools: Pools, transport: str, n: int, how: str) -> None:
    group = pools.get(n, transport)
    since = time.monotonic()
    group.start(leave, how)
    # The interpreter of the victim takes its time to end by itself.
    assert_noticed(group.collect(20), VICTIM, since, NOTICED + 3)


def close_one(comm: Any) -> None:
    comm.barrier()
    if comm.rank == VICTIM:
        comm.close()
        return
    while True:
        comm.all_reduce(np.ones(10))


def test_thread_that_leaves_early(pools: Pools) -> None:
    since = time.monotonic()
    assert_noticed(pools.get(3, "local").outcomes(close_one, limit=20), VICTIM, since)


def test_process_that_ends_in_good_order(pools: Pools) -> None:
    """The others learn that it left, not that it died."""
    for transport in TRANSPORTS:
        group = pools.get(3, transport)
        others = [group.ranks[0], group.ranks[2]]
        for rank in others:
            rank.call(call_or_wait, "barrier", 0, False)
        for rank in others:
            assert rank.event() == "ready"
        since = time.monotonic()
        group.ranks[VICTIM].close()
        group.broken = True
        outcomes = [rank.outcome(time.monotonic() + 20) for rank in others]
        assert_noticed([outcomes[0], Outcome(), outcomes[1]], VICTIM, since, NOTICED + 3)
        assert all("has left" in str(o.error) for o in outcomes), [o.error for o in outcomes]


def several_threads(comm: Any) -> list[str]:
    """A thread waits for a work while the main thread calls: both must get the error."""
    pool.say("ready")
    if comm.rank == VICTIM:
        pool.hear()
    heard: list[str] = []
    work = comm.all_reduce(np.ones(3), async_op=True)

    def wait() -> None:
        try:
            work.wait()
        except Exception as error:
            heard.append(type(error).__name__)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        comm.barrier()
    except Exception as error:
        heard.append(type(error).__name__)
    thread.join(10)
    return heard


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_threads_hear_of_it(pools: Pools, transport: str) -> None:
    group = pools.get(3, transport)
    group.start(several_threads)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    kill(group, VICTIM)
    outcomes = group.collect(20)
    for survivor in (0, 2):
        assert outcomes[survivor].value == ["PeerError", "PeerError"], outcomes[survivor]


def two_die(comm: Any) -> None:
    pool.say("ready")
    if comm.rank in (1, 3):
        pool.hear()
    comm.all_reduce(np.ones(1 << 18))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_die_at_once(pools: Pools, transport: str) -> None:
    group = pools.get(5, transport)
    group.start(two_die)
    for rank in group.ranks:
        assert rank.event() == "ready"
    since = time.monotonic()
    kill(group, 1)
    kill(group, 3)
    outcomes = group.collect(20)
    for survivor in (0, 2, 4):
        error: Any = outcomes[survivor].error
        assert type(error).__name__ == "PeerError", error
        assert error.peer in (1, 3)
        assert outcomes[survivor].ended - since < NOTICED
