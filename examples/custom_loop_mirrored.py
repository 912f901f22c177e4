"""A training loop of one's own on several replicas of one process, with the gradients reduced by collectives.

python examples/custom_loop_mirrored.py --replicas 3

Each replica is a logical CPU. The parts are those of TensorFlow's guide to custom training: a dataset that the strategy
splits, a step that `strategy.run` runs on each replica, and losses that `strategy.reduce` adds up. The data are
scikit-learn's digits.
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


def main() -> None:
    parser = argparse.ArgumentParser(description="A custom training loop under MirroredStrategy.")
    parser.add_argument("--replicas", type=int, default=3, help="logical CPUs (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (%(default)s)")
    parser.add_argument("--batch", type=int, default=96, help="samples of a step, of all replicas (%(default)s)")
    options = parser.parse_args()
    if min(options.replicas, options.epochs, options.batch) < 1:
        parser.error("--replicas, --epochs and --batch are at least 1")

    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    border = len(labels) * 4 // 5

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * options.replicas)
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(options.replicas)], cross_device_ops=ct.RingAllReduce()
    )

    training = tf.data.Dataset.from_tensor_slices((images[:border], labels[:border]))
    training = training.shuffle(border, seed=1).batch(options.batch)
    testing = tf.data.Dataset.from_tensor_slices((images[border:], labels[border:])).batch(options.batch)
    training = strategy.experimental_distribute_dataset(training)
    testing = strategy.experimental_distribute_dataset(testing)

    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
        )
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_on_replica(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            losses = cross_entropy(labels, model(images, training=True))
            # The gradients of the replicas are added up, so each divides by the size of the whole batch.
            loss = tf.reduce_sum(losses) / options.batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.reduce_sum(losses), tf.size(labels)

    @tf.function
    def train(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        per_replica_losses, per_replica_counts = strategy.run(train_on_replica, args=(images, labels))
        loss = strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)
        count = strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_counts, axis=None)
        return loss, count, per_replica_counts

    @tf.function
    def test(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        def right_on_replica(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            guesses = tf.argmax(model(images, training=False), axis=1)
            return tf.reduce_sum(tf.cast(guesses == tf.cast(labels, tf.int64), tf.float32))

        right = strategy.run(right_on_replica, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, right, axis=None)

    for epoch in range(1, options.epochs + 1):
        loss, samples = 0.0, 0
        shares = np.zeros(options.replicas, int)
        for step_images, step_labels in training:
            step_loss, count, per_replica = train(step_images, step_labels)
            loss, samples = loss + float(step_loss), samples + int(count)
            shares += [int(share) for share in strategy.experimental_local_results(per_replica)]
        right = sum(float(test(*batch)) for batch in testing)
        print(
            f"epoch {epoch} of {options.epochs}: loss {loss / samples:.4f}, "
            f"test accuracy {right / (len(labels) - border):.4f}, samples of each replica {shares.tolist()}",
            flush=True,
        )


if __name__ == "__main__":
    main()
