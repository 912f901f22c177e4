"""What Keras does with a strategy beyond training, and what its names are for that.

Keras documents none of it; each name has a test of its own, so that a release that moves one is noticed. Nothing here
imports Keras: a program may train without it.
"""

from __future__ import annotations

import types
from typing import Any

import tensorflow as tf

__all__ = [
    "BUILD_METHOD",
    "FINITE_METHOD",
    "LOSS_SCALE_MODULE",
    "TRAINER_MODULE",
    "asks_for_shapes",
    "asks_whether_finite",
    "local_batch",
]

# Where `fit` and `evaluate` take the first batch to learn the shapes and dtypes of their data: they ask the strategy
# for the mean of the batch over all replicas, use its shapes, and forget the values.
TRAINER_MODULE = "keras.src.backend.tensorflow.trainer"
BUILD_METHOD = "_maybe_symbolic_build"

# LossScaleOptimizer, which mixed_float16 brings: `apply` has each replica look at its own gradients, before they are
# summed, by this method, and takes the answer of the first replica of the process for that of all.
LOSS_SCALE_MODULE = "keras.src.optimizers.loss_scale_optimizer"
FINITE_METHOD = "check_finite"


def asks_for_shapes(caller: types.FrameType) -> bool:
    """Whether this is the call of ``Strategy.reduce`` by which Keras learns the shapes of its data.

    The caller is all that tells it from the same call of a user, whose values are averaged.
    """
    return caller.f_code.co_name == BUILD_METHOD and caller.f_globals.get("__name__") == TRAINER_MODULE


def local_batch(batch: Any) -> Any:
    """A data batch as replica 0 of this worker has it. Batches of other workers may have other lengths."""
    return tf.nest.map_structure(
        lambda value: value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value, batch
    )


def asks_whether_finite(fn: Any) -> bool:
    """Whether a function for all replicas is that by which LossScaleOptimizer decides on a step.

    Elsewhere it decides in a replica only where TensorFlow merges none, in a ``tf.cond`` say; TensorFlow then refuses
    to assign the scale.
    """
    kinds = type(getattr(fn, "__self__", None)).__mro__
    return getattr(fn, "__name__", "") == FINITE_METHOD and any(kind.__module__ == LOSS_SCALE_MODULE for kind in kinds)
