"""The library of native ops, and the groups of ranks that they work on."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import itertools
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from .. import _core
from .._startup.environment import read_num_threads
from ..communicator import Communicator
from ..errors import CollectivesError, MismatchError, PeerError
from . import _private
from ._errors import as_tensorflow

__all__ = ["Group", "group_of", "library", "native"]

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
    library.collectives_tensorflow_schedule_renewal.argtypes = [ctypes.c_int64]
    library.collectives_tensorflow_renew.argtypes = [ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t]
    if text := library.collectives_tensorflow_problem().decode():
        raise ImportError(f"collectives.tensorflow cannot work with TensorFlow {tf.__version__}: {text}")
    return ops, library


native, library = _load()
_core._limit_threads(read_num_threads())
_numbers = itertools.count()
_groups: weakref.WeakValueDictionary[int, Group] = weakref.WeakValueDictionary()  # by number


class Group:
    """A communicator for native ops, which refer to it by a number.

    Attributes:
        communicator: the communicator. The group keeps it open.
        rank, size: of this process in it.
        number: its number in ops; it stays the same when the communicator is renewed.
        renewable: whether the group continues after a mismatch. Its ranks then raise FailedPreconditionError instead of
            InvalidArgumentError, and the next step uses a new communicator. They also compare names of tensors.
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
        return self  # a communicator has one group only

    def replace(self, communicator: Communicator) -> None:
        """Uses another communicator of the same ranks from now on, also in functions that were traced before."""
        if (communicator.rank, communicator.size) != (self.rank, self.size):
            raise ValueError(f"{communicator!r} cannot replace rank {self.rank} of {self.size}")
        _core._renumber(self.number, communicator)
        self.communicator = communicator
        self._lost = ""

    def renew(self) -> None:
        """Makes a new communicator after a mismatch. All ranks call it.

        Raises:
            CollectivesError: that is not possible, for example because a rank has ended.
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
        """The communicator for calls that are no ops; a mismatch has the same consequences as in ops.

        Raises:
            tf.errors.FailedPreconditionError: the ranks disagree about the call. Others as ``all_reduce``.
        """
        problem = ctypes.create_string_buffer(4096)
        library.collectives_tensorflow_renew(self.number, problem, len(problem))
        if problem.value:
            raise tf.errors.UnavailableError(None, None, problem.value.decode(errors="replace"))
        try:
            yield self.communicator
        except CollectivesError as error:
            if isinstance(error, MismatchError):
                library.collectives_tensorflow_schedule_renewal(self.number)
            raise as_tensorflow(error, renewable=self.renewable) from error

    def token(self) -> Any:
        """The resource that all Start ops take as input, so that TensorFlow keeps their order."""
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
        """A list of this group that belongs to a graph of TensorFlow 1: stored in the graph, not to keep that alive."""
        kept: list[Any] = graph.get_collection_ref(f"{self._name}_{what}")
        return kept

    def _make_token(self) -> Any:
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=self._name)

    def after_latest(self) -> Any:
        """Control dependencies that order Start ops where TensorFlow does not: in graphs that are no functions."""
        if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
            return tf.control_dependencies([])
        return tf.control_dependencies(self._kept_in(tf.compat.v1.get_default_graph(), "latest"))

    def remember(self, started: Any, results: Sequence[Any]) -> None:
        """Records a Start op for the next one, and makes its Wait op run even if nothing uses the results."""
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
    """Called from C++ by the first op of a step after a mismatch; writes the error, if any, to `problem`."""
    text = b""
    try:
        group_of(number).renew()
    except BaseException as error:  # no exception may propagate into C++
        text = (str(error) or repr(error)).encode()
        if isinstance(error, KeyboardInterrupt):
            _thread.interrupt_main()
    ctypes.memmove(problem, text[: room - 1] + b"\0", min(len(text), room - 1) + 1)


library.collectives_tensorflow_renew_by(_renew)
