"""The communicator: what a rank calls.

The calls themselves (``all_reduce``, ``broadcast``, ``reduce``, ``barrier``) are methods of the compiled base class;
what is not one plain array comes back here, to ``_general``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from . import _core, _groups, _symmetric

Array: TypeAlias = npt.NDArray[Any]
ArrayOrList: TypeAlias = "Array | Sequence[Array]"

_ROOTED = ("reduce", "broadcast")
_DTYPES = "float16, bfloat16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64 and bool"


class Work:
    """A collective in flight, from a call with ``async_op=True``.

    The arrays of the call must be left alone until it is over.
    """

    def __init__(self, work: _core.Work, result: Any, finish: Callable[[], None]) -> None:
        self._work = work
        self._result = result
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end of the collective.

        Args:
            timeout: seconds; ``None`` waits as long as the collective's own deadline allows.

        Raises:
            TimeoutError: it is not over yet; the work goes on and can be waited for again.
            CollectivesError: it failed.
        """
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is {timeout!r}; seconds, at least 0, are accepted")
        if not self._work.wait(-1.0 if timeout is None else timeout):
            raise TimeoutError(f"the collective is not over after {timeout} s; it goes on and can be waited for again")
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()

    def done(self) -> bool:
        """True when the collective is over, well or not."""
        return self._work.done()

    def result(self, timeout: float | None = None) -> Any:
        """Waits as ``wait`` does and returns what the blocking call would have returned."""
        self.wait(timeout)
        return self._result

    @property
    def algorithm(self) -> str:
        """The name of the algorithm in use."""
        return self._work.algorithm


class Communicator(_core.Communicator):
    """A group of ranks, as one of them sees it. Made by ``init``, ``spawn`` and ``local_group``, and out of another one
    by ``split``, ``dup`` and ``new_group``.

    All ranks must issue the same collectives in the same order. The result has the same bits on every rank. A
    communicator whose collective failed cannot be used again.
    """

    def __init__(self, handle: object) -> None:
        """For the library; see ``collectives.init``."""
        about = _core._describe(self)
        self._rank: int = about["rank"]
        self._size: int = about["size"]
        self._host: list[int] = about["host"]
        self._heap = _symmetric.Heap(self)

    @property
    def rank(self) -> int:
        """The number of this rank, 0 to size - 1."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    @property
    def local_rank(self) -> int:
        """The number of this rank among those of its host."""
        return sum(h == self._host[self._rank] for h in self._host[: self._rank])

    @property
    def local_size(self) -> int:
        """The number of ranks on this host."""
        return sum(h == self._host[self._rank] for h in self._host)

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return bool(_core._describe(self)["closed"])

    def close(self) -> None:
        """Leaves the group. Later calls raise ClosedError; closing twice does nothing."""
        _core._close(self)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        about = _core._describe(self)
        group = f", group {about['id']}, world rank {about['world_rank']}" if about["id"] else ""
        closed = ", closed" if about["closed"] else ""
        return f"<collectives.Communicator rank {self._rank} of {self._size}{group}{closed}>"

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32) -> Array:
        """A new array in symmetric memory, which all ranks of the host have mapped: collectives on it copy nothing.

        A collective call: all ranks make it, with the same shape and dtype. Where ranks share no memory it is an
        ordinary array.

        Raises:
            MismatchError: ranks asked for different sizes.
            MemoryError: the heap is full (``COLLECTIVES_SYMMETRIC_HEAP``).
        """
        return self._heap.allocate(shape, np.dtype(dtype))

    def bytes_by_transport(self) -> dict[str, int]:
        """Payload bytes that this rank has moved so far, by transport ("local", "shm", "tcp").

        Those of this communicator only. What went over TCP is counted when a collective is over.
        """
        return _core._bytes_by_transport(self)

    def _general(
        self,
        collective: str,
        x: Any,
        op: Any,
        root: Any,
        out: Any,
        algorithm: Any,
        deterministic: Any,
        async_op: Any,
        timeout: Any,
        name: Any,
    ) -> Any:
        """One collective call with any arguments: checks them, copies what cannot take part as it is, and starts it."""
        op = "sum" if op is None else op
        root = 0 if root is None else root
        algorithm = "auto" if algorithm is None else algorithm
        _check_type("op", op, str)
        _check_type("algorithm", algorithm, str)
        _check_type("root", root, (int, np.integer))
        _check_type("name", name, (str, type(None)))
        if not 0 <= root < self._size:
            raise ValueError(f"root {root} is out of range: the group has ranks 0 to {self._size - 1}")
        if timeout is not None and not (_is_number(timeout) and timeout > 0):
            raise ValueError(f"timeout is {timeout!r}; a positive number of seconds is accepted")
        inputs: list[Array] = []
        outputs: list[Array] = []
        if collective != "barrier":
            inputs = _as_list(x, "x")
            outputs = inputs if out is None else _as_list(out, "out")
            _check_arrays(collective, inputs, outputs, op, out is not None)
        # Only these ranks' outputs are written.
        written = collective != "reduce" or root == self._rank
        read_only = [i for i, a in enumerate(outputs) if not a.flags.writeable]
        if read_only and (written or out is not None):
            which = "the array" if len(outputs) == 1 else f"tensor {read_only[0]}"
            raise ValueError(f"{which} is read-only and would be written; pass a writable array, or out=")
        contiguous_in = [_plain(a) for a in inputs]
        if out is None:
            contiguous_out = contiguous_in
        else:
            # An output that shares memory with an input cannot be written before all inputs were read.
            contiguous_in = [
                i.copy() if np.shares_memory(i, o) and not _same_memory(i, o) else i
                for i, o in zip(contiguous_in, outputs, strict=True)
            ]
            contiguous_out = [o if _is_plain(o) else np.empty(o.shape, o.dtype.newbyteorder("=")) for o in outputs]
        work = self._start(
            collective,
            contiguous_in,
            contiguous_out,
            op,
            int(root),
            algorithm,
            bool(deterministic),
            timeout,
            name,
            bool(async_op),
        )

        def finish() -> None:
            for target, source in zip(outputs, contiguous_out, strict=True):
                if target is not source and written:
                    target[...] = source

        result = None if collective == "barrier" else x if out is None else out
        pending = Work(work, result, finish)
        if async_op:
            return pending
        return pending.result()

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Parts the ranks into groups, one for each color. A collective call.

        The new communicators count their own collectives: what is in flight on one neither waits for another nor fails
        with it. They share the connections and the memory of this process, and outlive this communicator.

        Args:
            color: which group this rank joins, 0 or more; ``None`` for none.
            key: the ranks of a group are ordered by key, and by their present rank where keys are equal.

        Returns:
            The communicator of this rank's group, ``None`` without a color. It inherits the timeout.

        Raises:
            TypeError, ValueError: an argument is not acceptable. The other ranks then wait for this one.
            MismatchError: another rank made another call.
            MemoryError: this host has no room for another group (``COLLECTIVES_SYMMETRIC_HEAP``). Where only room for
                its symmetric memory is missing, ``empty`` of the group gives ordinary arrays.
        """
        return _groups.split(self, color, key)

    def dup(self) -> Communicator:
        """A communicator of the same ranks with its own sequence of collectives. A collective call; see ``split``."""
        return _groups.dup(self)

    def new_group(self, ranks: Iterable[int]) -> Communicator | None:
        """A communicator of some of the ranks: its rank i is ``ranks[i]``. A collective call of all; see ``split``.

        Args:
            ranks: the members, the same list on every rank.

        Returns:
            The communicator on members, ``None`` on others.

        Raises:
            ValueError: the list is empty, names a rank twice, or one that does not exist.
            MismatchError: ranks passed different lists.
        """
        return _groups.new_group(self, ranks)


def _check_type(name: str, value: object, accepted: type | tuple[type, ...]) -> None:
    if not isinstance(value, accepted) or isinstance(value, bool):
        names = " or ".join(t.__name__ for t in (accepted if isinstance(accepted, tuple) else (accepted,)))
        raise TypeError(f"{name} is {value!r} of type {type(value).__name__}; {names} is accepted")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_list(x: Any, what: str) -> list[Array]:
    arrays = list(x) if isinstance(x, (list, tuple)) else [x]
    for i, array in enumerate(arrays):
        if not isinstance(array, np.ndarray):
            where = f"{what}[{i}]" if isinstance(x, (list, tuple)) else what
            raise TypeError(f"{where} is of type {type(array).__name__}; a numpy.ndarray or a list of them is accepted")
    return [np.asarray(a) for a in arrays]


def _check_arrays(collective: str, inputs: list[Array], outputs: list[Array], op: str, separate: bool) -> None:
    for i, array in enumerate(inputs):
        if _core._dtype_of(array) < 0:
            raise TypeError(
                f"dtype {array.dtype} of tensor {i} cannot take part in a collective; accepted are {_DTYPES}"
            )
        if array.dtype.newbyteorder("=") != inputs[0].dtype.newbyteorder("="):
            raise TypeError(
                f"tensor {i} has dtype {array.dtype} and tensor 0 has {inputs[0].dtype}; one call takes one dtype"
            )
    if op == "avg" and inputs and inputs[0].dtype.kind in "iub" and collective in ("all_reduce", "reduce"):
        raise TypeError(f"avg of {inputs[0].dtype} would not be exact; use op='sum' and divide, or a floating dtype")
    if not separate:
        return
    if len(inputs) != len(outputs):
        raise ValueError(f"x has {len(inputs)} tensors and out has {len(outputs)}")
    for i, (source, target) in enumerate(zip(inputs, outputs, strict=True)):
        if source.shape != target.shape or source.dtype.newbyteorder("=") != target.dtype.newbyteorder("="):
            raise ValueError(
                f"out[{i}] has shape {target.shape} and dtype {target.dtype}, x[{i}] has {source.shape} and "
                f"{source.dtype}; they must be the same"
            )


def _is_plain(a: Array) -> bool:
    return bool(a.flags.c_contiguous and a.flags.aligned and a.dtype.isnative)


def _plain(a: Array) -> Array:
    """The array itself, or a contiguous copy in native byte order."""
    return a if _is_plain(a) else np.array(a, dtype=a.dtype.newbyteorder("="), order="C")


def _same_memory(a: Array, b: Array) -> bool:
    return bool(a.ctypes.data == b.ctypes.data)
