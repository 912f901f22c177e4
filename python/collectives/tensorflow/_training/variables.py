"""Broadcasts variables and objects of one rank to all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from .. import _ops
from .autograph import do_not_convert
from .calls import check_root
from .checks import as_tensor
from .names import check_process_set, global_process_set
from .world import group

__all__ = [
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "plain",
    "variable_name",
]

_NUMBER = re.compile(r"_[0-9]+(?![0-9A-Za-z])")  # also inside of a name: adam/dense_1_kernel_momentum


def plain(variable: Any) -> Any:
    """The ``tf.Variable`` in a variable of Keras 3; any other variable as it is."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def variable_name(variable: Any) -> str:
    """The name of a variable that ranks compare: its path in Keras 3, which names the layer, else its name.

    Numbers of layers are removed: Keras numbers the layers of a process, as ``dense_1``, so a rank that has made
    another model, to evaluate it for example, has other numbers.
    """
    name = str(getattr(variable, "path", None) or getattr(variable, "name", "") or "")
    return _NUMBER.sub("", name) if "/" in name else name


@do_not_convert
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: Any = global_process_set, inplace: bool = False
) -> None:
    """Sets variables to their values on rank ``root_rank``, in one collective for each dtype.

    It works in eager mode and in a function. In a function it runs in the order of the statements, after the
    assignments above it.

    Args:
        variables: of TensorFlow or Keras, as ``model.variables`` or ``optimizer.variables``, or the method of that name
            of optimizers of Keras 2. Names, shapes and dtypes must be the same on all ranks.
        root_rank: the same on all ranks.
        process_set, inplace: for Horovod's programs; ``global_process_set`` is accepted.

    Raises:
        ValueError: before ``init``; there is no such rank.
        TypeError: an entry is no variable, or a variable of strings.
        tf.errors.FailedPreconditionError: ranks disagree; raised on all of them, with both lists.

    Example:
        >>> hvd.broadcast_variables(model.variables, root_rank=0)
    """
    check_process_set(process_set)
    broadcast_(variables, root_rank)


@do_not_convert
def broadcast_(
    variables: Iterable[Any], root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> list[Any]:
    """``broadcast_variables`` that returns the new values, as tensors."""
    check_process_set(process_set)
    root_rank = check_root(root_rank, "broadcast_variables")
    given = _list_of(variables)
    tensors = []
    for variable in given:
        inner = plain(variable)
        if not isinstance(inner, tf.Variable):
            raise TypeError(f"broadcast_variables: {variable!r} is of type {type(variable).__name__} and no variable")
        tensors.append(as_tensor(inner.read_value(), variable_name(variable), "broadcast_variables"))
    by_dtype: dict[tf.DType, list[int]] = {}
    for k, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype, []).append(k)
    for chosen in by_dtype.values():
        names = [variable_name(given[k]) for k in chosen]
        values = _ops.broadcast(group(), [tensors[k] for k in chosen], root_rank, names=names, name=name)
        for k, value in zip(chosen, values, strict=True):
            plain(given[k]).assign(value)
            tensors[k] = value
    return tensors


def _list_of(variables: Any) -> list[Any]:
    if callable(variables):  # optimizer.variables of Keras 2
        variables = variables()
    if isinstance(variables, Iterable) and not isinstance(plain(variables), tf.Variable):
        return list(variables)
    raise TypeError(
        f"broadcast_variables: variables is of type {type(variables).__name__}; a list of variables is accepted, as "
        "model.variables"
    )


@do_not_convert
def broadcast_global_variables(root_rank: int) -> Any:
    """An op that gives all global variables of a TensorFlow 1 graph the values of rank ``root_rank``.

    Raises:
        RuntimeError: in eager mode, where there are none.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables is for graphs of TensorFlow 1; in eager mode use "
            "broadcast_variables(model.variables, root_rank=0)"
        )
    root_rank = check_root(root_rank, "broadcast_global_variables")
    variables = tf.compat.v1.global_variables()
    names = [variable_name(variable) for variable in variables]
    tensors = [variable.read_value() for variable in variables]
    values = [_ops.broadcast(group(), [t], root_rank, names=[n])[0] for t, n in zip(tensors, names, strict=True)]
    return tf.group(*[v.assign(value) for v, value in zip(variables, values, strict=True)])


@do_not_convert
def broadcast_object(
    obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Gives every rank the object of rank ``root_rank``; ``obj`` of other ranks is ignored.

    Args:
        obj: any object that can be pickled. Unpickling runs code that the root chooses: use it only where you trust all
            ranks of the job.
        root_rank: the same on all ranks.
        session: of TensorFlow 1; None is accepted.
        name: for Horovod's programs; not used.
        process_set: see ``allreduce``.

    Returns:
        the object; on the root ``obj`` itself.
    """
    check_process_set(process_set)
    _refuse_in_graphs(session, "broadcast_object")
    root_rank = check_root(root_rank, "broadcast_object")
    with group().beside_ops() as communicator:
        return communicator.broadcast_object(obj, root_rank)


@do_not_convert
def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> list[Any]:
    """The objects of all ranks, by rank. See ``broadcast_object``."""
    check_process_set(process_set)
    _refuse_in_graphs(session, "allgather_object")
    with group().beside_ops() as communicator:
        return communicator.all_gather_object(obj)


def _refuse_in_graphs(session: Any, call: str) -> None:
    if session is not None or not tf.executing_eagerly():
        raise RuntimeError(f"{call} works in eager mode only: call it outside of functions, and without a session")
