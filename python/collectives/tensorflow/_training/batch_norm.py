"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .names import Sum
from .reducing import reduce_all
from .world import group

__all__ = ["SyncBatchNormalization"]


@keras.saving.register_keras_serializable(package="collectives")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """``keras.layers.BatchNormalization`` with mean and variance over the batches of all ranks together.

    Ranks may have batches of different lengths, and masks: every example has the same weight. The moving mean and
    variance are the same on all ranks, too. In training each call makes two small collectives, and two more for the
    gradient, so all ranks must call their layers in the same order. Inference sends nothing. The moments are computed
    in float32, or in float64 for float64 inputs: the mean first, then the mean of the squared differences from it.

    Args:
        axis: the axis of the features.
        momentum, epsilon: see ``keras.layers.BatchNormalization``.
        fused: for Horovod's programs; False is accepted.
        kwargs: others of ``keras.layers.BatchNormalization``, except for ``renorm=True``.

    Raises:
        ValueError: ``fused`` or ``renorm``; in training, before ``init``.
        tf.errors.FailedPreconditionError: in training, ranks have different numbers of features.

    Example:
        >>> model = keras.Sequential([keras.layers.Conv2D(8, 3), hvd.SyncBatchNormalization(axis=-1)])
    """

    def __init__(
        self, axis: int = -1, momentum: float = 0.99, epsilon: float = 1e-3, fused: bool | None = False, **kwargs: Any
    ) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization: fused is True; only False is accepted")
        if kwargs.get("renorm"):
            raise ValueError("SyncBatchNormalization: renorm is True; use keras.layers.BatchNormalization for that")
        super().__init__(axis=axis, momentum=momentum, epsilon=epsilon, **kwargs)
        self.supports_jit = False  # XLA cannot compile our ops

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Normalizes ``inputs`` by the moments of this step in training, else by the moving ones."""
        if not (training and self.trainable):
            return super().call(inputs, training=False, mask=mask)
        values = tf.convert_to_tensor(inputs)
        if values.dtype in (tf.float16, tf.bfloat16):  # their squares could overflow or underflow
            values = tf.cast(values, tf.float32)
        mean, variance = self._moments_of_all(values, mask)
        for moving, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            old = tf.cast(moving, new.dtype)
            moving.assign(old * self.momentum + new * (1.0 - self.momentum))
        normal = tf.nn.batch_normalization(
            values,
            self._broadcastable(mean, values),
            self._broadcastable(variance, values),
            self._broadcastable(self.beta, values) if self.center else None,
            self._broadcastable(self.gamma, values) if self.scale else None,
            self.epsilon,
        )
        return tf.cast(normal, self.compute_dtype)

    def _moments_of_all(self, values: Any, mask: Any) -> tuple[Any, Any]:
        axes = [i for i in range(values.shape.rank) if i != self.axis % values.shape.rank]
        counted = None
        if mask is not None:
            counted = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(values))

        def total(tensor: Any) -> Any:
            return tf.reduce_sum(tensor if counted is None else tf.where(counted, tensor, 0), axes)

        # A count for each feature, even where all are equal: ranks with and without masks must reduce equal shapes.
        count = total(tf.ones_like(values)) if mask is not None else self._examples(values)
        mean, count = self._sum("sums", total(values), count)
        mean = tf.math.divide_no_nan(mean, count)
        (squares,) = self._sum("squared deviations", total(tf.square(values - self._broadcastable(mean, values))))
        return mean, tf.math.divide_no_nan(squares, count)

    def _examples(self, values: Any) -> Any:
        shape = tf.shape(values)
        features = shape[self.axis]
        return tf.fill([features], tf.cast(tf.size(values) // tf.maximum(features, 1), values.dtype))

    def _sum(self, what: str, *tensors: Any) -> list[Any]:
        """Sums over all ranks. The names have no layer, since layers may have different numbers on different ranks."""
        names = [f"{what} of SyncBatchNormalization"] * len(tensors)
        return reduce_all(group(), tensors, names, Sum, call="SyncBatchNormalization")

    def _broadcastable(self, vector: Any, values: Any) -> Any:
        """A vector of features, in a shape and dtype that broadcast with the inputs."""
        shape = [1] * values.shape.rank
        shape[self.axis] = -1
        return tf.reshape(tf.cast(vector, values.dtype), shape)
