"""IndexedSlices of the replicas of one process: gradients of embeddings, as rows of a larger tensor with their indices.

Joined, they equal the gradient of one process for all examples: one row for each occurrence of an index. That matters
to optimizers: Adam, Adagrad and RMSprop of Keras square row by row, so summing the rows of an index changes the
training, as making the gradient dense does.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ._dtypes import mean_of_sum

__all__ = ["flattened", "join", "merge"]

# Summed in float32 and rounded once, as the engine does for dense tensors.
_HALVES = (tf.float16, tf.bfloat16)


def flattened(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same rows with a dense tensor of values, which may be IndexedSlices themselves (a gather of a gather)."""
    if not isinstance(slices.values, tf.IndexedSlices):
        return slices
    inner = flattened(slices.values)
    return tf.IndexedSlices(inner.values, tf.gather(slices.indices, inner.indices), slices.dense_shape)


def join(parts: Sequence[tf.IndexedSlices], divisor: int | None = None) -> tf.IndexedSlices:
    """Concatenates the rows of IndexedSlices. Arguments and result are those of ``merge``."""
    parts = [flattened(part) for part in parts]
    values = tf.concat([part.values for part in parts], 0) if len(parts) > 1 else parts[0].values
    if divisor is not None:
        values = mean_of_sum(values, divisor)
    return tf.IndexedSlices(values, _indices(parts), _dense_shape(parts))


def merge(parts: Sequence[tf.IndexedSlices], divisor: int | None = None) -> tf.IndexedSlices:
    """Sums IndexedSlices into one with one row per distinct index.

    Args:
        parts: at least one; their values have the same dtype and, except for the number of rows, the same shape.
            Indices may be int32 and int64 mixed.
        divisor: divides the sums, for a mean.

    Returns:
        Each index that occurs once, in the order of its first appearance, with the sum of its rows. The dense shape is
        that of the first part that has one. The mean of integers is floating, as for dense tensors.
    """
    parts = [flattened(part) for part in parts]
    values = tf.concat([part.values for part in parts], 0)
    indices, segments = tf.unique(_indices(parts))
    narrow = values.dtype in _HALVES
    summed = tf.math.unsorted_segment_sum(tf.cast(values, tf.float32) if narrow else values, segments, tf.size(indices))
    if divisor is not None:
        summed = mean_of_sum(summed, divisor)
    if narrow:
        summed = tf.cast(summed, values.dtype)
    return tf.IndexedSlices(summed, indices, _dense_shape(parts))


def _indices(parts: Sequence[tf.IndexedSlices]) -> tf.Tensor:
    dtypes = {part.indices.dtype for part in parts}
    dtype = dtypes.pop() if len(dtypes) == 1 else tf.int64
    return tf.concat([tf.cast(part.indices, dtype) for part in parts], 0)


def _dense_shape(parts: Sequence[tf.IndexedSlices]) -> tf.Tensor | None:
    return next((part.dense_shape for part in parts if part.dense_shape is not None), None)
