"""The model of bench/tensorflow_step.py in NumPy: its shapes and data, and the losses that every contender must reach.

A perceptron of layers 784-700-500-10 with ReLU, trained by plain SGD on one batch of 128. NumPy only: the process that
directs the measurement does not load TensorFlow.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

LAYERS = (784, 700, 500, 10)
BATCH = 128  # examples, of all replicas together
RATE = 0.05
CHECKED_STEPS = 3
SHAPES: tuple[tuple[int, ...], ...] = tuple(shape for n, m in itertools.pairwise(LAYERS) for shape in ((n, m), (m,)))
NBYTES = sum(4 * int(np.prod(shape)) for shape in SHAPES)  # of one set of gradients

Floats = NDArray[np.float32]


def data() -> tuple[Floats, NDArray[np.int32]]:
    """The batch: inputs of shape (128, 784) and labels of shape (128,)."""
    random = np.random.default_rng(1)
    x = random.random((BATCH, LAYERS[0]), np.float32)
    return x, random.integers(0, LAYERS[-1], BATCH).astype(np.int32)


def weights() -> list[Floats]:
    """The initial weights, one array for each of ``SHAPES``."""
    random = np.random.default_rng(2)
    return [
        (random.standard_normal(shape) * np.sqrt(2 / shape[0])).astype(np.float32)
        if len(shape) == 2
        else np.zeros(shape, np.float32)
        for shape in SHAPES
    ]


def losses() -> list[float]:
    """The loss of each of the first steps, in float64."""
    x, labels = data()
    ws: list[Any] = [w.astype(np.float64) for w in weights()]
    rows = np.arange(BATCH)
    found = []
    for _ in range(CHECKED_STEPS):
        activations = [x.astype(np.float64)]
        for i in range(0, len(ws), 2):
            z = activations[-1] @ ws[i] + ws[i + 1]
            activations.append(np.maximum(z, 0) if i + 2 < len(ws) else z)
        logits = activations[-1]
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        found.append(float(-logs[rows, labels].mean()))
        delta = np.exp(logs)
        delta[rows, labels] -= 1
        delta /= BATCH
        for i in range(len(ws) - 2, -1, -2):
            before = activations[i // 2]
            back = (delta @ ws[i].T) * (before > 0)
            ws[i] -= RATE * before.T @ delta
            ws[i + 1] -= RATE * delta.sum(axis=0)
            delta = back
    return found


def gradients(replica: int) -> list[Floats]:
    """The gradients of a replica for the all-reduce: small integers, so that sums in any order are exact."""
    return [
        ((np.arange(int(np.prod(shape))) * 7 + 3 * replica + k) % 17 - 8).astype(np.float32).reshape(shape)
        for k, shape in enumerate(SHAPES)
    ]


def total(replicas: int, scale: float) -> list[Floats]:
    """The sums of ``gradients`` over all replicas, times `scale`."""
    each = [gradients(replica) for replica in range(replicas)]
    return [np.sum([g[k] for g in each], axis=0) * np.float32(scale) for k in range(len(SHAPES))]
