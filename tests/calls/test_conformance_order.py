"""Many collectives in flight, several groups at a time, results that repeat, and deterministic=True."""

from __future__ import annotations

import random
import threading
import zlib
from typing import Any

import numpy as np
import pytest
import tiers
from conformance import Case, call, canonical, inputs, usable_algorithms, values
from pool import Pools, make_group

TRANSPORTS = ["local", "shm", "tcp"]


def in_flight(comm: Any, seed: int, rounds: int) -> list[str]:
    """Several kinds at a time, waited for in an order of each rank's own, with blocking calls in between."""
    common, own = random.Random(seed), random.Random(seed * 1000 + comm.rank)
    total = sum(range(1, comm.size + 1))
    failures = []
    for _ in range(rounds):
        works: list[tuple[Any, Any, float, str]] = []
        for _ in range(common.randrange(1, 40)):
            kind = common.choice(["all_reduce", "broadcast", "reduce", "barrier", "list", "blocking", "copy"])
            count = common.choice([0, 1, 9, 11, 1000, 5000, 70_000, 200_000])
            root = common.randrange(comm.size)
            dtype = common.choice([np.float32, np.int16, np.float64])
            x = np.full(count, comm.rank + 1, dtype)
            if kind == "barrier":
                works.append((comm.barrier(async_op=True), x, comm.rank + 1, kind))
            elif kind == "broadcast":
                works.append((comm.broadcast(x, root, async_op=True), x, root + 1, kind))
            elif kind == "reduce":
                work = comm.reduce(x, "sum", root, async_op=True)
                works.append((work, x, total if comm.rank == root else comm.rank + 1, kind))
            elif kind == "list":
                y = np.full(100, comm.rank + 1, dtype)
                works.append((comm.all_reduce([y, x], async_op=True), np.concatenate([y, x])[:0], 0, kind))
                works[-1] = (works[-1][0], (x, y), total, kind)
            elif kind == "blocking":
                if np.any(comm.all_reduce(x) != total):
                    failures.append(f"blocking all_reduce of {count}")
            elif kind == "copy":  # the result is copied back at the end
                wide = np.repeat(x, 2)
                works.append((comm.all_reduce(wide[::2], async_op=True), wide[::2], total, kind))
            else:
                works.append((comm.all_reduce(x, async_op=True), x, total, kind))
        own.shuffle(works)
        for work, arrays, value, kind in works:
            work.wait()
            if not work.done():
                failures.append(f"{kind} is not done after its wait")
            for array in arrays if isinstance(arrays, tuple) else (arrays,):
                if np.any(array != value):
                    failures.append(f"{kind} of {array.size} {array.dtype}: {array[:3]} instead of {value}")
    return failures


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_many_in_flight(pools: Pools, n: int, transport: str) -> None:
    if n == 1 and transport != "local":
        n = 4
    group = pools.get(n, transport)
    for seed in range(tiers.few(1, full=3)):
        assert not any(group.run(in_flight, seed, 8))


def polled(comm: Any) -> None:
    """Work goes on by itself: done() turns true although no thread waits."""
    x = np.full(100_000, 1.0)
    work = comm.all_reduce(x, async_op=True)
    event = threading.Event()
    for _ in range(3000):
        if work.done():
            break
        event.wait(0.01)
    assert work.done()
    assert x[0] == x[-1] == comm.size
    assert work.result() is x


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_progress_without_a_wait(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(polled)


def busy(comm: Any, seed: int) -> int:
    total = sum(range(1, comm.size + 1))
    for i in range(150):
        x = np.full((i * 37 + seed) % 3000, comm.rank + 1.0)
        assert np.all(comm.all_reduce(x) == total)
    return seed


def test_several_local_groups_at_a_time() -> None:
    groups = [make_group(n, "local") for n in (2, 3, 4)]
    for index, group in enumerate(groups):
        group.start(busy, index)
    outcomes = [group.collect(60) for group in groups]
    for group in groups:
        group.close()
    for index, of_group in enumerate(outcomes):
        assert [o.value for o in of_group] == [index] * len(of_group), of_group


def from_threads(comm: Any) -> list[int]:
    """Several threads of one rank wait for works of one communicator, which the main thread started."""
    arrays = [np.full(1000 + i, 1.0) for i in range(12)]
    works = [comm.all_reduce(a, async_op=True) for a in arrays]
    done: list[int] = []
    threads = [threading.Thread(target=lambda i=i: (works[i].wait(), done.append(i))) for i in range(12)]
    for thread in threads:
        thread.start()
    comm.barrier()
    for thread in threads:
        thread.join(30)
    assert all(a[0] == a[-1] == comm.size for a in arrays)
    return sorted(done)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_waits_of_several_threads(pools: Pools, transport: str) -> None:
    assert pools.get(3, transport).run(from_threads, limit=60) == [list(range(12))] * 3


def digests(comm: Any, dtype: str, op: str, algorithms: list[str], count: int, deterministic: bool) -> dict[str, int]:
    found = {}
    x = inputs(dtype, op == "prod", count, comm.size)[comm.rank]
    for algorithm in algorithms:
        case = Case("all_reduce", dtype, op, count, algorithm, deterministic=deterministic)
        found[algorithm] = zlib.crc32(call(comm, case, x, np.empty_like(x)).tobytes())
    return found


KINDS = [("float32", "sum"), ("float16", "avg"), ("bfloat16", "prod"), ("float64", "sum")]


@pytest.mark.parametrize(
    ("n", "dtype", "op"),
    [(n, *kind) for n in (2, 3, 5, 8) for kind in (KINDS if n < 8 or tiers.full() else KINDS[:1])],
)
def test_canonical_algorithms_agree_on_all_transports(pools: Pools, n: int, dtype: str, op: str) -> None:
    for count in (5, 1003, 70_001, 200_003)[: tiers.few(3, full=4)]:
        seen: dict[int, list[str]] = {}
        for transport in TRANSPORTS:
            group = pools.get(n, transport)
            names = [a for a in group.run(usable_algorithms)[0]["all_reduce"] if a in canonical("all_reduce")]
            for deterministic in (False, True):
                chosen = names + (["auto"] if deterministic else [])
                for found in group.run(digests, dtype, op, chosen, count, deterministic):
                    for algorithm, digest in found.items():
                        seen.setdefault(digest, []).append(f"{transport} {algorithm} {count}")
        assert len(seen) == 1, seen


def fused(comm: Any, dtype: str, counts: list[int]) -> list[str]:
    """Each tensor alone, in lists, and as one array: the same bits."""
    tensors = [values(dtype, False, c, comm.rank, i) for i, c in enumerate(counts)]
    alone = [comm.all_reduce(t, deterministic=True, out=np.empty_like(t)) for t in tensors]
    together = [np.empty_like(t) for t in tensors]
    comm.all_reduce(tensors, deterministic=True, out=together)
    some = [np.empty_like(t) for t in tensors[1:4]]
    comm.all_reduce(tensors[1:4], deterministic=True, out=some)
    flat = comm.all_reduce(np.concatenate(tensors), deterministic=True)
    space = comm.empty(flat.size, flat.dtype)
    space[:] = np.concatenate(tensors)
    comm.all_reduce(space, deterministic=True)
    flying = [t.copy() for t in tensors]
    for work in [comm.all_reduce(t, deterministic=True, async_op=True) for t in flying]:
        work.wait()
    expected = [a.tobytes() for a in alone]
    failures = []
    if [a.tobytes() for a in together] != expected:
        failures.append("a list differs")
    if [a.tobytes() for a in some] != expected[1:4]:
        failures.append("a shorter list differs")
    if flat.tobytes() != b"".join(expected):
        failures.append("one array differs")
    if space.tobytes() != b"".join(expected):
        failures.append("symmetric memory differs")
    if [a.tobytes() for a in flying] != expected:
        failures.append("in flight differs")
    return failures


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_deterministic_does_not_depend_on_fusion(pools: Pools, dtype: str, transport: str) -> None:
    for n in (3, 5):
        for counts in ([3, 1, 0, 7, 100], [5, 10_000, 3, 65_536, 1, 70_001]):
            assert not any(pools.get(n, transport).run(fused, dtype, counts))


def again(comm: Any, algorithms: list[str]) -> list[int]:
    """All sizes and algorithms, not only canonical ones."""
    found = []
    for count in (1, 100, 5000, 300_001):
        for algorithm in algorithms:
            for dtype in ("float32", "bfloat16"):
                x = values(dtype, False, count, comm.rank)
                found.append(zlib.crc32(comm.all_reduce(x, algorithm=algorithm).tobytes()))
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_same_bits_from_run_to_run(pools: Pools, transport: str) -> None:
    """Also in new processes, where everything arrives at other times."""
    group = pools.get(4, transport)
    algorithms = group.run(usable_algorithms)[0]["all_reduce"]
    first = group.run(again, algorithms)
    assert all(f == first[0] for f in first)
    for _ in range(tiers.few(1, full=3)):
        assert group.run(again, algorithms) == first
    fresh = make_group(4, transport)
    try:
        assert fresh.run(again, algorithms) == first
    finally:
        fresh.close()
