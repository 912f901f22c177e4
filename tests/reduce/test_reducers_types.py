"""What is special about 8-bit floats, complex numbers, logical and bitwise operations, and about scaling."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from collectives import _core
from reducing import (
    COMPLEX,
    COUNTS,
    DTYPES,
    FLOAT8,
    FLOATS,
    INTEGERS,
    ISAS,
    LOGICAL,
    NARROW,
    Array,
    assert_same,
    bits,
    every_value,
    model,
    numpy_dtype,
    reduced,
    run,
    samples,
    unaligned,
)

SCALED = [*FLOATS, *COMPLEX]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOAT8)
class TestFloat8:
    def test_every_value_survives(self, isa: str, dtype: str) -> None:
        every = every_value(dtype)
        assert_same(reduced(isa, dtype, "max", [every, every]), every)
        assert_same(reduced(isa, dtype, "avg", [every], divisor=1), every)
        negative_zero = np.full(every.size, -0.0, dtype=every.dtype)  # the neutral element: keeps -0 too
        for n in (2, 5, 9):
            assert_same(reduced(isa, dtype, "sum", [every, *[negative_zero] * (n - 1)]), every)

    def test_one_source_is_copied_bit_by_bit(self, isa: str, dtype: str) -> None:
        every = every_value(dtype)
        np.testing.assert_array_equal(reduced(isa, dtype, "sum", [every]).view("u1"), every.view("u1"))

    @pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max"])
    def test_every_pair_of_values(self, isa: str, dtype: str, op: str) -> None:
        every = every_value(dtype)
        a, b = np.repeat(every, every.size), np.tile(every, every.size)
        assert_same(reduced(isa, dtype, op, [a, b], divisor=3), model(dtype, op, [a, b], 3))

    def test_float32_is_rounded_as_ml_dtypes_does(self, isa: str, dtype: str) -> None:
        """By quotients: the values of the type by divisors that put them near and on all its borders and ties."""
        every = every_value(dtype)
        borders = np.abs(every.astype(np.float64))
        borders = np.unique(borders[np.isfinite(borders)])
        ties = (borders[:-1] + borders[1:]) / 2
        largest = float(ml_dtypes.finfo(every.dtype).max)
        above = [largest + (borders[-1] - borders[-2]) / 2 * f for f in (0.5, 1.0, 1.001, 2.0, 1e6)]
        for target in [*borders[1:], *ties, *above]:
            for near in (target, np.nextafter(np.float32(target), np.float32(0)), target * (1 + 2**-20)):
                divisor = 1.0 / float(near)
                expected = model(dtype, "avg", [every], divisor)
                actual = reduced(isa, dtype, "avg", [every], divisor=divisor)
                # The sign and the payload of NaN too: there is one source and one conversion.
                with np.errstate(all="ignore"):
                    nan = np.isnan(every.astype(np.float32))
                assert_same(actual, expected)
                np.testing.assert_array_equal(actual[nan].view("u1"), expected[nan].view("u1"))

    def test_too_large(self, isa: str, dtype: str) -> None:
        largest = float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
        a = np.array([largest, -largest] * 40, dtype=numpy_dtype(dtype))
        actual = reduced(isa, dtype, "sum", [a, a]).astype(np.float32)
        assert np.isnan(actual).all() if dtype == "float8_e4m3fn" else np.array_equal(actual, [np.inf, -np.inf] * 40)

    def test_intermediate_overflow_is_harmless(self, isa: str, dtype: str) -> None:
        a = np.full(100, ml_dtypes.finfo(numpy_dtype(dtype)).max, dtype=numpy_dtype(dtype))
        assert_same(reduced(isa, dtype, "sum", [a, a, -a]), a)
        assert_same(reduced(isa, dtype, "avg", [a] * 20, divisor=20), a)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [3, 5, 8, 9, 10, 15, 17, 20, 33])
def test_the_order_of_8_bit_floats_is_that_of_the_tree(isa: str, n: int) -> None:
    """Small numbers are lost beside a large one until its opposite comes: where it does, the tree decides."""
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    sources = [np.full(len(pairs), 2.0**-14, dtype=numpy_dtype("float8_e5m2")) for _ in range(n)]
    for element, (i, j) in enumerate(pairs):
        sources[i][element] = 57344
        sources[j][element] = -57344
    expected = model("float8_e5m2", "sum", sources)
    assert np.unique(expected.astype(np.float32)).size > 1
    assert_same(reduced(isa, "float8_e5m2", "sum", sources), expected)


def awkward(dtype: str) -> Array:
    """Zeros of both signs, NaN of both, infinities, the smallest and largest numbers, and some ordinary ones."""
    kind = numpy_dtype(dtype)
    if dtype in FLOATS:
        about = ml_dtypes.finfo(kind)
        special = [0.0, -0.0, np.nan, -np.nan, about.smallest_subnormal, -about.smallest_subnormal, about.max, 1, -2]
        infinite = [] if dtype == "float8_e4m3fn" else [np.inf, -np.inf]
        return np.array([float(v) for v in (*special, *infinite)], dtype=kind)
    if dtype == "bool":
        return np.array([False, True])
    info = np.iinfo(kind)
    return np.array([0, 1, 2, info.min, info.max, 1 << (8 * kind.itemsize - 2)], dtype=kind)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
@pytest.mark.parametrize("op", LOGICAL)
class TestLogical:
    def test_every_pair_of_awkward_values(self, isa: str, dtype: str, op: str) -> None:
        values = awkward(dtype)
        a, b = np.repeat(values, values.size), np.tile(values, values.size)
        actual = reduced(isa, dtype, op, [a, b])
        assert_same(actual, getattr(np, op)(a.astype(bool), b.astype(bool)).astype(a.dtype))
        assert_same(actual, model(dtype, op, [a, b]))

    def test_one_source_becomes_zeros_and_ones(self, isa: str, dtype: str, op: str) -> None:
        values = awkward(dtype)
        expected = np.array([float(v) != 0 for v in values]).astype(values.dtype)
        assert_same(reduced(isa, dtype, op, [values]), expected)
        run(isa, dtype, op, [values], [values], values.size)
        assert_same(values, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", SCALED)
class TestScaling:
    def scaled(self, isa: str, dtype: str, source: Array, factor: float) -> Array:
        out = np.empty_like(source)
        _core._scale(isa, dtype, factor, source.ctypes.data, out.ctypes.data, source.size)
        return out

    def expected(self, dtype: str, source: Array, factor: float) -> Array:
        with np.errstate(all="ignore"):
            if dtype in COMPLEX:
                real = np.dtype(f"f{source.itemsize // 2}")
                return (source.view(real) * real.type(factor)).view(source.dtype)
            wide = source.astype(np.float32) if dtype in NARROW else source
            return (wide * wide.dtype.type(factor)).astype(source.dtype)

    def test_matches_the_model(self, isa: str, dtype: str) -> None:
        full = samples(dtype, max(COUNTS), 5)
        for count in COUNTS:
            for factor in (1 / 3, -2.5, 1e300, 1e-46):
                source = unaligned(full[:count])
                kept = source.copy()
                assert_same(self.scaled(isa, dtype, source, factor), self.expected(dtype, source, factor))
                assert_same(source, kept)

    def test_in_place_and_nothing_else(self, isa: str, dtype: str) -> None:
        for count in COUNTS:
            guarded = np.ones(count + 128, dtype=numpy_dtype(dtype))
            inside = guarded[64 : 64 + count]
            inside[:] = samples(dtype, count, count)
            expected = self.expected(dtype, inside, 0.1)
            _core._scale(isa, dtype, 0.1, inside.ctypes.data, inside.ctypes.data, count)
            assert_same(inside, expected)
            assert np.all(guarded[:64] == 1)
            assert np.all(guarded[64 + count :] == 1)

    def test_special_values(self, isa: str, dtype: str) -> None:
        if dtype in COMPLEX:
            real = "float32" if dtype == "complex64" else "float64"
            values = np.repeat(awkward(real), 2).view(dtype)
        else:
            values = every_value(dtype) if dtype in NARROW else awkward(dtype)
        for factor in (1.0, -1.0, 0.0, -0.0, np.inf, 1 / 7, 2.0**-130):
            assert_same(self.scaled(isa, dtype, values, factor), self.expected(dtype, values, factor))
        # Whatever bits the NaN has: conversions must not carry them into the exponent.
        payload = np.array([0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF], np.uint64).view(np.float64)
        for factor in (np.nan, *payload.tolist()):
            assert_same(self.scaled(isa, dtype, values, factor), self.expected(dtype, values, np.nan))

    def test_instruction_sets_agree_bitwise(self, isa: str, dtype: str) -> None:
        kind = numpy_dtype(dtype)
        source = np.frombuffer(np.random.default_rng(3).bytes(5001 * kind.itemsize), kind).copy()
        for factor in (1 / 3, 3.0e-5, 1e5):
            first = self.scaled(ISAS[0], dtype, source, factor)
            np.testing.assert_array_equal(bits(self.scaled(isa, dtype, source, factor)), bits(first))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in SCALED])
def test_integers_are_not_scaled(isa: str, dtype: str) -> None:
    with pytest.raises(TypeError, match=f"no kernel that scales dtype {dtype}"):
        _core._scale(isa, dtype, 2.0, 0, 0, 0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_sums_are_those_of_numpy(isa: str, dtype: str) -> None:
    """And quotients close to those of NumPy, which divides by another formula."""
    a, b = samples(dtype, 1541, 1), samples(dtype, 1541, 2)
    np.testing.assert_array_equal(reduced(isa, dtype, "sum", [a, b]), a + b)
    np.testing.assert_allclose(reduced(isa, dtype, "avg", [a, b], divisor=3), (a + b) / 3, rtol=1e-6)
