"""A training script for SageMaker's data-parallel library (SMDDP), of which the import line alone has changed.

collectives run -n 2 examples/smddp.py
torchrun --nproc-per-node 2 examples/smddp.py --fp16

One process is one rank. Each reads its share of scikit-learn's digits and computes the gradients of its batch; the tape
averages them over the ranks. After the first batch all ranks get the weights of rank 0. Only rank 0 writes the
checkpoint. docs/horovod.md lists the names of SMDDP and of Horovod, whose scripts look the same.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import collectives.tensorflow as sdp
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def main() -> None:
    parser = argparse.ArgumentParser(description="SMDDP's training loop on scikit-learn's digits.")
    parser.add_argument("--steps", type=int, default=200, help="batches that each rank trains on (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="samples of a batch, on each rank (%(default)s)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of one rank (%(default)s)")
    parser.add_argument("--fp16", action="store_true", help="send gradients as float16")
    parser.add_argument("--checkpoint", type=Path, default=Path("smddp"), help="folder for it (%(default)s)")
    options = parser.parse_args()
    if options.steps < 1 or options.batch < 1:
        parser.error("--steps and --batch are at least 1")

    sdp.init()

    # Each rank uses the GPU of its local rank, and no more of its memory than it needs.
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[sdp.local_rank()], "GPU")

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    border = len(labels) * 4 // 5
    training = tf.data.Dataset.from_tensor_slices((images[:border], labels[:border]))
    training = training.shard(sdp.size(), sdp.rank()).shuffle(border, seed=1).repeat().batch(options.batch)

    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    loss = tf.losses.SparseCategoricalCrossentropy(from_logits=True)
    opt = tf.optimizers.Adam(options.rate * sdp.size())
    compression = sdp.Compression.fp16 if options.fp16 else sdp.Compression.none

    @tf.function
    def training_step(images: tf.Tensor, labels: tf.Tensor, first_batch: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss_value = loss(labels, model(images, training=True))

        tape = sdp.DistributedGradientTape(tape, compression=compression)

        grads = tape.gradient(loss_value, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))

        if first_batch:
            sdp.broadcast_variables(model.variables, root_rank=0)
            sdp.broadcast_variables(opt.variables, root_rank=0)  # under Keras 2 a method, which is accepted, too

        return sdp.oob_allreduce(loss_value)  # the average over the ranks

    for step, (images_of_step, labels_of_step) in enumerate(training.take(options.steps)):
        loss_value = training_step(images_of_step, labels_of_step, step == 0)
        if sdp.rank() == 0 and (step % 20 == 0 or step == options.steps - 1):
            print(f"step {step} of {options.steps}: loss {float(loss_value):.4f}", flush=True)

    checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)
    if sdp.rank() == 0:
        guesses = model(images[border:], training=False).numpy().argmax(axis=1)
        path = checkpoint.save(options.checkpoint / "checkpoint")
        print(f"test accuracy {np.mean(guesses == labels[border:]):.4f}; saved {path}", flush=True)


if __name__ == "__main__":
    main()
