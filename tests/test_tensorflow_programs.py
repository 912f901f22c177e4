"""Programs as users have them, unchanged but for the line that plugs us in, against TensorFlow's own reduction."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from collectives.tensorflow import HierarchicalCopyAllReduce, ReductionToOneDevice, RingAllReduce, _ops
from logical_cpus import COUNTS, MEAN, SUM, mirrored
from tensorflow_training import FEATURES, STEPS, assert_equal, custom_loop, keras_fit

CLASSES: list[Any] = [RingAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice]
EPOCHS = 2
GRADIENTS = 4 * (FEATURES + 1) * STEPS * EPOCHS  # bytes of one replica in a training
PROGRAMS = {
    "fit of a data set": functools.partial(keras_fit, as_dataset=True),
    "fit of arrays": functools.partial(keras_fit, as_dataset=False),
    "custom loop": custom_loop,
}


@functools.cache
def stock(program: str, n: int, exact: bool) -> Any:
    before = _ops.replica_bytes()
    result = PROGRAMS[program](mirrored(n, tf.distribute.ReductionToOneDevice()), exact=exact)
    assert _ops.replica_bytes() == before
    assert result["loss"][-1] < result["loss"][0]
    return result


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("program", ["fit of a data set", "custom loop"])
def test_losses_equal_those_of_tensorflow(program, kind, n):
    before = _ops.replica_bytes()
    result = PROGRAMS[program](mirrored(n, kind()), exact=True)
    assert _ops.replica_bytes() - before == n * GRADIENTS
    # A third is no sum of powers of two, and the ring begins each part at another replica.
    rounded = n == 3 and kind is RingAllReduce
    assert_equal(result, stock(program, n, True), rtol=1e-6 if rounded else 0.0)


@pytest.mark.parametrize("program", list(PROGRAMS))
def test_losses_on_data_that_round(program):
    """Of 8 replicas, whose values TensorFlow adds one after the other and we by a tree: to rounding."""
    before = _ops.replica_bytes()
    result = PROGRAMS[program](mirrored(8, ReductionToOneDevice()), exact=False)
    assert _ops.replica_bytes() - before == 8 * GRADIENTS
    assert_equal(result, stock(program, 8, False), rtol=1e-5)
