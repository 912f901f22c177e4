"""A parameter server, two workers and a coordinator as processes: our op runs in the servers of the workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from paths import python_path
from served import free_ports

LIMIT = 200  # seconds that nothing here may reach
LEAVING = 20  # seconds in which a server ends: one on an idle machine, over five were seen beside other work

SERVER = """
import json, sys
import tensorflow as tf
from collectives.tensorflow import _ops  # before the server is made: it knows the ops that are loaded

cluster, job, index = json.loads(sys.argv[1])
server = tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index)
print("ready", flush=True)
for line in sys.stdin:
    print(_ops.replica_bytes(), flush=True)
print("done", flush=True)
"""

COORDINATOR = """
import json, sys
import numpy as np
import tensorflow as tf
from collectives.tensorflow import RingAllReduce, _ops, _private, plug

cluster = tf.train.ClusterSpec(json.loads(sys.argv[1]))
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="chief", task_id=0, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
x = np.random.default_rng(3).integers(-1, 2, (16, 2)).astype("float32")
y = x @ np.float32([[1], [-2]])

def train(steps):
    with strategy.scope():
        kernel = tf.Variable(tf.zeros([2, 1]))

    def loss_of(part):
        return tf.reduce_sum((part[0] @ kernel - part[1]) ** 2) / 16

    @tf.function
    def step(features, labels):
        # Two towers of the worker, whose gradients are reduced in the worker and applied on the parameter server.
        losses, gradients = [], []
        for part in zip(tf.split(features, 2), tf.split(labels, 2)):
            with tf.GradientTape() as tape:
                losses.append(loss_of(part))
            gradients.append(tape.gradient(losses[-1], kernel))
        pairs = [(_private.PerReplica(v), "/device:CPU:0") for v in (gradients, losses)]
        gradient, loss = strategy.extended.batch_reduce_to(SUM, pairs)
        mean = strategy.reduce(MEAN, _private.PerReplica(losses), axis=None)
        kernel.assign_sub(0.25 * gradient)
        return loss, mean

    results = []
    for _ in range(steps):  # one after the other, so that the losses can be compared
        result = coordinator.schedule(step, args=(tf.constant(x), tf.constant(y)))
        coordinator.join()
        results.append([float(v) for v in result.fetch()])
    for _ in range(4 * steps):  # as they come
        coordinator.schedule(step, args=(tf.constant(x), tf.constant(y)))
    coordinator.join()
    return {"losses": results, "device": kernel.device, "kernel": kernel.numpy().tolist()}

stock = train(3)
assert plug(strategy, RingAllReduce()) is strategy
print(json.dumps({"stock": stock, "ours": train(3), "here": _ops.replica_bytes()}), flush=True)
"""


def start(program: str, argument: Any) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": python_path(), "TF_CPP_MIN_LOG_LEVEL": "3"}
    # TensorFlow's coordinator and its servers wait for each other on the only thread, with stock reductions too.
    environment.pop("TF_NUM_INTEROP_THREADS", None)
    return subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(argument)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(server: subprocess.Popen[str]) -> int:
    """The bytes that the engine of a server has reduced."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write("\n")
    server.stdin.flush()
    return int(server.stdout.readline())


@pytest.fixture
def servers() -> Iterator[Any]:
    """The cluster, and its servers: two workers and a parameter server."""
    chief, *ports = [f"localhost:{port}" for port in free_ports(4)]
    cluster = {"chief": [chief], "worker": ports[:2], "ps": ports[2:]}
    started = [start(SERVER, [cluster, job, index]) for job, index in (("worker", 0), ("worker", 1), ("ps", 0))]
    try:
        for server in started:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
        yield cluster, started
    finally:
        for server in started:
            server.kill()
            server.communicate()


@pytest.mark.timeout(LIMIT + 60)
def test_our_op_runs_in_the_workers(servers: Any) -> None:
    cluster, (first, second, ps) = servers
    coordinator = start(COORDINATOR, cluster)
    try:
        out, _ = coordinator.communicate(timeout=LIMIT)
    finally:
        coordinator.kill()
    assert coordinator.returncode == 0
    result = json.loads(out.splitlines()[-1])
    ours, stock = result["ours"], result["stock"]
    np.testing.assert_allclose(ours["losses"], stock["losses"], rtol=1e-6)
    np.testing.assert_allclose(ours["kernel"], [[1], [-2]], atol=0.1)
    assert ours["losses"][2][0] < ours["losses"][0][0]
    assert "/job:ps/" in ours["device"]
    # In each of 15 steps two towers have a gradient of two floats, a loss, and the loss once more for its mean.
    assert ask(first) + ask(second) == 15 * 2 * 4 * (2 + 1 + 1)
    assert ask(ps) == 0
    assert result["here"] == 0
    for server in (first, second, ps):
        out, _ = server.communicate(timeout=LEAVING)
        assert out == "done\n"
        assert server.returncode == 0
