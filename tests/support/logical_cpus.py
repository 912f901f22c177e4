"""TensorFlow with eight logical CPUs in the process of the tests.

Their number is fixed when TensorFlow starts, and all test modules are imported before that: so every module that uses
TensorFlow in this process imports this one first, and takes the first so many devices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # nothing about drivers that are not there

import numpy as np
import tensorflow as tf
from collectives.tensorflow import _private

Array = np.ndarray[Any, Any]

DEVICES = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(8)]
COUNTS = [2, 3, 4, 8]  # of replicas
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * len(DEVICES)
)


def on_devices(values: Sequence[Any]) -> list[Any]:
    """The values as tensors, each on the device of its replica."""
    placed = []
    for value, device in zip(values, DEVICES, strict=False):
        with tf.device(device):
            placed.append(value if isinstance(value, tf.IndexedSlices) else tf.identity(tf.convert_to_tensor(value)))
    return placed


def per_replica(values: Sequence[Any]) -> Any:
    """What a strategy would hand over: one component for each replica."""
    return _private.PerReplica(on_devices(values))


def slices(rows: Sequence[Sequence[float]], indices: Sequence[int], height: int, dtype: str = "float32") -> Any:
    """IndexedSlices of a tensor with `height` rows."""
    values = tf.constant(rows, dtype)
    return tf.IndexedSlices(values, tf.constant(indices, tf.int64), tf.constant([height, values.shape[1]], tf.int64))


def components(result: Any) -> list[Any]:
    """The tensors of a result, which is unwrapped when it has one."""
    return list(result.values) if isinstance(result, tf.distribute.DistributedValues) else [result]


def mirrored(n: int, ops: Any) -> tf.distribute.MirroredStrategy:
    return tf.distribute.MirroredStrategy(DEVICES[:n], cross_device_ops=ops)


def eager_and_traced(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [function, tf.function(function)]
