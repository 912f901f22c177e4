"""Calls of vector collectives that are wrong by themselves, and outputs that do not fit what other ranks gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pool import Pools
from test_bad_input import ACCEPTED, RANKS, Bad, judge, one, read_only, refuse

TRANSPORTS = ["local", "shm", "tcp"]
DEEP = (1,) * 9  # dimensions


def rows(count: int, *trailing: int, dtype: Any = np.float32) -> Any:
    return np.ones((count, *trailing), dtype)


# All are refused before anything is said to other ranks, so one rank alone may make them. RANKS is 3.
CALLS: dict[str, Bad] = {
    "uneven reduce_scatter": (lambda c: c.reduce_scatter(rows(7)), ValueError, ["7 rows", "3 ranks", "counts="]),
    "uneven all_to_all": (lambda c: c.all_to_all(rows(4)), ValueError, ["4 rows", "3 ranks", "counts="]),
    "uneven scatter": (lambda c: c.scatter(rows(5), c.rank), ValueError, ["5 rows", "3 ranks", "counts="]),
    "uneven second tensor": (lambda c: c.reduce_scatter([rows(6), rows(5)]), ValueError, ["5 rows", "tensor 1"]),
    "one number for 3 ranks": (lambda c: c.reduce_scatter(np.ones(())), ValueError, ["1 rows", "3 ranks"]),
    "counts below": (lambda c: c.reduce_scatter(rows(7), counts=[2, 2, 2]), ValueError, ["7 rows", "6"]),
    "counts above": (lambda c: c.all_to_all(rows(7), counts=[2, 2, 4]), ValueError, ["7 rows", "8"]),
    "counts of scatter": (lambda c: c.scatter(rows(7), c.rank, counts=2), ValueError, ["7 rows", "6"]),
    "own count": (lambda c: c.all_gather(rows(3), counts=[2, 2, 2]), ValueError, ["3 rows", "2"]),
    "own count of gather": (lambda c: c.gather(rows(3), counts=4), ValueError, ["3 rows", "4"]),
    "too few counts": (lambda c: c.reduce_scatter(rows(6), counts=[3, 3]), ValueError, ["2 entries", "3 ranks"]),
    "too many counts": (lambda c: c.all_gather(rows(1), counts=[1] * 4), ValueError, ["4 entries", "3 ranks"]),
    "no counts": (lambda c: c.all_to_all(rows(0), counts=[]), ValueError, ["0 entries", "3 ranks"]),
    "counts of a list": (
        lambda c: c.reduce_scatter([rows(3), rows(3)], counts=[[1, 1, 1]]),
        ValueError,
        ["1 entries", "2 tensors"],
    ),
    "flat counts of a list": (
        lambda c: c.reduce_scatter([rows(3)], counts=[1, 1, 1]),
        ValueError,
        ["3 entries", "1 tensors"],
    ),
    "negative counts": (lambda c: c.reduce_scatter(rows(3), counts=[4, -1, 0]), ValueError, ["-1", "at least 0"]),
    "a negative count": (lambda c: c.all_gather(rows(3), counts=-3), ValueError, ["-3", "at least 0"]),
    "fractions of rows": (lambda c: c.reduce_scatter(rows(3), counts=[1.0, 1, 1]), TypeError, ["1.0", "float"]),
    "a fraction": (lambda c: c.all_gather(rows(3), counts=2.5), TypeError, ["2.5", "counts"]),
    "text for counts": (lambda c: c.all_gather(rows(3), counts="333"), TypeError, ["'3'", "str"]),
    "truth for counts": (lambda c: c.all_gather(rows(1), counts=True), TypeError, ["True", "counts"]),
    "root of gather": (lambda c: c.gather(rows(3), 3), ValueError, ["root 3", "0 to 2"]),
    "negative root of scatter": (lambda c: c.scatter(rows(3), -1), ValueError, ["root -1", "0 to 2"]),
    "root not a number": (lambda c: c.gather(rows(3), 0.0), TypeError, ["root", "float"]),
    "nothing on the root": (lambda c: c.scatter(None, c.rank), TypeError, ["None", "root"]),
    "nothing to gather": (lambda c: c.all_gather(None), TypeError, ["NoneType", "numpy.ndarray"]),
    "numbers": (lambda c: c.all_to_all([1.0, 2.0]), TypeError, ["x[0]", "float", "numpy.ndarray"]),
    "object dtype": (lambda c: c.all_gather(one(object)), TypeError, ["object", ACCEPTED]),
    "long dtype": (lambda c: c.reduce_scatter(rows(3, dtype=np.longdouble)), TypeError, ["float128", ACCEPTED]),
    "mixed dtypes": (lambda c: c.gather([rows(1), rows(1, dtype="f8")]), TypeError, ["tensor 1", "float64"]),
    "avg of ints": (lambda c: c.reduce_scatter(rows(3, dtype=np.int32), "avg"), TypeError, ["avg", "int32"]),
    "unknown op": (lambda c: c.reduce_scatter(rows(3), "mean"), ValueError, ["mean", "sum", "avg", "prod"]),
    "9 dimensions": (lambda c: c.all_gather(np.ones(DEEP)), ValueError, ["9 dimensions", "8"]),
    "9 dimensions of the second": (lambda c: c.gather([rows(1), np.ones(DEEP, "f4")]), ValueError, ["tensor 1", "8"]),
    "9 dimensions to scatter": (
        lambda c: c.scatter(np.ones((3, *DEEP[1:])), c.rank),
        ValueError,
        ["9 dimensions", "8"],
    ),
    "9 dimensions with counts": (
        lambda c: c.all_to_all(np.ones((3, *DEEP[1:])), counts=1),
        ValueError,
        ["9 dimensions", "8"],
    ),
    "unknown algorithm": (
        lambda c: c.all_gather(rows(3), algorithm="fastest"),
        ValueError,
        ["fastest", "ring", "auto"],
    ),
    "unknown algorithm of scatter": (
        lambda c: c.scatter(rows(3), c.rank, algorithm="ring2"),
        ValueError,
        ["ring2", "one_shot"],
    ),
    "not deterministic": (
        lambda c: c.reduce_scatter(rows(3), algorithm="ring", deterministic=True),
        ValueError,
        ["ring", "deterministic=True"],
    ),
    "timeout": (lambda c: c.all_gather(rows(3), timeout=0), ValueError, ["timeout", "0", "positive"]),
    "name": (lambda c: c.scatter(rows(3), c.rank, name=3), TypeError, ["name", "int"]),
    "out too short": (lambda c: c.reduce_scatter(rows(6), out=rows(1)), ValueError, ["(1,)", "(2,)"]),
    "out with other rows": (lambda c: c.all_gather(rows(2, 3), out=rows(6, 4)), ValueError, ["(6, 4)", "(any, 3)"]),
    "out of counted rows": (lambda c: c.all_gather(rows(2), out=rows(5), counts=2), ValueError, ["(5,)", "(6,)"]),
    "out with other dimensions": (lambda c: c.all_to_all(rows(3, 2), out=rows(6)), ValueError, ["(6,)", "(3, 2)"]),
    "out of scatter": (lambda c: c.scatter(rows(6), c.rank, out=rows(3)), ValueError, ["(3,)", "(2,)"]),
    "out of another dtype": (lambda c: c.gather(rows(2), c.rank, out=rows(6, dtype="f8")), ValueError, ["float64"]),
    "out of another dtype, told": (lambda c: c.all_to_all(rows(3), out=rows(3, dtype="i4")), ValueError, ["int32"]),
    "read-only out": (lambda c: c.all_gather(one(), out=read_only()), ValueError, ["read-only"]),
    "read-only out of scatter": (lambda c: c.scatter(None, 1 - c.rank % 2, out=read_only()), ValueError, ["read-only"]),
    "outs that overlap": (
        lambda c: c.reduce_scatter([rows(6), rows(6)], out=[(a := rows(3))[:2], a[1:]]),
        ValueError,
        ["out[0]", "out[1]", "share memory"],
    ),
    "outs that overlap, untold": (
        lambda c: c.all_gather([rows(1), rows(1)], out=[(a := rows(4))[:3], a[1:]]),
        ValueError,
        ["out[0]", "out[1]", "share memory"],
    ),
    "too few outs": (lambda c: c.all_to_all([rows(3), rows(3)], out=[rows(3)]), ValueError, ["1 tensors", "2"]),
    "out not an array": (lambda c: c.all_gather(rows(1), out=[1.0]), TypeError, ["out[0]", "float"]),
}


def refuse_parts(comm: Any, name: str, who: str) -> Any:
    return refuse(comm, name, who, CALLS)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_raises_and_does_no_harm(pools: Pools, name: str, transport: str) -> None:
    group = pools.get(RANKS, transport)
    for who in ("one", "all"):
        for rank, (found, first, last) in enumerate(group.run(refuse_parts, name, who, limit=20)):
            assert (first, last) == (6, 6)
            if who == "all" or rank == 1:
                judge(CALLS[name], found, [])


def unfit(comm: Any, collective: str) -> tuple[str, bool]:
    """Only the ranks together know the lengths; rank 1 has an out of another length, and the others get theirs."""
    suspect = comm.rank == 1
    out = np.full(4 if suspect else {"all_gather": 6, "gather": 6, "scatter": 2, "all_to_all": 3}[collective], 5.0)
    x = np.arange(2.0) + comm.rank * 2
    text = ""
    try:
        if collective == "all_gather":
            comm.all_gather(x, out=out)
        elif collective == "gather":
            comm.gather(x, 1, out=out)
        elif collective == "scatter":
            comm.scatter(np.arange(6.0) if comm.rank == 0 else None, out=out)
        else:
            comm.all_to_all(np.arange(3.0), counts=[1, 1, 1], out=out)
    except ValueError as error:
        text = str(error)
    assert comm.all_reduce(np.ones(3))[0] == RANKS
    expected = {
        "all_gather": np.arange(6.0),
        "gather": np.full(6, 5.0),
        "scatter": x,
        "all_to_all": np.full(3, float(comm.rank)),
    }[collective]
    return text, bool(np.array_equal(out, np.full(4, 5.0) if suspect else expected))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("collective", ["all_gather", "gather", "scatter", "all_to_all"])
def test_an_out_that_does_not_fit_keeps_nobody_waiting(pools: Pools, collective: str, transport: str) -> None:
    for rank, (text, right) in enumerate(pools.get(RANKS, transport).run(unfit, collective, limit=20)):
        assert right
        assert ("(4,)" in text) == (rank == 1), text
