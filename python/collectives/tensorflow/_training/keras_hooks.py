"""What Keras has to do otherwise for a distributed optimizer, where it asks the optimizer nothing.

Only documented names are used, and replaced, once a distributed optimizer is made. For models and optimizers that have
nothing to do with one they do what they did.
"""

from __future__ import annotations

import functools
import inspect
import threading
from typing import Any

import keras
import tensorflow as tf

from .aggregation import Aggregation

__all__ = ["aggregation_of", "install"]

_lock = threading.Lock()
_installed: list[bool] = []


def aggregation_of(optimizer: Any) -> Aggregation | None:
    """That of a distributed optimizer, which may be inside of another."""
    while optimizer is not None:
        found = getattr(optimizer, "_agg_helper", None)
        if isinstance(found, Aggregation):
            return found
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return None


def install() -> None:
    """Does so, once."""
    with _lock:
        if not _installed:
            _installed.append(True)
            _reduce_before_looking_whether_finite()
            _choose_no_xla()


def _reduce_before_looking_whether_finite() -> None:
    """``LossScaleOptimizer``, which ``compile`` puts around the optimizer of a model with mixed_float16.

    It applies gradients only where they are finite. If each rank looked at its own, some would reduce and others not.
    """
    kind = keras.optimizers.LossScaleOptimizer
    plain = kind.apply

    @functools.wraps(plain)
    @tf.autograph.experimental.do_not_convert
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        found = aggregation_of(self.inner_optimizer)
        if found is None:
            plain(self, grads, trainable_variables)
        else:
            found.step(self, functools.partial(plain, self), grads, trainable_variables)

    kind.apply = apply


def _choose_no_xla() -> None:
    """``compile(jit_compile="auto")``, which takes XLA where there is a GPU; XLA does not know our ops."""
    # Where Keras looks whether a model has a `compile` of its own, which it does not call when it loads one.
    owner = next(kind for kind in keras.Model.__mro__ if "compile" in vars(kind))
    plain = owner.compile
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, *args, **kwargs)
        asked = signature.bind(self, *args, **kwargs).arguments.get("jit_compile", "auto")
        if asked == "auto" and aggregation_of(self.optimizer) is not None:
            self.jit_compile = False
        return result

    owner.compile = compile
