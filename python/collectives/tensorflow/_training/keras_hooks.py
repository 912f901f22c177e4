"""Patches Keras where it would treat a distributed optimizer wrongly and calls no method of it.

The patches replace documented names only, when the first distributed optimizer is made. Other optimizers and models
work as before.
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
    """The Aggregation of a distributed optimizer, which may be wrapped by others; None for any other optimizer."""
    while optimizer is not None:
        found = getattr(optimizer, "_agg_helper", None)
        if isinstance(found, Aggregation):
            return found
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return None


def install() -> None:
    """Applies the patches, once."""
    with _lock:
        if not _installed:
            _installed.append(True)
            _reduce_before_finite_check()
            _disable_auto_xla()


def _reduce_before_finite_check() -> None:
    """Patches ``LossScaleOptimizer``, into which ``compile`` wraps the optimizer of a model with mixed_float16.

    It applies gradients only if they are finite. If each rank checked its own gradients, some ranks would reduce and
    others would not.
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


def _disable_auto_xla() -> None:
    """Patches ``compile(jit_compile="auto")``, which uses XLA if there is a GPU; XLA cannot compile our ops."""
    # Patched in the class that defines it: a `compile` in keras.Model itself would look to Keras like one of the user.
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
