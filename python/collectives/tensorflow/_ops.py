"""The native ops of ``_tensorflow.so``, as functions on tensors, in eager mode and in graphs.

A collective across processes is two ops. ``Start`` hands it to the engine and returns at once. All Starts of a group
use one resource, its token, so TensorFlow runs them in program order, in nested functions too, and every worker issues
its collectives in the same order. ``Wait`` returns the results; it is not part of that order and blocks no thread, so
any number of collectives can be in flight, whatever the number of inter-op threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .. import _core
from . import _private
from ._group import Group, group_of, library, native

__all__ = [
    "Group",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "group_of",
    "in_flight",
    "lengths",
    "reduce_replicas",
    "reduce_scatter",
    "replica_bytes",
]

_SHOWN = 4  # names of tensors in the name of a fused call
# A reduction over replicas is split into at most _MOST_OPS ops of at least _OP_BYTES per replica, where that does not
# change the results. Each op then starts when its own tensors are computed. See docs/lab/tensorflow-steps.md.
_OP_BYTES = 1 << 20
_MOST_OPS = 8


def reduce_replicas(
    tensors: Sequence[Sequence[Any]],
    op: str,
    combination: str,
    packs: int = 1,
    *,
    names: Sequence[str] | None = None,
) -> list[Any]:
    """Reduces tensors over the replicas of this process, in one pass over memory and few ops.

    Args:
        tensors: for each tensor the values of all replicas, of one shape and dtype; tensors may differ in these.
        op: "sum", "avg" (not for integers), "min", "max" or "prod".
        combination: the order in which values are combined: "canonical", "halves" or "chain", as in
            ``collectives.cross_device_ops``.
        packs: for "chain", the number of packs.
        names: of the tensors in errors.

    Returns:
        One tensor for each of ``tensors``.
    """
    if len(tensors[0]) == 1:
        return [tf.identity(value) for (value,) in tensors]
    _refuse_xla(", ".join(list(names or [])[:_SHOWN]))
    one_op = combination == "chain" or tf.executing_eagerly()  # "chain" orders additions by the position in the batch
    results: list[Any] = []
    for part in [slice(None)] if one_op else _split_into_ops([values[0] for values in tensors]):
        members = tensors[part]
        with tf.device("CPU:0"):
            results += native.collectives_reduce_replicas(
                values=[value for values in members for value in values],
                R=[values[0].dtype for values in members],
                replicas=len(members[0]),
                packs=packs,
                op=op,
                combination=combination,
                names=list(names or [])[part],
            )
    for result, values in zip(results, tensors, strict=True):
        result.set_shape(values[0].shape)
    return results


def _split_into_ops(tensors: Sequence[Any]) -> list[slice]:
    """Slices of consecutive tensors, one for each op; the last also has the rest."""
    sizes = [(value.shape.num_elements() or 0) * value.dtype.size for value in tensors]
    least = max(_OP_BYTES, sum(sizes) // _MOST_OPS)
    ends = []
    held = 0
    for i, size in enumerate(sizes):
        held += size
        if held >= least:
            ends.append(i + 1)
            held = 0
    ends = [*ends[:-1], len(sizes)] if ends else [len(sizes)]
    return [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def replica_bytes() -> int:
    """Bytes of the inputs of all reductions over replicas that this process has done."""
    return _core._replica_bytes()


def in_flight() -> int:
    """How many collectives have been started whose Wait op has not delivered the results yet."""
    return int(library.collectives_tensorflow_in_flight())


def all_reduce(
    group: Group,
    tensors: Sequence[Any],
    op: str,
    *,
    names: Sequence[str] | None = None,
    name: str | None = None,
    algorithm: str = "auto",
    timeout: float | None = None,
) -> list[Any]:
    """Reduces tensors of one dtype over the ranks of a group, in one fused collective.

    Args:
        group: all its ranks make the same call.
        tensors: of this rank; the shapes must be the same on all ranks.
        op: "sum", "avg" (not for integers), "min", "max" or "prod".
        names: of the tensors in errors.
        name: of the collective in errors; made of ``names`` by default.
        algorithm: of ``collectives.Communicator.all_reduce``.
        timeout: seconds; ``None``: that of the communicator.

    Returns:
        The results, in the order of ``tensors``.

    Raises (when the op runs):
        tf.errors.InvalidArgumentError: ranks disagree about the call.
        tf.errors.UnavailableError: a rank died or left.
        tf.errors.DeadlineExceededError: a rank did not come in time.
    """
    return _run(group, "all_reduce", tensors, names, name, timeout, op=op, algorithm=algorithm)


def broadcast(
    group: Group,
    tensors: Sequence[Any],
    root: int = 0,
    *,
    names: Sequence[str] | None = None,
    name: str | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Gives all ranks the tensors of the root. Arguments and errors are those of ``all_reduce``."""
    return _run(group, "broadcast", tensors, names, name, timeout, root=root)


def all_gather(
    group: Group, tensor: Any, *, rows: Any = None, name: str | None = None, timeout: float | None = None
) -> Any:
    """Joins the tensors of all ranks along axis 0, in which their lengths may differ.

    Args:
        rows: these lengths by rank, an int64 tensor; ``None``: the ranks exchange them first, by ``lengths``.
        group, tensor, name, timeout: as for ``all_reduce``, whose errors these are too.
    """
    tensor = tf.convert_to_tensor(tensor)
    if rows is None:
        rows = lengths(group, tensor, name=name, timeout=timeout)
    return _gather_rows(group, tensor, rows, name, timeout)


def reduce_scatter(
    group: Group,
    tensor: Any,
    op: str,
    *,
    rows: Any,
    names: Sequence[str] | None = None,
    name: str | None = None,
    timeout: float | None = None,
) -> Any:
    """Reduces a tensor over the ranks and gives each its rows of the result.

    Args:
        rows: how many each rank gets, an int64 tensor; the same on all ranks.
        group, tensor, op, names, name, timeout: as for ``all_reduce``, whose errors these are too.
    """
    return _run_vector(group, "reduce_scatter", tensor, rows, names, name, timeout, op=op)


def all_to_all(group: Group, tensor: Any, *, rows: Any, name: str | None = None, timeout: float | None = None) -> Any:
    """Gives each rank its rows of the tensor, and joins what all give to this one, in rank order.

    Args:
        rows: of shape (size, size), int64, the same on all ranks: entry (i, j) is how many rank i gives to rank j.
        group, tensor, name, timeout: as for ``all_reduce``, whose errors these are too.
    """
    return _run_vector(group, "all_to_all", tensor, tf.reshape(rows, [-1]), None, name, timeout)


def barrier(group: Group, *, name: str | None = None, timeout: float | None = None) -> Any:
    """Waits for all ranks; the result is an empty tensor. Arguments and errors are those of ``all_reduce``."""
    return _run(group, "barrier", [tf.zeros([0])], None, name, timeout)[0]


def lengths(group: Group, tensor: Any, *, name: str | None = None, timeout: float | None = None) -> Any:
    """The lengths along axis 0 of the tensors of all ranks, int64, by a small collective."""
    with tf.device("CPU:0"):
        own = tf.reshape(tf.shape(tensor, out_type=tf.int64)[0], [1])
        rows = _gather_rows(group, own, tf.ones([group.size], tf.int64), f"rows of {name or 'a tensor'}", timeout)
        rows.set_shape([group.size])
    return rows


def _gather_rows(group: Group, tensor: Any, rows: Any, name: str | None, timeout: float | None) -> Any:
    return _run_vector(group, "all_gather", tensor, rows, None, name, timeout)


def _run_vector(
    group: Group,
    collective: str,
    tensor: Any,
    rows: Any,
    names: Sequence[str] | None,
    name: str | None,
    timeout: float | None,
    **attributes: Any,
) -> Any:
    (result,) = _run(group, collective, [tensor], names, name, timeout, rows=rows, **attributes)
    result.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[1:]))
    return result


def _run(
    group: Group,
    collective: str,
    tensors: Sequence[Any],
    names: Sequence[str] | None,
    name: str | None,
    timeout: float | None,
    *,
    rows: Any = None,
    **attributes: Any,
) -> list[Any]:
    names = list(names or [])
    if name is None:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        name = ", ".join(names[:_SHOWN]) + more
    _refuse_xla(name)
    start = native.collectives_start if rows is None else native.collectives_start_parts
    token = group.token()
    with tf.device("CPU:0"), group.after_latest():
        started = start(
            values=list(tensors),
            rows=tf.zeros([0], tf.int64) if rows is None else rows,
            token=token,
            communicator=group.number,
            collective=collective,
            timeout=-1.0 if timeout is None else timeout,
            call_name=name,
            names=names,
            renewable=int(group.renewable),
            **attributes,
        )
        results = list(native.collectives_wait(handle=started.handle, results=started.results))
    group.remember(started, results)
    return results


def _refuse_xla(name: str) -> None:
    """Raises ValueError, while a function is traced, with advice; the error of XLA itself would only name the op."""
    if _private.compiled_by_xla():
        raise ValueError(
            f"'{name}' is reduced in a tf.function with jit_compile=True, and XLA can run no collectives but its own. "
            "Leave jit_compile out of the function in which replicas reduce, and of model.compile; functions that it "
            "calls may have jit_compile if they only compute"
        )


@tf.RegisterGradient("CollectivesReduceReplicas")
def _reduce_replicas_gradient(op: Any, *gradients: Any) -> list[Any]:
    kind, replicas = op.get_attr("op").decode(), op.get_attr("replicas")
    if kind not in ("sum", "avg"):
        raise LookupError(f"the gradient of a reduction by {kind!r} is not defined here; sum and avg have one")
    scaled = gradients if kind == "sum" else [g / tf.cast(replicas, g.dtype) for g in gradients]
    return [gradient for gradient in scaled for _ in range(replicas)]
