"""premul_sum through the communicator: each rank has its own factor; every algorithm, element type and transport."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from collectives import _core
from conformance import numpy_dtype
from pool import Pools

DTYPES = [d for d in _core._dtype_names() if _core._has_kernel("premul_sum", d)]
COUNTS = (0, 3, 1001, 100_003)


def factor(rank: int) -> float:
    """Exact in every type, and other for every rank."""
    return float(2 ** (rank % 3)) * (-1) ** rank


def work(comm: Any, dtypes: list[str]) -> int:
    """Small whole numbers, so that the result is exact whatever the order."""
    checked = 0
    for dtype in dtypes:
        kind = numpy_dtype(dtype)
        total = sum(factor(r) for r in range(comm.size))
        for collective in ("all_reduce", "reduce", "reduce_scatter"):
            for algorithm in ["auto", *(a["name"] for a in _core._algorithms(collective))]:
                for count in COUNTS:
                    rows = count if collective != "reduce_scatter" else count // comm.size * comm.size
                    x = (np.arange(rows) % 2 + 1).astype(kind)
                    wanted = ((np.arange(rows) % 2 + 1) * total).astype(kind)
                    given = x.copy()
                    call = {"algorithm": algorithm, "factor": factor(comm.rank)}
                    root = checked % comm.size
                    if collective == "reduce":
                        call["root"] = root
                    try:
                        if collective == "reduce_scatter":
                            part = rows // comm.size
                            result = comm.reduce_scatter(x, "premul_sum", **call)
                            wanted = wanted[part * comm.rank : part * (comm.rank + 1)]
                        else:
                            result = getattr(comm, collective)(x, "premul_sum", out=np.empty_like(x), **call)
                    except ValueError as error:
                        assert "cannot be used here" in str(error)
                        break
                    assert x.tobytes() == given.tobytes(), "the input was changed"
                    if collective != "reduce" or comm.rank == root:
                        assert result.tobytes() == wanted.tobytes(), (dtype, collective, algorithm, count)
                    if collective == "all_reduce":
                        assert comm.all_reduce(x, "premul_sum", **call) is x
                        assert x.tobytes() == wanted.tobytes(), (dtype, algorithm, count)
                    checked += 1
    return checked


@pytest.mark.parametrize(("n", "transport"), [(1, "local"), (3, "local"), (2, "shm"), (5, "shm"), (3, "tcp")])
def test_every_type_and_algorithm(pools: Pools, n: int, transport: str) -> None:
    assert ["float16", "bfloat16", "float32", "float64", "complex64", "complex128", *DTYPES[6:]] == DTYPES
    checked = pools.get(n, transport).run(work, DTYPES)
    assert checked[0] > len(DTYPES) * 3 * len(COUNTS)


def lists_and_symmetric(comm: Any) -> None:
    total = sum(factor(r) for r in range(comm.size))
    for sizes in ((3, 0, 5), (40_000, 7)):  # a list that is packed, and one that is not
        arrays = [np.ones(size) for size in sizes]
        assert comm.all_reduce(arrays, "premul_sum", factor=factor(comm.rank)) is arrays
        assert all((a == total).all() for a in arrays)
    shared = comm.empty(10_000, np.float32)
    shared[...] = 1
    comm.all_reduce(shared, "premul_sum", factor=factor(comm.rank))
    assert (shared == total).all()
    into = comm.empty(10_000, np.float32)
    shared[...] = 2
    comm.reduce(shared, "premul_sum", 0, out=into, factor=factor(comm.rank))
    assert (shared == 2).all()
    if comm.rank == 0:
        assert (into == 2 * total).all()
    work = comm.all_reduce(np.ones(5), "premul_sum", factor=0.5, async_op=True)
    assert (work.result() == 0.5 * comm.size).all()


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_lists_symmetric_memory_and_asynchronous(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(lists_and_symmetric)


def rounded(comm: Any) -> tuple[bytes, bytes]:
    """A factor that is not exact: the product is rounded to the type before it is summed."""
    x = (np.arange(1000) / 7).astype(ml_dtypes.bfloat16)
    wanted = x.astype(np.float32) * np.float32(0.3)
    result = comm.all_reduce(x, "premul_sum", factor=0.3)
    return result.tobytes(), wanted.astype(ml_dtypes.bfloat16).tobytes()


def test_products_are_rounded_once(pools: Pools) -> None:
    ((result, wanted),) = pools.get(1, "local").run(rounded)
    assert result == wanted


def refused(comm: Any) -> None:
    with pytest.raises(ValueError, match="takes a factor"):
        comm.all_reduce(np.ones(3), "premul_sum")
    with pytest.raises(ValueError, match="takes a factor"):
        comm.all_reduce(np.ones(3), "sum", factor=2.0)
    with pytest.raises(TypeError, match="factor is 'x' of type str"):
        comm.reduce_scatter(np.ones(3 * comm.size), "premul_sum", factor="x")
    with pytest.raises(ValueError, match="factor is an int of 1329 bits; a float, which it does not fit, is needed"):
        comm.all_reduce(np.ones(3), "premul_sum", factor=10**400)
    with pytest.raises(TypeError, match="no meaning for dtype int64"):
        comm.all_reduce(np.ones(3, np.int64), "premul_sum", factor=2)
    assert comm.all_reduce(np.ones(3))[0] == comm.size


def test_what_is_refused(pools: Pools) -> None:
    pools.get(2, "shm").run(refused)
