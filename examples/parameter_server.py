"""Asynchronous training with parameter servers, under a strategy that uses the ops of collectives.

python examples/parameter_server.py --workers 2

The program starts one parameter server and the workers as processes of this host, and is the coordinator itself. Free
workers run the steps, which change the variables on the server without waiting for each other; so the losses differ a
little from run to run. The data are scikit-learn's digits.

The ops reduce over the replicas of a worker, which are its GPUs. A worker without GPUs is one replica and has nothing
to reduce; the program is the same. The functions that the coordinator schedules run in the processes of the workers, so
these must import collectives.tensorflow, too, before they make their servers.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import collectives.tensorflow as ct
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def serve() -> None:
    """The main function of a parameter server or a worker; it ends when its standard input is closed."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    sys.stdin.read()
    del server
    os._exit(0)  # TensorFlow has no way to end a server


@contextmanager
def start_servers(workers: int) -> Iterator[tf.distribute.cluster_resolver.ClusterResolver]:
    """Runs a parameter server and `workers` workers as processes; they end with the block."""
    tasks = [("ps", 0), *(("worker", index) for index in range(workers))]
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(len(tasks) + 1)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
    cluster = {"ps": addresses[:1], "worker": addresses[1:-1], "chief": addresses[-1:]}
    servers = []
    try:
        for job, index in tasks:
            config = {"cluster": cluster, "task": {"type": job, "index": index}}
            environ = {**os.environ, "TF_CONFIG": json.dumps(config)}
            command = [sys.executable, sys.argv[0], "--serve"]
            servers.append(subprocess.Popen(command, env=environ, stdin=subprocess.PIPE))
        yield tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
        )
    finally:
        for server in servers:
            server.communicate()  # closes its standard input and waits for its end


def train(strategy: tf.distribute.ParameterServerStrategy, options: argparse.Namespace) -> None:
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    border = len(labels) * 4 // 5

    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
        )
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    @tf.function
    def step(batches: Any) -> Any:
        def on_replica(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(cross_entropy(labels, model(images, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        losses = strategy.run(on_replica, args=next(batches))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def dataset() -> tf.data.Dataset:  # each worker draws from all images
        samples = tf.data.Dataset.from_tensor_slices((images[:border], labels[:border]))
        return samples.shuffle(border).repeat().batch(options.batch)

    batches = iter(coordinator.create_per_worker_dataset(dataset))
    steps = border // options.batch
    for epoch in range(1, options.epochs + 1):
        losses = [coordinator.schedule(step, args=(batches,)) for _ in range(steps)]
        coordinator.join()  # waits for the steps of this epoch
        guesses = model(images[border:]).numpy().argmax(axis=1)
        print(
            f"epoch {epoch} of {options.epochs}: mean loss {np.mean(coordinator.fetch(losses)):.4f}, "
            f"test accuracy {np.mean(guesses == labels[border:]):.4f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Training with ParameterServerStrategy and a ClusterCoordinator.")
    parser.add_argument("--workers", type=int, default=2, help="processes that compute (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step (%(default)s)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)  # in the processes that this starts
    options = parser.parse_args()
    if min(options.workers, options.epochs, options.batch) < 1:
        parser.error("--workers, --epochs and --batch are at least 1")
    if options.serve:
        serve()
        return
    with start_servers(options.workers) as resolver:
        strategy = ct.plug(tf.distribute.ParameterServerStrategy(resolver), ct.RingAllReduce())
        train(strategy, options)


if __name__ == "__main__":
    main()
