"""MultiWorkerMirroredStrategy with real processes: what it computes, and that the engine has carried it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tf_worker_checks as checks
import tiers
from tf_workers import Workers

DTYPES = ["float16", "bfloat16", "float32", "float64", "uint8", "int16", "int32", "int64", "complex64"]
# Two workers of one device with one inter-op thread; and two of two devices, over TCP, with a token of the user.
KINDS = {
    "shm": {"variables": {"TF_NUM_INTEROP_THREADS": "1"}},
    "tcp": {"devices": 2, "variables": {"COLLECTIVES_TRANSPORT": "tcp", "COLLECTIVES_TOKEN": "t" * 32}},
}


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Workers, int]]:
    """Two workers and the number of replicas. At the end both leave by themselves."""
    workers = Workers(**KINDS[request.param])
    try:
        ready = workers.run(checks.ready)
        assert ready == [(2 * KINDS[request.param].get("devices", 1), request.param)] * 2
        yield workers, ready[0][0]
        assert workers.leave() == [0, 0]
    finally:
        workers.destroy()


def test_different_seeds_same_weights(pair):
    workers, _ = pair
    (first, after, bytes0, flag0), (other, others, bytes1, flag1) = workers.run(checks.seeds_and_one_step)
    assert first.any() and (first == other).all()
    for weights in (*after, *others):
        assert (weights == after[0]).all() and (weights != first).all()
    assert flag0 and flag1  # that of rank 0
    assert bytes0 + bytes1 >= 4 * 400 * 3


def test_fit_is_that_of_one_process(pair):
    workers, _ = pair
    (start, history, weights, evaluated, predicted, own, bytes0), second = workers.run(checks.fit)
    for a, b in zip(start, second[0], strict=True):
        assert (a == b).all()
    for a, b in zip(weights, second[2], strict=True):
        assert (a == b).all()
    alone = workers.processes[0]
    alone.tell((checks.fit_alone, (start,)))
    outcome = alone.outcome()
    assert outcome.error is None, outcome.text
    reference_history, reference_weights, reference_evaluated = outcome.value
    for a, b in zip(weights, reference_weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=0)
    np.testing.assert_allclose(history["loss"], reference_history["loss"], rtol=1e-5)
    assert history["loss"] == second[1]["loss"]
    np.testing.assert_allclose(evaluated, reference_evaluated, rtol=1e-5)
    assert predicted.shape == (8, 1)
    np.testing.assert_allclose(np.sort(predicted, 0), np.sort(own, 0), atol=1e-6)
    steps = 3 * checks.EXAMPLES // checks.BATCH
    assert bytes0 >= 4 * sum(w.size for w in weights) * steps


def test_custom_loop(pair):
    workers, replicas = pair
    total = sum(range(replicas))
    expected = (
        [sum(range(8)), sum(range(8, 16))],
        2.0 * total,
        total / replicas,
        [total / replicas] * 2,
        [[float(total)] * 2] * 2,
        4.0,
    )
    assert workers.run(checks.custom_loop) == [expected] * 2


def test_dtypes_and_means(pair):
    workers, replicas = pair
    total = sum(range(1, replicas + 1))
    floating = {"uint8": "float32", "int16": "float32", "int32": "float64", "int64": "float64"}
    expected = [(name, value) for name in DTYPES for value in (total, [total, 2 * total])]
    expected += [
        (floating.get(name, name), value)
        for name in DTYPES
        for value in (total / replicas, [total / replicas, 2 * total / replicas])
    ]
    assert workers.run(checks.dtypes, DTYPES) == [expected] * 2


def test_gathers(pair):
    workers, replicas = pair
    devices = replicas // 2
    column = [r for r in range(replicas) for _ in range(1 if r < devices else 2)]
    expected = ([[r, r] for r in column], column, column, column, [r == 0 for r in range(replicas)])
    assert workers.run(checks.gathers) == [expected] * 2


@pytest.mark.parametrize("merging, cap", [(False, 1 << 28), (True, 1 << 28), (True, 0)])
def test_indexed_slices(pair, merging, cap):
    """`cap` 0 is less than any rows need, so the buffer of all rows is reduced where equal indices are merged."""
    workers, replicas = pair
    one, none = np.zeros((12, 2)), np.zeros((12, 2))
    for r in range(replicas):
        one[r] += r + 1
        one[9] += 2 * (r + 1)
        none[:r] += 1
    expected = [
        ("float32", one.tolist()),
        ("float32", [replicas] * 2),
        ("int32", none.tolist()),
        ("float32", (one / replicas).tolist()),
        ("float32", [1.0, 1.0]),
        ("float64", (none / replicas).tolist()),
    ]
    for got, carried in workers.run(checks.slices, merging, cap):
        for (dtype, value), (expected_dtype, expected_value) in zip(got, expected, strict=True):
            assert dtype == expected_dtype
            np.testing.assert_allclose(value, expected_value, rtol=1e-6)
        assert carried > 0


@pytest.mark.parametrize("traced", [False, True])
def test_rows_in_the_order_of_the_ranks(pair, traced):
    """As one process has them that takes all examples; or one for each index, where that is asked for."""
    workers, replicas = pair
    ranks = range(replicas)
    indices = [index for r in ranks for index in (1, 5 + r, 1)]
    values = [float(value) for r in ranks for value in (r, 10 + r, 20 + r)]
    assert workers.run(checks.rows, False, traced) == [[indices, values]] * 2
    once = [1, *(5 + r for r in ranks)]
    sums = [float(sum(20 + 2 * r for r in ranks)), *(10.0 + r for r in ranks)]
    assert workers.run(checks.rows, True, traced) == [[once, sums]] * 2


@pytest.mark.parametrize("traced", [False, True])
def test_more_rows_than_the_cap_are_not_sent(pair, traced):
    """All workers get the error, with its remedy, before rows travel, and can go on."""
    workers, replicas = pair
    for text, carried, after in workers.run(checks.too_many_rows, traced):
        assert "merge_indexed_slices=True" in text and str(400_000 * replicas) in text
        assert carried < 1000
        assert after == len(workers.processes)


@pytest.mark.parametrize("optimizer", ["Adagrad", "Adam", "RMSprop", "SGD"] if tiers.full() else ["Adam", "SGD"])
def test_an_embedding_is_that_of_one_process(pair, optimizer):
    """With the global batch; and with merging, that of the dense gradient."""
    workers, _ = pair
    for merging in (False, True):
        alone = workers.processes[0]
        got = workers.run(checks.embedding, optimizer, merging)
        alone.tell((checks.embedding_alone, (optimizer, merging)))
        outcome = alone.outcome()
        assert outcome.error is None, outcome.text
        for own in got:
            np.testing.assert_allclose(own["loss"], outcome.value["loss"], rtol=1e-5)
            for a, b in zip(own["weights"], outcome.value["weights"], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_bytes_per_pack(pair):
    workers, replicas = pair
    sums = [float(i * replicas) for i in range(6)] + [3.0 * replicas]
    # One and the integers; three of two tensors; one for each.
    assert workers.run(checks.packs) == [[(1 + 1, sums), (3 + 1, sums), (6 + 1, sums)]] * 2


def test_what_cannot_be_reduced_is_named(pair):
    for texts in pair[0].run(checks.refused):
        assert len(texts) == 2
        assert "suspect" in texts[0] and "bool" in texts[0]
        assert "suspect" in texts[1] and "string" in texts[1]


def test_exporting_what_communicates(pair, tmp_path):
    for *refused, exported in pair[0].run(checks.exports, str(tmp_path)):
        assert exported == ""
        for text in refused:
            assert "A function that communicates with the other workers cannot be exported" in text, text


def test_conditional_and_gradient(pair):
    workers, replicas = pair
    total = sum(range(1, replicas + 1))
    # d/dx_r of the sum over all replicas of (sum x)^2, of which each replica has one.
    gradient = [2.0 * replicas * total * value for value in (2.0, 3.0)]
    for flags, got in workers.run(checks.conditional_and_gradient):
        assert flags == ([] if replicas > 2 else [[2.0, 2.0], [0.0, 0.0]])
        assert got == gradient


def test_eager_a_copy_and_a_second_strategy(pair):
    workers, replicas = pair
    summed = [sum(range(replicas)), replicas]
    assert workers.run(checks.eager) == [(summed, True, summed, True)] * 2


def test_collectives_in_one_order(pair):
    workers, replicas = pair
    assert workers.run(checks.opposite_orders, True) == [[1.0 * replicas, 2.0 * replicas]] * 2


def test_chief_and_worker_and_plug():
    """TensorFlow's own strategy in the chief and a worker, with our ops plugged in."""
    workers = Workers([("chief", 0), ("worker", 0)])
    try:
        results = workers.run(checks.plugged)
        assert [rank for *_, rank, _ in results] == [0, 1]
        for result, reduced, carried, _, algorithms in results:
            assert (result, reduced, algorithms) == ([12.0, 16.0], 4.0, ["ring"])
            assert carried > 0
        assert workers.leave() == [0, 0]
    finally:
        workers.destroy()
