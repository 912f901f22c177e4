"""Programs as users have them, unchanged but for the line that plugs us in, against TensorFlow's own reduction."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from typing import Any

import collectives
import numpy as np
import pytest
import tensorflow as tf
import tiers
from collectives.tensorflow import HierarchicalCopyAllReduce, NcclAllReduce, ReductionToOneDevice, RingAllReduce, _ops
from logical_cpus import COUNTS, mirrored
from paths import python_path
from tensorflow_training import FEATURES, OPTIMIZERS, STEPS, assert_equal, custom_loop, embedding_fit, keras_fit
from tf_workers import LEAVING

CLASSES: list[Any] = [RingAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice]
GRADIENTS = 4 * (FEATURES + 1) * STEPS  # bytes of one replica in a training
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


CASES = [
    *[("custom loop", kind, n) for kind in CLASSES for n in COUNTS],
    *[("fit of a data set", RingAllReduce, n) for n in COUNTS],
    ("fit of a data set", HierarchicalCopyAllReduce, 4),
    *[("fit of a data set", ReductionToOneDevice, n) for n in (3, 4)],
    ("fit of arrays", RingAllReduce, 2),
]


# In the short tier every program and class, not each with each number of replicas: to trace eight takes long.
FEW = [
    *[("custom loop", kind, n) for kind, n in zip(CLASSES, (4, 3, 2), strict=True)],
    *[("fit of a data set", kind, n) for kind, n in zip(CLASSES, (2, 4, 3), strict=True)],
    ("fit of arrays", RingAllReduce, 2),
]


@pytest.mark.parametrize("program, kind, n", CASES if tiers.full() else FEW)
def test_losses_equal_those_of_tensorflow(program, kind, n):
    before = _ops.replica_bytes()
    result = PROGRAMS[program](mirrored(n, kind()), exact=True)
    assert _ops.replica_bytes() - before == n * GRADIENTS
    # Thirds are no sums of powers of two; the order of the additions, which TensorFlow's optimizer of graphs changes as
    # well, then shows in the last bit.
    assert_equal(result, stock(program, n, True), rtol=2e-6 if n == 3 else 0.0)


def test_losses_on_data_that_round():
    """Of replicas whose values TensorFlow adds one after the other and we along a tree: equal to rounding."""
    n = tiers.few(4, full=8)
    before = _ops.replica_bytes()
    result = custom_loop(mirrored(n, ReductionToOneDevice()), exact=False)
    assert _ops.replica_bytes() - before == n * GRADIENTS
    assert_equal(result, stock("custom loop", n, False), rtol=1e-5)


@functools.cache
def one_process(optimizer: str, dense: bool) -> Any:
    return embedding_fit(optimizer, dense=dense)


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("merging", [False, True])
def test_an_embedding_is_that_of_one_process(kind, optimizer, n, merging):
    """With the global batch; and with merging, that of the dense gradient."""
    result = embedding_fit(optimizer, mirrored(n, kind(merge_indexed_slices=merging)))
    # Adam and RMSprop divide by roots of squares that are small at first.
    assert_equal(result, one_process(optimizer, merging), rtol=2e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:3])
def test_the_two_ways_differ(optimizer):
    """Else the test above would not see which of them was taken."""
    joined, merged = (np.array(one_process(optimizer, dense)["loss"]) for dense in (False, True))
    assert abs(joined / merged - 1).max() > 0.002


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("traced", [False, True])
def test_all_reduce_in_replica_context(kind, traced):
    """Nested values and the gradient through them, against TensorFlow's."""

    def program(ops: Any) -> Any:
        strategy = mirrored(4, ops)

        def step() -> Any:
            context = tf.distribute.get_replica_context()
            x = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
            with tf.GradientTape() as tape:
                tape.watch(x)
                nest = {"square": x * x, "more": [(tf.stack([x, 2 * x]),), tf.complex(x, -x)]}
                total = context.all_reduce("SUM", nest)
                mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, 8 * x)
                loss = 3 * total["square"] + tf.reduce_sum(total["more"][0][0]) + mean
            gathered = context.all_gather(tf.stack([[x, -x]]), axis=1)
            return total, mean, gathered, tape.gradient(loss, x)

        run = tf.function(lambda: strategy.run(step)) if traced else lambda: strategy.run(step)
        return tf.nest.map_structure(lambda v: [part.numpy() for part in strategy.experimental_local_results(v)], run())

    before = _ops.replica_bytes()
    ours = program(kind())
    assert _ops.replica_bytes() - before > 0
    theirs = program(tf.distribute.ReductionToOneDevice())
    tf.nest.assert_same_structure(ours, theirs)
    for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
        np.testing.assert_array_equal(a, b)  # whole numbers
    assert ours[1] == [20.0] * 4
    assert ours[3] == [24.0 * x + 20.0 for x in (1, 2, 3, 4)]  # of 3 x^2, x + 2x and 8x / 4, each summed over 4 losses


def test_nccl_is_refused_when_it_is_used():
    strategy = mirrored(2, NcclAllReduce())
    with pytest.raises(collectives.BackendError, match="TensorFlow gives plug-ins no stream"):
        custom_loop(strategy)


def test_a_function_for_xla_is_refused_while_it_is_traced():
    """By the name of the tensor and with what to do; one that only computes may be compiled."""
    strategy = mirrored(2, RingAllReduce())

    @tf.function(jit_compile=True)
    def square(x: Any) -> Any:
        return x * x

    def step() -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(square(tf.ones([2])), name="suspect"))

    with pytest.raises(ValueError, match=r"'suspect:0' is reduced in a tf\.function with jit_compile=True"):
        tf.function(lambda: strategy.run(step), jit_compile=True)()
    (first, *_) = strategy.experimental_local_results(tf.function(lambda: strategy.run(step))())
    assert first.numpy().tolist() == [2.0, 2.0]


CHILD = """
import time
import logical_cpus
from collectives.tensorflow import HierarchicalCopyAllReduce, NcclAllReduce, ReductionToOneDevice, RingAllReduce, _ops
from logical_cpus import mirrored, tf
from tensorflow_training import assert_equal, custom_loop, keras_fit

expected = custom_loop(mirrored(2, tf.distribute.ReductionToOneDevice()))
for kind in (HierarchicalCopyAllReduce, ReductionToOneDevice, RingAllReduce):
    assert_equal(custom_loop(mirrored(2, kind())), expected)
keras_fit(mirrored(2, RingAllReduce()))
print(_ops.replica_bytes(), time.time(), flush=True)
"""


def test_one_thread_between_ops_and_a_process_that_ends_by_itself():
    environment = os.environ | {
        "TF_NUM_INTEROP_THREADS": "1",
        "PYTHONPATH": python_path(),
    }
    child = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, timeout=250)
    ended = time.time()
    assert child.returncode == 0, child.stderr[-3000:]
    moved, done = child.stdout.split()
    assert int(moved) == (3 * 2 + 2) * GRADIENTS
    assert ended - float(done) < LEAVING
