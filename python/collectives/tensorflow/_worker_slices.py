"""IndexedSlices across workers.

By default the rows of all workers are gathered, in the order of the ranks: what one process has that takes all examples
(``gather_from_workers``). Where they would need more memory than ``MEMORY_CAP`` nothing is sent and an error says so.

Where equal indices are to be merged (``sum_over_workers``) the workers first gather the indices, each its distinct
ones. From these everybody knows the sorted list of all distinct indices and how many rows the workers have in sum, and
so everybody takes the same of two ways:

- *sparse*: gather the rows too, and add up those of the same index. A worker receives the rows of all.
- *dense*: each puts its rows into a buffer with one row for each distinct index of the job, and the buffers are
  all-reduced. A worker receives about twice the buffer, however many workers there are.

The way with fewer bytes is taken. Where the gathered rows would need more memory than the cap it is always the dense
one, whose buffer the result needs anyway.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from . import _ops

__all__ = ["MEMORY_CAP", "gather_from_workers", "sum_over_workers"]

MEMORY_CAP = 256 << 20  # bytes of gathered rows
_MERGE = (
    "Merge equal indices before they travel, by merge_indexed_slices=True of the strategy or of its cross_device_ops"
)


def gather_from_workers(
    group: _ops.Group, slices: tf.IndexedSlices, *, name: str, timeout: float | None = None, advice: str = _MERGE
) -> tf.IndexedSlices:
    """The IndexedSlices of all workers, one after another in the order of the ranks.

    Args:
        group: all its ranks make the same call.
        slices: of this worker. The rows may differ in number between workers, down to none.
        name: what errors call it.
        timeout: of the collectives.
        advice: what an error says to do where there are too many rows, besides smaller batches.

    Raises (when it runs):
        tf.errors.InvalidArgumentError: the rows of all need more than ``MEMORY_CAP``; on all workers, which have then
            sent nothing but how many rows they have, and can go on.
        tf.errors.OpError: as ``_ops.all_reduce``.
    """
    values, indices = slices.values, slices.indices
    rows = _ops.lengths(group, indices, name=name, timeout=timeout)
    needed = tf.reduce_sum(rows) * _row_bytes(values)
    enough = tf.debugging.Assert(
        needed <= MEMORY_CAP,
        [
            f"the IndexedSlices of '{name}' have too many rows: all workers together must not have more than "
            f"{MEMORY_CAP} bytes of them. {advice}, or make the batch smaller. Bytes, and rows by worker:",
            needed,
            rows,
        ],
        summarize=-1,
    )
    with tf.control_dependencies([] if enough is None else [enough]):  # None in eager mode, where it has raised
        all_indices = _ops.all_gather(group, indices, rows=rows, name=f"indices of {name}", timeout=timeout)
        all_values = _ops.all_gather(group, values, rows=rows, name=f"rows of {name}", timeout=timeout)
    return tf.IndexedSlices(all_values, all_indices, slices.dense_shape)


def sum_over_workers(
    group: _ops.Group,
    slices: tf.IndexedSlices,
    *,
    name: str,
    algorithm: str = "auto",
    timeout: float | None = None,
) -> tf.IndexedSlices:
    """The sum of the IndexedSlices of all workers, with one row for each distinct index, in ascending order.

    Args:
        group: all its ranks make the same call.
        slices: of this worker; no index occurs twice. The rows may differ in number between workers, down to none.
        name: what errors call it.
        algorithm, timeout: of the collectives.

    Raises (when it runs):
        tf.errors.InvalidArgumentError and so on, as ``_ops.all_reduce``.
    """
    values, indices = slices.values, slices.indices
    gathered = _ops.all_gather(group, indices, name=f"indices of {name}", timeout=timeout)
    distinct = tf.sort(tf.unique(gathered).y)
    rows = tf.size(distinct, out_type=tf.int64)
    told = tf.size(gathered, out_type=tf.int64)

    def sparse() -> Any:
        received = _ops.all_gather(group, values, name=f"rows of {name}", timeout=timeout)
        return tf.math.unsorted_segment_sum(received, _positions(distinct, gathered), rows)

    def dense() -> Any:
        shape = tf.concat([[rows], tf.shape(values, out_type=tf.int64)[1:]], 0)
        own = tf.scatter_nd(_positions(distinct, indices)[:, tf.newaxis], values, shape)
        own.set_shape(tf.TensorShape([None]).concatenate(values.shape[1:]))
        (result,) = _ops.all_reduce(
            group, [own], "sum", names=[f"rows of {name}"], algorithm=algorithm, timeout=timeout
        )
        return result

    # What decides is the same on all workers.
    few = tf.logical_and(told <= 2 * rows, told * _row_bytes(values) <= MEMORY_CAP)
    summed = tf.cond(few, sparse, dense)
    summed.set_shape(tf.TensorShape([None]).concatenate(values.shape[1:]))
    return tf.IndexedSlices(summed, distinct, slices.dense_shape)


def _row_bytes(values: Any) -> Any:
    return tf.reduce_prod(tf.shape(values, out_type=tf.int64)[1:]) * values.dtype.size


def _positions(distinct: Any, indices: Any) -> Any:
    return tf.searchsorted(distinct, indices, out_type=tf.int64)
