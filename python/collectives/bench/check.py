"""Whether results are right: seeded inputs, a model in float64, and a count of elements that are off.

Inputs repeat a pattern of random values whose length is a prime. The model is computed for one pattern only, so that
checking 1 GiB costs one pass over it; no chunk of an algorithm has that length, so a chunk that lands in a wrong place
is still seen.
"""

from __future__ import annotations

import hashlib
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

PERIOD = 65521  # the largest prime below 2^16


def pattern(dtype: np.dtype[Any], op: str, seed: tuple[int, ...], length: int = PERIOD) -> Array:
    """Random values: floats around 0 (around 1 for products), integers of the whole range, so that they wrap.

    Args:
        dtype: any that collectives take.
        op: that they will be reduced by.
        seed: as many numbers as you like; the same ones give the same values.
        length: how many.
    """
    random = np.random.default_rng(seed)
    if dtype.kind == "b":
        return random.integers(0, 2, length).astype(np.bool_)
    if dtype.kind in "iu":
        return random.integers(0, 256, length * dtype.itemsize, dtype=np.uint8).view(dtype)
    low, high = (0.5, 1.5) if op == "prod" else (-1.0, 1.0)
    values = random.uniform(low, high, length)
    return (values + 1j * random.uniform(low, high, length) if dtype.kind == "c" else values).astype(dtype)


def fill(x: Array, values: Array) -> None:
    """Fills `x` with `values`, repeated."""
    whole = len(x) // len(values) * len(values)
    x[:whole].reshape(-1, len(values))[:] = values
    x[whole:] = values[: len(x) - whole]


def model(op: str, inputs: list[Array]) -> tuple[Array, Array]:
    """What the inputs of all ranks reduce to, and how far off each element may be.

    Sums of floats may be taken in any order: n terms then differ from the exact sum by at most about n units in the
    last place of the sum of the magnitudes. What only selects has to be exact, as do integers (which wrap) and bools
    (whose sum is "or").
    """
    dtype = inputs[0].dtype
    function = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    if dtype.kind in "biu":
        result = inputs[0]
        for values in inputs[1:]:
            result = function(result, values).astype(dtype)
        return _exact(result)
    wide = np.array([values.astype(_wide(dtype)) for values in inputs])
    expected = function.reduce(wide, axis=0)
    if op in ("min", "max"):
        return _exact(expected)
    magnitude = function.reduce(np.abs(wide), axis=0)
    if op == "avg":
        expected, magnitude = expected / len(inputs), magnitude / len(inputs)
    unit, tiny = _precision(dtype)
    return expected, (len(inputs) + 1) * unit * magnitude + tiny


def expected(
    collective: str, op: str, inputs: list[Array], rank: int, count: int, root: int = 0
) -> list[tuple[slice, Array, Array]]:
    """What a rank should have after a collective of `count` elements: pieces of its result, each with the pattern
    that repeats there and how far off its elements may be. None where the rank gets no result.

    Args:
        collective, op: the call; "sendrecv" is one in which each rank sends to the next.
        inputs: the pattern that each rank's array repeats.
        rank: whose results they are.
        count: elements of the whole array, as the size of nccl-tests counts them.
        root: of the collectives that have one.
    """
    part = count // len(inputs)

    def own(values: Array) -> Array:
        return np.roll(values, -rank * part)

    if rank != root and collective in ("reduce", "gather"):
        return []
    if collective in ("all_gather", "gather"):
        return [(slice(r * part, (r + 1) * part), *_exact(values)) for r, values in enumerate(inputs)]
    if collective == "all_to_all":
        return [(slice(r * part, (r + 1) * part), *_exact(own(values))) for r, values in enumerate(inputs)]
    if collective == "scatter":
        return [(slice(part), *_exact(own(inputs[root])))]
    if collective == "broadcast":
        return [(slice(count), *_exact(inputs[root]))]
    if collective == "sendrecv":
        return [(slice(count), *_exact(inputs[rank - 1]))]
    result, tolerance = model(op, inputs)
    if collective == "reduce_scatter":
        return [(slice(part), own(result), own(tolerance))]
    return [(slice(count), result, tolerance)]


def count_wrong(x: Array, expected: Array, tolerance: Array) -> int:
    """How many elements of `x` are further than `tolerance` from the repeated pattern `expected`; NaN always is."""
    period = len(expected)
    whole = len(x) // period * period
    wrong = sum(
        _off(row, expected, tolerance) for row in x[:whole].reshape(-1, period)
    )  # row by row, so that temporaries stay in cache
    rest = len(x) - whole
    return wrong + _off(x[whole:], expected[:rest], tolerance[:rest])


def digest(x: Array) -> int:
    """A 63-bit hash of the bytes of `x`."""
    raw = hashlib.blake2b(np.ascontiguousarray(x).view(np.uint8).data, digest_size=8).digest()
    return int.from_bytes(raw, "little") >> 1


def _exact(result: Array) -> tuple[Array, Array]:
    return result, np.zeros(len(result))


def _off(x: Array, expected: Array, tolerance: Array) -> int:
    if expected.dtype.kind in "biu":
        return int(np.count_nonzero(x != expected))
    with np.errstate(invalid="ignore", over="ignore"):
        # Where both are the same infinity the distance is 0, not NaN (inf - inf).
        near = (np.abs(x.astype(_wide(x.dtype)) - expected) <= tolerance) | (x == expected.astype(x.dtype))
    return int(np.count_nonzero(~near))


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which values of a dtype are reduced for comparison."""
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def _precision(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The distance from 1 to the next value, and the smallest positive normal value."""
    information = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # NumPy's, but for the types that NumPy does not have
    return float(information.eps), float(information.tiny)
