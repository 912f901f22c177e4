"""The reducers, against models in NumPy: every element type, operation and instruction set."""

from __future__ import annotations

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from collectives import _core
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import python_path
from reducing import (
    ARITHMETIC,
    COMPLEX,
    COUNTS,
    DTYPES,
    FLOATS,
    INTEGERS,
    ISAS,
    MEANINGFUL,
    NARROW,
    OPS,
    REPRESENTATIVE,
    assert_same,
    every_value,
    model,
    numpy_dtype,
    reduced,
    run,
    samples,
    unaligned,
)


@pytest.mark.pairwise
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "op"), MEANINGFUL)
def test_matches_the_tree_model(isa: str, dtype: str, op: str) -> None:
    for n in range(1, 10):
        full = [samples(dtype, max(COUNTS), 100 * n + k, op) for k in range(n)]
        for count in COUNTS:
            sources = [unaligned(s[:count]) for s in full]
            assert_same(reduced(isa, dtype, op, sources, divisor=n), model(dtype, op, sources, n))


@pytest.mark.pairwise
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "op"), REPRESENTATIVE)
class TestEveryPath:
    @pytest.mark.parametrize("n", [10, 16, 17, 31, 64, 100])
    def test_matches_the_tree_model_for_many_sources(self, isa: str, dtype: str, op: str, n: int) -> None:
        for count in (1, 7, 511, 512, 513, 1541):
            sources = [samples(dtype, count, k, op) for k in range(n)]
            assert_same(reduced(isa, dtype, op, sources, divisor=n), model(dtype, op, sources, n))

    def test_destination_may_be_a_source(self, isa: str, dtype: str, op: str) -> None:
        for n in (1, 2, 3, 5, 8, 9, 17):
            for count in (1, 3, 17, 65, 1541):
                original = [samples(dtype, count, k, op) for k in range(n)]
                expected = model(dtype, op, original, n)
                for aliased in {0, n // 2, n - 1}:
                    sources = [s.copy() for s in original]
                    run(isa, dtype, op, sources, [sources[aliased]], count, divisor=n)
                    assert_same(sources[aliased], expected)
                    for k in set(range(n)) - {aliased}:
                        assert_same(sources[k], original[k])

    @pytest.mark.parametrize("destinations", [2, 3, 8])
    def test_several_destinations(self, isa: str, dtype: str, op: str, destinations: int) -> None:
        for n in (1, 2, 4, 7, 8, 11):
            for count in (0, 1, 13, 129, 1541, 20011):
                sources = [samples(dtype, count, k, op) for k in range(n)]
                expected = model(dtype, op, sources, n)
                out = [np.ones_like(sources[0]) for _ in range(destinations)]
                out[-1] = sources[-1]  # the last one in place
                run(isa, dtype, op, sources, out, count, divisor=n)
                for o in out:
                    assert_same(o, expected)

    @pytest.mark.parametrize("n", range(2, 10))
    def test_every_source_is_a_destination(self, isa: str, dtype: str, op: str, n: int) -> None:
        """As on a rank that reduces one part of an array for all: its own result, then the bounce buffers of others."""
        for count in (1, 13, 129, 1541):
            sources = [samples(dtype, count, k, op) for k in range(n)]
            expected = model(dtype, op, sources, n)
            own = n // 2
            out = [sources[own], *sources[:own], *sources[own + 1 :]]
            run(isa, dtype, op, sources, out, count, divisor=n)
            for o in out:
                assert_same(o, expected)

    def test_writes_only_its_elements(self, isa: str, dtype: str, op: str) -> None:
        for n in (1, 2, 9):
            for count in COUNTS:
                sources = [samples(dtype, count, k, op) for k in range(n)]
                guarded = np.ones(count + 128, dtype=numpy_dtype(dtype))
                run(isa, dtype, op, sources, [guarded[64:]], count, divisor=n)
                assert np.all(guarded[:64] == 1)
                assert np.all(guarded[64 + count :] == 1)

    def test_finish_alone_divides(self, isa: str, dtype: str, op: str) -> None:
        sources = [samples(dtype, 77, k, op) for k in range(3)]
        unfinished = reduced(isa, dtype, op, sources, finish=False, divisor=3)
        assert_same(unfinished, model(dtype, "sum" if op == "avg" else op, sources))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_has_no_meaning_has_no_kernel(isa: str, dtype: str) -> None:
    for op in OPS:
        assert _core._has_kernel(op, dtype) == ((dtype, op) in MEANINGFUL)
        if (dtype, op) not in MEANINGFUL:
            for finish in (False, True):
                with pytest.raises(TypeError, match=f"no kernel for op {op} of dtype {dtype}"):
                    _core._reduce(isa, dtype, op, finish, 1.0, [], [], 0)


def test_every_type_and_operation_is_here() -> None:
    assert set(_core._dtype_names()) == set(DTYPES)
    assert set(_core._op_names()) == set(OPS)


@pytest.mark.pairwise
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("n", [2, 5, 9, 20])
def test_integers_wrap_exactly(isa: str, dtype: str, n: int) -> None:
    sources = [samples(dtype, 257, k) for k in range(n)]
    exact = [s.astype(object) for s in sources]
    modulus = 1 << 8 * np.dtype(dtype).itemsize
    for op, expected in (("sum", sum(exact)), ("prod", np.multiply.reduce(exact))):
        actual = reduced(isa, dtype, op, sources)
        assert np.all((actual.astype(object) - expected) % modulus == 0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_are_close_to_float64(isa: str, dtype: str) -> None:
    sources = [samples(dtype, 1000, k) for k in range(9)]
    wide = np.array([s.astype(np.float64) for s in sources])
    # What is narrower than float32: float32 partials cost next to nothing beside the one rounding at the end.
    tolerance = np.abs(wide).sum(0) * 8 * float(ml_dtypes.finfo("float32" if dtype in NARROW else dtype).eps)
    if dtype in NARROW:
        tolerance += np.abs(wide.sum(0)) * float(ml_dtypes.finfo(numpy_dtype(dtype)).eps) / 2
    error = np.abs(reduced(isa, dtype, "sum", sources).astype(np.float64) - wide.sum(0))
    assert np.all(error <= tolerance + float(ml_dtypes.finfo(numpy_dtype(dtype)).tiny))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
class TestConversions:
    def test_every_value_survives(self, isa: str, dtype: str) -> None:
        every = every_value(dtype)
        assert_same(reduced(isa, dtype, "max", [every, every]), every)
        assert_same(reduced(isa, dtype, "avg", [every], divisor=1), every)
        negative_zero = np.full(every.size, -0.0, dtype=every.dtype)  # the neutral element: keeps -0 too
        for n in (2, 5, 9):
            assert_same(reduced(isa, dtype, "sum", [every, *[negative_zero] * (n - 1)]), every)
        actual = reduced(isa, dtype, "sum", [every, np.zeros_like(every)])
        with np.errstate(invalid="ignore"):
            expected = np.where(every == 0, np.zeros_like(every), every)
        assert_same(actual, expected)

    def test_one_source_is_copied_bit_by_bit(self, isa: str, dtype: str) -> None:
        every = every_value(dtype)
        np.testing.assert_array_equal(reduced(isa, dtype, "sum", [every]).view("u2"), every.view("u2"))

    def test_random_bits_round_to_nearest_even(self, isa: str, dtype: str) -> None:
        rng = np.random.default_rng(1)
        a, b = (rng.integers(0, 65536, 1 << 18, dtype=np.uint16).view(numpy_dtype(dtype)) for _ in range(2))
        for op in ("sum", "prod", "avg"):
            assert_same(reduced(isa, dtype, op, [a, b], divisor=3), model(dtype, op, [a, b], 3))

    def test_ties_go_to_even(self, isa: str, dtype: str) -> None:
        epsilon = float(ml_dtypes.finfo(numpy_dtype(dtype)).eps)
        a = np.array([1, 1 + epsilon] * 40, dtype=numpy_dtype(dtype))
        half = np.full_like(a, epsilon / 2)
        expected = np.array([1, 1 + 2 * epsilon] * 40, dtype=a.dtype)
        assert_same(reduced(isa, dtype, "sum", [a, half]), expected)

    def test_too_large_becomes_infinite(self, isa: str, dtype: str) -> None:
        largest = float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
        a = np.array([largest, -largest] * 40, dtype=numpy_dtype(dtype))
        assert_same(reduced(isa, dtype, "sum", [a, a]), np.array([np.inf, -np.inf] * 40, dtype=a.dtype))

    def test_intermediate_overflow_is_harmless(self, isa: str, dtype: str) -> None:
        if dtype == "bfloat16":
            pytest.skip("as wide a range as float32")
        a = np.full(100, 65504, dtype=np.float16)
        assert_same(reduced(isa, dtype, "sum", [a, a, -a]), a)
        assert_same(reduced(isa, dtype, "avg", [a] * 20, divisor=20), a)


@pytest.mark.pairwise
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ARITHMETIC)
def test_nan_of_any_source_is_the_result(isa: str, dtype: str, op: str) -> None:
    for n in (2, 3, 4, 8, 9, 12):
        for position in range(n):
            for other in (1.0, np.inf, -np.inf) if dtype != "float8_e4m3fn" else (1.0,):  # which has no infinity
                sources = [np.full(67, other, dtype=numpy_dtype(dtype)) for _ in range(n)]
                sources[position][::3] = np.nan
                actual = np.isnan(reduced(isa, dtype, op, sources, divisor=n).astype(np.float64))
                assert np.all(actual[::3])
                assert not actual[1::3].any()


@pytest.mark.parametrize(("dtype", "op"), [(d, o) for d, o in MEANINGFUL if d in (*FLOATS, *COMPLEX)])
def test_instruction_sets_agree_bitwise(dtype: str, op: str) -> None:
    rng = np.random.default_rng(2)
    dtype_ = numpy_dtype(dtype)
    for n in (2, 3, 7, 9, 20):
        sources = [np.frombuffer(rng.bytes(5001 * dtype_.itemsize), dtype_).copy() for _ in range(n)]
        sources[0][:50] = 0.0  # both zeros: which one min returns must not depend on the width either
        sources[1][:50] = -0.0
        results = [reduced(isa, dtype, op, sources, divisor=n) for isa in ISAS]
        for result in results[1:]:
            assert_same(result, results[0])


@settings(deadline=None, max_examples=200)
@given(
    case=st.sampled_from(MEANINGFUL),
    isa=st.sampled_from(ISAS),
    n=st.integers(1, 24),
    destinations=st.integers(1, 4),
    count=st.integers(0, 1200),
    alias=st.none() | st.integers(0, 23),
    seed=st.integers(0, 2**32),
)
def test_any_shape(
    case: tuple[str, str], isa: str, n: int, destinations: int, count: int, alias: int | None, seed: int
) -> None:
    dtype, op = case
    sources = [unaligned(samples(dtype, count, seed + k, op)) for k in range(n)]
    expected = model(dtype, op, sources, n)
    out = [unaligned(np.ones(count, dtype=numpy_dtype(dtype))) for _ in range(destinations)]
    if alias is not None:
        out[seed % destinations] = sources[alias % n]
    run(isa, dtype, op, sources, out, count, divisor=n)
    for o in out:
        assert_same(o, expected)


def best_isa(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    code = "from collectives import _core; print(_core._best_isa())"
    env = {**os.environ, **environment, "PYTHONPATH": python_path()}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_baseline_is_always_there() -> None:
    assert ISAS[-1] == "baseline"


@pytest.mark.parametrize("isa", ISAS)
def test_environment_chooses_the_instruction_set(isa: str) -> None:
    assert best_isa({"COLLECTIVES_ISA": isa}).stdout.strip() == isa


def test_best_instruction_set_is_the_default() -> None:
    assert best_isa({"COLLECTIVES_ISA": ""}).stdout.strip() == ISAS[0]


def test_unknown_instruction_set_is_refused() -> None:
    refused = best_isa({"COLLECTIVES_ISA": "mmx"})
    assert refused.returncode != 0
    assert f'COLLECTIVES_ISA="mmx" is unknown: accepted are {", ".join(ISAS)}' in refused.stderr


def test_unknown_names_list_the_accepted_ones() -> None:
    with pytest.raises(
        ValueError, match='unknown op "foo": accepted are sum, avg, prod, min, max, premul_sum, logical_and'
    ):
        _core._reduce(ISAS[0], "float32", "foo", True, 1.0, [], [], 0)
    with pytest.raises(ValueError, match='unknown dtype "foo": accepted are float16, bfloat16, float32, float64, int8'):
        _core._reduce(ISAS[0], "foo", "sum", True, 1.0, [], [], 0)
    with pytest.raises(ValueError, match='unknown instruction set "foo": accepted are '):
        _core._reduce("foo", "float32", "sum", True, 1.0, [], [], 0)
