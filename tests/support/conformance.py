"""What ranks do in the conformance tests: run a list of cases against NumPy and say which failed.

The results of all operations are elementwise, so one set of inputs and of expected values, computed once, serves every
count up to its own.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import tiers

Array = np.ndarray[Any, Any]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
DTYPES = (*FLOATS, *INTEGERS, "bool", *COMPLEX, *FLOAT8)
OPS = ("sum", "avg", "prod", "min", "max")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")
# All basic operations on all basic types; of the rest a sample, since the kernels have tests of their own.
MEANINGFUL = [
    *((d, o) for d in (*FLOATS, *INTEGERS, "bool") for o in OPS if o != "avg" or d in FLOATS),
    *((d, o) for d in (*COMPLEX, *FLOAT8) for o in ("sum", "avg")),
    *zip(("float32", "float16", "int64", "uint8", "float8_e5m2", "bool"), 2 * LOGICAL, strict=True),
    *zip(("int32", "uint8", "uint64", "int8", "int16", "bool"), 2 * BITWISE, strict=True),
]
REDUCING = ("all_reduce", "reduce")
POISON = 0x5A


def groups() -> list[tuple[int, str]]:
    """1 to 8 ranks over each transport; in the short tier each number over one of them, and 2, 3 and 5 over all."""
    every = [(1, "local")] + [(n, transport) for transport in ("local", "shm", "tcp") for n in range(2, 9)]
    few = {(4, "shm"), (6, "local"), (7, "tcp"), (8, "shm")}
    return [group for group in every if tiers.full() or group[0] in (1, 2, 3, 5) or group in few]


class Case(NamedTuple):
    """One collective, out of place and then in place."""

    collective: str
    dtype: str
    op: str
    count: int
    algorithm: str = "auto"
    root: int = 0
    deterministic: bool = False


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype) if dtype in ("bfloat16", *FLOAT8) else dtype)


def rounding(dtype: str) -> float:
    """The largest relative error of one rounding."""
    return float(ml_dtypes.finfo(numpy_dtype(dtype)).eps) / 2


def values(dtype: str, prod: bool, count: int, rank: int, seed: int = 0) -> Array:
    """The input of a rank. Factors stay near 1, so that products of eight fit into every type.

    Every eighth element may be zero, which logical operations are about.
    """
    rng = np.random.default_rng([seed, rank, count, DTYPES.index(dtype), prod])
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if prod and dtype not in INTEGERS:
        return (rng.uniform(0.6, 1.6, count) * rng.choice([-1.0, 1.0], count)).astype(numpy_dtype(dtype))
    result: Array
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        result = rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    else:
        parts = count * (2 if dtype in COMPLEX else 1)
        wide = rng.standard_normal(parts) * np.exp2(rng.integers(-3, 4, parts))
        result = (wide.view(np.complex128) if dtype in COMPLEX else wide).astype(numpy_dtype(dtype))
    result[::8][rng.random(result[::8].size) < 0.5] = 0
    return result


@functools.lru_cache(maxsize=64)
def inputs(dtype: str, prod: bool, count: int, n: int) -> list[Array]:
    arrays = [values(dtype, prod, count, rank) for rank in range(n)]
    for array in arrays:
        array.flags.writeable = False
    return arrays


def reduced(arrays: list[Array], op: str) -> tuple[Array, Array, Array]:
    """What NumPy makes of it, and by how much a result may differ: by an order of our own, and by the canonical one."""
    n, kind = len(arrays), arrays[0].dtype
    stack = np.stack(arrays)
    zero = np.zeros(arrays[0].shape)
    if op in BITWISE:
        return getattr(np, op).reduce(stack, axis=0), zero, zero
    if op in LOGICAL:
        return getattr(np, op).reduce(stack != 0, axis=0).astype(kind), zero, zero
    if kind == np.bool_:
        return (stack.any(axis=0) if op in ("sum", "max") else stack.all(axis=0)), zero, zero
    if op in ("min", "max"):
        return (stack.min(axis=0) if op == "min" else stack.max(axis=0)), zero, zero
    if kind.kind in "iu":
        combine = np.add if op == "sum" else np.multiply
        return combine.reduce(stack, axis=0, dtype=kind), zero, zero
    wide = stack.astype(np.complex128 if kind.kind == "c" else np.float64)
    exact = np.multiply.reduce(wide, axis=0) if op == "prod" else np.add.reduce(wide, axis=0)
    scale = np.abs(exact) if op == "prod" else np.add.reduce(np.abs(wide), axis=0)
    if op == "avg":
        exact, scale = exact / n, scale / n
    part = kind.type(0).real.dtype if kind.kind == "c" else kind  # what rounds is a part of a complex number
    u = rounding(part.name)
    inner = min(u, rounding("float32"))  # halves are combined in float32
    tiny = float(ml_dtypes.finfo(part).smallest_subnormal)
    # One rounding per combination and one for the division; a little more because errors compound. Partial results may
    # have to travel in the type of the array, which rounds once more per combination. The reference is rounded too.
    combinations = 1.01 * (n + 1)
    compounded = (1 + u + inner) ** (n + 1) - 1
    loose = 1.01 * compounded * scale + n * tiny + 2 * combinations * rounding("float64") * scale
    tight = (
        combinations * inner * scale + 1.01 * u * np.abs(exact) + tiny + 2 * combinations * rounding("float64") * scale
    )
    return exact, loose, tight


@functools.lru_cache(maxsize=96)
def expected(dtype: str, op: str, count: int, n: int) -> tuple[Array, Array, Array]:
    return reduced(inputs(dtype, op == "prod", count, n), op)


def forget(most: int) -> None:
    """Gives back what is kept of long arrays; dozens of ranks live at the same time."""
    if most > 10_000:
        inputs.cache_clear()
        expected.cache_clear()


def bits(array: Array) -> bytes:
    return array.tobytes()


def wrong(result: Array, exact: Array, tolerance: Array) -> str:
    """What is wrong with a result, empty when nothing is."""
    if result.shape != exact.shape:
        return f"shape {result.shape} instead of {exact.shape}"
    if exact.dtype == result.dtype and not tolerance.any():
        bad = result != exact
        if result.dtype.kind not in "iubc":
            bad &= ~(np.isnan(result.astype(np.float64)) & np.isnan(exact.astype(np.float64)))
    else:
        with np.errstate(invalid="ignore"):
            off = np.abs(result.astype(np.complex128 if result.dtype.kind == "c" else np.float64) - exact)
        bad = ~(off <= tolerance)
    where = np.flatnonzero(bad)
    if where.size == 0:
        return ""
    i = where[0]
    return f"{where.size} of {result.size} wrong, the first at {i}: {result.flat[i]!r} instead of {exact.flat[i]!r}"


@functools.cache
def canonical(collective: str) -> frozenset[str]:
    from collectives import _core

    return frozenset(a["name"] for a in _core._algorithms(collective) if a["determinism"] == "canonical")


def call(comm: Any, case: Case, x: Any, out: Any = None, **more: Any) -> Any:
    """The collective of the case on these arrays."""
    if case.algorithm != "auto":
        more["algorithm"] = case.algorithm
    if out is not None:
        more["out"] = out
    if case.deterministic:
        more["deterministic"] = True
    if case.collective == "all_reduce":
        return comm.all_reduce(x, case.op, **more)
    if case.collective == "reduce":
        return comm.reduce(x, case.op, case.root, **more)
    return comm.broadcast(x, case.root, **more)


def answer(comm: Any, case: Case, most: int) -> tuple[Array, Array]:
    """What a rank must end with, and the tolerance."""
    n = comm.size
    if case.collective == "broadcast":
        x = inputs(case.dtype, False, most, n)[case.root][: case.count]
        return x, np.zeros(0)
    exact, loose, tight = expected(case.dtype, case.op, most, n)
    exactly = case.deterministic or case.algorithm in canonical(case.collective)
    return exact[: case.count], (tight if exactly else loose)[: case.count]


def check(comm: Any, cases: list[Case], most: int) -> dict[str, Any]:
    """Runs the cases: a digest of each result (0 where the rank has none), what was wrong, and the bytes moved."""
    digests, failures = [], []
    before = comm.bytes_by_transport()
    for case in cases:
        x = inputs(case.dtype, case.op == "prod" and case.collective in REDUCING, most, comm.size)[comm.rank]
        x = x[: case.count]
        given = x.copy()
        out = np.empty_like(given)
        out.view(np.uint8)[:] = POISON if case.dtype != "bool" else 1
        poisoned = out.copy()
        here = case.collective != "reduce" or case.root == comm.rank
        exact, tolerance = answer(comm, case, most)
        found = []
        if call(comm, case, given, out) is not out:
            found.append("does not return out")
        if bits(given) != bits(x):
            found.append("the input was changed out of place")
        if here:
            found.append(wrong(out, exact, tolerance))
        elif bits(out) != bits(poisoned):
            found.append("out was written on a rank that is not the root")
        if call(comm, case, given) is not given:
            found.append("does not return x")
        if here and bits(given) != bits(out):
            found.append(f"in place differs from out of place; {wrong(given, exact, tolerance)}")
        elif not here and bits(given) != bits(x):
            found.append("x was written on a rank that is not the root")
        failures += [f"rank {comm.rank}, {case}: {text}" for text in found if text]
        digests.append(zlib.crc32(bits(out)) if here else 0)
    after = comm.bytes_by_transport()
    forget(most)
    return {
        "digests": digests,
        "failures": failures,
        "bytes": {name: after[name] - before.get(name, 0) for name in after},
    }


def usable_algorithms(comm: Any) -> dict[str, list[str]]:
    """By collective, the algorithms of the registry that this group can use, auto first."""
    from collectives import _core

    found = {}
    for collective in ("all_reduce", "reduce", "broadcast", "barrier"):
        names = ["auto"]
        for name in (a["name"] for a in _core._algorithms(collective)):
            try:
                # Every rank comes to the same answer, and a refused call does not count.
                if collective == "barrier":
                    comm.barrier(algorithm=name)
                else:
                    call(comm, Case(collective, "float32", "sum", 3, name), np.zeros(3, np.float32))
            except ValueError as error:
                if "cannot be used here" not in str(error):
                    raise
                continue
            names.append(name)
        found[collective] = names
    return found


def judge(group: Any, cases: list[Case], most: int, limit: float = 120.0) -> None:
    """Runs the cases on a group and asserts: all right, the same bits on all ranks, by the transport asked for."""
    reports = group.run(check, cases, most, limit=limit)
    failures = [text for report in reports for text in report["failures"]]
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:20])
    for index, case in enumerate(cases):
        if case.collective != "reduce":
            seen = {report["digests"][index] for report in reports}
            assert len(seen) == 1, f"ranks have different bits: {case}: {[r['digests'][index] for r in reports]}"
    assert_transport(group, [report["bytes"] for report in reports], any(c.count for c in cases))


def assert_transport(group: Any, moved: list[dict[str, int]], any_bytes: bool) -> None:
    """The transport asked for carried the bytes, and no other."""
    total: dict[str, int] = {}
    for one in moved:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    carried = {name for name, count in total.items() if count}
    assert carried == ({group.transport} if group.size > 1 and any_bytes else set()), total
