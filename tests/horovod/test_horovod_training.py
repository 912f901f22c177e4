"""Tapes of the training API between real processes: training equals that of one process on the joined batch."""

from __future__ import annotations

from collections.abc import Iterator

import horovod_training as checks
import numpy as np
import pytest
from horovod_ranks import Ranks

SIZE = 2
CASES = ["adam", "sgd, eager", "adam, options", "fp16", "bf16"]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    made = Ranks(SIZE)
    try:
        yield made
        assert made.leave() == [0] * SIZE
    finally:
        made.destroy()


@pytest.fixture(scope="module")
def trained(ranks):
    return ranks.run(checks.trained)


@pytest.mark.parametrize("case", CASES)
def test_training_is_that_of_the_joined_batch(trained, case):
    assert trained[0].keys() == set(CASES)
    (first, alone), (second, _) = (each[case] for each in trained)
    tolerance = {"fp16": 1e-2, "bf16": 5e-2}.get(case.split(",")[0], 1e-5)
    for mine, other, expected in zip(first, second, alone, strict=True):
        np.testing.assert_array_equal(mine, other)  # the same bits on all ranks
        np.testing.assert_allclose(mine, expected, atol=tolerance, rtol=0)
        assert np.abs(expected).max() > 0.1


def test_options_of_tapes(ranks):
    for rank, found in enumerate(ranks.run(checks.tape_options)):
        mean, total = (1 + SIZE) / 2, SIZE * (1 + SIZE) / 2
        assert found["nested"] == (None, [10 * mean])
        assert [g.tolist() for g in found["sum"]] == [[10 * total], [100 * total]]
        assert [g.tolist() for g in found["local"]] == [[10 * mean], [100 * (rank + 1) / SIZE]]
        assert [g.tolist() for g in found["groups"]] == [[10 * mean], [100 * mean]]
        assert [g[0].tolist() for g in found["around"]] == [[mean]] * 2
        assert found["partial"][0] == [["y:0"], ["x:0"]]
        assert [g.tolist() for g in found["partial"][1]] == [[10 * (rank + 1) / SIZE], [mean]]


def test_gradients_leave_while_the_backward_pass_still_runs(ranks):
    for rank, found in enumerate(ranks.run(checks.in_flight_during_backward)):
        assert found["in flight"] == (None if rank == 1 else 1)
        assert found["results"] == [2.0 * SIZE, 1.0 * SIZE]
        assert found["names"] == ["last:0", "first:0"] and set(found["bytes"]) == {4 << 20}


def test_gradients_travel_in_their_own_type(ranks):
    for found in ranks.run(checks.travels_as):
        assert found == {"as they are": ["float16", "float32"], "fp16": ["float16"]}
