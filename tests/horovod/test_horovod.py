"""The training API of collectives.tensorflow between real processes: values against NumPy, in both modes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import horovod_checks as checks
import numpy as np
import pytest
import tiers
from horovod_ranks import Ranks

SIZE = 3


@pytest.fixture(scope="module", params=["shm", *["tcp"] * tiers.full()])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """At the end all leave by themselves."""
    made = Ranks(SIZE, variables={"COLLECTIVES_TRANSPORT": request.param})
    try:
        yield made
        assert made.leave() == [0] * SIZE
    finally:
        made.destroy()


def shares_memory(ranks: Ranks) -> bool:
    return ranks.variables["COLLECTIVES_TRANSPORT"] == "shm"


def of(dtype: str, shape: tuple[int, ...], rank: int) -> Any:
    return checks.numpy(checks.values(dtype, shape, rank))


def test_who_is_who(ranks):
    for rank, found in enumerate(ranks.run(checks.identity)):
        # Ranks that may not share memory count as hosts of their own.
        local, cross = ((rank, SIZE), (0, 1)) if shares_memory(ranks) else ((0, 1), (rank, SIZE))
        assert found == {
            "rank": (rank,) * 3,
            "size": SIZE,
            "local": local,
            "cross": cross,
            "ops": [rank, SIZE, *local, 1],
            "built": {bool},
            "nccl": 0,
            "homogeneous": True,
            "initialized": True,
        }


def expected_of_allreduce(dtype: str) -> dict[str, Any]:
    each = np.stack([of(dtype, (5, 3), r) for r in range(SIZE)])
    total = each.sum(0, dtype=each.dtype)
    integer = each.dtype.kind in "iu"
    mean = np.trunc(total / SIZE).astype(each.dtype) if integer else total / np.array(SIZE, each.dtype)
    wide = np.float64 if integer else np.float32

    def scaled(x: Any, factor: float) -> Any:
        return np.trunc(x * wide(factor)).astype(x.dtype) if integer else x * x.dtype.type(factor)

    return {
        "Sum": total,
        "Min": each.min(0),
        "Max": each.max(0),
        "Product": each.prod(0, dtype=each.dtype),
        **dict.fromkeys(["Average", "default", "smddp average", "oob"], mean),
        **dict.fromkeys(["average=False", "fp16", "bf16", "smddp"], total),
        "scaled": scaled(scaled(each, 1.5).sum(0, dtype=each.dtype), 0.75),
    }


def test_allreduce(ranks):
    expected = {dtype: expected_of_allreduce(dtype) for dtype in checks.DTYPES}
    for rank, found in enumerate(ranks.run(checks.allreduce, checks.DTYPES)):
        for dtype in checks.DTYPES:
            tolerance = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-6)
            np.testing.assert_array_equal(found[f"{dtype} input"], of(dtype, (5, 3), rank))
            for name, wanted in expected[dtype].items():
                if dtype not in checks.EVERYTHING and name not in ("Sum", "Average", "scaled"):
                    continue
                value = found[f"{dtype} {name}"]
                assert value.dtype == wanted.dtype, (dtype, name)
                np.testing.assert_allclose(value, wanted, rtol=tolerance, err_msg=f"{dtype} {name}")


def test_groups(ranks):
    mixed = [("float32", (3,)), ("int32", ()), ("float16", (2, 2)), ("float32", (0, 4)), ("float32", (6, 2))]
    sums = [np.sum([of(d, s, r + i) for r in range(SIZE)], 0) for i, (d, s) in enumerate(mixed)]
    rows = [[np.full((checks.SIZES[(r + i) % 5], 2), r) for r in range(SIZE)] for i in range(3)]
    indices = [i for r in range(SIZE) for i in range(r + 1)]
    lines = np.array([[r + 1.0] * 2 for r in range(SIZE) for _ in range(r + 1)])
    scattered = [np.mean([of("float32", (7, 2), r) for r in range(SIZE)], 0), sums[4] / SIZE]
    for rank, found in enumerate(ranks.run(checks.groups)):
        for value, expected in zip(found["allreduce"], sums, strict=True):
            np.testing.assert_array_equal(value, expected)
        dense, (values, where) = found["with slices"]
        np.testing.assert_array_equal(dense, sums[0])
        np.testing.assert_array_equal(values, lines)
        assert where.tolist() == indices
        np.testing.assert_allclose(found["slices"][0], lines / SIZE, rtol=1e-6)
        for value, expected in zip(found["allgather"], rows, strict=True):
            np.testing.assert_array_equal(value, np.concatenate(expected))
        for value, expected in zip(found["reducescatter"], scattered, strict=True):
            np.testing.assert_allclose(value, np.array_split(expected, SIZE)[rank], rtol=1e-6)


def test_what_moves(ranks):
    table = [[(r + i) % 3 for i in range(SIZE)] for r in range(SIZE)]
    rows = 4 * SIZE + SIZE // 2
    mean = np.mean([of("float32", (rows, 2), r) for r in range(SIZE)], 0)
    whole = np.sum([of("int32", (SIZE + 1,), r) for r in range(SIZE)], 0)
    average = np.trunc(np.sum([of("int64", (SIZE + 1,), r) for r in range(SIZE)], 0) / SIZE)
    for rank, found in enumerate(ranks.run(checks.moves)):
        gathered = np.concatenate([np.full((checks.SIZES[r], 2), r) for r in range(SIZE)])
        for value in found["allgather"]:
            expected = gathered % 2 if value.dtype == bool else gathered
            np.testing.assert_array_equal(value, expected)
        assert found["scalar"].tolist() == list(range(SIZE))
        for value in found["broadcast"]:
            assert value.tolist() == [SIZE % 2 if value.dtype == bool else SIZE] * 3
        assert found["even"].tolist() == [100 * r + 2 * rank + i for r in range(SIZE) for i in range(2)]
        for name in ("splits", "tensor of splits"):
            output, received = found[name]
            assert received.tolist() == [row[rank] for row in table] and received.dtype == np.int32
            assert len(output) == sum(received)
        assert found["splits"][0].tolist() == [[r, r] for r in range(SIZE) for _ in range(table[r][rank])]
        assert found["nothing"][0].shape == (0, 4) and found["nothing"][1].tolist() == [0] * SIZE
        assert found["to the last"][0].tolist() == ([7, 7] if rank == SIZE - 1 else [])
        np.testing.assert_allclose(found["reducescatter"], np.array_split(mean, SIZE)[rank], rtol=1e-6)
        assert found["sum of integers"].tolist() == np.array_split(whole, SIZE)[rank].tolist()
        assert found["average of integers"].tolist() == np.array_split(average, SIZE)[rank].tolist()
        assert found["overlap"] == rank


def test_objects_and_variables(ranks):
    for found in ranks.run(checks.objects_and_variables):
        assert [value.tolist() for value in found["after"]] == [[1.0] * 3, [[1, 1]] * 2, [True, False]]
        assert [value.tolist() for value in found["in function"]] == [[1.0] * 3, [[1, 1]] * 2, [False, False]]
        assert found["graph"].tolist() == [SIZE - 1]
        assert [value.tolist() for value in found["returned"]] == [[1.0] * 3]
        assert found["object"] == {"from": 1, "list": [1]}
        assert found["objects"] == [{"from": r} for r in range(SIZE)]


def test_gradients(ranks):
    """By the derivative of the sum of all losses, or their mean where Horovod averages."""
    xs = np.array([[[1.0, 2.0], [3.0, r], [5.0, 6.0 + r]] for r in range(SIZE)])

    def weights(shape: tuple[int, ...], rank: int) -> Any:
        return np.arange(np.prod(shape)).reshape(shape) + 10.0 * rank

    total = sum(weights((3, 2), r) for r in range(SIZE))
    table = [[(r + i) % 3 for i in range(SIZE)] for r in range(SIZE)]
    rows = [r + 1 for r in range(SIZE)]
    border = np.cumsum([0, *rows])
    for rank, found in enumerate(ranks.run(checks.gradients)):
        near = {}
        near["Sum"], near["Average"], near["scaled"] = total, total / SIZE, total / 2
        for op, best in (("Min", xs.min(0)), ("Max", xs.max(0))):
            near[op] = total * (xs[rank] == best) / (xs == best).sum(0)
        near["Product"] = total * np.prod(np.delete(xs, rank, 0), 0)
        gathered = sum(weights((border[-1], 2), r) for r in range(SIZE)) / SIZE
        near["allgather"] = gathered[border[rank] : border[rank + 1]]
        near["broadcast"] = total / SIZE if rank == 1 else np.zeros((3, 2))
        # What each rank has for the rows that this one gave it, which lie behind those of the ranks before.
        back = []
        for r in range(SIZE):
            received = [table[i][r] for i in range(SIZE)]
            begin = sum(received[:rank])
            back.append(weights((sum(received), 2), r)[begin : begin + received[rank]])
        near["alltoall"] = np.concatenate(back)
        parts = np.concatenate([weights(np.array_split(xs[0], SIZE)[r].shape, r) for r in range(SIZE)])
        near["reducescatter sum"], near["reducescatter average"] = parts * SIZE, parts
        for name, expected in near.items():
            np.testing.assert_allclose(found[name][0], expected, rtol=1e-5, err_msg=name)
        for value, shape in zip(found["group"], ((3, 2), (2,)), strict=True):
            np.testing.assert_allclose(value, sum(weights(shape, r) for r in range(SIZE)) / SIZE, rtol=1e-6)
        np.testing.assert_allclose(found["grouped allgather"][0], near["allgather"], rtol=1e-6)


def test_initialized_again_and_again(ranks):
    """Functions that were traced before work on."""
    assert ranks.run(checks.again_and_again, 100) == [[sum(range(1, SIZE + 1))] * 100] * SIZE
