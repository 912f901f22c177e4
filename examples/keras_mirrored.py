"""Keras' fit, evaluate and predict on several replicas of one process, with the gradients reduced by collectives.

python examples/keras_mirrored.py --replicas 2

Each replica is a logical CPU. A program for tf.distribute.MirroredStrategy needs only one more argument,
`cross_device_ops=`. The data are scikit-learn's digits.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import collectives.tensorflow as ct
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

OPS = {
    "ring": ct.RingAllReduce,
    "hierarchical_copy": ct.HierarchicalCopyAllReduce,
    "reduce_to_one": ct.ReductionToOneDevice,
}


def make_strategy(replicas: int, ops: str) -> tf.distribute.MirroredStrategy:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)], cross_device_ops=OPS[ops]())


def main() -> None:
    parser = argparse.ArgumentParser(description="Keras fit, evaluate and predict under MirroredStrategy.")
    parser.add_argument("--replicas", type=int, default=2, help="logical CPUs (%(default)s)")
    parser.add_argument("--ops", choices=OPS, default="ring", help="how replicas are combined (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step on each replica (%(default)s)")
    options = parser.parse_args()
    if min(options.replicas, options.epochs, options.batch) < 1:
        parser.error("--replicas, --epochs and --batch are at least 1")

    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    border = len(labels) * 4 // 5

    strategy = make_strategy(options.replicas, options.ops)
    print(f"{strategy.num_replicas_in_sync} replicas, {options.ops}")
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(3e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    batch = options.batch * strategy.num_replicas_in_sync  # Keras splits each batch over the replicas
    model.fit(images[:border], labels[:border], batch_size=batch, epochs=options.epochs, verbose=2)
    loss, accuracy = model.evaluate(images[border:], labels[border:], batch_size=batch, verbose=0)
    guesses = model.predict(images[border:], batch_size=batch, verbose=0).argmax(axis=1)
    print(f"test loss {loss:.4f}, test accuracy {accuracy:.4f}, by predict {np.mean(guesses == labels[border:]):.4f}")


if __name__ == "__main__":
    main()
