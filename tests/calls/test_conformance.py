"""Every collective x element type x op x algorithm of the registry x transport, for 1 to 8 ranks, against NumPy.

The short tier has, for each transport and number of ranks, every pair of two other settings (see tiers.py).
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import tiers
from conformance import (
    BITWISE,
    COMPLEX,
    DTYPES,
    FLOAT8,
    FLOATS,
    LOGICAL,
    MEANINGFUL,
    OPS,
    Case,
    groups,
    judge,
    numpy_dtype,
    usable_algorithms,
)
from pool import Pools

INLINE, STAGE, SEGMENT = 40, 128 << 10, 512 << 10  # bytes: where the algorithms change their ways
EXCHANGE, WINDOW = 1 << 20, 4 << 20  # bytes: what ranks give each other at a time over TCP, and may have under way


@pytest.fixture(scope="module", params=groups(), ids=lambda g: f"{g[1]}-{g[0]}")
def group(request: pytest.FixtureRequest, pools: Pools) -> Any:
    """By module, so that all tests of a group run one after the other while its processes are there."""
    n, transport = request.param
    return pools.get(n, transport)


def product(group: Any, sizes: Any, kinds: list[tuple[str, str]]) -> list[Case]:
    """Everything with everything, but that the root goes round, so that every algorithm meets every root."""
    algorithms = group.run(usable_algorithms)[0]
    cases = []
    for collective in ("all_reduce", "reduce", "broadcast"):
        pairs = kinds if collective != "broadcast" else [(d, "sum") for d in dict.fromkeys(d for d, _ in kinds)]
        for algorithm in algorithms[collective]:
            for dtype, op in pairs:
                for count in sizes(dtype):
                    root = len(cases) % group.size if collective != "all_reduce" else 0
                    cases.append(Case(collective, dtype, op, count, algorithm, root))
    return cases


def matrix(group: Any, sizes: Any, kinds: list[tuple[str, str]]) -> list[Case]:
    """The product, of which the short tier has a sample for each group."""
    return tiers.thinned(product(group, sizes, kinds), salt=(group.size, group.transport))


def around(dtype: str, borders: list[int]) -> list[int]:
    """Counts of elements around borders in bytes."""
    width = numpy_dtype(dtype).itemsize
    return [max(0, border // width + delta) for border in borders for delta in (-1, 0, 1)]


def test_everything_small(group: Any) -> None:
    """Sizes 0, 1, odd, and around what fits beside the signature."""
    judge(group, matrix(group, lambda dtype: [0, 1, 7, *around(dtype, [INLINE])], MEANINGFUL), 64)


def test_every_root(group: Any) -> None:
    cases = product(group, lambda _: [3, 33], [("float32", "sum"), ("bool", "min")])
    every = dict.fromkeys(c._replace(root=r) for c in cases if c.collective != "all_reduce" for r in range(group.size))
    judge(group, tiers.thinned(list(every), salt=(group.size, group.transport)), 64)


def test_at_the_borders_of_bounce_buffers(group: Any) -> None:
    kinds = [("float32", "sum"), ("bfloat16", "avg"), ("uint8", "max"), ("int64", "prod")]

    borders = [SEGMENT, EXCHANGE] if group.transport == "tcp" else [STAGE, SEGMENT]

    def sizes(dtype: str) -> list[int]:
        return around(dtype, borders)

    judge(group, matrix(group, sizes, kinds), borders[-1] + 1)


def test_large(group: Any) -> None:
    """Some lengths beyond all bounce buffers together, by a seed; fewer where similar groups have more."""
    few = group.size in ((6, 7) if tiers.full() else (4, 5, 6, 7))
    rng = random.Random(f"{group.size} {group.transport}")
    cases = product(group, lambda _: [300_007], MEANINGFUL)
    by_algorithm: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        by_algorithm.setdefault((case.collective, case.algorithm), []).append(case)
    chosen = [case for same in by_algorithm.values() for case in rng.sample(same, 1 if few else tiers.few(2, full=3))]
    judge(group, chosen, 300_007)
    if not few:
        # Parts of EXCHANGE, but that the last one is longer, since the others end where cache lines do; and more than
        # may be under way.
        count = max(WINDOW // 4 + 3, group.size * EXCHANGE // 4 - 1)
        judge(group, matrix(group, lambda _: [count], [("float32", "sum")]), count)


# Eight ranks on few cores mostly wait for each other's turns: over one transport in the short tier.
BOXED = [(n, t) for t in ("local", "shm", "tcp") for n in (2, 3, 5, 8) if n < 8 or t == "local" or tiers.full()]


@pytest.mark.parametrize(("n", "transport"), BOXED)
def test_tiny_bounce_buffers(pools: Pools, n: int, transport: str) -> None:
    """Bounce buffers so small that small arrays pass through each of them many times."""
    group = pools.get(n, transport, slot_bytes=192, slots=2 if n < 5 else 4, segment_bytes=64)
    kinds = [("float64", "sum"), ("float16", "avg"), ("uint8", "sum"), ("bool", "prod"), ("int16", "min")]
    cases = matrix(group, lambda dtype: [1, *around(dtype, [64, 192, 192 * n, 768, 4000])], kinds)
    judge(group, cases, 4100)


def test_the_matrix_is_complete() -> None:
    assert {d for d, _ in MEANINGFUL} == set(DTYPES)
    assert {(d, "avg") for d in (*FLOATS, *COMPLEX, *FLOAT8)} <= set(MEANINGFUL)
    assert {o for _, o in MEANINGFUL} == {*OPS, *LOGICAL, *BITWISE}
