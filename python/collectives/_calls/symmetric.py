"""Symmetric memory: arrays that lie at the same offset of every rank's heap."""

from __future__ import annotations

import bisect
import math
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import MismatchError

if TYPE_CHECKING:
    from ..communicator import Communicator

_MOST = (1 << 62) - 1  # bytes of an array
_ALIGNMENT = 4096  # arrays start on pages, so that they share no cache line


class _Block:
    """A piece of the heap. The array made of it keeps it, and it keeps the communicator, whose mapping it is."""

    def __init__(self, owner: object, address: int, count: int, dtype: np.dtype[Any]) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": (count * dtype.itemsize,),
            "typestr": "|u1",
            "data": (address, False),
        }


class Heap:
    """Hands out pieces of the heap. All ranks make the same calls, so all come to the same offsets.

    Python frees arrays at different times on different ranks. A piece is therefore used again only when all ranks have
    freed theirs. At the next allocation each tells the others, once, what it has freed; so an allocation costs no more
    where many arrays live.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = weakref.ref(communicator)
        self._base, self._bytes = _core._heap(communicator)
        self._space = _Space()
        self._freed: deque[int] = deque()  # offsets that this rank has freed, and not told
        self._tellers: dict[int, int] = {}  # by offset, how many ranks have told so, where not all have

    def allocate(self, shape: int | Sequence[int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """See ``Communicator.empty``."""
        communicator = self._communicator()
        assert communicator is not None  # the caller is one of its methods
        dimensions = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        if any(d < 0 for d in dimensions):
            raise ValueError(f"shape {dimensions} has a negative dimension")
        if dtype.hasobject:
            raise TypeError(f"dtype {dtype} holds Python objects, which cannot be shared")
        nbytes = math.prod(dimensions) * dtype.itemsize
        if nbytes > _MOST:
            raise ValueError(
                f"an array of shape {dimensions} and dtype {dtype} has {nbytes} bytes; at most {_MOST} are possible"
            )
        self._agree(communicator, nbytes)
        # Where not all ranks share memory an ordinary array is as good.
        if self._bytes == 0 or nbytes == 0 or communicator.local_size != communicator.size:
            return np.empty(dimensions, dtype)
        offset = self._space.find(nbytes)
        if offset + nbytes > self._bytes:
            raise MemoryError(
                f"the symmetric heap of {self._bytes} bytes has no room for {nbytes} more; raise "
                "COLLECTIVES_SYMMETRIC_HEAP on all ranks"
            )
        if _core._memory_is_counted():
            self._reserve(communicator, offset, nbytes)
        _core._use_heap(communicator, offset + nbytes)
        self._space.take(offset, nbytes)
        block = _Block(communicator, self._base + offset, math.prod(dimensions), dtype)
        weakref.finalize(block, self._freed.append, offset)
        return np.asarray(block).view(dtype).reshape(dimensions)

    def _agree(self, communicator: Communicator, nbytes: int) -> None:
        """Makes sure that all ranks ask for the same, and frees the pieces that all have freed."""
        told = [self._freed.popleft() for _ in range(len(self._freed))]
        sizes = np.array([nbytes, -nbytes, len(told)], np.int64)
        communicator.all_reduce(sizes, "max", name="empty")
        if sizes[0] != -sizes[1]:
            raise MismatchError(
                f"rank {communicator.rank}: ranks asked for symmetric arrays of different sizes: this one for {nbytes} "
                f"bytes, others for {-sizes[1]} to {sizes[0]} bytes; empty() is a collective call",
                rank=communicator.rank,
                collective="empty",
            )
        if sizes[2]:
            self._hear(communicator.all_gather(np.array(told, np.int64), name="empty").tolist(), communicator.size)

    def _hear(self, offsets: Iterable[int], size: int) -> None:
        """Frees what all have freed, after each has told what it has. The same on every rank."""
        for offset in offsets:
            tellers = self._tellers.pop(offset, 0) + 1
            if tellers < size:
                self._tellers[offset] = tellers
            else:
                self._space.free(offset)

    @staticmethod
    def _reserve(communicator: Communicator, offset: int, nbytes: int) -> None:
        """Makes sure that there is memory on all ranks, where touching an array would end the process otherwise."""
        failure: OSError | None = None
        try:
            _core._reserve_heap(communicator, offset, nbytes)
        except OSError as error:
            failure = error
        enough = np.array([failure is None])
        communicator.all_reduce(enough, "min", name="empty")
        if not enough[0]:
            who = f"rank {communicator.rank}" if failure is not None else "another rank"
            raise MemoryError(f"{who} has no memory for {nbytes} bytes of symmetric memory") from failure


class _Space:
    """Which pieces are taken; the lowest gap that is large enough is the next.

    The pieces themselves are not ordered: only gaps between them are looked through.
    """

    def __init__(self) -> None:
        self._taken: dict[int, int] = {}  # offset and bytes, in whole pages
        self._gaps: list[tuple[int, int]] = []  # from where to where, in order; no two touch
        self._end = 0  # behind all pieces

    def find(self, nbytes: int) -> int:
        """Where a piece of so many bytes would lie."""
        return next((begin for begin, end in self._gaps if end - begin >= nbytes), self._end)

    def take(self, offset: int, nbytes: int) -> None:
        """Takes a piece where ``find`` has said."""
        pages = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._taken[offset] = pages
        if offset == self._end:
            self._end += pages
            return
        i = bisect.bisect_left(self._gaps, (offset, 0))
        end = self._gaps[i][1]
        self._gaps[i : i + 1] = [(offset + pages, end)] if offset + pages < end else []

    def free(self, offset: int) -> None:
        """Gives a piece back."""
        end = offset + self._taken.pop(offset)
        i = bisect.bisect_left(self._gaps, (offset, 0))
        first, last = i, i
        if i > 0 and self._gaps[i - 1][1] == offset:
            first, offset = i - 1, self._gaps[i - 1][0]
        if i < len(self._gaps) and self._gaps[i][0] == end:
            last, end = i + 1, self._gaps[i][1]
        if end == self._end:  # then the list ends here
            self._end, self._gaps[first:] = offset, []
        else:
            self._gaps[first:last] = [(offset, end)]
