"""What the tests of the reducers share: kernels run over arrays, and models of them in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from collectives import _core

ISAS: list[str] = _core._isas()
HALVES = ["float16", "bfloat16"]
FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]
NARROW = [*HALVES, *FLOAT8]
FLOATS = [*HALVES, "float32", "float64", *FLOAT8]
COMPLEX = ["complex64", "complex128"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = [*FLOATS, *COMPLEX, *INTEGERS, "bool"]
SUMS = ["sum", "avg", "premul_sum"]
ARITHMETIC = [*SUMS, "prod", "min", "max"]
LOGICAL = ["logical_and", "logical_or", "logical_xor"]
BITWISE = ["bitwise_and", "bitwise_or", "bitwise_xor"]
OPS = [*ARITHMETIC, *LOGICAL, *BITWISE]
# Around the widths of all vectors, their unrolled steps and the blocks of partial results.
COUNTS = [0, 1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 257, 511, 513, 1025, 1541]

Array = np.ndarray[Any, Any]


def meaningful(dtype: str, op: str) -> bool:
    if dtype in COMPLEX:
        return op in SUMS
    if dtype in FLOATS:
        return op not in BITWISE
    return op not in ("avg", "premul_sum")


MEANINGFUL = [(d, o) for d in DTYPES for o in OPS if meaningful(d, o)]
# All whose kernels differ in more than one instruction: of the logical and bitwise ones of a type, one of each in turn.
REPRESENTATIVE = [
    (d, o)
    for i, d in enumerate(DTYPES)
    for o in ("sum", "avg", "prod", "min", "max", LOGICAL[i % 3], BITWISE[i % 3])
    if meaningful(d, o)
]


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype) if dtype in ("bfloat16", *FLOAT8) else dtype)


def every_value(dtype: str) -> Array:
    """All representations of a type of 8 or 16 bits."""
    kind = numpy_dtype(dtype)
    return np.arange(1 << 8 * kind.itemsize, dtype=f"u{kind.itemsize}").view(kind)


def run(
    isa: str,
    dtype: str,
    op: str,
    sources: Sequence[Array],
    destinations: Sequence[Array],
    count: int,
    *,
    finish: bool = True,
    divisor: float = 1.0,
) -> None:
    addresses = [a.ctypes.data for a in sources], [a.ctypes.data for a in destinations]
    _core._reduce(isa, dtype, op, finish, divisor, *addresses, count)


def reduced(
    isa: str, dtype: str, op: str, sources: Sequence[Array], *, finish: bool = True, divisor: float = 1.0
) -> Array:
    out = np.empty_like(sources[0])
    run(isa, dtype, op, sources, [out], out.size, finish=finish, divisor=divisor)
    return out


def unaligned(array: Array) -> Array:
    """A copy that is aligned to its elements and to nothing more, between guards."""
    store = np.full(array.size + 130, 1, dtype=array.dtype)
    offset = 65 if store.ctypes.data % 64 == 0 else 64
    view = store[offset : offset + array.size]
    view[:] = array
    return view


def samples(dtype: str, count: int, seed: int, op: str = "sum") -> Array:
    """Random values, half of them zeros (of both signs) for logical operations."""
    if op in LOGICAL:
        values = samples(dtype, count, seed)
        return values * samples("bool", count, seed + 1).astype(values.dtype) if dtype != "bool" else values
    if dtype in COMPLEX:
        return samples("float32" if dtype == "complex64" else "float64", 2 * count, seed).view(dtype)
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    return (rng.standard_normal(count) * np.exp2(rng.integers(-3, 4, count))).astype(numpy_dtype(dtype))


def combine(op: str, a: Array, b: Array) -> Array:
    if op in LOGICAL:
        return np.asarray(getattr(np, op)(a, b))
    if a.dtype == np.bool_ and op not in BITWISE:
        return a | b if op in ("sum", "max") else a & b
    if op in BITWISE:
        return np.asarray(getattr(np, op)(a, b))
    if op in SUMS:
        return a + b
    if op == "prod":
        return a * b
    return np.minimum(a, b) if op == "min" else np.maximum(a, b)


def tree(op: str, values: Sequence[Array]) -> Array:
    if len(values) == 1:
        return values[0]
    middle = (len(values) + 1) // 2
    return combine(op, tree(op, values[:middle]), tree(op, values[middle:]))


def model(dtype: str, op: str, sources: Sequence[Array], divisor: float = 1.0) -> Array:
    """The result, to the last bit: the canonical tree, in float32 for what is narrower, rounded once."""
    if dtype in COMPLEX:  # part by part, also for the quotient: that of complex numbers takes another way
        real = "float32" if dtype == "complex64" else "float64"
        return model(real, op, [s.view(real) for s in sources], divisor).view(dtype)
    with np.errstate(all="ignore"):
        wide = [s.astype(np.float32) for s in sources] if dtype in NARROW else list(sources)
        if op in LOGICAL:
            return tree(op, [w != 0 for w in wide]).astype(numpy_dtype(dtype))
        result = tree(op, wide)
        if op == "avg":
            result = result / result.dtype.type(divisor)
        return result.astype(numpy_dtype(dtype))


def bits(array: Array) -> Array:
    """The representation, with every NaN made the same: which payload survives is up to the processor."""
    if array.dtype.kind in "iub":
        return array
    if array.dtype.kind == "c":
        array = array.view(f"f{array.itemsize // 2}")
    representation = array.view(f"u{array.itemsize}").copy()
    with np.errstate(invalid="ignore"):
        nan = np.isnan(array.astype(np.float64))
    representation[nan] = np.iinfo(representation.dtype).max
    return representation


def assert_same(actual: Array, expected: Array) -> None:
    np.testing.assert_array_equal(bits(actual), bits(expected))
