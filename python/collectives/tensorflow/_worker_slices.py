"""IndexedSlices across workers.

By default the rows of all workers are gathered, in rank order, as one process would have them for all examples
(``gather_from_workers``). If they need more memory than ``MEMORY_CAP``, nothing is sent and all workers raise an error.

To merge equal indices (``sum_over_workers``), the workers first gather their distinct indices. Each then knows the
sorted list of all distinct indices and the total number of rows, so all choose the same of two methods:

- *sparse*: gather the rows, too, and add those of equal index. A worker receives the rows of all.
- *dense*: each worker puts its rows into a buffer with one row for each distinct index of the job, and the buffers are
  all-reduced. A worker receives about twice the buffer, whatever the number of workers.

They use the method with fewer bytes; always the dense one if the gathered rows need more memory than the cap, since the
result needs its buffer anyway.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from . import _ops

__all__ = ["MEMORY_CAP", "gather_from_workers", "sum_over_workers"]

MEMORY_CAP = 256 << 20  # bytes of gathered rows
_MERGE = (
    "Merge equal indices before they are sent, by merge_indexed_slices=True of the strategy or of its cross_device_ops"
)


def gather_from_workers(
    group: _ops.Group, slices: tf.IndexedSlices, *, name: str, timeout: float | None = None, advice: str = _MERGE
) -> tf.IndexedSlices:
    """The IndexedSlices of all workers, concatenated in rank order.

    Args:
        group: all its ranks make the same call.
        slices: of this worker. The number of rows may differ between workers, and may be 0.
        name: for errors.
        timeout: of the collectives.
        advice: text of the error for too many rows, besides smaller batches.

    Raises (when it runs):
        tf.errors.InvalidArgumentError: the rows of all workers need more than ``MEMORY_CAP``; on all workers, which
            have sent only their numbers of rows then, and can continue.
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
        slices: of this worker; no index occurs twice. The number of rows may differ between workers, and may be 0.
        name: for errors.
        algorithm, timeout: of the collectives.

    Raises (when it runs):
        tf.errors.InvalidArgumentError and so on, as ``_ops.all_reduce``.
    """
    values, indices = slices.values, slices.indices
    gathered = _ops.all_gather(group, indices, name=f"indices of {name}", timeout=timeout)
    distinct = tf.sort(tf.unique(gathered).y)
    rows = tf.size(distinct, out_type=tf.int64)
    total_rows = tf.size(gathered, out_type=tf.int64)

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

    # The condition is the same on all workers.
    few = tf.logical_and(total_rows <= 2 * rows, total_rows * _row_bytes(values) <= MEMORY_CAP)
    summed = tf.cond(few, sparse, dense)
    summed.set_shape(tf.TensorShape([None]).concatenate(values.shape[1:]))
    return tf.IndexedSlices(summed, distinct, slices.dense_shape)


def _row_bytes(values: Any) -> Any:
    return tf.reduce_prod(tf.shape(values, out_type=tf.int64)[1:]) * values.dtype.size


def _positions(distinct: Any, indices: Any) -> Any:
    return tf.searchsorted(distinct, indices, out_type=tf.int64)
