"""Keras' fit on several workers, with a checkpoint that only the chief writes and from which training continues.

python examples/keras_multi_worker.py --workers 2
python examples/keras_multi_worker.py --workers 2 --restore --epochs 8

Without TF_CONFIG this starts the workers itself, on this host. On several hosts start it once on each, with TF_CONFIG
in the environment (see docs/tensorflow.md). The data are scikit-learn's digits.

About the checkpoint: under TensorFlow's own strategy every worker must save, each into a folder of its own, because
saving may run collectives: metrics are variables with one value on each worker, and reading them sums the values.
Weights and the state of the optimizer are the same on all workers, and reading them runs no collective. Keras 3's
`model.save` writes only these, so one worker can do it while the others continue. To restore, only the chief reads the
file and sends the values to the others; so they need no common file system.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any


def start_workers(count: int) -> int:
    """Runs this program as `count` workers on this host; returns 0 if all succeeded. When one fails, ends all."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
    workers = []
    try:
        for index in range(count):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environ = {**os.environ, "TF_CONFIG": json.dumps(config)}
            workers.append(subprocess.Popen([sys.executable, *sys.argv], env=environ))
        left = {os.pidfd_open(worker.pid): worker for worker in workers}
        while left:
            for ended in wait(list(left)):
                os.close(ended)
                worker = left.pop(ended)
                if status := worker.wait():
                    print(f"worker {workers.index(worker)} ended with status {status}; ending the others", flush=True)
                    return 1
        return 0
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def restore(strategy: Any, model: Any, path: Path, chief: bool) -> None:
    """Gives the model and its optimizer on all workers the values that the chief finds in the file."""
    import keras
    import numpy as np
    import tensorflow as tf

    variables = [*model.weights, *model.optimizer.variables]
    values = [np.zeros(variable.shape, variable.dtype) for variable in variables]
    if chief:
        saved = keras.models.load_model(path)
        values = [variable.numpy() for variable in (*saved.weights, *saved.optimizer.variables)]

    for variable, value in zip(variables, values, strict=True):
        # All but the first replica give zeros, so the sum is what the chief has read.
        parts = strategy.experimental_distribute_values_from_function(
            lambda context, value=value: tf.constant(value * (context.replica_id_in_sync_group == 0), value.dtype)
        )
        variable.assign(strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None))


def train(options: argparse.Namespace) -> None:
    import collectives.tensorflow as ct

    # Before anything else of TensorFlow: it joins the other workers.
    strategy = ct.MultiWorkerMirroredStrategy()

    import keras
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    task, index = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id
    chief = index == 0 and (task == "chief" or "chief" not in strategy.cluster_resolver.cluster_spec().jobs)
    keras.utils.set_random_seed(index)  # initial weights are the chief's on all workers

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    border = len(labels) * 4 // 5
    # Batches of all workers. Each reads its share of them.
    batch = options.batch * strategy.num_replicas_in_sync
    training = tf.data.Dataset.from_tensor_slices((images[:border], labels[:border])).batch(batch)
    testing = tf.data.Dataset.from_tensor_slices((images[border:], labels[border:])).batch(batch)
    share = tf.data.Options()
    share.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    training, testing = training.with_options(share), testing.with_options(share)

    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
        )
        optimizer = keras.optimizers.Adam(3e-3)
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        optimizer.build(model.trainable_variables)

    first = 0
    if options.restore:
        restore(strategy, model, options.checkpoint, chief)
        first = int(optimizer.iterations.numpy()) // len(training)
        if chief:
            print(f"restored {options.checkpoint}: {first} epochs done", flush=True)

    class SaveOnChief(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if chief:
                unfinished = options.checkpoint.with_suffix(".part.keras")
                self.model.save(unfinished)
                unfinished.replace(options.checkpoint)  # so that the file is complete, whenever this program is killed

    model.fit(
        training,
        epochs=options.epochs,
        initial_epoch=first,
        callbacks=[SaveOnChief()],
        shuffle=False,
        verbose=2 if chief else 0,
    )
    loss, accuracy = model.evaluate(testing, verbose=0)  # on all workers, as fit
    weights = sum(float(np.abs(w).sum(dtype=np.float64)) for w in model.get_weights())
    print(
        f"{task} {index}: test loss {loss:.6f}, test accuracy {accuracy:.4f}, sum of weights {weights!r}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Keras fit on several workers, with a checkpoint.")
    parser.add_argument("--workers", type=int, default=2, help="to start when TF_CONFIG is not set (%(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="passes over the data, in all (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step on each replica (%(default)s)")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=Path("keras_multi_worker.keras"),
        help="written after each epoch, by the chief (%(default)s)",
    )
    parser.add_argument("--restore", action="store_true", help="continue from the checkpoint")
    options = parser.parse_args()
    if min(options.workers, options.epochs, options.batch) < 1:
        parser.error("--workers, --epochs and --batch are at least 1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported
    if "TF_CONFIG" in os.environ:
        train(options)
    else:
        sys.exit(start_workers(options.workers))


if __name__ == "__main__":
    main()
