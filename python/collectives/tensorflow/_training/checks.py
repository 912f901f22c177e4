"""Checks of the arguments of the training API, before anything is sent."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .._dtypes import check_reducible
from .names import Average, ReduceOp, Sum

__all__ = ["as_op", "as_reducible", "as_tensor", "invalid", "named", "refuse_for_slices"]


def named(tensor: Any, name: str | None) -> str:
    """The name of a tensor in errors: the caller's, else TensorFlow's, else its dtype and shape."""
    if name:
        return f"'{name}'"
    own = None if tf.is_tensor(tensor) and hasattr(tensor, "numpy") else getattr(tensor, "name", None)
    return f"'{own}'" if own else f"a tensor of dtype {tensor.dtype.name} and shape {tensor.shape}"


def as_tensor(tensor: Any, name: str | None, call: str) -> Any:
    """A tensor that can be sent. Raises ``TypeError`` for strings and the like."""
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype in (tf.string, tf.resource, tf.variant):
        raise TypeError(
            f"{call}: {named(tensor, name)} has dtype {tensor.dtype.name}, which cannot be sent; numbers and bool can"
        )
    return tensor


def as_reducible(tensor: Any, name: str | None, call: str) -> Any:
    """A tensor, or IndexedSlices, that can be reduced. Raises ``TypeError`` for bool, strings and the like."""
    if not isinstance(tensor, tf.IndexedSlices):
        tensor = tf.convert_to_tensor(tensor)
    check_reducible(tensor.dtype, f"{call}: {named(tensor, name)}")
    return tensor


def as_op(op: Any, average: bool | None, call: str) -> ReduceOp:
    """The reduction from ``op`` or, in older programs for Horovod, from ``average``."""
    if average is not None:
        if op is not None:
            raise ValueError(f"{call}: op and average are both given; leave average out, it is the older name")
        return Average if average else Sum
    if op is None:
        return Average
    if not isinstance(op, ReduceOp):
        raise TypeError(f"{call}: op is {op!r}; Average, Sum, Min, Max and Product are accepted")
    return op


def refuse_for_slices(op: ReduceOp, scaled: bool, call: str) -> None:
    """Raises ``NotImplementedError`` for ops and factors that IndexedSlices lack: their rows are only gathered."""
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"{call}: IndexedSlices with op={op.name}; Average and Sum are accepted. Make it dense first: "
            "tf.convert_to_tensor(slices), or sparse_as_dense=True"
        )
    if scaled:
        raise NotImplementedError(
            f"{call}: IndexedSlices with prescale_factor or postscale_factor; scale the values yourself, or make it "
            "dense first by tf.convert_to_tensor(slices)"
        )


def invalid(text: str) -> tf.errors.InvalidArgumentError:
    """The error of a call with wrong arguments, raised on this rank only."""
    return tf.errors.InvalidArgumentError(None, None, text)
