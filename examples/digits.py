"""Softmax regression on scikit-learn's digits, data-parallel: each rank sees a shard, all end with the same bits.

collectives run -n 4 examples/digits.py --check

Mini-batch gradient descent with momentum, in float64. Rank r has rows r, r + size, ... of each batch. It sums the
gradients of its samples; one fused all-reduce sums them over the ranks, and they are divided by the size of the whole
batch. So the steps are those of one process, except for the order of the additions.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import collectives
import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

Array = npt.NDArray[Any]

CLASSES = 10
TOLERANCE = 1e-6  # between several ranks and one
SEED = 1


def load() -> tuple[Array, Array, Array, Array]:
    """Images [samples, 64] with values from 0 to 1, and their classes: for training, then for the test."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(labels))
    images, labels = images[order] / 16.0, labels[order]
    border = len(labels) * 4 // 5
    return images[:border], labels[:border], images[border:], labels[border:]


def gradients(parameters: list[Array], images: Array, labels: Array) -> tuple[list[Array], float]:
    """The gradients of the cross-entropy for weights and bias, and the cross-entropy, both summed over the samples."""
    scores = images @ parameters[0] + parameters[1]
    scores -= scores.max(axis=1, keepdims=True)
    logarithms = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    error = np.exp(logarithms)
    error[np.arange(len(labels)), labels] -= 1.0
    return [images.T @ error, error.sum(axis=0)], -float(logarithms[np.arange(len(labels)), labels].sum())


def train(
    comm: collectives.Communicator | None, images: Array, labels: Array, options: argparse.Namespace
) -> Iterator[tuple[list[Array], float]]:
    """[weights, bias] and the mean loss, after each epoch. Without a communicator, in this process alone."""
    rank, size = (comm.rank, comm.size) if comm is not None else (0, 1)
    parameters = [np.zeros((images.shape[1], CLASSES)), np.zeros(CLASSES)]
    velocities = [np.zeros_like(p) for p in parameters]
    shuffle = np.random.default_rng(SEED)  # the same on all ranks
    for _ in range(options.epochs):
        loss = np.zeros(())
        order = shuffle.permutation(len(labels))
        for begin in range(0, len(labels), options.batch):
            batch = order[begin : begin + options.batch]
            mine = batch[rank::size]
            sums, cross_entropy = gradients(parameters, images[mine], labels[mine])
            if comm is not None:
                comm.all_reduce(sums)
            loss += cross_entropy
            for i, gradient in enumerate(sums):
                velocities[i] = options.momentum * velocities[i] - options.rate * gradient / len(batch)
                parameters[i] = parameters[i] + velocities[i]
        if comm is not None:
            comm.all_reduce(loss)
        yield parameters, float(loss) / len(labels)


def check(comm: collectives.Communicator, found: list[Array], images: Array, labels: Array, options: Any) -> None:
    """Raises AssertionError unless the parameters have the same bits on all ranks and are those of one process.

    That holds while training settles: steps so large that it does not (a high rate on batches of two) make the
    roundings grow without bound, on any number of ranks.
    """
    mine = np.concatenate([p.ravel() for p in found])
    everyone = comm.all_gather(mine.view(np.uint64)[np.newaxis])
    different = [rank for rank in range(comm.size) if (everyone[rank] != everyone[0]).any()]
    if different:
        raise AssertionError(f"ranks {different} ended with other bits than rank 0")
    *_, (parameters, _) = train(None, images, labels, options)
    alone = np.concatenate([p.ravel() for p in parameters])
    distance = float(np.abs(mine - alone).max())
    if not distance < TOLERANCE:
        raise AssertionError(f"{comm.size} ranks differ from one process by {distance}; less than {TOLERANCE} is right")
    if comm.rank == 0:
        print(f"same bits on {comm.size} ranks; at most {distance:.1e} from one process")


def main() -> None:
    parser = argparse.ArgumentParser(description="Data-parallel softmax regression on scikit-learn's digits.")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (%(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="samples of a step, of all ranks (%(default)s)")
    parser.add_argument("--rate", type=float, default=0.2, help="learning rate (%(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum (%(default)s)")
    parser.add_argument("--check", action="store_true", help="compare the ranks, and with a fit by one process")
    options = parser.parse_args()
    if options.epochs < 1 or options.batch < 1:
        parser.error("--epochs and --batch are at least 1")
    images, labels, test_images, test_labels = load()
    with collectives.init() as comm:
        for epoch, (parameters, loss) in enumerate(train(comm, images, labels, options), 1):
            if comm.rank == 0:
                guesses = (test_images @ parameters[0] + parameters[1]).argmax(axis=1)
                accuracy = np.mean(guesses == test_labels)
                print(f"epoch {epoch} of {options.epochs}: loss {loss:.4f}, test accuracy {accuracy:.4f}", flush=True)
        if options.check:
            check(comm, parameters, images, labels, options)


if __name__ == "__main__":
    main()
