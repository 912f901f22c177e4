"""Blocking calls of many kinds in a random order: one like an earlier one takes over what was worked out for that."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import collectives
import numpy as np
import pytest
from pool import Pools

COUNTS = (0, 1, 6, 7, 1000, 1001, 3000, 70_000)
COMBINED = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def data(rank: int, count: int, dtype: Any, salt: int) -> Any:
    """Small whole numbers, so that every order of combination gives the same."""
    return ((np.arange(count) * 7 + salt + 3 * rank) % 4 + 1).astype(dtype)


def reduced(comm: Any, x: Any, root: int) -> Any:
    """What the root has then; the others have nothing to check."""
    comm.reduce(x, "sum", root)
    return x if comm.rank == root else None


def at_one_place(comm: Any) -> Callable[[int, Any], Any]:
    """Makes arrays that all begin at the same address."""
    place = np.empty(max(COUNTS) * comm.size * 4, np.uint8)
    return lambda count, dtype: place[: count * np.dtype(dtype).itemsize].view(dtype)


def kinds(
    comm: Any, heap: list[Any], memory: Callable[[int, Any], Any] = np.empty
) -> list[tuple[str, Callable[[int], bool]]]:
    """Calls of which many differ in one thing only. Each is told a number, and says whether its result is right."""
    ranks = range(comm.size)
    found: list[tuple[str, Callable[[int], bool]]] = []

    def add(name: str, arrays: Callable[[], list[Any]], act: Callable[[list[Any]], Any], want: Any) -> None:
        def one(salt: int) -> bool:
            x = arrays()
            for array in x:
                array[...] = data(comm.rank, array.size, array.dtype, salt)
            result = act(x)
            results = [result] if isinstance(result, np.ndarray) else result or []
            return all(np.array_equal(array, want(array.size, array.dtype, salt)) for array in results)

        found.append((name, one))

    def total(op: str) -> Callable[[int, Any, int], Any]:
        def want(count: int, dtype: Any, salt: int) -> Any:
            result = data(0, count, dtype, salt)
            for rank in list(ranks)[1:]:
                result = COMBINED[op](result, data(rank, count, dtype, salt))
            return result

        return want

    def fresh(count: int, dtype: Any = np.float32) -> Callable[[], list[Any]]:
        return lambda: [memory(count, dtype)]

    def own(whole: Any) -> Any:
        return np.split(whole, comm.size)[comm.rank]

    def add_parts(count: int) -> None:
        add(
            f"all_gather of {count}",
            fresh(count),
            lambda x: comm.all_gather(x[0], counts=count),
            lambda total, dtype, salt: np.concatenate([data(r, total // comm.size, dtype, salt) for r in ranks]),
        )
        add(
            f"reduce_scatter of {count}",
            fresh(count * comm.size),
            lambda x: comm.reduce_scatter(x[0]),
            lambda part, dtype, salt: own(total("sum")(part * comm.size, dtype, salt)),
        )
        add(
            f"all_to_all of {count}",
            fresh(count * comm.size),
            lambda x: comm.all_to_all(x[0]),
            lambda whole, dtype, salt: np.concatenate([own(data(r, whole, dtype, salt)) for r in ranks]),
        )

    for count in COUNTS:
        for op in COMBINED:
            add(f"{op} of {count}", fresh(count), lambda x, op=op: comm.all_reduce(x[0], op), total(op))
        for dtype in (np.int32, np.uint32):
            add(f"{dtype} {count}", fresh(count, dtype), lambda x: comm.all_reduce(x[0]), total("sum"))
        for root in (0, comm.size - 1):
            add(
                f"broadcast {count} from {root}",
                fresh(count),
                lambda x, root=root: comm.broadcast(x[0], root),
                lambda count, dtype, salt, root=root: data(root, count, dtype, salt),
            )
            add(
                f"reduce {count} to {root}",
                fresh(count),
                lambda x, root=root: reduced(comm, x[0], root),
                total("sum"),
            )
        out = np.empty(count, np.float32)
        add(f"to another {count}", fresh(count), lambda x, out=out: comm.all_reduce(x[0], out=out), total("sum"))
        # These take another way, and come between.
        for how in ({"algorithm": "ring"}, {"name": "gradient"}, {"deterministic": True}):
            add(f"{how} {count}", fresh(count), lambda x, how=how: comm.all_reduce(x[0], **how), total("sum"))
        add_parts(count)
        for lengths in ((count, 3), (3, count)):
            add(
                f"list {lengths}",
                lambda lengths=lengths: [np.empty(n, np.float32) for n in lengths],
                comm.all_reduce,
                total("sum"),
            )
    for i, array in enumerate(heap):
        for j, out in enumerate(heap):
            add(
                f"symmetric array {i} to {j}",
                lambda array=array: [array],
                lambda x, out=out: comm.all_reduce(x[0], out=out),
                total("sum"),
            )
    add("barrier", list, lambda _x: comm.barrier(), None)
    add("empty list", list, comm.all_reduce, None)
    return found


def in_turn(comm: Any, seed: int, calls: int) -> list[str]:
    common = random.Random(seed)
    # Of the same length, so that nothing but their place tells them apart.
    heap = [comm.empty(5000, np.float32) for _ in range(3)] if comm.size > 1 else []
    with comm.dup() as other:
        pools = [kinds(comm, heap), kinds(other, []), kinds(comm, [], at_one_place(comm))]
        wrong = []
        # A few at a time, so that calls come again soon, and others come between.
        while calls > 0:
            pool = common.choice(pools)
            few = common.sample(pool, 4)
            for _ in range(12):
                name, one = common.choice(few)
                calls -= 1
                if not one(calls):
                    wrong.append(name)
    return wrong


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
@pytest.mark.parametrize("n", [2, 3])
def test_calls_in_turn(pools: Pools, n: int, transport: str) -> None:
    assert pools.get(n, transport).run(in_turn, n, 2000) == [[]] * n


def recorded(comm: Any) -> list[tuple[str, Any]]:
    """The algorithm and the name of calls on one array, each of which differs from the one before."""
    x = np.ones(1000, np.float32)
    found = []
    for how in ({"algorithm": "ring"}, {"algorithm": "one_shot"}, {}, {"name": "gradient"}, {}, {"algorithm": "ring"}):
        comm.all_reduce(x, "max", **how)
        entry = comm.recorder()[-1]
        found.append((entry["algorithm"], entry["name"]))
    return found


def test_a_call_like_the_last_one_but_for_its_way(pools: Pools) -> None:
    ring, one_shot, plain, named, nameless, again = pools.get(2, "shm").run(recorded)[0]
    assert [ring, one_shot, again] == [("ring", None), ("one_shot", None), ("ring", None)]
    assert named == (plain[0], "gradient")
    assert plain == nameless == (plain[0], None)


def twice_at_a_time(comm: Any) -> list[float]:
    """Two threads of rank 0 make the same call, the second while the first one waits for rank 1."""
    x = np.full(4, comm.rank, np.float32)
    comm.broadcast(x, 1)
    if comm.rank == 1:
        comm.recv(np.empty(1, np.float32), 0)
        for value in (5, 6):
            x[:] = value
            comm.broadcast(x, 1)
        return list(x)
    first = comm.recorder()[-1]["sequence"]
    threads = []
    for number in (1, 2):
        threads.append(threading.Thread(target=comm.broadcast, args=(x, 1)))
        threads[-1].start()
        until = time.monotonic() + 20
        while comm.recorder()[-1]["sequence"] < first + number and time.monotonic() < until:
            time.sleep(0.001)
    comm.send(np.zeros(1, np.float32), 1)
    for thread in threads:
        thread.join(20)
    return list(x)


def test_the_last_call_again_while_it_waits(pools: Pools) -> None:
    assert pools.get(2, "shm").run(twice_at_a_time) == [[6.0] * 4] * 2


def behind_another(comm: Any) -> list[float]:
    """Makes the last call again and again while another one is in flight, longer than header lines last."""
    x, y = np.zeros(4, np.float32), np.full(4, comm.rank + 1, np.float32)
    comm.broadcast(x, 1)
    if comm.rank == 1:
        comm.recv(np.empty(1, np.float32), 0)
    work = comm.all_reduce(y, async_op=True)
    if comm.rank == 0:
        comm.send(np.zeros(1, np.float32), 1)
    for value in range(40):
        x[:] = value if comm.rank == 1 else -1
        comm.broadcast(x, 1)
        assert list(x) == [value] * 4
    work.wait()
    return list(y)


def test_the_last_call_again_behind_another(pools: Pools) -> None:
    assert pools.get(2, "shm").run(behind_another) == [[3.0] * 4] * 2


def after_the_end(comm: Any) -> str:
    x = np.ones(4, np.float32)
    with comm.dup() as group:
        group.all_reduce(x)
    with pytest.raises(collectives.ClosedError) as caught:
        group.all_reduce(x)
    return str(caught.value)


def test_the_last_call_again_after_the_end(pools: Pools) -> None:
    assert all("closed" in text for text in pools.get(2, "shm").run(after_the_end))
