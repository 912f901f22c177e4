"""IndexedSlices of the replicas of one process: gradients of embeddings, rows of a larger tensor with their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ._dtypes import mean_of_sum

__all__ = ["flattened", "merge"]

# Their sums are taken in float32 and rounded once, as the engine does it for dense tensors.
_HALVES = (tf.float16, tf.bfloat16)


def flattened(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same rows with a plain tensor as values, which may be IndexedSlices themselves (a gather of a gather)."""
    if not isinstance(slices.values, tf.IndexedSlices):
        return slices
    inner = flattened(slices.values)
    return tf.IndexedSlices(inner.values, tf.gather(slices.indices, inner.indices), slices.dense_shape)


def merge(parts: Sequence[tf.IndexedSlices], divisor: int | None = None) -> tf.IndexedSlices:
    """Sums IndexedSlices into one with one row per distinct index.

    Args:
        parts: at least one; their values have the same dtype and, but for the number of rows, the same shape. Indices
            may be int32 and int64 mixed.
        divisor: what to divide the sums by, for a mean.

    Returns:
        Each index that occurs once, in the order of its first appearance, with the sum of its rows. The dense shape is
        that of the first part that has one. The mean of integers is floating, as for dense tensors.
    """
    parts = [flattened(part) for part in parts]
    dtypes = {part.indices.dtype for part in parts}
    dtype = dtypes.pop() if len(dtypes) == 1 else tf.int64
    values = tf.concat([part.values for part in parts], 0)
    indices, segments = tf.unique(tf.concat([tf.cast(part.indices, dtype) for part in parts], 0))
    narrow = values.dtype in _HALVES
    summed = tf.math.unsorted_segment_sum(tf.cast(values, tf.float32) if narrow else values, segments, tf.size(indices))
    if divisor is not None:
        summed = mean_of_sum(summed, divisor)
    if narrow:
        summed = tf.cast(summed, values.dtype)
    shape = next((part.dense_shape for part in parts if part.dense_shape is not None), None)
    return tf.IndexedSlices(summed, indices, shape)
