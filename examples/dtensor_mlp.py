"""The MLP of TensorFlow's DTensor tutorial, trained data-parallel on 8 virtual CPUs by this library.

python examples/dtensor_mlp.py
python examples/dtensor_mlp.py --dtensor

Model 784-700-500-10 with ReLU, softmax cross-entropy, Adam written by hand, batches of 128 images, 16 on each replica.
With --dtensor the same is trained by tf.experimental.dtensor too, and the losses of all steps are compared. Losses and
test accuracy are plotted into a PNG.

The images are MNIST if Keras has it in its cache (~/.keras/datasets/mnist.npz). Otherwise they are made of
scikit-learn's digits: scaled from 8 x 8 to 28 x 28 pixels and shifted at random by up to two pixels, with a seed; the
test images come from other digits than the training images.

Source of the program: the tutorial "Distributed training with DTensors" at tensorflow.org.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import collectives.tensorflow as ct
import numpy as np
import tensorflow as tf

SIZES = (784, 700, 500, 10)
SEED = 1
TOLERANCE = 1e-4  # between our losses and DTensor's


class Data(NamedTuple):
    source: str
    images: np.ndarray  # [samples, 784], 0 to 1, float32
    labels: np.ndarray  # [samples], int64
    test_images: np.ndarray
    test_labels: np.ndarray


def load(count: int) -> Data:
    """`count` images for training and as many for the test."""
    home = os.environ.get("KERAS_HOME", str(Path.home() / ".keras"))
    cached = Path(home) / "datasets" / "mnist.npz"
    if cached.is_file():
        with np.load(cached) as stored:
            parts = [stored[name][:count] for name in ("x_train", "y_train", "x_test", "y_test")]
        source = f"MNIST ({cached})"
    else:
        parts = make_of_digits(count)
        source = "scikit-learn's digits, scaled up and shifted"
    images, labels, test_images, test_labels = parts

    def flat(pixels: np.ndarray) -> np.ndarray:
        return (pixels.reshape(len(pixels), -1) / 255.0).astype(np.float32)

    return Data(source, flat(images), labels.astype(np.int64), flat(test_images), test_labels.astype(np.int64))


def make_of_digits(count: int) -> list[np.ndarray]:
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    random = np.random.default_rng(SEED)
    order = random.permutation(len(labels))
    large = tf.image.resize(small.reshape(-1, 8, 8, 1) * (255 / 16), (28, 28)).numpy()[..., 0]
    border = len(labels) * 3 // 4
    parts = []
    for chosen in (order[:border], order[border:]):
        drawn = chosen[np.arange(count) % len(chosen)]
        shifts = random.integers(-2, 3, (count, 2))
        shifted = [np.roll(large[i], tuple(shift), (0, 1)) for i, shift in zip(drawn, shifts, strict=True)]
        parts += [np.stack(shifted), labels[drawn]]
    return parts


def batches(data: Data, batch: int, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Complete batches, in an order that depends on the seed and the epoch."""
    order = np.random.default_rng([SEED, epoch]).permutation(len(data.labels))
    for begin in range(0, len(order) - batch + 1, batch):
        chosen = order[begin : begin + batch]
        yield data.images[chosen], data.labels[chosen]


def initial_parameters() -> list[np.ndarray]:
    """Weights and bias of each layer, the weights uniform within Glorot's limits."""
    random = np.random.default_rng(SEED)
    parameters = []
    for rows, columns in itertools.pairwise(SIZES):
        limit = np.sqrt(6 / (rows + columns))
        parameters.append(random.uniform(-limit, limit, (rows, columns)).astype(np.float32))
        parameters.append(np.zeros(columns, np.float32))
    return parameters


def scores(parameters: Any, images: Any) -> Any:
    hidden = images
    for i in range(0, len(parameters), 2):
        hidden = tf.matmul(hidden, parameters[i]) + parameters[i + 1]
        if i + 2 < len(parameters):
            hidden = tf.nn.relu(hidden)
    return hidden


def summed_cross_entropy(parameters: Any, images: Any, labels: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores(parameters, images))
    return tf.reduce_sum(losses)


def adam(parameter: Any, gradient: Any, momentum: Any, velocity: Any, step: Any) -> None:
    """One step of Adam (Kingma and Ba, 2015), at a rate of 1e-3. `step` counts from 1."""
    rate, beta_1, beta_2, epsilon = 1e-3, 0.9, 0.999, 1e-7
    # Not read back from the variables: DTensor (in TensorFlow 2.21) does not order a read after an assign.
    mean = beta_1 * momentum + (1 - beta_1) * gradient
    square = beta_2 * velocity + (1 - beta_2) * gradient * gradient
    momentum.assign(mean)
    velocity.assign(square)
    corrected = mean / (1 - tf.pow(beta_1, step)), square / (1 - tf.pow(beta_2, step))
    parameter.assign_sub(rate * corrected[0] / (tf.sqrt(corrected[1]) + epsilon))


class Mirrored:
    """One replica on each virtual CPU, each with a copy of the parameters; the gradients are reduced by collectives."""

    def __init__(self, replicas: int, batch: int) -> None:
        self.batch = batch
        self.strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(replicas)], cross_device_ops=ct.RingAllReduce()
        )
        with self.strategy.scope():
            self.parameters = [tf.Variable(p) for p in initial_parameters()]
            self.slots = [(tf.Variable(tf.zeros_like(p)), tf.Variable(tf.zeros_like(p))) for p in self.parameters]

    def step(self, images: np.ndarray, labels: np.ndarray, step: int) -> float:
        shares = len(labels) // self.strategy.num_replicas_in_sync

        def share(values: np.ndarray) -> Any:
            return self.strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant(values[context.replica_id_in_sync_group * shares :][:shares])
            )

        return float(self._step(share(images), share(labels), tf.constant(step, tf.float32)))

    @tf.function
    def _step(self, images: Any, labels: Any, step: Any) -> Any:
        losses = self.strategy.run(self._step_on_replica, args=(images, labels, step))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None) / self.batch

    def _step_on_replica(self, images: Any, labels: Any, step: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = summed_cross_entropy(self.parameters, images, labels)
        gradients = [g / self.batch for g in tape.gradient(loss, self.parameters)]
        tf.distribute.get_replica_context().merge_call(self._apply, args=(gradients, step))
        return loss

    def _apply(self, strategy: Any, gradients: Any, step: Any) -> None:
        pairs = list(zip(gradients, self.parameters, strict=True))
        sums = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
        for parameter, gradient, slots in zip(self.parameters, sums, self.slots, strict=True):
            strategy.extended.update(parameter, adam, args=(gradient, *slots, step))

    def values(self) -> list[np.ndarray]:
        return [p.numpy() for p in self.parameters]


class DTensor:
    """The batch split over a mesh of virtual CPUs, the parameters replicated: TensorFlow inserts the all-reduce."""

    def __init__(self, replicas: int, batch: int) -> None:
        self.dtensor = dtensor = tf.experimental.dtensor
        self.batch = batch
        self.mesh = dtensor.create_mesh([("batch", replicas)], devices=[f"CPU:{i}" for i in range(replicas)])

        def variable(value: np.ndarray) -> Any:
            layout = dtensor.Layout.replicated(self.mesh, rank=value.ndim)
            return dtensor.DVariable(dtensor.copy_to_mesh(tf.constant(value), layout))

        initial = initial_parameters()
        self.parameters = [variable(p) for p in initial]
        self.slots = [(variable(np.zeros_like(p)), variable(np.zeros_like(p))) for p in initial]

    def step(self, images: np.ndarray, labels: np.ndarray, step: int) -> float:
        parts = self.mesh.size

        def share(values: np.ndarray) -> Any:
            layout = self.dtensor.Layout.batch_sharded(self.mesh, "batch", rank=values.ndim)
            return self.dtensor.pack([tf.constant(part) for part in np.split(values, parts)], layout)

        count = self.dtensor.copy_to_mesh(tf.constant(step, tf.float32), self.dtensor.Layout.replicated(self.mesh, 0))
        return float(self._step(share(images), share(labels), count))

    @tf.function
    def _step(self, images: Any, labels: Any, step: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = summed_cross_entropy(self.parameters, images, labels) / self.batch
        gradients = tape.gradient(loss, self.parameters)
        for parameter, gradient, slots in zip(self.parameters, gradients, self.slots, strict=True):
            adam(parameter, gradient, *slots, step)
        return loss

    def values(self) -> list[np.ndarray]:
        return [self.dtensor.unpack(p.read_value())[0].numpy() for p in self.parameters]


def train(name: str, model: Any, data: Data, epochs: int, batch: int) -> tuple[list[float], list[float]]:
    """The loss of each step, and the test accuracy after each epoch."""
    losses: list[float] = []
    accuracies = []
    for epoch in range(1, epochs + 1):
        first = len(losses)
        for images, labels in batches(data, batch, epoch):
            losses.append(model.step(images, labels, len(losses) + 1))
        guesses = tf.argmax(scores(model.values(), data.test_images), axis=1).numpy()
        accuracies.append(float(np.mean(guesses == data.test_labels)))
        print(
            f"{name}: epoch {epoch} of {epochs}: mean loss {np.mean(losses[first:]):.6f}, "
            f"test accuracy {accuracies[-1]:.4f}",
            flush=True,
        )
    return losses, accuracies


def plot(path: str, histories: dict[str, tuple[list[float], list[float]]], title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    # The curves coincide; the second is drawn thin, so that both are visible.
    styles = ({"linewidth": 3.0, "markersize": 9}, {"linewidth": 1.2, "markersize": 4, "linestyle": "--"})
    for (name, (losses, accuracies)), style in zip(histories.items(), styles, strict=False):
        left.plot(range(1, len(losses) + 1), losses, label=name, **style)
        right.plot(range(1, len(accuracies) + 1), accuracies, marker="o", label=name, **style)
    left.set(xlabel="step", ylabel="cross-entropy of the batch", ylim=(0, None))
    right.set(xlabel="epoch", ylabel="test accuracy", xticks=range(1, len(accuracies) + 1))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="The MLP of the DTensor tutorial on virtual CPUs.")
    parser.add_argument("--replicas", type=int, default=8, help="virtual CPUs (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the data (%(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="images of a step, of all replicas (%(default)s)")
    parser.add_argument("--images", type=int, default=5000, help="for training, and for the test (%(default)s)")
    parser.add_argument("--plot", default="dtensor_mlp.png", help="where the plot goes (%(default)s)")
    parser.add_argument("--dtensor", action="store_true", help="train by DTensor too, and compare the losses")
    options = parser.parse_args()
    if options.replicas < 1 or options.epochs < 1 or options.batch < 1 or options.batch % options.replicas:
        parser.error("--replicas and --epochs are at least 1, and --batch is a multiple of --replicas")
    if options.images < options.batch:
        parser.error("--images is at least --batch")

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * options.replicas)
    data = load(options.images)
    print(f"data: {data.source}; {len(data.labels)} images for training, {len(data.test_labels)} for the test")
    kinds = {"collectives": Mirrored, **({"DTensor": DTensor} if options.dtensor else {})}
    histories = {
        name: train(name, kind(options.replicas, options.batch), data, options.epochs, options.batch)
        for name, kind in kinds.items()
    }
    if options.dtensor:
        distance = np.abs(np.subtract(histories["collectives"][0], histories["DTensor"][0])).max()
        print(f"losses of {len(histories['DTensor'][0])} steps differ by at most {distance:.1e}")
        if not distance < TOLERANCE:
            raise AssertionError(f"the losses differ by {distance}; less than {TOLERANCE} is right")
    plot(options.plot, histories, f"{options.replicas} replicas, batch {options.batch}; {data.source}")
    print(f"plot: {options.plot}")


if __name__ == "__main__":
    main()
