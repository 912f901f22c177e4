"""plug: our ops in a strategy that exists. Parameter servers, which need processes, have a file of their own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from collectives.tensorflow import HierarchicalCopyAllReduce, ReductionToOneDevice, RingAllReduce, _ops, _private, plug
from logical_cpus import DEVICES, MEAN, SUM, components, per_replica
from tensorflow_training import FEATURES, RATE, STEPS, assert_equal, custom_loop, data

CLASSES: list[Any] = [RingAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice]
GRADIENTS = 4 * (FEATURES + 1) * STEPS  # bytes of one replica in a training


def central() -> Any:
    return tf.distribute.experimental.CentralStorageStrategy(DEVICES[:4], DEVICES[0])


def test_mirrored():
    strategy = tf.distribute.MirroredStrategy(DEVICES[:2])
    assert plug(strategy, RingAllReduce()) is strategy
    before = _ops.replica_bytes()
    result = custom_loop(strategy)
    assert _ops.replica_bytes() - before == 2 * GRADIENTS
    stock = tf.distribute.MirroredStrategy(DEVICES[:2], cross_device_ops=tf.distribute.ReductionToOneDevice())
    assert_equal(result, custom_loop(stock))


def central_training(strategy: Any) -> dict[str, Any]:
    """Variables on one device, which is updated once by the sum of the gradients of all devices."""
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        kernel = tf.Variable(tf.zeros([FEATURES, 1]), aggregation=tf.VariableAggregation.SUM)
    x, y = data(n, STEPS)
    dataset = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices((x, y)).batch(len(x) // STEPS)
    )

    def step(inputs: Any) -> Any:
        x, y = inputs
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ kernel - y) ** 2) / (4 * n)
        kernel.assign_sub(RATE * tape.gradient(loss, kernel))  # reduced by the strategy, since replicas call it
        return loss

    @tf.function
    def train(inputs: Any) -> Any:
        losses = strategy.run(step, args=(inputs,))
        return strategy.reduce("SUM", losses, axis=None), strategy.reduce(MEAN, losses, axis=None)

    losses = [[float(v) for v in train(inputs)] for inputs in dataset]
    assert kernel.device == DEVICES[0]
    return {"loss": losses, "kernel": kernel.numpy()}


@pytest.mark.parametrize("kind", CLASSES)
def test_central_storage(kind):
    before = _ops.replica_bytes()
    result = central_training(plug(central(), kind()))
    # The gradient and, twice, the loss of each device.
    assert _ops.replica_bytes() - before == 4 * STEPS * 4 * (FEATURES + 2)
    before = _ops.replica_bytes()
    assert_equal(result, central_training(central()), rtol=1e-6)  # the sums of the losses round
    assert _ops.replica_bytes() == before


@pytest.mark.parametrize("make", [lambda: tf.distribute.OneDeviceStrategy(DEVICES[0]), tf.distribute.get_strategy])
def test_strategies_with_nothing_to_reduce(make):
    """They are left as they are; the same program runs with and without us."""
    strategy = make()
    before = _ops.replica_bytes()
    assert plug(strategy, RingAllReduce()) is strategy
    assert_equal(custom_loop(strategy), custom_loop(make()))
    assert _ops.replica_bytes() == before


def test_tpu():
    """No TPU is needed to be refused, so the constructor, which looks for one, is left out."""
    for name in ("TPUStrategy", "experimental.TPUStrategy"):
        kind: Any = tf.distribute
        for part in name.split("."):
            kind = getattr(kind, part)
        with pytest.raises(TypeError, match=r"TPUStrategy .*XLA's own.*MirroredStrategy or collectives\.tensorflow"):
            plug(kind.__new__(kind), RingAllReduce())


def test_other_strategies():
    for other in (None, "mirrored", tf.distribute.MirroredStrategy):
        with pytest.raises(TypeError, match=r"strategy is .*accepted are MirroredStrategy, .*the default strategy"):
            plug(other, RingAllReduce())


@pytest.mark.parametrize("ops", [RingAllReduce, None, "ring", tf.distribute.ReductionToOneDevice()])
def test_other_ops(ops):
    strategy = tf.distribute.MirroredStrategy(DEVICES[:2])
    before = _private.get_cross_device_ops(strategy)
    with pytest.raises(TypeError, match=r"cross_device_ops is .*RingAllReduce\(\)"):
        plug(strategy, ops)
    assert _private.get_cross_device_ops(strategy) is before


def test_broadcast_and_gather_of_central_storage():
    strategy = plug(central(), RingAllReduce())
    everywhere = strategy.extended.broadcast_to(tf.constant([1.0, 2.0]), per_replica([0.0] * 4))
    assert [part.device for part in components(everywhere)] == DEVICES[:4]
    value = per_replica([np.full((1, r + 1), r, "float32") for r in range(4)])
    with strategy.scope():
        gathered = strategy.gather(value, axis=1)
    assert gathered.numpy().tolist() == [[0, 1, 1, 2, 2, 2, 3, 3, 3, 3]]
    assert float(strategy.reduce(SUM, per_replica([1.0] * 4), axis=None)) == 4


@pytest.mark.parametrize("module", ["tensorflow", "keras"])
def test_without_tensorflow(module):
    """What is missing is said, with what to install; what TensorFlow itself misses is its own error."""
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "import collectives\n"
        "assert 'tensorflow' not in sys.modules or sys.modules['tensorflow'] is None\n"
        "try:\n    import collectives.tensorflow\n"
        "except ImportError as e:\n    print(type(e).__name__, e)\n"
        "else:\n    print('there')\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    if module == "tensorflow":
        assert "ImportError collectives.tensorflow needs TensorFlow 2.16" in run.stdout
        assert "pip install 'collectives-comm[tensorflow]'" in run.stdout
    else:
        assert "collectives-comm[tensorflow]" not in run.stdout
