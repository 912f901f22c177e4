"""The communicator. Its compiled base class has ``all_reduce``, ``broadcast``, ``reduce``, ``scan``, ``exscan`` and
``barrier``: it runs a call on one contiguous NumPy array itself and passes all others to ``_devices.dispatch``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from . import _core
from ._calls import explanation, objects, sparse, symmetric
from ._calls.arguments import Array
from ._calls.group_calls import GroupCalls
from ._calls.message_calls import MessageCalls
from ._calls.options import CallOptions
from ._calls.vector_calls import VectorCalls
from ._devices import dispatch, nccl, peers
from ._startup import joined
from ._startup import recorder as _recorder
from .work import Work

__all__ = ["Communicator", "Work"]

Indices = TypeVar("Indices", bound=Array)
Values = TypeVar("Values", bound=Array)


class Communicator(VectorCalls, MessageCalls, GroupCalls):
    """A group of ranks, as one of them sees it.

    Made by ``init``, ``spawn`` and ``local_group``, and out of another one by ``split``, ``dup``, ``new_group`` and
    ``shrink``.

    All ranks must issue the same collectives in the same order. The result has the same bits on every rank. A
    communicator whose collective failed cannot be used again, but for ``shrink``.
    """

    def __init__(self, handle: object, *, transport: str = "auto") -> None:
        """Internal; programs call ``collectives.init``."""
        about = _core._describe(self)
        self._rank = about["rank"]
        self._size = about["size"]
        self._host: list[int] = about["host"]
        self._heap = symmetric.Heap(self)
        self._nccl = nccl.State(transport)
        self._number: int = about["id"]
        self._pid = os.getpid()  # a forked child has no devices
        self._device_peers: dict[int, _core._DevicePeers | None] = {}  # at most one entry; see _devices/peers.py

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
        self._nccl.close()
        peers.leave(self)
        _core._close(self)
        joined.forget(self)

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
        """Payload bytes that this rank has moved so far, by transport ("local", "shm", "tcp", ...).

        Those of this communicator only. What went over TCP is counted when a collective is over.
        """
        return _core._bytes_by_transport(self)

    def recorder(self) -> list[dict[str, Any]]:
        """The last 1000 collectives and messages of this rank in all its communicators, the newest last.

        Returns:
            for each a dict: ``communicator`` (0 is the world), ``sequence``, ``collective``, ``op``, ``root``,
            ``peer`` and ``tag`` (messages), ``dtype``, ``elements``, ``bytes``, ``tensors``, ``algorithm``, ``name``
            (47 bytes of it at most), ``state`` (queued, active, done or failed), and ``posted``, ``started`` and
            ``ended`` in seconds since 1970. What does not apply is ``None``; so are ``started`` and ``ended`` of a call
            that finished at once.
        """
        return _recorder.entries(self)

    @overload
    def all_reduce_sparse(
        self,
        indices: Indices,
        values: Values,
        op: str = "sum",
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        name: str | None = None,
    ) -> tuple[Indices, Values]: ...
    @overload
    def all_reduce_sparse(
        self,
        indices: Indices,
        values: Values,
        op: str = "sum",
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        name: str | None = None,
    ) -> Work[tuple[Indices, Values]]: ...
    def all_reduce_sparse(
        self,
        indices: Any,
        values: Any,
        op: str = "sum",
        *,
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
    ) -> Any:
        """Adds up rows of a long array of which each rank has a few, as in gradients of embeddings.

        Rows that no rank has do not occur, and count as zeros where only some have them.

        Args:
            indices: which rows this rank has, shape (n,), int32 or int64, at least 0. Any order; where an index occurs
                several times, its rows are added up. Each rank may have another n, also 0.
            values: the rows, shape (n, ...), of the same dtype and the same other dimensions on all ranks.
            op: "sum", or "avg" (not for integers), which divides by the number of ranks.
            async_op, timeout, name: see ``all_reduce``. The ranks exchange their lengths first; also an asynchronous
                call waits for that. The sum is computed when you ask for the result.

        Returns:
            indices and values of the sum, with the same bits on all ranks, and of the kinds of those given: each index
            once, in rising order. A rank adds up its own rows first; then those of the ranks are added from rank 0
            upwards. Types narrower than float32 are summed in float32, and rounded both times.

        Raises:
            TypeError: an array is on a device, or of a dtype that is not accepted.
            MismatchError: ranks disagree in op, dtypes or dimensions other than the first. They can go on.

        Example:
            >>> rows, gradient = comm.all_reduce_sparse(np.array([7, 2, 7]), np.ones((3, 64)))  # rows is [2, 7]
            >>> embedding[rows] -= rate * gradient
        """
        return sparse.all_reduce(self, indices, values, op, async_op, timeout, name)

    def explain(self, collective: str, *, nbytes: int, root: int = 0) -> explanation.Explanation:
        """Which algorithm ``algorithm="auto"`` takes for a call, and what is expected of the others.

        Between hosts the schedules of all ranks are run in virtual time, with the rate and latency of
        ``COLLECTIVES_NETWORK``; on one host, and from 65 ranks on, formulas are asked. No rank communicates.

        Args:
            collective: "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather",
                "scatter", "barrier", "scan" or "exscan".
            nbytes: the bytes that a rank gives or gets, whichever is more; parts are of equal length.
            root: where there is one.

        Returns:
            the candidates with their predicted times; as text a table, and ``chosen`` is the name of the fastest.

        Raises:
            ValueError: there is no such collective or root, or `nbytes` is negative.

        Example:
            >>> print(comm.explain("all_reduce", nbytes=4 << 20))
        """
        return explanation.explain(self, collective, nbytes, root)

    def _general_dense(self, collective: str, x: Any, out: Any, options: CallOptions) -> Any:
        """Called by the compiled dense collectives for all but one plain array."""
        return dispatch.dense(self, collective, x, out, options)

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        """Gives every rank the object of rank ``root``. The root gets `obj` itself; `obj` of other ranks is ignored.

        Contiguous NumPy arrays inside are not copied into the pickle; they are read-only where those of the root are.
        Unpickling runs code that the sender chooses: use it only where you trust all ranks of the job.

        Raises:
            CollectivesError: `root` could not pickle `obj`; the root raises the error itself. A rank that cannot
                unpickle raises that error. In both cases the communicator can still be used.
        """
        return objects.broadcast_object(self, obj, root)

    def all_gather_object(self, obj: Any) -> list[Any]:
        """The objects of all ranks, by rank; the entry of this rank is `obj` itself. See ``broadcast_object``."""
        return objects.all_gather_object(self, obj)

    def gather_object(self, obj: Any, root: int = 0) -> list[Any] | None:
        """As ``all_gather_object``, but only rank ``root`` gets the list; the others get None."""
        return objects.gather_object(self, obj, root)

    def scatter_object(self, objs: Sequence[Any] | None, root: int = 0) -> Any:
        """Gives rank i entry i of `objs` of rank ``root``. The root gets its entry uncopied; others may pass None.

        Raises TypeError or ValueError on `root` where `objs` is not one object for each rank, and CollectivesError on
        the others. See ``broadcast_object``.
        """
        return objects.scatter_object(self, objs, root)
