"""Which dtypes can be reduced, and the mean of integers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .._calls.arguments import DTYPES, listed

__all__ = ["check_reducible", "mean_of_sum", "mean_dtype"]

_REDUCIBLE = [dtype for dtype in DTYPES if dtype != "bool"]  # TensorFlow has no sum of bool


def check_reducible(dtype: tf.DType, what: str) -> None:
    """Raises a TypeError, in which ``what`` names the tensor, for a dtype that has no sum."""
    if dtype.name not in _REDUCIBLE:
        raise TypeError(
            f"{what} has dtype {dtype.name}, which cannot be reduced; accepted are {listed(_REDUCIBLE)}. Cast it "
            "first, for example by tf.cast(x, tf.int32)"
        )


def mean_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype of a mean, as in TensorFlow: float64 for integers of 32 and 64 bits, float32 for 8 and 16."""
    if not dtype.is_integer:
        return dtype
    return tf.float64 if dtype.size >= 4 else tf.float32


def mean_of_sum(total: Any, count: Any) -> Any:
    """The mean, from a sum of ``count`` values."""
    dtype = mean_dtype(total.dtype)
    return tf.cast(total, dtype) / tf.cast(count, dtype)
