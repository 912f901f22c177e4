"""Vector collectives: every algorithm of the registry x transport, for 1 to 8 ranks, against NumPy.

What does not multiply is chosen at random, from a seed of the group's own, so that over all groups all combinations of
two settings occur. Where that is too much, a group runs a sample of the cases, in the short tier a smaller one.
"""

from __future__ import annotations

import itertools
import mmap
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiers
from conformance import DTYPES, MEANINGFUL, groups, numpy_dtype, values
from conformance_parts import LAYOUTS, PARTS, ROOTED, Case, Shape, judge, parts, usable_algorithms
from pool import Pools

TRANSPORTS = ("local", "shm", "tcp")
TINY = [(n, "local") for n in (2, 3, 5, 8)] + [(2, "tcp"), (3, "shm"), (5, "tcp")]
INLINE, STAGE, SEGMENT = 40, 128 << 10, 512 << 10  # bytes: where the algorithms change their ways
WIDTHS = ("uint8", "float16", "int32", "float64", "bool")  # for collectives that only move
FORMS = ("new", "out", "in place")
TRAILING: tuple[Shape, ...] = ((), (3,), (), (2, 2), (1,))


def small_patterns(n: int) -> list[list[int]]:
    """Rows by part: equal ones, different ones, some of them or all empty, one long, only one that is not empty."""
    return [[1], [3], [0, 9, 4, 18, 2], [0], [2] * (n // 2) + [150] + [2] * (n - n // 2 - 1), [0] * (n - 1) + [37]]


def rng_of(group: Any) -> random.Random:
    return random.Random(f"{group.size} {group.transport}")


def vary(rng: random.Random, case: Case) -> Case:
    """The case in some form. Without counts= what is split must be split evenly."""
    even = all(len(set(rows)) == 1 for rows in case.rows)
    free = even or case.collective in ("all_gather", "gather")
    counted = not free or rng.random() < 0.5
    return case._replace(form=rng.choice(FORMS), counted=counted, as_list=case.as_list or rng.random() < 0.15)


def share(rng: random.Random, cases: list[Case], divisor: int) -> list[Case]:
    """A sample of the cases, in their order."""
    return [cases[i] for i in sorted(rng.sample(range(len(cases)), -(-len(cases) // divisor)))]


@pytest.fixture(scope="module", params=groups(), ids=lambda g: f"{g[1]}-{g[0]}")
def group(request: pytest.FixtureRequest, pools: Pools) -> Any:
    return pools.get(*request.param)


def small_cases(rng: random.Random, algorithms: list[tuple[str, str]], n: int) -> Iterator[Case]:
    patterns = small_patterns(n)
    for collective, algorithm in algorithms:
        if collective == "reduce_scatter":
            # All of them in small groups; in large ones a third for each algorithm.
            pairs = MEANINGFUL if n <= 4 else rng.sample(MEANINGFUL, len(MEANINGFUL) // 3)
            chosen = [(d, o, rng.choice(patterns), 0) for d, o in pairs]
            chosen += [("float32", "sum", p, 0) for p in patterns]
        elif collective in ROOTED:
            chosen = [(rng.choice(WIDTHS), "sum", p, root) for p in patterns for root in range(n)]
        else:
            chosen = [(d, "sum", p, 0) for d in WIDTHS for p in patterns]
        for dtype, op, pattern, root in chosen:
            rows = parts(collective, n, pattern)
            scalar = rng.random() < 0.5
            yield vary(
                rng, Case(collective, algorithm, dtype, (rows,), (rng.choice(TRAILING),), op, root, scalar=scalar)
            )


def settings(case: Case) -> tuple[Any, ...]:
    """Those of which every two values are to meet."""
    without_shape = case.scalar and 1 in case.rows[0] and case.trailing == ((),)
    of_call = (case.form, case.counted, case.as_list, without_shape)
    kernel = (case.collective == "reduce_scatter", case.dtype, case.op)
    return (case.collective, case.algorithm, kernel, case.root, *of_call)


def test_everything_small(group: Any) -> None:
    cases = list(small_cases(rng_of(group), group.run(usable_algorithms)[0], group.size))
    cases = tiers.thinned(cases, settings, (group.size, group.transport))
    if group.size <= 4:
        assert {(c.dtype, c.op) for c in cases if c.collective == "reduce_scatter"} == set(MEANINGFUL)
    assert {(c.collective, c.root) for c in cases} >= {(c, r) for c in ROOTED for r in range(group.size)}
    assert any(c.scalar and 1 in c.rows[0] and c.trailing == ((),) for c in cases)
    judge(group, cases, 16_000)


def around(dtype: str, borders: list[int]) -> list[int]:
    """Counts of elements around borders in bytes."""
    width = numpy_dtype(dtype).itemsize
    return sorted({max(0, border // width + delta) for border in borders for delta in (-1, 0, 1)})


def test_around_what_fits_beside_the_signature(group: Any) -> None:
    n, rng, cases = group.size, rng_of(group), []
    for collective, algorithm in group.run(usable_algorithms)[0]:
        for dtype in ("uint8", "float32"):
            for count in around(dtype, [INLINE, INLINE // n, INLINE // max(1, n - 1)]):
                rows = parts(collective, n, [count])
                cases.append(vary(rng, Case(collective, algorithm, dtype, (rows,), root=rng.randrange(n))))
    judge(group, cases, 1000)


def border_cases(group: Any, rng: random.Random, borders: list[int], dtypes: list[str]) -> list[Case]:
    """Equal and unequal parts around borders of bounce buffers."""
    n, cases = group.size, []
    for (collective, algorithm), border in itertools.product(group.run(usable_algorithms)[0], borders):
        for delta in range(3):
            dtype = rng.choice(dtypes)
            count = around(dtype, [border])[delta]
            pattern = rng.choice([[count], [count, 0, count // 3 + 1], [5] * (n - 1) + [count]])
            case = Case(collective, algorithm, dtype, (parts(collective, n, pattern),), root=rng.randrange(n))
            cases.append(vary(rng, case._replace(op=rng.choice(["sum", "max"]))))
    return cases


def test_at_the_borders_of_bounce_buffers(group: Any) -> None:
    """A slot holds a chunk for each reader, so its size divided by their number is a border too."""
    n, rng = group.size, rng_of(group)
    borders = [STAGE // max(1, n - 1) // 64 * 64, STAGE, SEGMENT]
    cases = border_cases(group, rng, borders, ["int32", "int64", "uint8", "int16"])
    cases = share(rng, cases, tiers.few(6, full=3))
    for dtype in sorted({c.dtype for c in cases}):
        judge(group, [c for c in cases if c.dtype == dtype], n * (SEGMENT // numpy_dtype(dtype).itemsize + 1))


def test_large(group: Any) -> None:
    """Longer than all bounce buffers together, for a third of the algorithms in each group."""
    n, rng, cases = group.size, rng_of(group), []
    for collective, algorithm in group.run(usable_algorithms)[0]:
        rows = parts(collective, n, rng.choice([[400_007 // n, 11], [100_003]]))
        cases.append(vary(rng, Case(collective, algorithm, "int32", (rows,), root=rng.randrange(n))))
    judge(group, share(rng, cases, tiers.few(6, full=3)), 100_003 * max(4, n))


@pytest.mark.parametrize(("n", "transport"), TINY)
def test_tiny_bounce_buffers(pools: Pools, n: int, transport: str) -> None:
    """Bounce buffers so small that each is used many times, and some in which no chunk for each reader fits."""
    group = pools.get(n, transport, slot_bytes=192, slots=2, segment_bytes=64)
    dtypes = ["float64", "float16", "uint8", "bool", "int16"]
    borders = [64, 192 // (n - 1) // 8 * 8, 192, 768, 1900]
    judge(group, border_cases(group, rng_of(group), borders, dtypes), 2000 * n)


def test_layouts(group: Any) -> None:
    """Every layout of input with every layout of output, for each collective."""
    n, rng, cases = group.size, rng_of(group), []
    algorithms = group.run(usable_algorithms)[0]
    for collective, layout, out_layout in itertools.product(PARTS, LAYOUTS, LAYOUTS):
        algorithm = rng.choice([a for c, a in algorithms if c == collective])
        rows = parts(collective, n, rng.choice([[3, 0, 5], [4], [1, 300]]))
        trailing: Shape = rng.choice([(3,), (), (2, 5), (0,), (4, 1, 2)])
        case = vary(rng, Case(collective, algorithm, rng.choice(DTYPES), (rows,), (trailing,), root=rng.randrange(n)))
        # The layout of the output matters where there is one.
        form = "out" if out_layout != "plain" and case.form == "new" else case.form
        cases.append(case._replace(layout=layout, out_layout=out_layout, form=form))
    judge(group, share(rng, cases, tiers.few(12, full=4)), 40_000)


def lists(collective: str, n: int) -> list[tuple[tuple[tuple[int, ...], ...], tuple[Shape, ...]]]:
    """(rows, trailing shapes): none, one, short lists, which are packed, and lists above 16 KiB, which are not."""
    few = ([1], [0], [3, 0, 5], [2])
    many = [[5], [0, 1, 7], [0], [200, 3], [1]] * 8
    patterns: list[tuple[Any, list[Shape]]] = [
        ([], []),
        ([[3, 1]], [(2,)]),
        (few, [(), (3,), (2, 2), (4, 0)]),
        ([[4], [2]], [(), (2, 3)]),
        (many, [((), (3,), (2, 2), (7,), (1, 1, 5))[i % 5] for i in range(40)]),
        ([[2], [5000], [0]], [(3,), (), (2,)]),
    ]
    return [(tuple(parts(collective, n, p) for p in ps), tuple(ts)) for ps, ts in patterns]


def test_lists(group: Any) -> None:
    n, rng, cases = group.size, rng_of(group), []
    for collective, algorithm in group.run(usable_algorithms)[0]:
        for rows, trailing in lists(collective, n):
            for form in FORMS:
                dtype = rng.choice(["float32", "bfloat16", "int8", "float64", "bool"])
                layout = rng.choice(LAYOUTS)
                case = Case(collective, algorithm, dtype, rows, trailing, root=rng.randrange(n), as_list=True)
                cases.append(vary(rng, case)._replace(form=form, layout=layout, out_layout=layout))
    judge(group, share(rng, cases, tiers.few(9, full=3)), 60_000)


def test_in_flight(group: Any) -> None:
    """Several kinds at a time, small and large, waited for in an order of each rank's own."""
    n, rng, cases = group.size, rng_of(group), []
    for collective, algorithm in group.run(usable_algorithms)[0]:
        for pattern in ([1], [0, 4, 9], [20_000], [3000, 1, 0], [0], [7]):
            rows = parts(collective, n, pattern)
            case = vary(rng, Case(collective, algorithm, rng.choice(WIDTHS), (rows,), root=rng.randrange(n)))
            cases.append(case._replace(layout=rng.choice(LAYOUTS), out_layout=rng.choice(LAYOUTS)))
    rng.shuffle(cases)
    judge(group, cases[: len(cases) // tiers.few(4, full=2)], 20_000 * n, at_a_time=13)


def same_bits(comm: Any, dtype: str, op: str, rows: list[list[int]]) -> list[Any]:
    """reduce_scatter is the slice of all_reduce: alone, in a list, of another algorithm. And its bytes, by tensor."""
    n, rank = comm.size, comm.rank
    arrays = [values(dtype, op == "prod", sum(r) * 3, rank, i).reshape(-1, 3) for i, r in enumerate(rows)]
    slices = [slice(sum(r[:rank]), sum(r[: rank + 1])) for r in rows]
    whole = [comm.all_reduce(a, op, out=np.empty_like(a), deterministic=True) for a in arrays]
    expected = [a[s].tobytes() for a, s in zip(whole, slices, strict=True)]
    alone = [
        comm.reduce_scatter(a, op, counts=r, deterministic=True).tobytes() for a, r in zip(arrays, rows, strict=True)
    ]
    fused = [a.tobytes() for a in comm.reduce_scatter(arrays, op, counts=rows, deterministic=True)]
    works = [
        comm.reduce_scatter(a, op, counts=r, deterministic=True, async_op=True)
        for a, r in zip(arrays, rows, strict=True)
    ]
    later = [w.result().tobytes() for w in reversed(works)][::-1]
    return [alone == expected, fused == expected, later == expected, n, expected]


@pytest.mark.parametrize(("dtype", "op"), [("float32", "sum"), ("float16", "avg"), ("bfloat16", "prod")])
@pytest.mark.parametrize("n", [2, 5])
def test_deterministic_reduce_scatter_is_a_slice_of_all_reduce(pools: Pools, n: int, dtype: str, op: str) -> None:
    """On every transport, and the same bits on all of them."""
    patterns = [[3], [0, 5, 1], [1000], [0, 20_000], [1]]
    rows = [list(parts("reduce_scatter", n, p)) for p in patterns]
    seen = []
    for transport in TRANSPORTS:
        reports = pools.get(n, transport).run(same_bits, dtype, op, rows)
        assert [r[:3] for r in reports] == [[True] * 3] * n, transport
        seen.append([r[4] for r in reports])
    assert seen[0] == seen[1] == seen[2]


def symmetric(comm: Any) -> list[str]:
    """Arrays of comm.empty take part as others do, also where they are given on one side or on some ranks only."""
    from collectives import _core

    failures = []
    n, rank = comm.size, comm.rank
    shared = _core._heap(comm)[1] > 0
    for rows in (1, 700, 40_000):
        x, out = comm.empty(rows, np.int64), comm.empty(n * rows, np.int64)
        # Of ranks that are given up the system makes pages private, which nothing else may share.
        if shared and (x.ctypes.data % mmap.PAGESIZE or out.ctypes.data % mmap.PAGESIZE):
            failures.append(f"arrays of {rows} within pages of {mmap.PAGESIZE}")
        x[:] = np.arange(rows) + rank
        everyone = np.concatenate([np.arange(rows) + r for r in range(n)])
        if (comm.all_gather(x, out=out) != everyone).any():
            failures.append(f"all_gather of {rows}")
        total = np.arange(n * rows) * (n * (n + 1) // 2)
        out[:] = np.arange(n * rows) * (rank + 1)
        given = out if rank % 2 == 0 else out.copy()
        if (comm.reduce_scatter(given, out=x) != total[rank * rows : (rank + 1) * rows]).any():
            failures.append(f"reduce_scatter of {rows}")
        mine = np.arange(rank * rows, (rank + 1) * rows)
        if (comm.all_to_all(given) != np.concatenate([mine * (r + 1) for r in range(n)])).any():
            failures.append(f"all_to_all of {rows}")
    return failures


def test_symmetric_memory(group: Any) -> None:
    assert not any(group.run(symmetric))


def overlapping(comm: Any, algorithms: list[tuple[str, str]]) -> list[str]:
    """Outputs that lie over inputs, but not in the place of the part: over what another rank gives or gets."""
    failures = []
    n, rank = comm.size, comm.rank
    for (collective, algorithm), rows in itertools.product(algorithms, (1, 3000, 70_000)):
        store = np.arange(n * rows) * (rank + 1)
        other = (rank + 1) % n
        mine, its = slice(rank * rows, (rank + 1) * rows), slice(other * rows, (other + 1) * rows)
        everyone = [np.arange(n * rows) * (r + 1) for r in range(n)]
        expected: Any = None
        if collective == "reduce_scatter":
            expected = np.add.reduce(everyone)[mine]
            result = comm.reduce_scatter(store, out=store[its], algorithm=algorithm)
        elif collective == "all_to_all":
            expected = np.concatenate([a[mine] for a in everyone])
            result = comm.all_to_all(store, out=store, algorithm=algorithm)
        elif collective == "scatter":
            expected = everyone[0][mine]
            result = comm.scatter(store if rank == 0 else None, out=store[its], algorithm=algorithm)
        else:
            places = [slice((r + 1) % n * rows, ((r + 1) % n + 1) * rows) for r in range(n)]
            expected = np.concatenate([a[p] for a, p in zip(everyone, places, strict=True)])
            result = getattr(comm, collective)(store[its], out=store, algorithm=algorithm)
            expected = None if collective == "gather" and rank != 0 else expected
        if not (result is None if expected is None else np.array_equal(result, expected)):
            failures.append(f"rank {rank} of {n}: {collective} {algorithm} of {rows}")
    return failures


def test_outputs_over_inputs(group: Any) -> None:
    failures = [text for report in group.run(overlapping, group.run(usable_algorithms)[0]) for text in report]
    assert not failures, "\n".join(failures[:20])


def test_every_algorithm_of_the_registry_is_among_them(pools: Pools) -> None:
    from collectives import _core

    used = {found for transport in ("shm", "tcp") for found in pools.get(3, transport).run(usable_algorithms)[0]}
    assert used >= {(c, a["name"]) for c in PARTS for a in _core._algorithms(c)}
