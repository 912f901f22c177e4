"""The native ops of ``_tensorflow.so``, as functions on tensors, in eager mode and in graphs.

A collective across processes is two ops. ``Start`` hands it to the engine and returns at once; all Starts of a group
take the same resource, its token, so TensorFlow runs them in program order, in nested functions too, and every worker
issues its collectives in the same order. ``Wait`` gives the results; it is outside that chain and keeps no thread, so
any number of collectives can be in flight whatever the number of inter-op threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from .. import _core
from .._environment import read_num_threads
from ..communicator import Communicator
from ..errors import CollectivesError, MismatchError, PeerError
from . import _private
from ._errors import as_tensorflow

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
# A reduction over replicas is split into ops of at least so many bytes per replica, and into no more than so many,
# where that does not change the results. Ops then begin when their own tensors are there, and hand out their results,
# while others are at work. See docs/lab/tensorflow-steps.md.
_OP_BYTES = 1 << 20
_MOST_OPS = 8


_UNSAVEABLE = (
    "A function that communicates with the other workers cannot be exported: it reduces or gathers over the replicas, "
    "or reads a variable with ON_READ synchronization, whose value is made of those of all workers. Export one that "
    "does not, for example the model's call without its training step and its metrics"
)


_PATH = str(Path(_core.__file__).with_name("_tensorflow.so"))


def _load() -> tuple[Any, Any]:
    ops = tf.load_op_library(_PATH)
    library = ctypes.CDLL(_PATH)
    library.collectives_tensorflow_problem.restype = ctypes.c_char_p
    library.collectives_tensorflow_note_mismatch.argtypes = [ctypes.c_int64]
    library.collectives_tensorflow_take_note.argtypes = [ctypes.c_int64]
    library.collectives_tensorflow_take_note.restype = ctypes.c_bool
    if text := library.collectives_tensorflow_problem().decode():
        raise ImportError(f"collectives.tensorflow cannot work with TensorFlow {tf.__version__}: {text}")
    return ops, library


_native, _library = _load()
_core._limit_threads(read_num_threads())
_numbers = itertools.count()
_groups: weakref.WeakValueDictionary[int, Group] = weakref.WeakValueDictionary()  # by number


class Group:
    """The ranks of a communicator, as the ops below see them.

    Attributes:
        communicator: the communicator. The group keeps it open.
        rank, size: of this process in it.
        number: by which ops know it; that of a renewed communicator, too.
        renewable: whether the group outlives a disagreement. Its ranks then raise FailedPreconditionError, instead of
            InvalidArgumentError, and go on with the next step, by a communicator that takes the place of the old one.
            They also have to agree about the names of tensors.
    """

    def __init__(self, communicator: Communicator, *, renewable: bool = False) -> None:
        self.communicator = communicator
        self.rank = communicator.rank
        self.size = communicator.size
        self.number = _core._number_of(communicator)
        self.renewable = renewable
        self._lost = ""  # why it cannot be renewed
        _groups[self.number] = self
        self._name = f"collectives_token_{next(_numbers)}"
        self._token: Any = None  # of eager mode and of all functions in it

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        return self  # there is one of each communicator

    def replace(self, communicator: Communicator) -> None:
        """Goes on with another communicator of the same ranks; functions that were traced with the old one do too."""
        if (communicator.rank, communicator.size) != (self.rank, self.size):
            raise ValueError(f"{communicator!r} cannot take the place of rank {self.rank} of {self.size}")
        _core._renumber(self.number, communicator)
        self.communicator = communicator
        self._lost = ""

    def renew(self) -> None:
        """Goes on after a disagreement. All ranks do so.

        Raises:
            CollectivesError: they cannot; a rank has ended, say.
        """
        old = self.communicator
        if not self._lost:
            made = old.shrink()
            if made.size != self.size:
                made.close()
                self._lost = (
                    f"rank {self.rank} of {self.size} cannot go on after a disagreement between ranks: of these, "
                    f"{self.size - made.size} has ended or does not answer. Look at its output, and start the job again"
                )
        if self._lost:
            raise PeerError(self._lost, rank=self.rank)
        self.replace(made)
        old.close()

    @contextlib.contextmanager
    def beside_ops(self) -> Iterator[Communicator]:
        """The communicator for calls that are no ops, with the same consequences of a disagreement.

        Raises:
            tf.errors.FailedPreconditionError: the ranks disagree about such a call. Others as ``all_reduce``.
        """
        if _library.collectives_tensorflow_take_note(self.number):
            self.renew()
        try:
            yield self.communicator
        except CollectivesError as error:
            if isinstance(error, MismatchError):
                _library.collectives_tensorflow_note_mismatch(self.number)
            raise as_tensorflow(error, renewable=self.renewable) from error

    def token(self) -> Any:
        """The resource that all Starts take."""
        _private.mark_as_unsaveable(_UNSAVEABLE)
        with tf.init_scope(), tf.device("CPU:0"):
            if tf.executing_eagerly():
                if self._token is None:
                    self._token = self._make_token()
                return self._token
            kept = self._kept_in(tf.compat.v1.get_default_graph(), "token")
            if not kept:
                kept.append(self._make_token())
            return kept[0]

    def _kept_in(self, graph: Any, what: str) -> list[Any]:
        """What this group keeps of a graph of TensorFlow 1: in the graph, which it must not keep alive."""
        kept: list[Any] = graph.get_collection_ref(f"{self._name}_{what}")
        return kept

    def _make_token(self) -> Any:
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=self._name)

    def after_latest(self) -> Any:
        """Control dependencies that order Starts where TensorFlow does not: in graphs that are no functions."""
        if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
            return tf.control_dependencies([])
        return tf.control_dependencies(self._kept_in(tf.compat.v1.get_default_graph(), "latest"))

    def remember(self, started: Any, results: Sequence[Any]) -> None:
        """Notes a Start for the next, and that its Wait has to run, also where nobody needs the results."""
        if tf.executing_eagerly():
            return
        graph = started.handle.graph
        if graph.building_function:
            _private.must_run(results[0].op)
        else:
            self._kept_in(graph, "latest")[:] = [started.handle.op]


def group_of(number: int) -> Group:
    """The group of this number. Raises ``RuntimeError`` where it does not exist any more."""
    group = _groups.get(number)
    if group is None:
        raise RuntimeError(f"the group {number} of a collective does not exist any more")
    return group


@ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)
def _renew(number: int, problem: Any, room: int) -> None:
    """What the first op of a step calls after a disagreement."""
    text = b""
    try:
        group_of(number).renew()
    except Exception as error:
        text = (str(error) or repr(error)).encode()
    ctypes.memmove(problem, text[: room - 1] + b"\0", min(len(text), room - 1) + 1)


_library.collectives_tensorflow_renew_by(_renew)


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
        tensors: for each tensor the values of all replicas, alike in shape and dtype; these may differ between tensors.
        op: "sum", "avg" (not for integers), "min", "max" or "prod".
        combination: the order in which values are combined: "canonical", "halves" or "chain", as in
            ``collectives.cross_device_ops``.
        packs: for "chain", the number of packs.
        names: what errors call the tensors.

    Returns:
        One tensor for each of ``tensors``.
    """
    if len(tensors[0]) == 1:
        return [tf.identity(value) for (value,) in tensors]
    _refuse_xla(", ".join(list(names or [])[:_SHOWN]))
    whole = combination == "chain" or tf.executing_eagerly()  # the order of a chain depends on what is beside a tensor
    results: list[Any] = []
    for part in [slice(None)] if whole else _parts([values[0] for values in tensors]):
        members = tensors[part]
        with tf.device("CPU:0"):
            results += _native.collectives_reduce_replicas(
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


def _parts(tensors: Sequence[Any]) -> list[slice]:
    """Consecutive tensors that make an op each; what is left at the end goes to the last."""
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
    """How many collectives have been started and are not over, or are over and nobody has been told."""
    return int(_library.collectives_tensorflow_in_flight())


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
        names: what errors call the tensors.
        name: what errors call the collective; made of ``names`` when it is not given.
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
        rows: these lengths by rank, an int64 tensor; ``None``: the ranks tell each other first, by ``lengths``.
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
    return _run_parts(group, "reduce_scatter", tensor, rows, names, name, timeout, op=op)


def all_to_all(group: Group, tensor: Any, *, rows: Any, name: str | None = None, timeout: float | None = None) -> Any:
    """Gives each rank its rows of the tensor, and joins what all give to this one, in rank order.

    Args:
        rows: of shape (size, size), int64, the same on all ranks: entry (i, j) is how many rank i gives to rank j.
        group, tensor, name, timeout: as for ``all_reduce``, whose errors these are too.
    """
    return _run_parts(group, "all_to_all", tensor, tf.reshape(rows, [-1]), None, name, timeout)


def barrier(group: Group, *, name: str | None = None, timeout: float | None = None) -> Any:
    """Waits until all ranks are there; the result says nothing. Arguments and errors are those of ``all_reduce``."""
    return _run(group, "barrier", [tf.zeros([0])], None, name, timeout)[0]


def lengths(group: Group, tensor: Any, *, name: str | None = None, timeout: float | None = None) -> Any:
    """The lengths along axis 0 of the tensors of all ranks, int64, by a small collective."""
    with tf.device("CPU:0"):
        own = tf.reshape(tf.shape(tensor, out_type=tf.int64)[0], [1])
        rows = _gather_rows(group, own, tf.ones([group.size], tf.int64), f"rows of {name or 'a tensor'}", timeout)
        rows.set_shape([group.size])
    return rows


def _gather_rows(group: Group, tensor: Any, rows: Any, name: str | None, timeout: float | None) -> Any:
    return _run_parts(group, "all_gather", tensor, rows, None, name, timeout)


def _run_parts(
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
    start = _native.collectives_start if rows is None else _native.collectives_start_parts
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
        results = list(_native.collectives_wait(handle=started.handle, results=started.results))
    group.remember(started, results)
    return results


def _refuse_xla(name: str) -> None:
    """Says so while a function is traced; XLA would only say that it does not know the op."""
    if _private.compiled_by_xla():
        raise ValueError(
            f"'{name}' is reduced in a tf.function with jit_compile=True, and XLA can run no collectives but its own. "
            "Leave jit_compile out of the function in which replicas reduce, and of model.compile; functions that only "
            "compute, which it calls, may have it"
        )


@tf.RegisterGradient("CollectivesReduceReplicas")
def _reduce_replicas_gradient(op: Any, *gradients: Any) -> list[Any]:
    kind, replicas = op.get_attr("op").decode(), op.get_attr("replicas")
    if kind not in ("sum", "avg"):
        raise LookupError(f"the gradient of a reduction by {kind!r} is not defined here; sum and avg have one")
    scaled = gradients if kind == "sum" else [g / tf.cast(replicas, g.dtype) for g in gradients]
    return [gradient for gradient in scaled for _ in range(replicas)]
