"""MultiWorkerMirroredStrategy in a process that is alone, and what it says of a wrong start."""

from __future__ import annotations

import json

import collectives
import numpy as np
import pytest
import tensorflow as tf
from collectives.tensorflow import (
    MultiWorkerMirroredStrategy,
    NcclAllReduce,
    ReductionToOneDevice,
    RingAllReduce,
    _ops,
    multi_worker,
)
from logical_cpus import DEVICES

CLUSTER = {"worker": ["localhost:1", "localhost:2"], "ps": ["localhost:3"]}


@pytest.fixture(autouse=True)
def no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


@pytest.fixture
def alone():
    return MultiWorkerMirroredStrategy(cross_device_ops=RingAllReduce(), devices=DEVICES)


def test_devices_are_those_of_tensorflows_strategy():
    """Eight logical CPUs are configured, of which it takes one."""
    stock = tf.distribute.MultiWorkerMirroredStrategy()
    ours = MultiWorkerMirroredStrategy()
    assert ours.num_replicas_in_sync == stock.num_replicas_in_sync == 1
    assert ours.extended.worker_devices == stock.extended.worker_devices


@pytest.mark.parametrize("given", [["CPU:2", "/device:cpu:5"], ("/job:localhost/task:0/device:CPU:2", "CPU:5")])
def test_named_devices_are_replicas(given):
    chosen = MultiWorkerMirroredStrategy(devices=given)
    assert isinstance(chosen, tf.distribute.MultiWorkerMirroredStrategy)
    assert list(chosen.extended.worker_devices) == [DEVICES[2], DEVICES[5]]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ("CPU:0", TypeError, "devices is 'CPU:0'; a list of names"),
        ([0, 1], TypeError, r"devices is \[0, 1\]; a list of names"),
        ([], ValueError, "devices is empty"),
        (["CPU:0", "gpu"], ValueError, "'gpu' in devices names no device"),
        (["CPU"], ValueError, "'CPU' in devices names no device"),
        (["CPU:x"], ValueError, "'CPU:x' in devices names no device"),
        (["CPU:0", "GPU:0"], ValueError, "of the types CPU, GPU"),
        (["GPU:0"], ValueError, "devices has /device:GPU:0, and this worker has no GPU"),
        (["CPU:0", "CPU:8"], ValueError, "devices has /device:CPU:8, and this worker has CPU:0, .* CPU:7; logical dev"),
        (["/job:worker/task:1/device:CPU:0"], ValueError, "devices has /job:worker/task:1/device:CPU:0, and"),
        (["CPU:1", "/device:CPU:1"], ValueError, "devices has CPU:1 twice"),
    ],
)
def test_devices_that_are_none(given, error, text):
    with pytest.raises(error, match=text):
        MultiWorkerMirroredStrategy(devices=given)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_timeout_that_is_none(seconds):
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=seconds)
    with pytest.raises(ValueError, match=f"timeout_seconds .* is {seconds}; a positive number"):
        MultiWorkerMirroredStrategy(communication_options=options)


def test_an_accumulation_function_is_for_replicas_of_one_process():
    with pytest.raises(ValueError, match="accumulation_fn works on the replicas of one process"):
        MultiWorkerMirroredStrategy(cross_device_ops=ReductionToOneDevice(accumulation_fn=max))
    MultiWorkerMirroredStrategy(cross_device_ops=ReductionToOneDevice(accumulation_fn=tf.add_n))


def test_reduces_by_the_engine(alone):
    replicas = alone.num_replicas_in_sync

    @tf.function
    def run():
        def in_replica():
            context = tf.distribute.get_replica_context()
            x = tf.fill([1000], tf.cast(context.replica_id_in_sync_group, tf.float32))
            return context.all_reduce("MEAN", x), context.all_gather(x[:1], 0)

        return alone.run(in_replica)

    before = _ops.replica_bytes()
    mean, gathered = run()
    assert _ops.replica_bytes() - before == 4 * 1000 * replicas
    for one in alone.experimental_local_results(mean):
        assert (one.numpy() == (replicas - 1) / 2).all()
    assert alone.experimental_local_results(gathered)[3].numpy().tolist() == list(range(replicas))


def test_fit(alone):
    import keras

    with alone.scope():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    before = _ops.replica_bytes()
    losses = model.fit(x, x.sum(1, keepdims=True), batch_size=16, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert _ops.replica_bytes() - before >= 4 * 4 * alone.num_replicas_in_sync * 6  # the gradients of six steps
    assert model.predict(x, verbose=0).shape == (32, 1)


def test_plug_into_a_strategy_without_workers():
    stock = tf.distribute.MultiWorkerMirroredStrategy()
    multi_worker.plug_into(stock, RingAllReduce())
    before = _ops.replica_bytes()
    values = stock.experimental_distribute_values_from_function(lambda context: tf.ones([10]))
    assert stock.reduce("SUM", values, axis=None).numpy().tolist() == [stock.num_replicas_in_sync] * 10
    assert (_ops.replica_bytes() > before) == (stock.num_replicas_in_sync > 1)


def test_an_evaluator_is_alone(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}))
    assert MultiWorkerMirroredStrategy().extended._group is None


def test_malformed_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": 1}}')
    with pytest.raises(ValueError, match="the task of TF_CONFIG is worker 1, but its cluster has 1"):
        MultiWorkerMirroredStrategy()
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(ValueError, match="no JSON"):
        MultiWorkerMirroredStrategy()


def test_a_parameter_server_does_not_train():
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(CLUSTER), task_type="ps", task_id=0
    )
    with pytest.raises(ValueError, match="'ps'; chief, worker and evaluator"):
        MultiWorkerMirroredStrategy(resolver)


def test_malformed_resolver():
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(CLUSTER), task_type="worker", task_id=2
    )
    with pytest.raises(ValueError, match="the task of cluster_resolver is worker 2"):
        MultiWorkerMirroredStrategy(resolver)
    with pytest.raises(TypeError, match="cluster_resolver is 'localhost:1'"):
        MultiWorkerMirroredStrategy("localhost:1")


@pytest.mark.parametrize("choice", ["ring", tf.distribute.ReductionToOneDevice()])
def test_cross_device_ops_of_others(choice):
    with pytest.raises(TypeError, match="cross_device_ops is"):
        MultiWorkerMirroredStrategy(cross_device_ops=choice)


def test_nccl_says_so_on_use():
    strategy = MultiWorkerMirroredStrategy(cross_device_ops=NcclAllReduce(), devices=DEVICES[:2])
    values = strategy.experimental_distribute_values_from_function(lambda context: tf.ones([10]))
    with pytest.raises(collectives.BackendError, match="NCCL"):
        strategy.reduce("SUM", values, axis=None)
