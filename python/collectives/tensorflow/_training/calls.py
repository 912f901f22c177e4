"""The collectives of the training API, on tensors: in eager mode, in functions, with gradients.

All ranks make the same calls in the same order. Unlike in Horovod, ``name=`` does not match calls of different order;
ranks that give different names to a call get an error, as for different shapes. After such an error all ranks can
continue with the next call, or the next run of their function.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .. import _ops
from . import reducing
from .autograph import do_not_convert
from .checks import as_op, as_reducible, as_tensor, invalid, named
from .names import Compression, ReduceOp, check_process_set, global_process_set
from .world import group, size

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "oob_allreduce",
    "overlap",
    "reducescatter",
]


@do_not_convert
def allreduce(
    tensor: Any,
    average: bool | int | None = None,
    device_dense: str | int = "",
    device_sparse: Any = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = global_process_set,
    *,
    param_index: int | None = None,
    num_params: int | None = None,
) -> Any:
    """Combines a tensor over all ranks; every rank gets the result, with the same bits.

    SMDDP's order of arguments, ``allreduce(tensor, param_index, num_params, compression, op)``, is recognised by
    integers in the second and third place.

    Args:
        tensor: a tensor or a value to convert to one, of the same shape and dtype on all ranks; or IndexedSlices, whose
            rows are gathered, not summed, and may differ in number. It is not changed.
        average: Horovod's older form of ``op=Average`` or ``op=Sum``.
        device_dense, device_sparse: accepted and not used; all reductions run on the host.
        compression: ``Compression.none``, ``fp16`` or ``bf16``.
        op: ``Average`` (default), ``Sum``, ``Min``, ``Max`` or ``Product``. The average of integers is an integer,
            rounded towards zero.
        prescale_factor, postscale_factor: factors before and after the reduction. Integers are scaled in float64 and
            rounded towards zero, 16-bit floats in float32.
        name: for errors; the same on all ranks.
        process_set: for Horovod's programs; ``global_process_set`` is accepted.
        param_index, num_params: SMDDP's, not used: a tape or an optimizer groups the gradients.

    Returns:
        a new tensor like ``tensor``, or IndexedSlices with the rows of all ranks, in rank order.

    Raises:
        ValueError: before ``init``; ``op`` and ``average`` are both given.
        TypeError: a tensor of bool or strings.
        NotImplementedError: IndexedSlices with another op or with factors; a process set.
        tf.errors.FailedPreconditionError: ranks disagree; raised on all ranks, which can continue.
        tf.errors.UnavailableError: a rank died. tf.errors.DeadlineExceededError: a rank did not come in time.

    Example:
        >>> hvd.allreduce(tf.fill([2], float(hvd.rank())), op=hvd.Sum)
    """
    if isinstance(average, int) and not isinstance(average, bool):  # SMDDP's order
        average = None
        if device_sparse != "":
            compression, op = device_sparse, op if compression is Compression.none else compression
    reduction = as_op(op, average, "allreduce")
    check_process_set(process_set)
    tensor = as_reducible(tensor, name, "allreduce")
    (result,) = reducing.reduce_all(
        group(),
        [tensor],
        [name or ""],
        reduction,
        compression=compression,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        call="allreduce",
    )
    return result


@do_not_convert
def oob_allreduce(tensor: Any, compression: Any = Compression.none, op: ReduceOp | None = None) -> Any:
    """SMDDP's all-reduce of a value that is no gradient, such as a loss. See ``allreduce``."""
    return allreduce(tensor, compression=compression, op=op)


@do_not_convert
def overlap(tensor: Any) -> Any:
    """SMDDP's hint to its compiler; returns the tensor. Reductions overlap with the backward pass without it."""
    return tf.identity(tensor)


@do_not_convert
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
    name: str | None = None,
) -> list[Any]:
    """Combines a list of tensors over all ranks, those of one dtype in one collective.

    Args and errors are those of ``allreduce``, for each tensor.

    Returns:
        a list of results, in the order of ``tensors``.
    """
    reduction = as_op(op, average, "grouped_allreduce")
    check_process_set(process_set)
    names = _names_of(tensors, name)
    return reducing.reduce_all(
        group(),
        [as_reducible(t, n, "grouped_allreduce") for t, n in zip(tensors, names, strict=True)],
        names,
        reduction,
        compression=compression,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        call="grouped_allreduce",
    )


@do_not_convert
def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = global_process_set
) -> Any:
    """Joins the tensors of all ranks along axis 0, in rank order; every rank gets the result.

    Args:
        tensor: may differ between ranks in the length of axis 0; a scalar counts as one row.
        name: for errors.
        ignore_name_scope: accepted and not used.
        process_set: see ``allreduce``; the errors are the same, too.

    Example:
        >>> hvd.allgather(tf.fill([hvd.rank() + 1, 2], hvd.rank()))  # 1 + 2 + ... rows
    """
    check_process_set(process_set)
    return _ops.all_gather(group(), _as_rows(as_tensor(tensor, name, "allgather")), name=name)


@do_not_convert
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: Any = global_process_set
) -> list[Any]:
    """``allgather`` of each tensor of a list. The ranks exchange all lengths in one collective."""
    check_process_set(process_set)
    names = _names_of(tensors, name)
    given = [_as_rows(as_tensor(t, n, "grouped_allgather")) for t, n in zip(tensors, names, strict=True)]
    if not given:
        return []
    own = tf.stack([tf.shape(tensor, out_type=tf.int64)[0] for tensor in given])
    ones = tf.ones([size()], tf.int64)
    table = _ops.all_gather(group(), own[tf.newaxis], rows=ones, name=f"rows of {name or 'a group'}")
    return [
        _ops.all_gather(group(), tensor, rows=table[:, i], name=one)
        for i, (tensor, one) in enumerate(zip(given, names, strict=True))
    ]


@do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """Gives every rank the tensor of rank ``root_rank``, as a new tensor.

    Args:
        tensor: of the same shape and dtype on all ranks, bool too.
        root_rank: the same on all ranks.
        name, ignore_name_scope, process_set: see ``allgather``.

    Raises:
        ValueError: there is no such rank. Others as ``allreduce``.
    """
    check_process_set(process_set)
    root_rank = check_root(root_rank, "broadcast")
    names = [name] if name else None
    return _ops.broadcast(group(), [as_tensor(tensor, name, "broadcast")], root_rank, names=names)[0]


def check_root(root_rank: Any, call: str) -> int:
    """The rank as an int; NumPy integers are accepted. Raises ``ValueError`` where there is no such rank."""
    try:
        root = -1 if isinstance(root_rank, bool) else operator.index(root_rank)
    except TypeError:
        root = -1
    if not 0 <= root < size():
        raise ValueError(f"{call}: root_rank is {root_rank!r}; there are the ranks 0 to {size() - 1}")
    return root


@do_not_convert
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """Splits a tensor along axis 0 and gives part i to rank i; joins what all ranks give to this one, in rank order.

    Args:
        tensor: of any number of rows; dtype and other dimensions are the same on all ranks.
        splits: how many rows go to each rank, integers; equal parts otherwise.
        name, ignore_name_scope, process_set: see ``allgather``.

    Returns:
        the result; with ``splits`` a pair of the result and the number of rows from each rank, int32.

    Raises:
        tf.errors.InvalidArgumentError: the splits do not add up to the rows, are negative, or not one for each rank;
            or there are none, and the rows cannot be split evenly. On this rank alone, before anything is sent.
        Others as ``allreduce``.
    """
    check_process_set(process_set)
    tensor = as_tensor(tensor, name, "alltoall")
    ranks, what = size(), named(tensor, name)
    if tensor.shape.rank == 0:
        raise invalid(f"alltoall: {what} is a scalar, which has no rows to give away")
    rows = tf.shape(tensor, out_type=tf.int64)[0]
    if splits is None:
        text = f"alltoall: the rows of {what} cannot be split evenly over {ranks} ranks; pass splits. Rows:"
        checks = [_holds(tf.equal(rows % ranks, 0), text, rows)]
        with tf.control_dependencies(checks):
            own = tf.fill([ranks], rows // ranks)
    else:
        splits = tf.convert_to_tensor(splits)
        if not splits.dtype.is_integer or splits.shape.rank not in (None, 1) or splits.shape[0] not in (None, ranks):
            raise invalid(
                f"alltoall: splits of {what} is of dtype {splits.dtype.name} and shape {splits.shape}; one integer for "
                f"each of the {ranks} ranks is accepted"
            )
        own = tf.cast(splits, tf.int64)
        fits = tf.reduce_all(own >= 0) & tf.equal(tf.reduce_sum(own), rows)
        text = f"alltoall: the splits of {what} do not add up to its rows, or are negative. Rows and splits:"
        with tf.control_dependencies([_holds(fits, text, rows, own)]):
            own = tf.identity(own)
    ones = tf.ones([ranks], tf.int64)
    table = _ops.all_gather(group(), own[tf.newaxis], rows=ones, name=f"splits of {name or 'a tensor'}")
    table.set_shape([ranks, ranks])
    result = _ops.all_to_all(group(), tensor, rows=table, name=name)
    return result if splits is None else (result, tf.cast(table[:, group().rank], tf.int32))


def _holds(condition: Any, text: str, *values: Any) -> Any:
    """Raises ``InvalidArgumentError`` unless a condition holds: at once in eager mode, else when the function runs."""
    if tf.executing_eagerly():
        if not bool(condition):
            shown = ", ".join(str(value.numpy().tolist()) for value in values)
            raise invalid(f"{text} {shown}")
        return tf.constant(0)
    return tf.debugging.Assert(condition, [text, *values], summarize=-1)


@do_not_convert
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    name: str | None = None,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Combines a tensor over all ranks and gives each its rows of the result.

    Args:
        tensor: of the same shape on all ranks, with at least one dimension. Where the rows cannot be split evenly, the
            first ranks get one more.
        op: ``Average`` (default), ``Sum``, ``Min``, ``Max`` or ``Product``; the first two have gradients.
        device_dense, compression, name, process_set, prescale_factor, postscale_factor: see ``allreduce``.

    Raises:
        tf.errors.InvalidArgumentError: ``tensor`` is a scalar. Others as ``allreduce``.
    """
    (result,) = grouped_reducescatter(
        [tensor], device_dense, compression, op, process_set, prescale_factor, postscale_factor, names=[name or ""]
    )
    return result


@do_not_convert
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    names: Sequence[str] | None = None,
) -> list[Any]:
    """``reducescatter`` of each tensor of a list; all are in flight at once."""
    check_process_set(process_set)
    reduction = as_op(op, None, "reducescatter")
    names = list(names or _names_of(tensors, None))
    given = [as_reducible(t, n, "reducescatter") for t, n in zip(tensors, names, strict=True)]
    for tensor, name in zip(given, names, strict=True):
        if tensor.shape.rank == 0:
            raise invalid(f"reducescatter: {named(tensor, name)} is a scalar, which has no rows to be split")
    results = []
    for tensor, name in zip(given, names, strict=True):
        scaling = reducing.Scaling(tensor.dtype, reduction, size(), prescale_factor, postscale_factor)
        sent, context = compression.compress(scaling.before(tensor))
        rows = tf.shape(tensor, out_type=tf.int64)[0]
        own = rows // size() + tf.cast(tf.range(size(), dtype=tf.int64) < rows % size(), tf.int64)
        part = _ops.reduce_scatter(group(), sent, scaling.op, rows=own, names=[name] if name else None)
        results.append(scaling.after(compression.decompress(part, context)))
    return results


@do_not_convert
def barrier(process_set: Any = global_process_set, name: str | None = None) -> None:
    """Waits until all ranks have called it."""
    check_process_set(process_set)
    _ops.barrier(group(), name=name)


def _as_rows(tensor: Any) -> Any:
    return tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tensor


def _names_of(tensors: Sequence[Any], name: str | None) -> list[str]:
    return [f"{name or 'tensor'}_{i}" for i in range(len(tensors))]
