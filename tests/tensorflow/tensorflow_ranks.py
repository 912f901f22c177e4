"""Threads that are ranks, each with a group of the native ops, and what the tests of these ops compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import logical_cpus  # noqa: F401  before anything else of TensorFlow runs
import numpy as np
import tensorflow as tf
import threaded
from collectives.tensorflow import _ops

DTYPES = [
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
    *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
]


def numbers(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    values = np.random.default_rng(seed).integers(0, 30, shape)
    return np.asarray(values / 7 if dtype.is_floating or dtype.is_complex else values, dtype.as_numpy_dtype)


def same_bits(a: Any, b: Any) -> bool:
    a, b = (np.asarray(x.numpy() if tf.is_tensor(x) else x) for x in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def on_ranks(size: int, work: Callable[[Any], Any], timeout: float | None = None) -> list[Any]:
    """What `work` returns, or raises, in one thread per rank, given the group of the rank."""
    return threaded.on_ranks(size, lambda comm: work(_ops.Group(comm)), (Exception,), timeout)


def returned(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results
