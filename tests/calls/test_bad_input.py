"""Calls that are wrong by themselves: a typed error that says what is accepted, on one rank or all; no harm done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from pool import Pools

RANKS = 3
ACCEPTED = "float16, bfloat16, float32, float64, int8"


def one(dtype: Any = np.float32) -> Any:
    return np.ones(5, dtype)


def read_only(dtype: Any = np.float32) -> Any:
    array = one(dtype)
    array.flags.writeable = False
    return array


def of_dtype(dtype: Any) -> Callable[[Any], Any]:
    return lambda c: c.all_reduce(np.zeros(3, dtype))


# What is called, the error, and words that its text must have.
Bad = tuple[Callable[[Any], Any], Any, list[str]]
CALLS: dict[str, Bad] = {
    "object dtype": (of_dtype(object), TypeError, ["object", ACCEPTED]),
    "string dtype": (of_dtype("U3"), TypeError, ["<U3", ACCEPTED]),
    "bytes dtype": (of_dtype("S3"), TypeError, ["S3", ACCEPTED]),
    "long complex": (of_dtype(np.clongdouble), TypeError, ["complex256", ACCEPTED]),
    "long double": (of_dtype(np.longdouble), TypeError, ["float128", ACCEPTED]),
    "datetime": (of_dtype("M8[s]"), TypeError, ["datetime64", ACCEPTED]),
    "structured": (of_dtype([("a", "f4")]), TypeError, ["'a'", ACCEPTED]),
    "another float8": (of_dtype(ml_dtypes.float8_e4m3fnuz), TypeError, ["float8_e4m3fnuz", ACCEPTED, "float8_e5m2"]),
    "object dtype in a list": (
        lambda c: c.all_reduce([one(), one(object)]),
        TypeError,
        ["object", "tensor 1", ACCEPTED],
    ),
    "long double broadcast": (lambda c: c.broadcast(one(np.longdouble)), TypeError, ["float128", ACCEPTED]),
    "object broadcast": (lambda c: c.broadcast(one(object)), TypeError, ["object", ACCEPTED]),
    "read-only in place": (lambda c: c.all_reduce(read_only()), ValueError, ["read-only", "out="]),
    "read-only in a list": (lambda c: c.all_reduce([one(), read_only()]), ValueError, ["read-only", "tensor 1"]),
    "read-only broadcast": (lambda c: c.broadcast(read_only()), ValueError, ["read-only"]),
    "read-only out": (lambda c: c.all_reduce(one(), out=read_only()), ValueError, ["read-only"]),
    "out of another shape": (
        lambda c: c.all_reduce(one(), out=np.zeros(6, "f4")),
        ValueError,
        ["(6,)", "(5,)", "same"],
    ),
    "out of another rank": (lambda c: c.all_reduce(one(), out=np.zeros((5, 1), "f4")), ValueError, ["(5, 1)", "(5,)"]),
    "out of another dtype": (lambda c: c.all_reduce(one(), out=one(np.float64)), ValueError, ["float64", "float32"]),
    "out not an array": (lambda c: c.all_reduce(one(), out=[0.0] * 5), TypeError, ["out[0]", "float", "numpy.ndarray"]),
    "out too short a list": (lambda c: c.all_reduce([one(), one()], out=[one()]), ValueError, ["2", "1", "out"]),
    "root too large": (lambda c: c.broadcast(one(), RANKS), ValueError, ["root 3", "0 to 2"]),
    "root negative": (lambda c: c.broadcast(one(), -1), ValueError, ["root -1", "0 to 2"]),
    "root of reduce": (lambda c: c.reduce(one(), "sum", 17), ValueError, ["root 17", "0 to 2"]),
    "root huge": (lambda c: c.broadcast(one(), 2**40), ValueError, ["root", str(2**40), "0 to 2"]),
    "root beyond 64 bits": (lambda c: c.reduce(one(), "sum", -(2**70)), ValueError, ["root", "0 to 2"]),
    "root float": (lambda c: c.broadcast(one(), 1.0), TypeError, ["root", "1.0", "float", "int"]),
    "root text": (lambda c: c.broadcast(one(), "0"), TypeError, ["root", "'0'", "str", "int"]),
    "root bool": (lambda c: c.broadcast(one(), True), TypeError, ["root", "True", "int"]),
    "unknown op": (lambda c: c.all_reduce(one(), "mean"), ValueError, ["mean", "sum", "avg", "prod", "min", "max"]),
    "unknown op of reduce": (lambda c: c.reduce(one(), "SUM"), ValueError, ["SUM", "sum", "avg", "prod", "min", "max"]),
    "op not text": (lambda c: c.all_reduce(one(), np.add), TypeError, ["op", "ufunc", "str"]),
    "op an array": (lambda c: c.all_reduce(one(), one()), TypeError, ["op", "ndarray", "str"]),
    "unknown algorithm": (lambda c: c.all_reduce(one(), algorithm="fastest"), ValueError, ["fastest", "ALGORITHMS"]),
    "algorithm not text": (lambda c: c.all_reduce(one(), algorithm=3), TypeError, ["algorithm", "3", "str"]),
    "avg of ints": (
        lambda c: c.all_reduce(one(np.int32), "avg"),
        TypeError,
        ["'avg' has no meaning for dtype int32", "int32 takes sum, prod", "avg takes float16", "float8_e5m2"],
    ),
    "avg of bools": (lambda c: c.reduce(one(bool), "avg"), TypeError, ["avg", "bool"]),
    "avg of ints in a list": (lambda c: c.all_reduce([one(np.uint8)], "avg"), TypeError, ["avg", "uint8"]),
    "max of complex": (lambda c: c.all_reduce(one("c8"), "max"), TypeError, ["'max'", "complex64 takes sum, avg"]),
    "bits of floats": (lambda c: c.reduce(one(), "bitwise_or"), TypeError, ["'bitwise_or'", "float32", "and bool"]),
    "no factor": (lambda c: c.all_reduce(one(), "premul_sum"), ValueError, ["premul_sum", "factor"]),
    "wrong keyword": (lambda c: c.all_reduce(one(), opp="sum"), TypeError, ["opp", "all_reduce"]),
    "op for broadcast": (lambda c: c.broadcast(one(), op="sum"), TypeError, ["op", "broadcast"]),
    "root for all_reduce": (lambda c: c.all_reduce(one(), root=0), TypeError, ["root", "all_reduce"]),
    "array for barrier": (lambda c: c.barrier(one()), TypeError, ["barrier", "0"]),
    "out by position": (lambda c: c.all_reduce(one(), "sum", one()), TypeError, ["2 positional", "3"]),
    "argument twice": (lambda c: c.all_reduce(one(), "sum", op="sum"), TypeError, ["op", "twice"]),
    "no argument": (lambda c: c.all_reduce(), TypeError, ["array"]),
    "timeout zero": (lambda c: c.all_reduce(one(), timeout=0), ValueError, ["timeout", "0", "positive"]),
    "timeout negative": (lambda c: c.barrier(timeout=-2.5), ValueError, ["timeout", "-2.5", "positive"]),
    "timeout nan": (lambda c: c.broadcast(one(), timeout=float("nan")), ValueError, ["timeout", "nan", "positive"]),
    "timeout text": (lambda c: c.reduce(one(), timeout="1"), (TypeError, ValueError), ["timeout", "'1'", "seconds"]),
    "timeout bool": (lambda c: c.barrier(timeout=True), (TypeError, ValueError), ["timeout", "True", "seconds"]),
    "mixed dtypes": (lambda c: c.all_reduce([one(), one(np.float64)]), TypeError, ["tensor 1", "float64", "float32"]),
    "None": (lambda c: c.all_reduce(None), TypeError, ["NoneType", "numpy.ndarray"]),
    "None for broadcast": (lambda c: c.broadcast(None, 0), TypeError, ["NoneType", "numpy.ndarray"]),
    "None in a list": (lambda c: c.all_reduce([one(), None]), TypeError, ["x[1]", "NoneType", "numpy.ndarray"]),
    "numpy scalar": (lambda c: c.all_reduce(np.float32(1)), TypeError, ["float32", "numpy.ndarray"]),
    "number": (lambda c: c.all_reduce(1.5), TypeError, ["float", "numpy.ndarray"]),
    "list of lists": (lambda c: c.all_reduce([[1.0, 2.0], [3.0]]), TypeError, ["x[0]", "list", "numpy.ndarray"]),
    "list of numbers": (lambda c: c.all_reduce([1.0, 2.0]), TypeError, ["x[0]", "float", "numpy.ndarray"]),
    "text": (lambda c: c.all_reduce("abc"), TypeError, ["str", "numpy.ndarray"]),
    "a generator": (lambda c: c.all_reduce(one() for _ in range(2)), TypeError, ["generator", "numpy.ndarray"]),
    "a dict": (lambda c: c.all_reduce({"a": one()}), TypeError, ["dict", "numpy.ndarray"]),
    "name not text": (lambda c: c.all_reduce(one(), name=3), TypeError, ["name", "3", "str"]),
    "the same tensor twice": (lambda c: c.all_reduce([a := one(), a]), ValueError, ["tensor 0", "tensor 1", "memory"]),
    "outputs that overlap": (
        lambda c: c.all_reduce([one(), one()], out=[(a := np.zeros(8, "f4"))[:5], a[3:]]),
        ValueError,
        ["tensor 0", "tensor 1", "memory"],
    ),
    "empty of negative shape": (lambda c: c.empty(-1), ValueError, ["-1", "negative"]),
    "empty that is too large": (lambda c: c.empty(2**62), ValueError, ["(4611686018427387904,)", "float32", "at most"]),
    "empty of objects": (lambda c: c.empty(3, object), TypeError, ["object"]),
    "empty of half an element": (lambda c: c.empty(2.5), TypeError, ["float"]),
}


def refuse(comm: Any, name: str, who: str, calls: dict[str, Bad] = CALLS) -> Any:
    """Makes the bad call on one rank or on all, then a good one on all. The error and what the good call gave."""
    found = None
    if who == "all" or comm.rank == 1:
        try:
            found = ("no error", repr(calls[name][0](comm)))
        except Exception as error:
            kind = [c.__name__ for c in type(error).__mro__]
            found = (kind, str(error))
    good = comm.all_reduce(np.full(1001, comm.rank + 1, np.int32))
    return found, int(good[0]), int(good[-1])


def judge(bad: Bad, found: Any, collective_names: list[str]) -> None:
    _, kinds, words = bad
    expected = [k.__name__ for k in (kinds if isinstance(kinds, tuple) else (kinds,))]
    got, text = found
    assert set(expected) & set(got), f"{got}: {text}"
    assert "CollectivesError" not in got
    for word in words:
        for needed in collective_names if word == "ALGORITHMS" else [word]:
            assert needed in text, f"{needed!r} is not in: {text}"


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_raises_and_does_no_harm(pools: Pools, name: str, transport: str) -> None:
    from collectives import _core

    algorithms = [a["name"] for a in _core._algorithms("all_reduce")]
    group = pools.get(RANKS, transport)
    for who in ("one", "all"):
        for rank, (found, first, last) in enumerate(group.run(refuse, name, who, limit=20)):
            assert (first, last) == (6, 6)
            if who == "all" or rank == 1:
                judge(CALLS[name], found, algorithms)


def refuse_algorithms(comm: Any) -> list[str]:
    """Algorithms that a deterministic call does not accept; every rank finds the same."""
    from collectives import _core

    texts = []
    for about in _core._algorithms("all_reduce"):
        if about["determinism"] == "canonical":
            continue
        try:
            comm.all_reduce(one(), algorithm=about["name"], deterministic=True)
            texts.append(f"{about['name']} was accepted")
        except ValueError as error:
            texts.append(str(error))
    assert comm.all_reduce(one())[0] == RANKS
    return texts


def test_deterministic_refuses_algorithms_that_are_not(pools: Pools) -> None:
    for texts in pools.get(RANKS, "shm").run(refuse_algorithms):
        assert texts
        assert all("cannot be used here" in t or "deterministic=True" in t for t in texts), texts


def overlap(comm: Any) -> dict[str, list[float]]:
    """Outputs that lie over inputs: right, or refused; never a wrong sum."""
    found = {}
    base = np.arange(8, dtype=np.float32)
    x = base.copy()
    comm.all_reduce(x[:6], out=x[2:])
    found["shifted"] = x[2:].tolist()
    x = base.copy()
    comm.all_reduce(x[2:], out=x[:6])
    found["shifted back"] = x[:6].tolist()
    x = base.copy()
    comm.all_reduce(x, out=x)
    found["itself"] = x.tolist()
    x = base.copy()
    comm.all_reduce(x, out=x[::-1])
    found["reversed"] = x.tolist()
    try:
        large = np.repeat(base, 1 << 17)  # larger than all bounce buffers
        half = large.size // 2
        comm.all_reduce([large[:half], large[half:]], out=[large[half:], large[:half]])
        found["crossed"] = large[:: 1 << 17].tolist()
    except ValueError:
        found["crossed"] = []
    return found


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_outputs_over_inputs(pools: Pools, transport: str) -> None:
    for found in pools.get(RANKS, transport).run(overlap):
        base = [RANKS * float(i) for i in range(8)]
        assert found["shifted"] == base[:6]
        assert found["shifted back"] == base[2:]
        assert found["itself"] == base
        assert found["reversed"] == base[::-1]
        assert found["crossed"] in ([], base[4:] + base[:4])


def wait_badly(comm: Any) -> list[str]:
    work = comm.all_reduce(one(), async_op=True)
    texts = []
    for timeout in (-1, float("nan"), "soon"):
        try:
            work.wait(timeout)
            texts.append("no error")
        except (TypeError, ValueError) as error:
            texts.append(str(error))
    assert work.result()[0] == RANKS
    return texts


def test_bad_timeout_of_a_wait(pools: Pools) -> None:
    for texts in pools.get(RANKS, "shm").run(wait_badly):
        assert "no error" not in texts
        assert "-1" in texts[0]


def call_closed(comm: Any) -> list[str]:
    import collectives

    comm.barrier()
    comm.close()
    comm.close()
    assert comm.closed
    assert "closed" in repr(comm)
    texts = []
    calls: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(one()),
        lambda: comm.all_reduce([one(), one()]),
        lambda: comm.all_reduce(one(), async_op=True),
        lambda: comm.broadcast(one()),
        lambda: comm.reduce(one()),
        lambda: comm.barrier(),
        lambda: comm.empty(3),
    ]
    for call in calls:
        try:
            call()
            texts.append("no error")
        except collectives.ClosedError as error:
            assert error.rank == comm.rank
            texts.append(str(error))
    comm.bytes_by_transport()
    return texts


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_closed(pools: Pools, transport: str) -> None:
    for texts in pools.get(2, transport).run(call_closed):
        assert all("closed" in t and "init()" in t for t in texts), texts


def test_init_twice() -> None:
    program = """
import collectives, numpy
first = collectives.init()
assert collectives.init() is first
try:
    collectives.init(size=2)
    raise SystemExit("no error")
except collectives.CollectivesError as error:
    assert type(error) is collectives.CollectivesError and "close()" in str(error), error
assert first.all_reduce(numpy.ones(3))[0] == 1
first.close()
second = collectives.init()
assert second.all_reduce(numpy.ones(3))[0] == 1 and first.closed and not second.closed
with second:
    pass
assert second.closed
third = collectives.init()
del third
import gc; gc.collect()
assert collectives.init().all_reduce(numpy.ones(3))[0] == 1
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("n", [0, -1])
def test_a_group_of_nobody(n: int) -> None:
    import collectives

    with pytest.raises(ValueError, match=f"{n}"):
        collectives.local_group(n)
