"""Groups of ranks: who is in them, that they are independent of each other, their memory, and threads that use them."""

from __future__ import annotations

import gc
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiers
from collectives import _core
from pool import TRANSPORTS, Pools
from threaded import in_threads

SIZES = [2, 3, 4, 5, 8]
GROUPS = [(n, transport) for transport in TRANSPORTS for n in SIZES]


def check(group: Any, members: list[int], me: int) -> None:
    """That a group has these ranks of the parent, in this order, and that every collective runs on it."""
    assert (group.rank, group.size) == (members.index(me), len(members))
    for count in (1, 1000, 100_000):
        x = np.full(count, me + 1, np.int64)
        assert group.all_reduce(x) is x
        assert (x == sum(members) + len(members)).all()
    for root in range(group.size):
        assert (group.broadcast(np.full(3000, me), root) == members[root]).all()
        x = group.reduce(np.full(10, me), "max", root)
        assert group.rank != root or (x == max(members)).all()
    group.all_reduce([np.ones(5), np.ones((70, 700))], async_op=True).wait()
    group.barrier()


def grid(comm: Any, width: int) -> None:
    row = comm.split(comm.rank // width, comm.rank)
    column = comm.split(comm.rank % width)
    check(row, [r for r in range(comm.size) if r // width == comm.rank // width], comm.rank)
    check(column, [r for r in range(comm.size) if r % width == comm.rank % width], comm.rank)
    with column:
        column.barrier()
    assert column.closed
    check(row, [r for r in range(comm.size) if r // width == comm.rank // width], comm.rank)
    check(comm, list(range(comm.size)), comm.rank)
    row.close()


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_rows_and_columns(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(grid, 4 if n == 8 else 2)


def orders(comm: Any) -> None:
    n = comm.size
    with comm.split(7, -comm.rank) as reversed_group:
        check(reversed_group, list(range(n))[::-1], comm.rank)
        assert reversed_group.local_size == comm.local_size
        assert reversed_group.local_rank == comm.local_size - 1 - comm.local_rank
        assert reversed_group.bytes_by_transport() != {}
    with comm.split(0, comm.rank % 2) as evens_first:
        check(evens_first, [*range(0, n, 2), *range(1, n, 2)], comm.rank)
    # Without a color a rank is in no group; one alone is a group too.
    group = comm.split(None if comm.rank == 0 else np.int64(2**61), np.int32(3))
    assert (group is None) == (comm.rank == 0)
    if group is not None:
        check(group, list(range(1, n)), comm.rank)
        assert f"rank {group.rank} of {n - 1}, group " in repr(group)
        assert f"world rank {comm.rank}>" in repr(group)
        group.close()
        assert "closed" in repr(group)
    with comm.split(comm.rank) as alone:
        check(alone, [comm.rank], comm.rank)
        assert alone.empty(10).shape == (10,)
    assert comm.split(None) is None


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_keys_and_colors(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(orders)


def nested(comm: Any) -> None:
    """Groups of groups, in another order each time, all used at the end; what they were made of is closed first."""
    me = comm.rank
    copy = comm.dup()
    halves = copy.split(me // 4, -me)
    members = [r for r in range(comm.size) if r // 4 == me // 4][::-1]
    pairs = halves.new_group([halves.size - 1, 0])
    outer = [members[-1], members[0]]
    pair_copy = pairs.dup() if pairs is not None else None
    ones = halves.split(halves.rank % 2, 1)
    copy.close()
    halves.close()
    if pair_copy is not None:
        pairs.close()
        check(pair_copy, outer, me)
        last = pair_copy.new_group([1])
        assert (last is None) == (pair_copy.rank == 0)
    check(ones, members[halves.rank % 2 :: 2], me)
    check(comm, list(range(comm.size)), me)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_groups_of_groups(pools: Pools, transport: str) -> None:
    pools.get(8, transport).run(nested)


def wrong_calls(comm: Any) -> None:
    import collectives

    for bad in (1.5, "a", True, np.float32(1)):
        with pytest.raises(TypeError, match="color is"):
            comm.split(bad)
        with pytest.raises(TypeError, match="key is"):
            comm.split(0, bad)
        with pytest.raises(TypeError, match=r"ranks\[1\]"):
            comm.new_group([0, bad])
    with pytest.raises(ValueError, match="color is -1"):
        comm.split(-1)
    with pytest.raises(ValueError, match="key is 4611686018427387904"):
        comm.split(0, 2**62)
    with pytest.raises(ValueError, match="a group with no members"):
        comm.new_group([])
    with pytest.raises(ValueError, match="rank 1 is listed twice"):
        comm.new_group([1, 0, 1])
    with pytest.raises(ValueError, match=r"ranks\[1\] is 3, .*0 to 2"):
        comm.new_group([0, 3])
    with pytest.raises(ValueError, match=r"ranks\[0\] is -1"):
        comm.new_group([-1])
    # Ranks that disagree all get the error, and can go on.
    with pytest.raises(collectives.MismatchError, match="different lists to new_group") as info:
        comm.new_group([0, 1] if comm.rank != 1 else [1, 0])
    assert f"this one {[1, 0] if comm.rank == 1 else [0, 1]}" in str(info.value)
    assert f"from rank {'0, 2' if comm.rank == 1 else '1'};" in str(info.value)
    with pytest.raises(collectives.MismatchError, match="rank 0 called split, rank 1 called split, rank 2 called dup"):
        comm.split(0) if comm.rank < 2 else comm.dup()
    check(comm.dup(), [0, 1, 2], comm.rank)
    dup = comm.dup()
    dup.close()
    with pytest.raises(collectives.ClosedError, match="make a new group"):
        dup.barrier()
    with pytest.raises(collectives.ClosedError):
        dup.split(0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_wrong_calls(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(wrong_calls)


def isolated(comm: Any) -> None:
    """What is in flight on one waits for nothing on the other, whatever the order of the calls on the ranks."""
    other = comm.dup()
    counts = [1, 50_000, 10, 300_000]
    mine = [np.full(c, comm.rank, np.float64) for c in counts]
    theirs = [np.full(c, -comm.rank, np.float64) for c in counts]

    def start(on: Any, arrays: list[Any]) -> list[Any]:
        return [on.all_reduce(a, async_op=True) for a in arrays]

    calls = [(comm, mine), (other, theirs)]
    works = [work for on, arrays in (calls if comm.rank % 2 else reversed(calls)) for work in start(on, arrays)]
    for work in works if comm.rank == 0 else reversed(works):
        work.wait()
    total = sum(range(comm.size))
    assert all((a == total).all() for a in mine)
    assert all((a == -total).all() for a in theirs)
    # Blocking, too: one of the ranks is still in the first when the others call the second.
    first = comm.barrier(async_op=True) if comm.rank == 0 else None
    other.barrier()
    if first is None:
        comm.barrier()
    else:
        first.wait()
    other.close()


@pytest.mark.parametrize(("n", "transport"), [g for g in GROUPS if g[0] in (2, 5)])
def test_dup_is_isolated(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(isolated)


def many_in_flight(comm: Any, seed: int) -> None:
    """Four overlapping groups at once; each rank starts and waits in an order of its own, per group the same."""
    n = comm.size
    member_lists = [list(range(n)), list(range(n))[::-1], list(range(0, n, 2)), list(range(n // 2 + 1))]
    groups = [comm.new_group(members) for members in member_lists]
    order = random.Random(seed * 100 + comm.rank)
    shared = random.Random(seed)
    plans = [[shared.choice([0, 3, 700, 40_000, 200_001]) for _ in range(25)] for _ in groups]
    pending: list[Any] = []
    todo = {i: iter(plan) for i, plan in enumerate(plans) if groups[i] is not None}
    while todo:
        i = order.choice(list(todo))
        count = next(todo[i], None)
        if count is None:
            del todo[i]
            continue
        x = np.full(count, comm.rank + i, np.int64)
        work = groups[i].all_reduce(x, async_op=True)
        pending.append((work, x, sum(member_lists[i]) + i * len(member_lists[i])))
    order.shuffle(pending)
    for work, x, total in pending:
        work.wait()
        assert (x == total).all()
    for group in filter(None, groups):
        group.close()


@pytest.mark.parametrize(("n", "transport"), [g for g in GROUPS if g[0] in (2, 4, 5)])
def test_many_groups_in_flight(pools: Pools, n: int, transport: str) -> None:
    for seed in range(tiers.few(1, full=3)):
        pools.get(n, transport).run(many_in_flight, seed)


def status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])  # KiB
    raise AssertionError(name)


def one_after_the_other(comm: Any, rounds: int) -> tuple[int, int, set[int]]:
    addresses = set()
    for i in range(rounds):
        group = comm.split(0 if i % 3 else comm.rank % 2, -comm.rank)
        x = group.empty(200_000, np.float64)
        x[...] = group.rank
        group.all_reduce(x)
        assert x[0] == x[-1] == sum(range(group.size))
        group.all_reduce(np.ones(100_000))
        addresses.add(_core._heap(group)[0])
        group.close()
    comm.barrier()
    return len(os.listdir("/proc/self/fd")), status("RssShmem") + status("RssAnon"), addresses


@pytest.mark.parametrize(("n", "transport"), [(3, "local"), (3, "shm"), (3, "tcp")])
def test_200_groups_leave_nothing(pools: Pools, n: int, transport: str) -> None:
    group = pools.get(n, transport)
    before = group.run(one_after_the_other, 30)
    after = group.run(one_after_the_other, 200)
    for (fds, kib, _), (fds_then, kib_then, addresses) in zip(before, after, strict=True):
        assert fds_then <= fds + n  # threads of one process see the descriptors with which others look
        assert kib_then < kib + 8192, f"{kib_then - kib} KiB more"
        assert len(addresses) < 20, "memory is not used again"


def many_open(comm: Any, count: int) -> list[int]:
    groups = [comm.dup() for _ in range(count)]
    for i, group in enumerate(groups):
        x = group.empty(1000, np.float64)
        x[...] = i
        assert (group.all_reduce(x) == i * comm.size).all()
    sizes = [_core._heap(group)[1] for group in groups]
    del group, groups, x
    gc.collect()
    comm.barrier()  # all have dropped theirs
    with comm.dup() as group:
        sizes.append(_core._heap(group)[1])
    return sizes


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_more_groups_than_there_are_heaps(pools: Pools, transport: str) -> None:
    """The arena has room for 64 heaps; groups beyond that have none, until others are closed."""
    sizes = pools.get(2, transport).run(many_open, 80)
    assert sizes[0] == sizes[1]
    with_heap = [size > 0 for size in sizes[0]]
    assert all(with_heap[:60])
    assert not any(with_heap[75:80])
    assert with_heap[80]


def no_room(comm: Any) -> None:
    first = comm.dup()
    with pytest.raises(MemoryError, match=r"no room for another group of 3: 0, 1, 2; .*COLLECTIVES_SYMMETRIC_HEAP"):
        comm.dup()
    # Where only some of the ranks would be in a group, the others are not concerned.
    if comm.rank == 0:
        assert comm.new_group([1, 2]) is None
    else:
        with pytest.raises(MemoryError, match="group of 2: 1, 2;"):
            comm.new_group([1, 2])
    first.close()
    del first
    comm.barrier()
    check(comm.dup(), [0, 1, 2], comm.rank)


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_no_room_for_another_group(groups: Any, transport: str) -> None:
    """An arena for a segment of three ranks without a heap, and a little more."""
    segment = _core.segment_bytes(3, {"heap_bytes": 0, "arena_bytes": 0})
    groups(3, transport, limits={"heap_bytes": 0, "arena_bytes": segment + (64 << 10)}).run(no_room)


def symmetric(comm: Any) -> list[str]:
    group = comm.split(comm.rank % 2)
    members = list(range(comm.rank % 2, comm.size, 2))
    done = []
    for collective in ("all_reduce", "broadcast", "reduce"):
        for algorithm in [a["name"] for a in _core._algorithms(collective)]:
            for count in (1, 1000, 300_000):
                x = group.empty(count, np.int64)
                x[...] = comm.rank
                try:
                    if collective == "all_reduce":
                        group.all_reduce(x, algorithm=algorithm)
                        assert (x == sum(members)).all(), algorithm
                    elif collective == "broadcast":
                        group.broadcast(x, 1, algorithm=algorithm)
                        assert (x == members[1]).all(), algorithm
                    else:
                        group.reduce(x, "sum", 1, algorithm=algorithm)
                        assert group.rank != 1 or (x == sum(members)).all(), algorithm
                except ValueError:
                    continue  # not for one host
                done.append(f"{collective} {algorithm}")
            # Memory of the parent is ordinary memory for a group.
            y = comm.empty(5000, np.int64)
            y[...] = comm.rank
            assert (group.all_reduce(y) == sum(members)).all()
            comm.barrier()
    return sorted(set(done))


@pytest.mark.parametrize("transport", ["local", "shm"])
@pytest.mark.parametrize("n", [4, 5])
def test_symmetric_arrays(pools: Pools, transport: str, n: int) -> None:
    done = pools.get(n, transport).run(symmetric)
    assert done[0] == done[1]
    assert {"all_reduce two_shot", "all_reduce ring", "broadcast one_shot", "reduce one_shot"} <= set(done[0])


def arrays_outlive(comm: Any) -> None:
    """An array in the memory of a group stays what it is when the group is closed and others are made."""
    group = comm.dup()
    x = group.empty(10_000, np.int64)
    x[...] = comm.rank + 7
    group.close()
    del group
    for _ in range(5):
        with comm.dup() as other:
            y = other.empty(10_000, np.int64)
            y[...] = -1
            other.all_reduce(y)
    assert (x == comm.rank + 7).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_arrays_outlive_their_group(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(arrays_outlive)


def hammer(comm: Any, rounds: int) -> None:
    """A thread per group; one more makes and closes groups all the while."""
    member_lists = [list(range(comm.size)), list(range(comm.size))[::-1], [0, comm.size - 1], list(range(comm.size))]
    groups = [comm.new_group(members) for members in member_lists]

    def use(i: int) -> None:
        group, members = groups[i], member_lists[i]
        rng = random.Random(i)
        for k in range(rounds):
            x = np.full(rng.choice([1, 10, 5000, 100_000]), comm.rank + k, np.int64)
            if rng.random() < 0.3:
                group.all_reduce(x, async_op=True).wait()
            else:
                group.all_reduce(x)
            assert (x == sum(members) + k * len(members)).all()

    def make() -> None:
        for k in range(rounds // 8):
            with comm.split(k % 2 if k % 3 else comm.rank % 2, k) as group:
                group.barrier()

    in_threads([make, *(lambda i=i: use(i) for i in range(4) if groups[i] is not None)])


@pytest.mark.parametrize(("n", "transport"), [(2, "local"), (2, "shm"), (3, "shm"), (2, "tcp"), (3, "tcp")])
def test_a_thread_for_each_group(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(hammer, 200)


def make_in_threads(comm: Any, rounds: int) -> list[list[int]]:
    """Threads make groups out of different parents at the same time: none may get the number of another."""
    parents = [comm.dup() for _ in range(3)]
    numbers: list[list[int]] = [[] for _ in parents]

    def make(i: int) -> None:
        for _ in range(rounds):
            with parents[i].split(0, -comm.rank) as group:
                numbers[i].append(_core._describe(group)["id"])
                assert group.all_reduce(np.full(100, i))[0] == i * comm.size

    in_threads([lambda i=i: make(i) for i in range(3)])
    return numbers


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_groups_made_in_threads(pools: Pools, transport: str) -> None:
    ranks = pools.get(3, transport).run(make_in_threads, 40)
    assert ranks[0] == ranks[1] == ranks[2]
    numbers = [number for thread in ranks[0] for number in thread]
    assert len(set(numbers)) == len(numbers) == 120


def one_waits(comm: Any) -> None:
    """A thread that is blocked in a group holds up neither collectives nor the making of groups in others."""
    first = comm.dup()
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        first.all_reduce(np.ones(10))

    threads = []
    if comm.rank != 0:
        threads.append(threading.Thread(target=wait))
        threads[0].start()
        waiting.wait()
    for _ in range(20):
        with comm.split(0, -comm.rank) as group:
            assert group.all_reduce(np.ones(1000))[0] == comm.size
    if comm.rank == 0:
        wait()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_blocked_group_holds_up_nothing(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(one_waits)


def of_one_communicator(comm: Any) -> None:
    group, other = comm.dup(), comm.dup()
    group.all_reduce(np.ones(100_000), algorithm="ring")
    moved, rest = group.bytes_by_transport(), other.bytes_by_transport()
    assert moved.keys() == rest.keys()
    assert all(count > 0 for count in moved.values())
    assert not any(rest.values())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_bytes_are_those_of_one_communicator(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(of_one_communicator)
