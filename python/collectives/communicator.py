"""The communicator. Its compiled base class has ``all_reduce``, ``broadcast``, ``reduce`` and ``barrier``: it runs a
call on one contiguous NumPy array itself and passes all others to ``_devices.dispatch``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from . import _core
from ._calls import groups, objects, symmetric
from ._calls import shrink as _shrink
from ._calls.arguments import Array
from ._calls.layout import Counts
from ._calls.vector import Options
from ._devices import dispatch, nccl, peers
from ._startup import recorder as _recorder
from .work import Work

ArrayOrList: TypeAlias = "Array | Sequence[Array]"

__all__ = ["Communicator", "Work"]


class Communicator(_core.Communicator):
    """A group of ranks, as one of them sees it.

    Made by ``init``, ``spawn`` and ``local_group``, and out of another one by ``split``, ``dup``, ``new_group`` and
    ``shrink``.

    All ranks must issue the same collectives in the same order. The result has the same bits on every rank. A
    communicator whose collective failed cannot be used again, but for ``shrink``.
    """

    def __init__(self, handle: object, *, transport: str = "auto") -> None:
        """Internal; programs call ``collectives.init``."""
        about = _core._describe(self)
        self._rank: int = about["rank"]
        self._size: int = about["size"]
        self._host: list[int] = about["host"]
        self._heap = symmetric.Heap(self)
        self._nccl = nccl.State(transport)
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

    def all_gather(
        self,
        x: ArrayOrList,
        *,
        out: ArrayOrList | None = None,
        counts: Counts = None,
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Joins the arrays of all ranks along axis 0, in rank order; every rank gets the result.

        Args:
            x: an array, or a list of arrays of one dtype (one fused collective). Shapes may differ between ranks in
                the length of axis 0; an array of no dimensions counts as one of one row.
            out: where the result goes; a new array otherwise. ``x`` may be this rank's part of it.
            counts: the rows of each rank, or one number when all have the same (for a list of arrays: such an entry
                for each). Without it the ranks exchange their lengths first; also an asynchronous call waits for that.
            algorithm, async_op, timeout, name, stream: see ``all_reduce``.

        Raises:
            MismatchError: ranks disagree in dtype, in dimensions other than the first, or in counts.
        """
        return self._run_vector("all_gather", x, out, counts, stream, algorithm, async_op, timeout, name)

    def gather(
        self,
        x: ArrayOrList,
        root: int = 0,
        *,
        out: ArrayOrList | None = None,
        counts: Counts = None,
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Joins the arrays of all ranks along axis 0 on ``root``; the other ranks get None. See ``all_gather``."""
        return self._run_vector(
            "gather", x, out, counts, stream, algorithm, async_op, timeout, name, "sum", False, None, root
        )

    def scatter(
        self,
        x: ArrayOrList | None = None,
        root: int = 0,
        *,
        out: ArrayOrList | None = None,
        counts: Counts = None,
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Splits ``x`` of rank ``root`` along axis 0; rank i gets part i.

        Args:
            x: an array or a list of arrays of one dtype on the root, None elsewhere.
            root: whose array is split.
            out: where the part of this rank goes; a new array otherwise.
            counts: the rows of each rank, given on the root; equal parts otherwise.
            algorithm, async_op, timeout, name, stream: see ``all_reduce``. The root first sends shapes and dtype to
                the others; also an asynchronous call waits for that.
        """
        return self._run_vector(
            "scatter", x, out, counts, stream, algorithm, async_op, timeout, name, "sum", False, None, root
        )

    def reduce_scatter(
        self,
        x: ArrayOrList,
        op: str = "sum",
        *,
        out: ArrayOrList | None = None,
        counts: Counts = None,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Reduces ``x`` over all ranks and splits the result along axis 0; rank i gets part i.

        Args:
            x: an array of the same shape on all ranks, or a list of arrays of one dtype (one fused collective).
            op: see ``all_reduce``.
            out: where the part of this rank goes; a new array otherwise. It may be this rank's part of ``x``.
            counts: the rows of each rank, the same on all ranks; equal parts otherwise.
            factor, algorithm, deterministic, async_op, timeout, name, stream: see ``all_reduce``.

        Raises:
            MismatchError: ranks disagree, for example in the length of ``x``.
            ValueError: axis 0 cannot be split evenly, or the counts do not add up to its length.
        """
        return self._run_vector(
            "reduce_scatter", x, out, counts, stream, algorithm, async_op, timeout, name, op, deterministic, factor
        )

    def all_to_all(
        self,
        x: ArrayOrList,
        *,
        out: ArrayOrList | None = None,
        counts: Counts = None,
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Splits ``x`` along axis 0 and gives part i to rank i; returns what all ranks gave to this one, in rank order.

        Args:
            x: an array, or a list of arrays of one dtype (one fused collective).
            out: where the result goes; a new array otherwise.
            counts: how many rows go to each rank; all ranks pass it or none. Equal parts otherwise, of the same length
                on all ranks. The ranks exchange their counts first; also an asynchronous call waits for that.
            algorithm, async_op, timeout, name, stream: see ``all_reduce``.

        Raises:
            MismatchError: ranks disagree, for example in the length of ``x`` when there are no counts.
            ValueError: axis 0 cannot be split evenly, or the counts do not add up to its length.
        """
        return self._run_vector("all_to_all", x, out, counts, stream, algorithm, async_op, timeout, name)

    def send(
        self,
        x: ArrayOrList,
        dest: int,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Sends an array, or a list of arrays of one dtype, to rank ``dest``, which calls ``recv``.

        Messages of one tag between two ranks arrive in the order of their sends; those of different tags do not wait
        for each other, nor for collectives. A short message is on its way when the call returns; a long one when the
        receiver has it.

        Args:
            x: what is sent.
            dest: a rank of this communicator, not this one.
            tag: 0 to 2**24 - 1.
            async_op, timeout, name, stream: see ``all_reduce``.

        Raises:
            MismatchError: the receiver expects other lengths or another dtype. The communicator is then closed.
        """
        return self._run_message(True, x, dest, tag, async_op, timeout, name, stream)

    def recv(
        self,
        x: ArrayOrList,
        source: int,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Receives what rank ``source`` sends with this tag into ``x``, of the same shapes and dtype; see ``send``."""
        return self._run_message(False, x, source, tag, async_op, timeout, name, stream)

    def _general_dense(self, collective: str, *arguments: Any) -> Any:
        """Called by the compiled dense collectives for all but one plain array; None stands for a missing argument."""
        return dispatch.dense(self, collective, *arguments)

    def _general_vector(self, collective: str, x: Any, out: Any, counts: Counts, stream: object, *options: Any) -> Any:
        """The same for vector collectives; `options` are the fields of ``Options``, in their order."""
        return dispatch.vector(self, collective, x, out, counts, Options(*options), stream)

    def _general_message(self, sending: bool, *arguments: Any) -> Any:
        return (dispatch.send if sending else dispatch.recv)(self, *arguments)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Splits the ranks into groups, one for each color. A collective call.

        The new communicators count their own collectives: an operation in flight on one neither waits for another
        communicator nor fails with it. They share the connections and the memory of this process, and stay open when
        this communicator is closed.

        Args:
            color: which group this rank joins, 0 or more; ``None`` for none.
            key: the ranks of a group are ordered by key, then by their rank in this communicator.

        Returns:
            The communicator of this rank's group, ``None`` without a color. It inherits the timeout.

        Raises:
            TypeError, ValueError: an argument is not acceptable. The other ranks then wait for this one.
            MismatchError: a rank made a different call.
            MemoryError: this host has no room for another group (``COLLECTIVES_SYMMETRIC_HEAP``). Where only symmetric
                memory is short, ``empty`` of the group gives ordinary arrays.
        """
        return groups.split(self, color, key)

    def dup(self) -> Communicator:
        """A communicator of the same ranks that counts its own collectives. A collective call; see ``split``."""
        return groups.dup(self)

    def new_group(self, ranks: Iterable[int]) -> Communicator | None:
        """A communicator of some of the ranks: its rank i is ``ranks[i]``. All ranks make the call; see ``split``.

        Args:
            ranks: the members, the same list on every rank.

        Returns:
            The communicator on members, ``None`` on others.

        Raises:
            ValueError: the list is empty, names a rank twice, or one that does not exist.
            MismatchError: ranks passed different lists.
        """
        return groups.new_group(self, ranks)

    def shrink(self, timeout: float | None = None) -> Communicator:
        """A communicator of the surviving ranks after this one has failed, numbered in their old order.

        Every survivor calls it, once. No process is restarted; the new communicator uses the connections and the memory
        of this one. Ranks known to be gone (their process has ended, or has closed its connections or the communicator)
        are left out at once. Ranks that do not call in time may be stopped or cut off; they are left out if a strict
        majority of the ranks of this communicator calls, and get a PeerError when they call later. A rank that dies
        meanwhile is left out as well. When no rank is missing, all are kept: use it after a MismatchError, too, or on
        a communicator that has not failed, where it works like ``dup``.

        Args:
            timeout: seconds that a rank may be silent; by default that of this communicator.

        Raises:
            DeadlineError: too many ranks are silent for the others to go on; ``peer`` is the lowest of them.
            PeerError: the other ranks continued without this one.
            CollectivesError: this communicator was shrunk before, or the host has no room for another one.
            ClosedError: ``close`` was called on this communicator before.
        """
        return _shrink.shrink(self, timeout)

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
