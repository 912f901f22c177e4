"""Ranks that disagree about a vector collective: every rank raises MismatchError with both ranks and values."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from pool import NOTICED, Pools
from test_failures_mismatch import Arrays, Kinds, Side, all_reduce, contradict, judge, ones

LARGE = 3 << 19  # elements, 6 MiB; two and three ranks have equal parts of it


def side(collective: str, arrays: Arrays, **more: Any) -> Side:
    return Side(arrays, lambda c, x, out: getattr(c, collective)(x, **more))


def matrix(rows: int, columns: int, *, dtype: Any = np.float32) -> Arrays:
    return [np.ones((rows, columns), dtype)]


def reduce_scatter(*counts: int, dtype: Any = np.float32, **more: Any) -> Side:
    return side("reduce_scatter", ones(*counts, dtype=dtype), **more)


def all_to_all(*counts: int, dtype: Any = np.float32, **more: Any) -> Side:
    return side("all_to_all", ones(*counts, dtype=dtype), **more)


def all_gather(*counts: int, dtype: Any = np.float32, **more: Any) -> Side:
    return side("all_gather", ones(*counts, dtype=dtype), **more)


def scatter(root: int) -> Side:
    return Side(ones(6), lambda c, x, out: c.scatter(x if c.rank == root else None, root))


def uneven(count: int, first: int) -> Side:
    """reduce_scatter with another length for part 0 than for the last."""

    def call(c: Any, x: Any, out: Any) -> Any:
        rest = [count // c.size] * (c.size - 2)
        return c.reduce_scatter(x, counts=[first, *rest, count - first - sum(rest)])

    return Side(ones(count), call)


# Two and three ranks. Where no lengths are passed, each has the same part of the whole.
KINDS: Kinds = {
    "reduce_scatter length": (reduce_scatter(6), reduce_scatter(12), ["6", "12", "part 0"]),
    "reduce_scatter 24 bytes against 6 MiB": (reduce_scatter(6), reduce_scatter(LARGE), ["6", str(LARGE)]),
    "reduce_scatter large lengths": (reduce_scatter(LARGE), reduce_scatter(LARGE + 6), [str(LARGE), str(LARGE + 6)]),
    "reduce_scatter nothing": (reduce_scatter(0), reduce_scatter(6), ["0", "6"]),
    "reduce_scatter rows": (
        side("reduce_scatter", matrix(6, 2)),
        side("reduce_scatter", matrix(6, 3)),
        ["12", "18"],
    ),
    "reduce_scatter op": (reduce_scatter(6), reduce_scatter(6, op="max"), ["op", "sum", "max"]),
    "reduce_scatter dtype": (reduce_scatter(6), reduce_scatter(6, dtype=np.int32), ["dtype", "float32", "int32"]),
    "reduce_scatter counts": (uneven(12, 4), uneven(12, 5), ["4", "5"]),
    "reduce_scatter tensors": (reduce_scatter(6, 6), reduce_scatter(12), ["tensors"]),
    "reduce_scatter lists": (reduce_scatter(6, 12, 6), reduce_scatter(12, 6, 6), ["lengths", "part 0 of tensor 0"]),
    "reduce_scatter algorithm": (
        reduce_scatter(6, algorithm="ring"),
        reduce_scatter(6, algorithm="one_shot"),
        ["algorithm", "ring", "one_shot"],
    ),
    "deterministic": (reduce_scatter(6), reduce_scatter(6, deterministic=True), ["deterministic", "False", "True"]),
    "all_to_all length": (all_to_all(6), all_to_all(12), ["the part that rank 0 gives to rank 0"]),
    "all_to_all large length": (all_to_all(LARGE), all_to_all(6), ["elements"]),
    "all_to_all dtype": (all_to_all(6), all_to_all(6, dtype="f8"), ["dtype", "float32", "float64"]),
    "all_to_all counts on one side": (
        all_to_all(6),
        Side(ones(6), lambda c, x, out: c.all_to_all(x, counts=6 // c.size)),
        ["all_to_all", "int64"],  # of the exchange of lengths
    ),
    "all_gather counts": (all_gather(4, counts=4), all_gather(5, counts=5), ["4", "5"]),
    "all_gather rows": (
        side("all_gather", matrix(4, 2), counts=4),
        side("all_gather", matrix(4, 3), counts=4),
        ["8", "12"],
    ),
    "all_gather dtype": (all_gather(4, counts=4), all_gather(4, counts=4, dtype="u1"), ["float32", "uint8"]),
    "all_gather told on one side": (all_gather(4), all_gather(4, counts=4), ["dtype", "int64", "float32"]),
    "all_gather tensors": (all_gather(4), all_gather(4, 4), ["elements"]),
    "gather root": (side("gather", ones(6), counts=6), side("gather", ones(6), root=1, counts=6), ["root", "0", "1"]),
    "gather root untold": (side("gather", ones(6)), side("gather", ones(6), root=1), ["root", "0", "1"]),
    "scatter root": (scatter(0), scatter(1), ["root", "0", "1"]),
    "all_reduce against reduce_scatter": (all_reduce(ones(6)), reduce_scatter(6), ["all_reduce", "reduce_scatter"]),
    "all_gather against gather": (
        all_gather(6, counts=6),
        side("gather", ones(6), counts=6),
        ["all_gather", "gather"],
    ),
    "all_to_all against reduce_scatter": (all_to_all(6), reduce_scatter(6), ["all_to_all", "reduce_scatter"]),
}

# Found when the ranks exchange their shapes: all have received the same, so nothing is broken.
SHAPES: Kinds = {
    "rows": (side("all_gather", matrix(6, 2)), side("all_gather", matrix(6, 3)), ["(6, 2)", "(6, 3)"]),
    "dimensions": (side("gather", matrix(6, 1)), side("gather", ones(6)), ["(6, 1)", "(6,)"]),
    "dtypes": (side("gather", matrix(6, 2)), side("gather", matrix(6, 2, dtype="i8")), ["float32", "int64"]),
    "second tensor": (
        side("all_gather", [*ones(3), *matrix(3, 1)]),
        side("all_gather", [*ones(3), *matrix(3, 2)]),
        ["tensor 1", "(3, 1)", "(3, 2)"],
    ),
    "rows of all_to_all": (
        Side(matrix(6, 2), lambda c, x, out: c.all_to_all(x, counts=[6] + [0] * (c.size - 1))),
        Side(matrix(6, 4), lambda c, x, out: c.all_to_all(x, counts=[6] + [0] * (c.size - 1))),
        ["(6, 2)", "(6, 4)"],
    ),
}


def disagree(comm: Any, kind: str, suspect: int) -> dict[str, Any]:
    return contradict(comm, kind, suspect, kinds=KINDS | SHAPES)


@pytest.mark.pairwise
@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_raises(pools: Pools, n: int, transport: str, kind: str) -> None:
    suspect = (list(KINDS).index(kind) + n) % n
    judge(pools.get(n, transport).run(disagree, kind, suspect, limit=30), KINDS[kind][2], suspect)


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
@pytest.mark.parametrize("kind", SHAPES)
def test_shapes(pools: Pools, transport: str, kind: str) -> None:
    suspect = list(SHAPES).index(kind) % 3
    for rank, report in enumerate(pools.get(3, transport).run(disagree, kind, suspect, limit=30)):
        name, message, _, own = report["first"]
        assert (name, own) == ("MismatchError", rank), report
        assert all(word in message for word in SHAPES[kind][2]), message
        assert suspect in {int(r) for r in re.findall(r"rank (\d+) has", message)}, message
        assert report["took"] < NOTICED
        assert report["untouched"]
        assert report["returned again"], report
