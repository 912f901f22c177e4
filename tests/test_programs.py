"""Random programs of collectives against a sequential model, and one collective of more than 2**32 bytes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pool import Pools

RANKS = 3
SHAPES = [(), (0,), (1,), (7,), (3, 5), (4, 0, 2), (1000,), (33, 129)]

call = st.fixed_dictionaries(
    {
        "collective": st.sampled_from(["all_reduce", "broadcast", "reduce", "barrier"]),
        "op": st.sampled_from(["sum", "prod", "min", "max"]),
        "dtype": st.sampled_from(["int32", "uint8", "int64", "float64"]),
        "shapes": st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4),
        "layout": st.sampled_from(["plain", "fortran", "strided"]),
        "root": st.integers(0, RANKS - 1),
        "separate": st.booleans(),
        "asynchronous": st.booleans(),
        "seed": st.integers(0, 1 << 30),
    }
)


def make(item: dict[str, Any], rank: int) -> list[Any]:
    """The tensors of one rank. Small integers: sums and products of three are exact in every dtype."""
    random = np.random.default_rng([item["seed"], rank])
    tensors = []
    for shape in item["shapes"]:
        values = random.integers(0, 5, shape).astype(item["dtype"])
        if item["layout"] == "fortran":
            values = np.asfortranarray(values)
        elif item["layout"] == "strided" and values.ndim:
            wide = np.zeros((*values.shape[:-1], values.shape[-1] * 2), values.dtype)
            wide[..., ::2] = values
            values = wide[..., ::2]
        tensors.append(values)
    return tensors


def model(item: dict[str, Any], rank: int, size: int) -> list[Any]:
    """What the rank must have after the call."""
    everyone = [make(item, r) for r in range(size)]
    own = everyone[rank]
    if item["collective"] == "barrier" or (item["collective"] == "reduce" and rank != item["root"]):
        return own
    if item["collective"] == "broadcast":
        return everyone[item["root"]]
    combine = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[item["op"]]
    results = []
    for t in range(len(own)):
        total = np.array(everyone[0][t])
        for r in range(1, size):
            total = combine(total, everyone[r][t]).astype(total.dtype)
        results.append(total)
    return results


def run_program(comm: Any, program: list[dict[str, Any]]) -> list[str]:
    """Issues all calls, waits for the asynchronous ones last of all and backwards, and compares."""
    pending: list[tuple[int, Any]] = []
    results: list[list[Any]] = []
    inputs: list[list[Any]] = []
    for i, item in enumerate(program):
        tensors = make(item, comm.rank)
        out = [np.zeros_like(t) for t in tensors] if item["separate"] else None
        collective = item["collective"]
        work = None
        if collective == "all_reduce":
            work = comm.all_reduce(tensors, item["op"], out=out, async_op=item["asynchronous"])
        elif collective == "reduce":
            work = comm.reduce(tensors, item["op"], item["root"], out=out, async_op=item["asynchronous"])
        elif collective == "broadcast":
            work = comm.broadcast(tensors, item["root"], out=out, async_op=item["asynchronous"])
        else:
            work = comm.barrier(async_op=item["asynchronous"])
        if item["asynchronous"]:
            pending.append((i, work))
        no_result = collective == "barrier" or (collective == "reduce" and comm.rank != item["root"])
        results.append(tensors if out is None or no_result else out)
        inputs.append(tensors if out is not None else [])
    for _, work in reversed(pending):
        work.wait()
    wrong = []
    for i, item in enumerate(program):
        if not all(np.array_equal(a, b) for a, b in zip(results[i], model(item, comm.rank, comm.size), strict=True)):
            wrong.append(f"call {i}: {item}")
        if inputs[i] and not all(np.array_equal(a, b) for a, b in zip(inputs[i], make(item, comm.rank), strict=True)):
            wrong.append(f"call {i} changed its input: {item}")
    return wrong


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_random_programs(pools: Pools, transport: str) -> None:
    @settings(
        max_examples=40,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(call, min_size=1, max_size=30))
    def check(program: list[dict[str, Any]]) -> None:
        for rank, wrong in enumerate(pools.get(RANKS, transport).run(run_program, program)):
            assert not wrong, (rank, wrong[:2])

    check()


def huge(comm: Any, count: int) -> list[Any]:
    x = np.full(count, comm.rank + 1, np.uint8)
    x[-1] = 10 * (comm.rank + 1)
    comm.all_reduce(x)
    found = [int(x[0]), int(x[count // 2]), int(x[-1]), int(x.min()), int(x[:-1].max())]
    x[1 << 32] = 77 + comm.rank
    comm.broadcast(x, 1)
    return [*found, int(x[1 << 32])]


def test_more_than_four_gigabytes(pools: Pools) -> None:
    count = (1 << 32) + 12345
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    if available < 3 * count:
        pytest.skip(f"it needs {3 * count} bytes of memory and {available} are available")
    began = time.monotonic()
    for values in pools.get(2, "shm").run(huge, count, limit=200):
        assert values == [3, 3, 30, 3, 3, 78]
    assert time.monotonic() - began < 200
