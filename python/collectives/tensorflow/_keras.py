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
    "COMPILE_MODULE",
    "FINITE_METHOD",
    "LOSS_SCALE_MODULE",
    "TRAINER_MODULE",
    "asks_for_shapes",
    "asks_whether_finite",
    "local_batch",
    "refuse_jit_compile",
]

# Where `fit` and `evaluate` take the first batch to learn the shapes and dtypes of their data: they ask the strategy
# for the mean of the batch over all replicas, use its shapes, and forget the values.
TRAINER_MODULE = "keras.src.backend.tensorflow.trainer"
BUILD_METHOD = "_maybe_symbolic_build"

# `Model.compile`, which sets jit_compile and then makes a metric, hence variables.
COMPILE_MODULE = "keras.src.trainers.trainer"

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


def refuse_jit_compile(caller: types.FrameType | None) -> None:
    """Raises where a variable is made by ``Model.compile(jit_compile=True)``: `fit` would fail when it is traced.

    Args:
        caller: the frame that makes the variable. Those of Keras and TensorFlow around it are looked at, up to the
            first of the program.

    Raises:
        ValueError: with what to do.
    """
    while caller is not None and caller.f_globals.get("__name__", "").split(".")[0] in ("keras", "tensorflow"):
        code, module = caller.f_code, caller.f_globals["__name__"]
        if code.co_name == "compile" and module == COMPILE_MODULE and caller.f_locals.get("jit_compile") is True:
            raise ValueError(
                "model.compile: jit_compile is True under collectives.tensorflow.MultiWorkerMirroredStrategy, where "
                "replicas reduce by ops that XLA does not know. Leave jit_compile out, or set it to False"
            )
        caller = caller.f_back
