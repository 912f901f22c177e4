"""The kernels for GPUs, run on the host: the same bits as the reducers of CPUs, for all they can be asked for.

What they compute is in headers that nvcc compiles for GPUs (csrc/cuda/) and this test for the host: which kernel is
taken, in which order it combines, packs and what is left over, conversions and roundings. Not tested: the launch, and
that a GPU computes as C++ says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from collectives import _core
from cuda_on_host import COMBINATIONS, Kernels, nvcc
from reducing import (
    COMPLEX,
    DTYPES,
    FLOAT8,
    FLOATS,
    HALVES,
    ISAS,
    MEANINGFUL,
    NARROW,
    OPS,
    Array,
    assert_same,
    every_value,
    numpy_dtype,
    reduced,
    samples,
)

pytestmark = pytest.mark.skipif(nvcc() is None, reason="there is no nvcc, whose toolkit has headers for this")

EXACT_ORDER = [op for op in OPS if op not in ("sum", "avg", "premul_sum", "prod", "min", "max")]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels(tmp_path_factory.mktemp("kernels"))


def special(dtype: str, count: int, seed: int, op: str) -> Array:
    """Samples with what is special among them: zeros of both signs, infinities, NaN, the largest and the smallest."""
    values = samples(dtype, count, seed, op)
    if dtype not in FLOATS:
        return values
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        extremes = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 6e4, 440, 1e-40, 1e-7, 2e-3], np.float64)
        chosen = extremes[rng.integers(0, extremes.size, count)].astype(values.dtype)
    return np.where(rng.integers(0, 8, count) == 0, chosen, values)


def parts(count: int, n: int, dtype: str) -> list[slice]:
    """Where a chain begins with each of the sources: part_of() of csrc/schedule/schedule.cc."""
    size = numpy_dtype(dtype).itemsize
    unit = 64 if count * size >= 64 * n else size
    units = count * size // unit
    borders = [*(units * i // n * unit // size for i in range(n)), count]
    return [slice(a, b) for a, b in itertools.pairwise(borders)]


def replicas(combination: str, dtype: str, op: str, sources: list[Array]) -> Array:
    """What reduce_replicas() makes of arrays in host memory."""
    made = _core._reduce_replicas(combination, 1, [(sources, op, 1)])
    assert made is not None
    return np.asarray(made[0][0])


def test_meaning(kernels: Kernels) -> None:
    for dtype in DTYPES:
        for op in OPS:
            assert kernels.has(op, dtype) == _core._has_kernel(op, dtype), (op, dtype)


@pytest.mark.parametrize(("dtype", "op"), [(d, o) for d, o in MEANINGFUL if o != "premul_sum"])
def test_same_bits_as_on_hosts(kernels: Kernels, dtype: str, op: str) -> None:
    orders = set()
    exact = op in EXACT_ORDER or dtype not in (*FLOATS, *COMPLEX)
    for n in [1, 2, 3, 4, 5, 6, 7, 8, 9, *([12, 17] if exact else [10, 11, 13, 16, 17, 23, 31, 33, 47, 64])]:
        count = 67 * n if n < 10 else 16 * n + 5
        sources = [special(dtype, count, 100 * n + k, op) for k in range(n)]
        for combination in COMBINATIONS:
            expected = replicas(combination, dtype, op, sources)
            out = np.full_like(expected, 1)
            whole = enumerate(parts(count, n, dtype)) if combination == "chain" else [(0, slice(None))]
            for first, part in whole:
                if expected[part].size:
                    kernels.reduce(dtype, op, combination, [s[part] for s in sources], out[part], first=first)
                    orders.add(kernels.order)
            assert_same(out, expected)
    if dtype in ("float16", "bfloat16", "float32", "float64") and op in ("sum", "avg", "prod", "min", "max"):
        assert orders >= {"two", "four", "eight", "trees", "chain"}
        assert ("one" in orders) == (op == "avg")


@pytest.mark.parametrize(("dtype", "op"), [("float32", "sum"), ("bfloat16", "avg"), ("float64", "max"),
                                           ("float8_e5m2", "prod"), ("int16", "prod"), ("int8", "min"),
                                           ("uint8", "logical_xor"), ("int64", "bitwise_and"), ("bool", "sum"),
                                           ("complex128", "avg")])  # fmt: skip
@pytest.mark.parametrize("n", [1, 2, 3, 8])
class TestMemory:
    def test_any_alignment_and_count(self, kernels: Kernels, dtype: str, op: str, n: int) -> None:
        for count in (1, 2, 3, 7, 8, 15, 16, 17, 31, 100):
            for shift in range(9):
                stores = [samples(dtype, count + 64, k, op) for k in range(n)]
                alike = [s[shift : shift + count] for s in stores]
                expected = replicas("canonical", dtype, op, [a.copy() for a in alike])
                for other in (shift, shift + 1):  # the destination has packs where the sources have them, and not
                    out = np.full_like(stores[0], 1)
                    kernels.reduce(dtype, op, "canonical", alike, out[other : other + count])
                    assert_same(out[other : other + count], expected)
                    out[other : other + count] = 1
                    assert (out == np.full_like(out, 1)).all()

    def test_several_destinations_one_of_them_a_source(self, kernels: Kernels, dtype: str, op: str, n: int) -> None:
        for destinations in (2, 8, 9, 64):
            for idle in (0, 5, 63):
                sources = [samples(dtype, 203, k, op) for k in range(n)]
                expected = replicas("canonical", dtype, op, [s.copy() for s in sources])
                out = [np.full_like(sources[0], 1) for _ in range(destinations)]
                out[-1] = sources[n // 2]
                request = kernels.fill(dtype, op, "canonical", sources, out)
                assert kernels.run(request, idle) == 0
                for o in out:
                    assert_same(o, expected)


def test_packs_are_used_where_they_can(kernels: Kernels) -> None:
    for dtype in DTYPES:
        size = 8 if dtype in FLOAT8 else 16
        sources = [samples(dtype, 1000, k) for k in range(2)]
        kernels.reduce(dtype, "sum", "canonical", sources, np.empty_like(sources[0]))
        assert kernels.packs >= sources[0].nbytes // size - 1, dtype
        sources[1] = sources[1][1:]
        kernels.reduce(dtype, "sum", "canonical", [sources[0][:-1], sources[1]], np.empty_like(sources[1]))
        assert (kernels.packs == 0) == (sources[0].itemsize < size), dtype


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_scaling(kernels: Kernels, dtype: str) -> None:
    source = every_value(dtype) if dtype in NARROW else special(dtype, 5000, 1, "premul_sum")
    for factor in (1.0, -1 / 3, 0.1, 1e-30, 1e30, 0.0, np.inf, np.nan):
        expected, out = np.empty_like(source), np.empty_like(source)
        _core._scale(ISAS[0], dtype, factor, source.ctypes.data, expected.ctypes.data, source.size)
        assert_same(kernels.reduce(dtype, "premul_sum", "canonical", [source], out, operand=factor), expected)


@pytest.mark.parametrize("dtype", NARROW)
class TestConversions:
    def test_every_element_is_read_right(self, kernels: Kernels, dtype: str) -> None:
        assert_same(kernels.decode(dtype, every_value(dtype)), every_value(dtype).astype(np.float32))

    def test_rounding_to_nearest_even(self, kernels: Kernels, dtype: str) -> None:
        """All elements, the values in the middle between neighbours, their neighbours, and what is out of range."""
        with np.errstate(all="ignore"):
            every = every_value(dtype).astype(np.float32)
            finite = np.unique(every[np.isfinite(every)])
            middles = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
            above = finite[-1] + (finite[-1] - finite[-2]) * np.array([0.25, 0.5, 0.75, 1, 2], np.float32)
            random = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
            base = np.concatenate([finite, middles, above, -above, [0.0, -0.0, np.inf, -np.inf, np.nan]])
            down, up = (np.nextafter(base, np.float32(to), dtype=np.float32) for to in (-np.inf, np.inf))
            values = np.concatenate([base.astype(np.float32), down, up, random])
            expected = values.astype(numpy_dtype(dtype))
        assert_same(kernels.encode(dtype, values, np.empty_like(expected)), expected)


def partners(dtype: str) -> Iterator[tuple[Array, Array]]:
    """All pairs of 8-bit elements; all 16-bit elements with some others, special ones among them."""
    every = every_value(dtype)
    if every.itemsize == 1:
        yield np.repeat(every, 256), np.tile(every, 256)
        return
    rng = np.random.default_rng(1)
    with np.errstate(all="ignore"):
        chosen = np.array([0.0, -0.0, 1, -3, 65504, 6e-8, 3e38, 1e-40, np.inf, -np.inf, np.nan]).astype(every.dtype)
    for partner in (*chosen, *rng.choice(every, 30)):
        yield every, np.full_like(every, partner)
    yield every, rng.permutation(every)


@pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max", "logical_and", "logical_or", "logical_xor"])
@pytest.mark.parametrize("dtype", NARROW)
def test_pairs(kernels: Kernels, dtype: str, op: str) -> None:
    for a, b in partners(dtype):
        expected = reduced(ISAS[0], dtype, op, [a, b], divisor=2)
        assert_same(kernels.reduce(dtype, op, "canonical", [a, b], np.empty_like(a)), expected)


@pytest.mark.parametrize("dtype", [*HALVES, *FLOAT8])
def test_sums_of_two_are_rounded_as_float64_says(kernels: Kernels, dtype: str) -> None:
    """Two such elements add up exactly in float64, but for what is far below the last bit of float32."""
    for a, b in partners(dtype):
        with np.errstate(all="ignore"):
            expected = (a.astype(np.float64) + b.astype(np.float64)).astype(np.float32).astype(a.dtype)
        assert_same(kernels.reduce(dtype, "sum", "canonical", [a, b], np.empty_like(a)), expected)


def test_copies_keep_every_bit(kernels: Kernels) -> None:
    for dtype in DTYPES:
        raw = np.random.default_rng(2).integers(0, 256, 16 * 50, np.uint8)
        source = raw.view(numpy_dtype(dtype))
        out = np.empty_like(source)
        kernels.reduce(dtype, "sum", "chain", [source], out)
        assert out.tobytes() == source.tobytes(), dtype


def test_what_is_no_reduction_is_refused(kernels: Kernels) -> None:
    a, b, out = (np.ones(8, np.float32) for _ in range(3))

    def code(**fields: int) -> int:
        request = kernels.fill("float32", "sum", "chain", [a, b], [out], first=1)
        for name, value in fields.items():
            setattr(request, name, value)
        return kernels.run(request)

    assert code() == 0
    wrong = [
        {"dtype": 17},
        {"op": 12},
        {"op": 9},  # bitwise
        {"combination": 3},
        {"first": 2},
        {"first": -1},
        {"source_count": 0},
        {"source_count": 65},
        {"destination_count": 0},
        {"destination_count": 65},
        {"count": -1},
        {"op": 5},  # premul_sum of two sources
    ]
    for fields in wrong:
        assert code(**fields) == 1, fields
    shifted = kernels.fill("float32", "sum", "canonical", [a, b], [out])
    shifted.count = 4
    shifted.sources[1] += 2  # a GPU would end the whole context for it
    assert kernels.run(shifted) == 1
    assert code(count=0) == 0
