"""Gradients of the collectives between ranks, defined as in Horovod.

Each rank differentiates its own loss. The gradient of a sum or an average over the ranks is the same reduction of the
ranks' gradients of the result. For collectives that move values without reducing them, Horovod averages the gradients
of all ranks: that is the derivative of the average of the ranks' losses, which its optimizers minimise.

The gradients of a list of tensors are one collective, too.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .. import _ops

__all__: list[str] = []


@tf.RegisterGradient("CollectivesWait")
def _wait(op: Any, *gradients: Any) -> list[Any]:
    """The results pass from Start through Wait, beside the handle."""
    return [None, *gradients]


@tf.RegisterGradient("CollectivesStart")
def _start(op: Any, _: Any, *gradients: Any) -> list[Any]:
    collective = op.get_attr("collective").decode()
    if collective == "barrier":
        return [None] * len(op.inputs)
    group = _ops.group_of(op.get_attr("communicator"))
    gradients = tuple(map(tf.convert_to_tensor, gradients))
    if collective == "all_reduce":
        results = _all_reduce(group, op, gradients)
    else:  # broadcast
        results = _ops.all_reduce(group, gradients, "avg", **_options(op))
        if group.rank != op.get_attr("root"):
            with tf.control_dependencies(results):  # else a graph of TensorFlow 1 would drop the collective
                results = [tf.zeros_like(gradient) for gradient in gradients]
    return [*results, None, None]


def _all_reduce(group: _ops.Group, op: Any, gradients: tuple[Any, ...]) -> list[Any]:
    kind = op.get_attr("op").decode()
    if kind in ("sum", "avg"):
        return _ops.all_reduce(group, gradients, kind, algorithm=op.get_attr("algorithm").decode(), **_options(op))
    count = len(gradients)
    values, results = op.inputs[:count], _results(op)
    if kind == "prod":
        totals = _ops.all_reduce(group, gradients, "sum", **_options(op))
        return [total * _others(group, value, op) for total, value in zip(totals, values, strict=True)]
    # Minimum and maximum: the gradient goes in equal shares to the ranks that have the value.
    holds = [tf.cast(tf.equal(value, result), result.dtype) for value, result in zip(values, results, strict=True)]
    both = _ops.all_reduce(group, [*gradients, *holds], "sum", **_options(op))
    return [total * hold / held for total, hold, held in zip(both[:count], holds, both[count:], strict=True)]


def _results(op: Any) -> list[Any]:
    """The results of a collective from its Wait op; the outputs of Start are memory that the engine still writes."""
    handle, *memory = op.outputs
    if isinstance(handle, tf.__internal__.EagerTensor):
        return list(memory)  # in eager mode Wait has run already
    (wait,) = (consumer for consumer in handle.consumers() if consumer.type == "CollectivesWait")
    return list(wait.outputs)


def _others(group: _ops.Group, value: Any, op: Any) -> Any:
    """The product of the values of all other ranks, computed without a division, since values may be 0."""
    all_values = _ops.all_gather(
        group, value[tf.newaxis], rows=tf.ones([group.size], tf.int64), timeout=_options(op)["timeout"]
    )
    return tf.reduce_prod(tf.concat([all_values[: group.rank], all_values[group.rank + 1 :]], 0), 0)


def _options(op: Any) -> dict[str, Any]:
    timeout = op.get_attr("timeout")
    name = op.get_attr("call_name").decode()
    return {"name": f"gradient of {name}" if name else "", "timeout": None if timeout < 0 else timeout}


@tf.RegisterGradient("CollectivesStartParts")
def _start_parts(op: Any, _: Any, gradient: Any) -> list[Any]:
    group = _ops.group_of(op.get_attr("communicator"))
    collective = op.get_attr("collective").decode()
    rows = op.inputs[1]
    options = _options(op)
    gradient = tf.convert_to_tensor(gradient)
    if collective == "all_gather":
        result = _ops.reduce_scatter(group, gradient, "avg", rows=rows, **options)
    elif collective == "all_to_all":
        table = tf.transpose(tf.reshape(rows, [group.size, group.size]))
        result = _ops.all_to_all(group, gradient, rows=table, **options)
    else:  # reduce_scatter
        kind = op.get_attr("op").decode()
        if kind not in ("sum", "avg"):
            raise LookupError(f"reduce_scatter by {kind!r} has no gradient; sum and avg have one")
        scaled = gradient * group.size if kind == "sum" else gradient
        result = _ops.all_gather(group, scaled, rows=rows, **options)
    return [result, None, None]
