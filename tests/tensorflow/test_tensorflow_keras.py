"""Keras on several workers, with data that divide by nothing, against one process that takes the global batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tf_keras_checks as checks
import tiers
from tf_workers import Workers

SIZES = (1, 2, 3)
LOSSES_OF_OUTPUTS = {"o_loss", "p_loss"}  # means of the means of the replicas, for Keras does not weight these


@pytest.fixture(scope="module", params=SIZES)
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    made = Workers([("worker", i) for i in range(request.param)])
    try:
        yield made
        assert made.leave() == [0] * request.param
    finally:
        made.destroy()


# Of each part of the cases, the short tier takes some with each number of workers, most of them with three.
PARTS = [list(checks.NAMES[i : i + 4]) for i in range(0, len(checks.NAMES), 4)]


def names(part: int, size: int) -> list[str]:
    return [name for name, chosen in zip(PARTS[part], (3, 1, 2, 3), strict=False) if tiers.full() or chosen == size]


def same(got: object, expected: object, what: str) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6, err_msg=what)


@pytest.mark.parametrize("part", range(len(PARTS)))
def test_all_three_methods(workers, part):
    """Weights, losses, metrics and predictions are those of one process."""
    size = len(workers.processes)
    for name in names(part, size):
        reference = workers.processes[0]
        got = workers.run(checks.together, name)
        reference.tell((checks.alone, (name, size)))
        outcome = reference.outcome()
        assert outcome.error is None, outcome.text
        weights, evaluated, predicted = outcome.value
        for own in got:
            for a, b in zip(own[0], weights, strict=True):
                same(a, b, f"weights, {name}")
            assert own[1].keys() == evaluated.keys()
            for key in evaluated.keys() - LOSSES_OF_OUTPUTS:
                same(own[1][key], evaluated[key], f"{key}, {name}")
            if isinstance(predicted, dict):
                assert own[2].keys() == predicted.keys()
            parts = predicted if isinstance(predicted, dict) else {"": predicted}
            for key, value in parts.items():
                same(own[2][key] if key else own[2], value, f"predictions {key}, {name}")


def test_shapes_are_learned_without_sending(workers):
    """Keras' first look at a batch moves nothing; the mean of batches that a user asks for is one."""
    size = len(workers.processes)
    mean = np.arange(2.0 * size).reshape(size, 2).mean(0).tolist()
    assert workers.run(checks.learns_shapes_by_itself) == [(0, [mean, mean])] * size


# Examples of a step whose gradients overflow: of the first replica only, of the last only, of none.
OVERFLOWS = ((0,), (checks.HALF_BATCH - 1,), ())


@pytest.mark.parametrize("eager", [False, True])
def test_an_overflow_on_one_worker_is_one_of_all(workers, eager):
    """A loss scale goes down, and the step is left out, on all workers, as with one process and the global batch."""
    size = len(workers.processes)
    for bad in OVERFLOWS if size > 1 and not eager else OVERFLOWS[1:2]:
        got = workers.run(checks.half, bad, eager, True)
        reference = workers.processes[0]
        reference.tell((checks.half, (bad, eager, False)))
        outcome = reference.outcome()
        assert outcome.error is None, outcome.text
        weights, scale, steps = outcome.value
        assert (scale, steps) == ((checks.LEVEL / 2, 2) if bad else (checks.LEVEL, checks.HALF_STEPS))
        for own in got:
            assert own[1:] == (scale, steps)
            for a, b in zip(own[0], weights, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-3)  # float16 rounds the parts
            assert own[0] == got[0][0]


def test_jit_compile_is_refused_where_it_is_set(workers):
    """By `compile`, and while a function of the program is traced; a process that is alone reduces nothing."""
    size = len(workers.processes)
    for compiled, traced, after in workers.run(checks.compiled_by_xla):
        assert ("model.compile: jit_compile is True" in compiled) == (size > 1)
        assert ("'suspect:0' is reduced in a tf.function with jit_compile=True" in traced) == (size > 1)
        assert after == [size, size]
