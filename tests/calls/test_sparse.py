"""all_reduce_sparse: the sum of (indices, values) of all ranks, against dense sums; the bits; what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from collectives import MismatchError, _core
from conformance import numpy_dtype, rounding
from pool import Pools

DTYPES = [d for d in _core._dtype_names() if _core._has_kernel("sum", d)]
ROWS = 50  # of the long array


def rows_of(rank: int, size: int, many: int, index: Any, dtype: Any, width: tuple[int, ...]) -> tuple[Any, Any]:
    """What a rank gives: no rows on the last of several ranks; indices in any order, some of them twice."""
    rng = np.random.default_rng([rank, many])
    count = 0 if size > 1 and rank == size - 1 else many + 3 * rank
    indices = rng.integers(0, ROWS, count).astype(index)
    return indices, rng.integers(-3, 4, (count, *width)).astype(np.int8).astype(dtype)


def dense(parts: list[tuple[Any, Any]], width: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    wide = dtype if dtype.kind in "iubc" else np.float64
    total = np.zeros((ROWS, *width), wide)
    for indices, values in parts:
        np.add.at(total, indices, values.astype(wide))
    found = np.unique(np.concatenate([indices for indices, _ in parts]))
    return found, total[found]


def check(comm: Any) -> list[tuple[bytes, bytes]]:
    """Small whole numbers, so that the sums are exact whatever the order; what each call returned."""
    results = []
    for number, dtype in enumerate(DTYPES):
        kind = numpy_dtype(dtype)
        index, width = (np.int32, np.int64)[number % 2], ((), (3,), (2, 1, 4), (0,))[number % 4]
        for many in (0, 1, 20):
            parts = [rows_of(r, comm.size, many, index, kind, width) for r in range(comm.size)]
            indices, values = parts[comm.rank]
            before = indices.tobytes(), values.tobytes()
            found, wanted = dense(parts, width, kind)
            works = [comm.all_reduce_sparse(indices, values, async_op=True, name=dtype) for _ in range(2)]
            rows, sums = works[1].result()
            assert works[0].result()[1].tobytes() == sums.tobytes()
            assert (indices.tobytes(), values.tobytes()) == before
            assert (rows.dtype, sums.dtype, sums.shape) == (index, kind, (len(rows), *width))
            assert rows.tolist() == found.tolist()
            assert (sums.astype(wanted.dtype) == wanted).all(), (dtype, many)
            results.append((rows.tobytes(), sums.tobytes()))
    return results


@pytest.mark.parametrize(("n", "transport"), [(1, "local"), (3, "local"), (4, "shm"), (3, "tcp")])
def test_every_type(pools: Pools, n: int, transport: str) -> None:
    reports = pools.get(n, transport).run(check)
    assert all(report == reports[0] for report in reports)


def inexact(comm: Any) -> list[bytes]:
    """Of own rows first, then from rank 0 upwards; halves in float32, rounded on each rank and at the end."""
    results = []
    for dtype in ("float64", "float32", "bfloat16"):
        kind = numpy_dtype(dtype)
        parts = []
        for rank in range(comm.size):
            rng = np.random.default_rng([7, rank])
            parts.append((rng.integers(0, 9, 40), rng.standard_normal((40, 5)).astype(kind)))
        rows, sums = comm.all_reduce_sparse(*parts[comm.rank], "avg")
        found, wanted = dense(parts, (5,), kind)
        scale = dense([(i, np.abs(v)) for i, v in parts], (5,), kind)[1]
        assert (rows == found).all()
        error = np.abs(sums.astype(np.float64) - wanted / comm.size)
        assert (error <= 2 * rounding(dtype) * scale / comm.size + 40 * rounding("float32") * scale).all(), dtype
        # Two rows a rank: the order in which ranks are added is all that is left to the sum.
        pair = [np.float64(v[0, 0]) for _, v in parts]
        _, (total,) = comm.all_reduce_sparse(np.array([3]), np.array([pair[comm.rank]]))
        upwards = np.float64(0)
        for value in pair:
            upwards += value
        assert total == upwards
        results.append(sums.tobytes())
    return results


def test_order_and_rounding(pools: Pools) -> None:
    reports = pools.get(5, "shm").run(inexact)
    assert all(report == reports[0] for report in reports)


def other_libraries(comm: Any) -> None:
    import jax.numpy as jnp
    import torch

    rows, sums = comm.all_reduce_sparse(torch.tensor([5, comm.rank]), torch.ones(2, 3, dtype=torch.bfloat16))
    assert isinstance(rows, torch.Tensor) and rows.tolist() == [*range(comm.size), 5]
    assert sums.dtype == torch.bfloat16 and sums[:, 0].tolist() == [1.0] * comm.size + [float(comm.size)]
    rows, sums = comm.all_reduce_sparse(np.array([0], np.int32), jnp.ones(1), "avg", timeout=30)
    assert isinstance(rows, np.ndarray) and not isinstance(sums, np.ndarray) and float(sums[0]) == 1
    # Rows that are not contiguous; in a subset of the ranks.
    half = comm.new_group(range(2))
    if half is not None:
        rows, sums = half.all_reduce_sparse(np.array([9, 0, 4, 0])[::2], np.arange(12.0).reshape(3, 4).T[::2])
        assert rows.tolist() == [4, 9] and sums.tolist() == [[4.0, 12.0, 20.0], [0.0, 8.0, 16.0]]
        half.close()


def test_arrays_of_other_libraries_and_groups(pools: Pools) -> None:
    pools.get(3, "local").run(other_libraries)


def refused(comm: Any) -> None:
    call = comm.all_reduce_sparse
    with pytest.raises(TypeError, match="indices have dtype float64; int32 and int64 are accepted"):
        call(np.ones(3), np.ones(3))
    with pytest.raises(TypeError, match="indices is of type list"):
        call([1, 2, 3], np.ones(3))
    with pytest.raises(ValueError, match=r"indices have shape \(3,\) and values \(2,\)"):
        call(np.arange(3), np.ones(2))
    with pytest.raises(ValueError, match="one index for each row"):
        call(np.zeros((1, 1), np.int64), np.ones((1, 1)))
    with pytest.raises(ValueError, match="indices have -1; numbers of rows"):
        call(np.array([2, -1]), np.ones(2))
    with pytest.raises(ValueError, match="op is 'max'; of sparse arrays there are 'sum' and 'avg'"):
        call(np.arange(3), np.ones(3), "max")
    with pytest.raises(TypeError, match="op 'avg' has no meaning for dtype int64"):
        call(np.arange(3), np.arange(3), "avg")
    with pytest.raises(ValueError, match="timeout is -1"):
        call(np.arange(3), np.ones(3), timeout=-1)
    assert call(np.arange(3), np.ones(3))[1].tolist() == [comm.size] * 3


def test_what_is_refused(pools: Pools) -> None:
    pools.get(2, "shm").run(refused)


# What rank 0 has, as the error says it.
SAID = {"indices": "of int64", "dtype": "of float32", "shape": r"\(3, 2, 3\)", "op": "'sum'"}


def differ(comm: Any, what: str) -> None:
    odd = comm.rank == 1
    indices, values, op = np.arange(3), np.ones((3, 2, 3), np.float32), "sum"
    if what == "indices" and odd:
        indices = indices.astype(np.int32)
    elif what == "dtype" and odd:
        values = values.astype(np.float64)
    elif what == "shape" and odd:
        values = values.reshape(3, 3, 2)
    elif what == "op" and odd:
        op = "avg"
    with pytest.raises(MismatchError, match=f"all_reduce_sparse: .*rank 0 has .*{SAID[what]}.*rank 1 has"):
        comm.all_reduce_sparse(indices, values, op)
    assert comm.all_reduce_sparse(np.arange(3), np.ones(3))[1][0] == comm.size


@pytest.mark.parametrize("what", SAID)
def test_ranks_that_disagree_all_raise_and_go_on(pools: Pools, what: str) -> None:
    pools.get(3, "shm").run(differ, what)
