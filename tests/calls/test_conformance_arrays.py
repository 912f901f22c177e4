"""Arrays of all shapes and layouts, lists of arrays, and symmetric memory.

In the short tier each group runs every third case, another one than other groups.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tiers
from conformance import (
    COMPLEX,
    DTYPES,
    FLOAT8,
    Array,
    assert_transport,
    numpy_dtype,
    reduced,
    usable_algorithms,
    values,
    wrong,
)
from pool import Pools

TRANSPORTS = ["local", "shm", "tcp"]
GROUPS = [(2, t) for t in TRANSPORTS] + [(3, t) for t in TRANSPORTS] + [(5, "shm")]


class Share(NamedTuple):
    """Every so-manieth case, told to the ranks: which ones is the same on all ranks, and differs by group."""

    first: int
    divisor: int

    @classmethod
    def of(cls, group: Any) -> Share:
        return cls(group.size + TRANSPORTS.index(group.transport), tiers.few(3, full=1))

    def taken(self) -> Iterator[bool]:
        """Of case after case, whether it is one of them."""
        return (number % self.divisor == 0 for number in itertools.count(self.first))


def flat(reports: list[list[str]]) -> list[str]:
    return [text for report in reports for text in report]


def shaped(dtype: str, shape: tuple[int, ...], rank: int, seed: int) -> Array:
    return values(dtype, False, math.prod(shape), rank, seed).reshape(shape)


def big_endian(a: Array) -> Array:
    return a.astype(a.dtype.newbyteorder(">"))


def strided(a: Array) -> Array:
    """The same values in every third place of a larger array."""
    store = np.zeros((*a.shape[:-1], 3 * a.shape[-1]) if a.ndim else (3,), a.dtype)
    view = store[..., ::3] if a.ndim else store[0:1].reshape(())
    view[...] = a
    return view


def backwards(a: Array) -> Array:
    view = np.zeros_like(a)[..., ::-1] if a.ndim else np.zeros_like(a)
    view[...] = a
    return view


def unaligned(a: Array) -> Array:
    store = np.zeros(a.nbytes + 1, np.uint8)
    view = store[1:].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "plain": np.copy,
    "fortran": lambda a: np.array(a, order="F"),
    "strided": strided,
    "backwards": backwards,
    "transposed": lambda a: np.array(a.T, order="C").T,
    "unaligned": unaligned,
    "big-endian": big_endian,
}
SHAPES = [(), (0,), (1,), (3, 0, 2), (7,), (4, 5), (2, 3, 4, 5), (257, 129), (1, 40000)]


def layouts(comm: Any, seed: int, share: Share) -> list[str]:
    """Every layout of input and output, each collective, in place and out of place."""
    rng = random.Random(seed)  # the same on all ranks
    taken = share.taken()
    failures = []
    for shape in SHAPES:
        for inner in LAYOUTS:
            for outer in (None, *LAYOUTS):
                if not next(taken):
                    continue
                dtype = rng.choice(DTYPES)
                if dtype in ("bfloat16", *FLOAT8) and "big-endian" in (inner, outer):
                    dtype = "float16"
                collective = rng.choice(["all_reduce", "broadcast", "reduce"])
                op = rng.choice(["sum", "min", "max"]) if dtype not in COMPLEX else "sum"
                root = rng.randrange(comm.size)
                sources = [shaped(dtype, shape, r, seed) for r in range(comm.size)]
                x = LAYOUTS[inner](sources[comm.rank])
                kept = x.tobytes()
                out = None if outer is None else LAYOUTS[outer](np.ones(shape, numpy_dtype(dtype)))
                blank = None if out is None else out.tobytes()
                if out is not None and rng.random() < 0.5:
                    x.flags.writeable = False
                more = {} if out is None else {"out": out}
                if collective == "broadcast":
                    result = comm.broadcast(x, root, **more)
                    exact, loose = sources[root], np.zeros(shape)
                else:
                    exact, loose, _ = reduced(sources, op)
                    if collective == "all_reduce":
                        result = comm.all_reduce(x, op, **more)
                    else:
                        result = comm.reduce(x, op, root, **more)
                label = f"rank {comm.rank}: {collective} {op} {dtype} {shape} {inner} -> {outer}, root {root}: "
                if result is not (x if out is None else out):
                    failures.append(label + "returns another object")
                if collective == "reduce" and comm.rank != root:
                    if (x if out is None else out).tobytes() != (kept if out is None else blank):
                        failures.append(label + "written on a rank that is not the root")
                    continue
                if out is not None and x.tobytes() != kept:
                    failures.append(label + "the input was changed")
                native = result.astype(result.dtype.newbyteorder("="))
                if text := wrong(native, exact, loose):
                    failures.append(label + text)
    return failures


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_layouts(pools: Pools, n: int, transport: str) -> None:
    group = pools.get(n, transport)
    failures = flat(group.run(layouts, n, Share.of(group)))
    assert not failures, "\n".join(failures[:20])


def lists_of(rng: random.Random) -> list[list[int]]:
    """Lists of element counts, with totals below and above the size up to which lists are packed."""
    return [
        [],
        [0],
        [0, 0, 0],
        [1],
        [3, 0, 5],
        [1] * 300,
        [1000, 1, 0, 999],
        [4095, 1], [4096, 1], [4097],
        [100_000, 3, 0, 70_001],
        [rng.randrange(0, 400) for _ in range(300)],
        [rng.choice([0, 1, 7, 5000, 40_000]) for _ in range(60)],
        [1, 131_072, 1, 65_536, 2],
    ]  # fmt: skip


def lists(comm: Any, algorithms: dict[str, list[str]], seed: int, share: Share) -> dict[str, Any]:
    rng = random.Random(seed)
    taken = share.taken()
    failures = []
    before = comm.bytes_by_transport()
    for collective in ("all_reduce", "broadcast", "reduce"):
        for algorithm in algorithms[collective]:
            for counts in lists_of(rng):
                if not next(taken):
                    continue
                dtype = rng.choice(["float32", "bfloat16", "int8", "float64", "bool"])
                root = rng.randrange(comm.size)
                kind = rng.choice(["in place", "out of place", "mixed layouts"])
                sources = [[values(dtype, False, c, r, i % 3) for i, c in enumerate(counts)] for r in range(comm.size)]
                x = [a.copy() for a in sources[comm.rank]]
                if kind == "mixed layouts":
                    x = [strided(a) if i % 2 else a for i, a in enumerate(x)]
                out = [np.ones_like(a) for a in x] if kind == "out of place" else None
                given: Any = tuple(x) if rng.random() < 0.3 else x
                more = {"algorithm": algorithm, "out": out}
                if collective == "broadcast":
                    result = comm.broadcast(given, root, **more)
                elif collective == "reduce":
                    result = comm.reduce(given, "sum", root, **more)
                else:
                    result = comm.all_reduce(given, **more)
                label = f"rank {comm.rank}: {collective} {algorithm} {dtype} {len(counts)} tensors {kind}: "
                if result is not (given if out is None else out):
                    failures.append(label + "returns another object")
                for i, target in enumerate(x if out is None else out):
                    mine = sources[comm.rank][i]
                    if out is not None and x[i].tobytes() != mine.tobytes():
                        failures.append(label + f"input {i} was changed")
                    if collective == "broadcast":
                        text = wrong(target, sources[root][i], np.zeros(0))
                    elif collective == "reduce" and comm.rank != root:
                        untouched = np.array_equal(target, mine if out is None else np.ones_like(target))
                        text = "" if untouched else "written on a rank that is not the root"
                    else:
                        exact, loose, _ = reduced([s[i] for s in sources], "sum")
                        text = wrong(target, exact, loose)
                    if text:
                        failures.append(label + f"tensor {i}: {text}")
    after = comm.bytes_by_transport()
    return {"failures": failures, "bytes": {k: after[k] - before[k] for k in after}}


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_lists(pools: Pools, n: int, transport: str) -> None:
    group = pools.get(n, transport)
    algorithms = group.run(usable_algorithms)[0]
    reports = group.run(lists, algorithms, n, Share.of(group), limit=120)
    failures = [text for report in reports for text in report["failures"]]
    assert not failures, "\n".join(failures[:20])
    assert_transport(group, [report["bytes"] for report in reports], True)


def symmetric(comm: Any, algorithms: dict[str, list[str]], share: Share) -> list[str]:
    """Arrays of comm.empty as inputs and outputs, mixed with ordinary ones; pieces of one; freed and used again."""
    taken = share.taken()
    failures = []
    for dtype in ("float32", "float16", "uint8", "int64"):
        for count in (1, 10, 1000, 65_537, 400_003):
            if not next(taken):
                continue
            sources = [values(dtype, False, count, r) for r in range(comm.size)]
            exact, loose, _ = reduced(sources, "sum")
            mine = sources[comm.rank]
            x = comm.empty(count, numpy_dtype(dtype))
            y = comm.empty((count,), numpy_dtype(dtype))
            private = np.empty_like(mine)
            if x.shape != (count,) or x.dtype != mine.dtype or not x.flags.writeable:
                failures.append(f"empty gives {x.shape} {x.dtype}")
            for algorithm in algorithms["all_reduce"]:
                for source, target in ((x, x), (x, y), (x, private), (private, y)):
                    source[:] = mine
                    comm.all_reduce(source, algorithm=algorithm, out=None if target is source else target)
                    label = f"rank {comm.rank}: {algorithm} {dtype} {count}: "
                    if text := wrong(target, exact, loose):
                        failures.append(label + text)
                    if target is not source and source.tobytes() != mine.tobytes():
                        failures.append(label + "the input was changed")
            for collective in ("broadcast", "reduce"):
                for index, algorithm in enumerate(algorithms[collective]):
                    root = index % comm.size
                    x[:] = mine
                    label = f"rank {comm.rank}: {collective} {algorithm} {dtype} {count}: "
                    if collective == "broadcast":
                        comm.broadcast(x, root, algorithm=algorithm)
                        text = wrong(x, sources[root], np.zeros(0))
                    else:
                        comm.reduce(x, "sum", root, algorithm=algorithm)
                        text = wrong(x, exact, loose) if comm.rank == root else ""
                        if comm.rank != root and x.tobytes() != mine.tobytes():
                            text = "written on a rank that is not the root"
                    if text:
                        failures.append(label + text)
            if count > 100:  # a piece of a symmetric array, and a list of them
                x[:] = mine
                comm.all_reduce(x[3:-5])
                if text := wrong(x[3:-5], exact[3:-5], loose[3:-5]) or wrong(x[:3], mine[:3], np.zeros(0)):
                    failures.append(f"rank {comm.rank}: piece of {count} {dtype}: {text}")
                x[:] = mine
                comm.all_reduce([x[:50], x[50:]])
                if text := wrong(x, exact, loose):
                    failures.append(f"rank {comm.rank}: list of pieces of {count} {dtype}: {text}")
    a = comm.empty((20, 30))
    a[...] = comm.rank
    b = comm.empty((20, 30))
    b[...] = 7
    del a
    for _ in range(20):
        c = comm.empty(1 << 20, np.uint8)  # room of dropped arrays is used again
        c[:] = 1
        comm.all_reduce(c)
        del c
    if b.min() != 7 or b.max() != 7:
        failures.append("an array was overwritten by a later one")
    if comm.empty(0).size or comm.empty(()).shape != () or comm.empty((3, 0)).shape != (3, 0):
        failures.append("empty arrays of empty")
    return failures


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_symmetric(pools: Pools, n: int, transport: str) -> None:
    group = pools.get(n, transport)
    algorithms = group.run(usable_algorithms)[0]
    failures = flat(group.run(symmetric, algorithms, Share.of(group), limit=120))
    assert not failures, "\n".join(failures[:20])


def special(comm: Any) -> list[str]:
    """NaN wins min and max on every rank alike; infinities and zeros with a sign take part as IEEE says."""
    failures = []
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        kind = numpy_dtype(dtype)
        mine = np.zeros(1000, kind)
        mine[comm.rank] = np.nan
        mine[10 + comm.rank] = np.inf
        mine[20] = np.inf if comm.rank == 0 else -np.inf
        mine[30] = -0.0
        for op in ("sum", "min", "max"):
            result = comm.all_reduce(mine, op, out=np.empty_like(mine)).astype(np.float64)
            if not np.isnan(result[: comm.size]).all():
                failures.append(f"{dtype} {op}: NaN is lost")
            if op != "min" and not np.isposinf(result[10 : 10 + comm.size]).all():
                failures.append(f"{dtype} {op}: inf is lost")
            if op == "sum" and not np.isnan(result[20]):
                failures.append(f"{dtype}: inf - inf is {result[20]}")
            if op == "sum" and not np.signbit(result[30]):
                failures.append(f"{dtype}: -0 + -0 is {result[30]}")
            if np.any(result[40:] != 0):
                failures.append(f"{dtype} {op}: zeros")
    return failures


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_special_values(pools: Pools, n: int, transport: str) -> None:
    assert not flat(pools.get(n, transport).run(special))


def explicit_none(comm: Any) -> list[bool]:
    x = np.ones(3)
    return [comm.all_reduce(x, out=None) is x, comm.broadcast(x, out=None) is x, comm.reduce(x, out=None) is x]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_out_none_is_no_out(pools: Pools, transport: str) -> None:
    assert pools.get(2, transport).run(explicit_none) == [[True] * 3] * 2
