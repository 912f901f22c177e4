"""Symmetric memory: arrays that lie at the same offset of every rank's heap."""

from __future__ import annotations

import bisect
import math
import mmap
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
_ALIGNMENT = mmap.PAGESIZE  # arrays start on pages, so that they share none, and no cache line


class _Block:
    """A block of the heap. The array over it keeps it alive, and it keeps the communicator that maps the heap."""

    def __init__(self, owner: object, address: int, count: int, dtype: np.dtype[Any]) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": (count * dtype.itemsize,),
            "typestr": "|u1",
            "data": (address, False),
        }


class Heap:
    """Allocates blocks of the heap. All ranks make the same calls, so all compute the same offsets.

    Python frees arrays at different times on different ranks, so a block is reused only when all ranks have freed it.
    Each rank reports a freed block once, at its next allocation; the cost does not depend on how many arrays are alive.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = weakref.ref(communicator)
        self._base, self._bytes = _core._heap(communicator)
        self._space = _Space()
        self._freed: deque[int] = deque()  # offsets that this rank has freed and not reported yet
        self._freed_by: dict[int, int] = {}  # by offset, how many ranks have reported it as freed; fewer than all

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
        # Where not all ranks share memory, an ordinary array serves as well.
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
        self._space.allocate(offset, nbytes)
        block = _Block(communicator, self._base + offset, math.prod(dimensions), dtype)
        weakref.finalize(block, self._freed.append, offset)
        return np.asarray(block).view(dtype).reshape(dimensions)

    def _agree(self, communicator: Communicator, nbytes: int) -> None:
        """Checks that all ranks ask for the same size, and frees the blocks that all of them have freed."""
        freed = [self._freed.popleft() for _ in range(len(self._freed))]
        sizes = np.array([nbytes, -nbytes, len(freed)], np.int64)
        communicator.all_reduce(sizes, "max", name="empty")
        if sizes[0] != -sizes[1]:
            raise MismatchError(
                f"rank {communicator.rank}: ranks asked for symmetric arrays of different sizes: this one for {nbytes} "
                f"bytes, others for {-sizes[1]} to {sizes[0]} bytes; empty() is a collective call",
                rank=communicator.rank,
                collective="empty",
            )
        if sizes[2]:
            self._free_common(
                communicator.all_gather(np.array(freed, np.int64), name="empty").tolist(), communicator.size
            )

    def _free_common(self, offsets: Iterable[int], size: int) -> None:
        """Counts the reports of all ranks and frees the blocks that all have freed; the same on every rank."""
        for offset in offsets:
            ranks = self._freed_by.pop(offset, 0) + 1
            if ranks < size:
                self._freed_by[offset] = ranks
            else:
                self._space.free(offset)

    @staticmethod
    def _reserve(communicator: Communicator, offset: int, nbytes: int) -> None:
        """Reserves memory on all ranks where a process that touches an array without memory would be killed."""
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
    """A first-fit allocator of offsets. It searches the gaps between blocks, not the blocks."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}  # offset and bytes, in whole pages
        self._gaps: list[tuple[int, int]] = []  # (begin, end), sorted; no two are adjacent
        self._end = 0  # of the last block

    def find(self, nbytes: int) -> int:
        """The offset of the next block of so many bytes."""
        return next((begin for begin, end in self._gaps if end - begin >= nbytes), self._end)

    def allocate(self, offset: int, nbytes: int) -> None:
        """Marks a block as used, at the offset from ``find``."""
        pages = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._used[offset] = pages
        if offset == self._end:
            self._end += pages
            return
        i = bisect.bisect_left(self._gaps, (offset, 0))
        end = self._gaps[i][1]
        self._gaps[i : i + 1] = [(offset + pages, end)] if offset + pages < end else []

    def free(self, offset: int) -> None:
        """Frees a block."""
        end = offset + self._used.pop(offset)
        i = bisect.bisect_left(self._gaps, (offset, 0))
        first, last = i, i
        if i > 0 and self._gaps[i - 1][1] == offset:
            first, offset = i - 1, self._gaps[i - 1][0]
        if i < len(self._gaps) and self._gaps[i][0] == end:
            last, end = i + 1, self._gaps[i][1]
        if end == self._end:  # the last block: no gap is behind it
            self._end, self._gaps[first:] = offset, []
        else:
            self._gaps[first:last] = [(offset, end)]
