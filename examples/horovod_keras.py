"""A training script for Horovod's Keras API, with only its import line changed.

collectives run -n 2 examples/horovod_keras.py
torchrun --nproc-per-node 2 examples/horovod_keras.py --epochs 8

One process is one rank, and each trains on its share of scikit-learn's digits. The optimizer averages the gradients
over the ranks. Callbacks give all ranks the weights of rank 0, raise the learning rate in the first epochs, and average
the metrics. Rank 0 writes the checkpoint. docs/horovod.md has the names of Horovod.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import collectives.tensorflow.keras as hvd
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def main() -> None:
    parser = argparse.ArgumentParser(description="Horovod's Keras script on scikit-learn's digits.")
    parser.add_argument("--epochs", type=int, default=6, help="passes over the data (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step, on each rank (%(default)s)")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate of one rank (%(default)s)")
    parser.add_argument("--warmup", type=int, default=2, help="epochs in which it rises (%(default)s)")
    parser.add_argument("--fp16", action="store_true", help="send gradients as float16")
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("horovod.keras"), help="of rank 0, after each epoch (%(default)s)"
    )
    options = parser.parse_args()
    if min(options.epochs, options.batch, options.warmup) < 1:
        parser.error("--epochs, --batch and --warmup are at least 1")

    hvd.init()

    # Each rank uses the GPU of its local rank, and no more of its memory than it needs.
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    border = len(labels) * 4 // 5
    # All ranks make the same number of steps.
    steps = border // (options.batch * hvd.size())
    if steps < 1:
        parser.error(f"--batch is at most {border // hvd.size()} with {hvd.size()} ranks")
    training = tf.data.Dataset.from_tensor_slices((images[:border], labels[:border]))
    training = training.shard(hvd.size(), hvd.rank()).shuffle(border).repeat().batch(options.batch)

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    rate = options.rate * hvd.size()
    compression = hvd.Compression.fp16 if options.fp16 else hvd.Compression.none
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(rate), compression=compression),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=options.warmup),
    ]
    if hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(options.checkpoint))

    model.fit(
        training,
        steps_per_epoch=steps,
        epochs=options.epochs,
        callbacks=callbacks,
        shuffle=False,  # the dataset is shuffled already
        verbose=2 if hvd.rank() == 0 else 0,
    )

    # Each rank tests its share of the images. Shares may differ by one image, so the ranks sum counts, not averages.
    mine = np.arange(border, len(labels))[hvd.rank() :: hvd.size()]
    right = int((model.predict(images[mine], verbose=0).argmax(axis=1) == labels[mine]).sum())
    total = hvd.allreduce(right, op=hvd.Sum)
    weights = sum(float(np.abs(w).sum(dtype=np.float64)) for w in model.get_weights())
    print(
        f"rank {hvd.rank()}: test accuracy {total / (len(labels) - border):.4f}, sum of weights {weights!r}",
        flush=True,
    )


if __name__ == "__main__":
    main()
