"""Messages beside others: how many may wait for a receiver, all directions at once, collectives, groups, threads."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest
from pool import LIMIT, Pools
from test_messages import CELL, GROUPS, pattern

AHEAD = 2048  # messages that may wait for a receiver


def until(what: Any) -> None:
    """Looks until it holds."""
    end = time.monotonic() + LIMIT / 2
    while not what():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.001)  # a poll: there is nothing to wait for


def unexpected(comm: Any, count: int) -> int:
    """Rank 0 sends far more messages than its receiver wants yet. How many of them it gets rid of."""
    others = comm.dup()  # so that ranks can meet whatever becomes of messages
    peer = {0: 1, 1: 0}.get(comm.rank)
    large, small = pattern(1_000_000, comm.rank), np.zeros(1, np.int64)
    done = 0
    if comm.rank == 0:
        works = [comm.send(np.array([i]), peer, 5, async_op=True) for i in range(count)]
        until(lambda: sum(w.done() for w in works) >= AHEAD)
        late = comm.send(np.array([-1]), peer, 6, async_op=True)
    else:
        # A thread drives this rank although it asks for nothing that is on its way.
        never = comm.recv(small, 0, 9, async_op=True) if comm.rank == 1 else None
    for i in range(20):
        comm.barrier()
        assert others.all_reduce(np.full(1000 * i, 1.0)).sum() == 1000 * i * comm.size
    if peer is not None:
        if comm.rank == 0:
            done = sum(w.done() for w in works)
        # Nothing that both sides ask for waits for a message without a receive, in neither direction.
        work = comm.send(large, peer, 7, async_op=True)
        y = np.empty_like(large)
        assert (comm.recv(y, peer, 7) == pattern(len(large), peer)).all()
        work.wait()
        if comm.rank == 0:
            late.wait()
            assert sum(w.done() for w in works) == done
        else:
            assert comm.recv(np.zeros(1, np.int64), 0, 6)[0] == -1
    comm.barrier()
    if comm.rank == 1:
        for i in range(count):
            assert comm.recv(np.zeros(1, np.int64), 0, 5)[0] == i
        assert not never.done()
    comm.barrier()
    if comm.rank == 0:
        for work in works:
            work.wait()
        comm.send(np.array([3]), 1, 9)
    if comm.rank == 1:
        assert never.result()[0] == 3
    others.close()
    return done


@pytest.mark.parametrize(("n", "transport"), [(n, t) for n, t in GROUPS if n < 5])
def test_unexpected_messages_are_bounded(pools: Pools, n: int, transport: str) -> None:
    done = pools.get(n, transport).run(unexpected, 3000)[0]
    assert done == AHEAD


def blocked_sender(comm: Any, count: int) -> int:
    """A thread sends, blocking; how far it comes before the other rank receives, while this thread runs collectives."""
    sent = 0

    def send_all() -> None:
        nonlocal sent
        for i in range(count):
            comm.send(np.array([i]), 1)
            sent = i + 1

    thread = threading.Thread(target=send_all)
    never = None
    if comm.rank == 0:
        thread.start()
        until(lambda: sent >= AHEAD)
    elif comm.rank == 1:
        never = comm.recv(np.zeros(1), 0, 9, async_op=True)
    for i in range(20):
        assert comm.all_reduce(np.full(1000 * i, 1.0)).sum() == 1000 * i * comm.size
    before = sent
    comm.barrier()
    if comm.rank == 0:
        thread.join()
        comm.send(np.ones(1), 1, 9)
    elif never is not None:
        for i in range(count):
            assert comm.recv(np.zeros(1, np.int64), 0)[0] == i
        never.wait()
    return before


@pytest.mark.parametrize(("n", "transport"), [(n, t) for n, t in GROUPS if n < 5])
def test_a_blocking_send_beyond_the_limit_waits(pools: Pools, n: int, transport: str) -> None:
    sent = pools.get(n, transport).run(blocked_sender, AHEAD + 500)[0]
    assert sent == AHEAD


def traffic(comm: Any, seed: int) -> None:
    """All pairs, both directions and several tags at once, between collectives on two communicators.

    What a rank posts is a random merge of what it has with each other rank and tag, and of the two sequences of
    collectives; only the order inside each of these is the same on both sides.
    """
    other = comm.new_group([*range(1, comm.size), 0])  # the same ranks by other numbers
    own = random.Random(seed * 100 + comm.rank)
    shared = random.Random(seed)
    sizes = [0, 1, 100, CELL - 1, CELL, CELL + 1, 200_000, 4 * CELL + 1]
    lanes: list[list[Any]] = []
    for group in (comm, other):
        for source in range(comm.size):
            for dest in range(comm.size):
                for tag in range(2):
                    lane = [shared.choice(sizes) for _ in range(shared.randrange(4))]
                    if source != dest and group.rank in (source, dest):
                        lanes.append([(group, source, dest, tag, i, size) for i, size in enumerate(lane)])
        lanes.append([(group, None, None, None, i, shared.choice(sizes)) for i in range(12)])
    pending = []
    while lanes := [lane for lane in lanes if lane]:
        group, source, dest, tag, i, size = own.choice(lanes).pop(0)
        if source is None:
            x = np.full(size, i, np.uint8)
            expected = np.full(size, i * comm.size % 256, np.uint8)
            pending.append((group.all_reduce(x, async_op=True), x, expected))
            continue
        x = pattern(size, source, dest, tag, i)
        if group.rank == source:
            pending.append((group.send(x, dest, tag, async_op=True), x, x))
        else:
            y = np.empty(size, np.uint8)
            pending.append((group.recv(y, source, tag, async_op=True), y, x))
    own.shuffle(pending)
    for work, got, expected in pending:
        work.wait()
        assert (got == expected).all()
    other.close()


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_both_directions_beside_collectives(pools: Pools, n: int, transport: str) -> None:
    for seed in range(3):
        pools.get(n, transport).run(traffic, seed)


def on_groups(comm: Any) -> None:
    """Ranks are those of the group, and each group has messages of its own."""
    backwards = comm.split(0, -comm.rank)
    evens = comm.new_group(range(0, comm.size, 2))
    groups = [g for g in (comm, backwards, evens) if g is not None and g.size > 1]
    works = []
    for salt, group in enumerate(groups):
        x = np.full(100_000, 10 * salt + group.rank)
        works.append(group.send(x, (group.rank + 1) % group.size, 3, async_op=True))
    for salt, group in reversed(list(enumerate(groups))):
        left = (group.rank - 1) % group.size
        y = group.recv(np.empty(100_000, np.int64), left, 3)
        assert (y == 10 * salt + left).all()
        assert sum(group.bytes_by_transport().values()) >= 0
    for work in works:
        work.wait()
    for salt, group in enumerate(groups):
        assert sum(group.bytes_by_transport().values()) >= 800_000, salt
    backwards.close()
    if evens is not None:
        evens.close()


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_groups(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(on_groups)


def threads(comm: Any, rounds: int) -> None:
    """A thread sends, a thread receives, two more have a tag of their own, and this one runs collectives."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    errors: list[BaseException] = []
    sizes = [0, 8, 5000, CELL, 200_000]

    def guarded(body: Any, *args: Any) -> None:
        try:
            body(*args)
        except BaseException as error:
            errors.append(error)

    def send_all(tag: int) -> None:
        for i in range(rounds):
            comm.send(pattern(sizes[i % len(sizes)], comm.rank, tag, i), right, tag)

    def receive_all(tag: int) -> None:
        for i in range(rounds):
            y = comm.recv(np.empty(sizes[i % len(sizes)], np.uint8), left, tag)
            assert (y == pattern(len(y), left, tag, i)).all()

    bodies = [threading.Thread(target=guarded, args=(f, tag)) for f in (send_all, receive_all) for tag in (0, 1)]
    for thread in bodies:
        thread.start()
    for i in range(2 * rounds):
        assert comm.all_reduce(np.full(sizes[i % len(sizes)], 1.0)).sum() == sizes[i % len(sizes)] * comm.size
    for thread in bodies:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_threads(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(threads, 40)
