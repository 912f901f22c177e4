"""Undocumented names of Keras by which it calls a strategy for purposes other than training.

Each name has a test, which fails when a release of Keras moves it. Nothing here imports Keras: a program may train
without it.
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

# Here `fit` and `evaluate` find the shapes and dtypes of their data: they ask the strategy for the mean of the first
# batch over all replicas, and use only its shapes.
TRAINER_MODULE = "keras.src.backend.tensorflow.trainer"
BUILD_METHOD = "_maybe_symbolic_build"

# `Model.compile`, which sets jit_compile and then makes a metric, which has variables.
COMPILE_MODULE = "keras.src.trainers.trainer"

# LossScaleOptimizer, used with mixed_float16: by this method `apply` checks the gradients of each replica before they
# are summed, and uses the answer of the first replica of the process for all.
LOSS_SCALE_MODULE = "keras.src.optimizers.loss_scale_optimizer"
FINITE_METHOD = "check_finite"


def asks_for_shapes(caller: types.FrameType) -> bool:
    """Whether this call of ``Strategy.reduce`` only serves Keras to find the shapes of its data.

    Only the caller distinguishes it from the call of a user, which averages values.
    """
    return caller.f_code.co_name == BUILD_METHOD and caller.f_globals.get("__name__") == TRAINER_MODULE


def local_batch(batch: Any) -> Any:
    """The part of a data batch on replica 0 of this worker. Batches of other workers may have other lengths."""
    return tf.nest.map_structure(
        lambda value: value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value, batch
    )


def asks_whether_finite(fn: Any) -> bool:
    """Whether a function for all replicas is that by which LossScaleOptimizer decides on a step.

    LossScaleOptimizer also decides inside of a replica where TensorFlow cannot merge replicas, as in a ``tf.cond``;
    there TensorFlow refuses to assign the scale.
    """
    kinds = type(getattr(fn, "__self__", None)).__mro__
    return getattr(fn, "__name__", "") == FINITE_METHOD and any(kind.__module__ == LOSS_SCALE_MODULE for kind in kinds)


def refuse_jit_compile(caller: types.FrameType | None) -> None:
    """Raises if ``Model.compile(jit_compile=True)`` makes a variable: `fit` would fail later, when it is traced.

    Args:
        caller: the frame that makes the variable. The search goes up through frames of Keras and TensorFlow.

    Raises:
        ValueError: the text says what to do.
    """
    while caller is not None and caller.f_globals.get("__name__", "").split(".")[0] in ("keras", "tensorflow"):
        code, module = caller.f_code, caller.f_globals["__name__"]
        if code.co_name == "compile" and module == COMPILE_MODULE and caller.f_locals.get("jit_compile") is True:
            raise ValueError(
                "model.compile: jit_compile is True under collectives.tensorflow.MultiWorkerMirroredStrategy, where "
                "replicas reduce by ops that XLA cannot compile. Leave jit_compile out, or set it to False"
            )
        caller = caller.f_back
