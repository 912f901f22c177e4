"""Reduces a list of tensors over the ranks: factors, compression, buckets, IndexedSlices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .. import _ops
from .._buckets import reduce_in_buckets
from .._dtypes import mean_of_sum
from .._indexed_slices import flattened
from .._worker_slices import gather_from_workers
from .checks import named, refuse_for_slices
from .names import Average, Compression, ReduceOp, Sum

__all__ = ["Scaling", "reduce_all"]


class Scaling:
    """Scales a tensor before and after its reduction, and computes the average of integers.

    Attributes:
        op: the op of the engine.
    """

    def __init__(self, dtype: tf.DType, op: ReduceOp, ranks: int, before: float, after: float) -> None:
        self._before, self._after = before, after
        averages_integers = op is Average and dtype.is_integer
        self._divisor = ranks if averages_integers else 1
        self.op: str = "sum" if averages_integers else op.value

    def before(self, tensor: Any) -> Any:
        """The tensor to be reduced."""
        return tensor if self._before == 1.0 else _scale(tensor, self._before)

    def after(self, tensor: Any) -> Any:
        """The result for the caller, from that of the engine."""
        if self._divisor > 1:
            tensor = tf.truncatediv(tensor, tf.cast(self._divisor, tensor.dtype))
        return tensor if self._after == 1.0 else _scale(tensor, self._after)


def _scale(tensor: Any, factor: float) -> Any:
    wide = tensor.dtype
    if tensor.dtype.is_integer:
        wide = tf.float64
    elif tensor.dtype in (tf.float16, tf.bfloat16):
        wide = tf.float32
    return tf.cast(tf.cast(tensor, wide) * tf.cast(factor, wide), tensor.dtype)


def reduce_all(
    group: _ops.Group,
    tensors: Sequence[Any],
    names: Sequence[str],
    op: ReduceOp,
    *,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    bytes_per_bucket: int = 0,
    call: str,
) -> list[Any]:
    """Reduces tensors and IndexedSlices over the ranks.

    Args:
        group: all its ranks make the same call.
        tensors: of dtypes that can be reduced.
        names: of the tensors, compared between ranks; "" for none.
        op: the reduction; Sum or Average for IndexedSlices, whose rows are gathered.
        compression: one of ``Compression``.
        prescale_factor, postscale_factor: as for ``allreduce``.
        bytes_per_bucket: least bytes of a collective; dense tensors of a dtype are packed from the last one on. 0: one
            collective.
        call: the name of the caller, for errors.

    Returns:
        the results, in the order of ``tensors``.

    Raises:
        NotImplementedError: IndexedSlices with another op, or with factors.
    """
    results: list[Any] = list(tensors)
    scaled = prescale_factor != 1.0 or postscale_factor != 1.0
    sparse = {k for k, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)}
    if sparse:
        refuse_for_slices(op, scaled, call)
    scalings = {}
    contexts = {}
    for k, tensor in enumerate(tensors):
        if k not in sparse:
            scalings[k] = Scaling(tensor.dtype, op, group.size, prescale_factor, postscale_factor)
            results[k], contexts[k] = compression.compress(scalings[k].before(tensor))
    for kind in dict.fromkeys(scaling.op for scaling in scalings.values()):
        chosen = [k for k, scaling in scalings.items() if scaling.op == kind]
        reduced = reduce_in_buckets(
            group,
            [results[k] for k in chosen],
            kind,
            names=[names[k] for k in chosen] if any(names) else None,
            bytes_per_bucket=bytes_per_bucket,
        )
        for k, value in zip(chosen, reduced, strict=True):
            results[k] = scalings[k].after(compression.decompress(value, contexts[k]))
    for k in sorted(sparse):
        results[k] = _gather_slices(group, tensors[k], op, compression, names[k] or named(tensors[k], None))
    return results


def _gather_slices(group: _ops.Group, slices: Any, op: ReduceOp, compression: Any, name: str) -> Any:
    slices = flattened(slices)
    values, context = compression.compress(slices.values)
    advice = "Make them dense, by sparse_as_dense=True or tf.convert_to_tensor(slices)"
    sent = tf.IndexedSlices(values, slices.indices, slices.dense_shape)
    all_rows = gather_from_workers(group, sent, name=name, advice=advice)
    values = compression.decompress(all_rows.values, context)
    if op is Average:
        if values.dtype.is_integer:
            values = tf.truncatediv(values, tf.cast(group.size, values.dtype))
        else:
            values = mean_of_sum(values, group.size)
    else:
        assert op is Sum
    return tf.IndexedSlices(values, all_rows.indices, all_rows.dense_shape)
