"""Symmetric memory: arrays that lie at the same offset of every rank's heap."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _core
from .errors import MismatchError

if TYPE_CHECKING:
    from .communicator import Communicator

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
    freed theirs, which they find out together at the next allocation.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = weakref.ref(communicator)
        self._base, self._bytes = _core._heap(communicator)
        self._live: list[tuple[int, int]] = []  # offset and bytes, in the order of allocation
        self._freed: set[int] = set()  # offsets that this rank has freed

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
        offset = self._find(nbytes)
        if _core._memory_is_counted():
            self._reserve(communicator, offset, nbytes)
        _core._use_heap(communicator, offset + nbytes)
        self._live.append((offset, nbytes))
        block = _Block(communicator, self._base + offset, math.prod(dimensions), dtype)
        weakref.finalize(block, self._freed.add, offset)
        return np.asarray(block).view(dtype).reshape(dimensions)

    def _agree(self, communicator: Communicator, nbytes: int) -> None:
        """Makes sure that all ranks ask for the same, and drops the pieces that all have freed."""
        sizes = np.array([nbytes, -nbytes], np.int64)
        communicator.all_reduce(sizes, "max", name="empty")
        if sizes[0] != -sizes[1]:
            raise MismatchError(
                f"rank {communicator.rank}: ranks asked for symmetric arrays of different sizes: this one for {nbytes} "
                f"bytes, others for {-sizes[1]} to {sizes[0]} bytes; empty() is a collective call",
                rank=communicator.rank,
                collective="empty",
            )
        if self._live:
            freed = np.array([offset in self._freed for offset, _ in self._live], np.bool_)
            communicator.all_reduce(freed, "min", name="empty")
            self._freed.difference_update(o for (o, _), gone in zip(self._live, freed, strict=True) if gone)
            self._live = [piece for piece, gone in zip(self._live, freed, strict=True) if not gone]

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

    def _find(self, nbytes: int) -> int:
        """First fit: the lowest gap that is large enough."""
        end = 0
        for offset, size in sorted(self._live):
            if offset - end >= nbytes:
                break
            end = -(-(offset + size) // _ALIGNMENT) * _ALIGNMENT
        if end + nbytes > self._bytes:
            raise MemoryError(
                f"the symmetric heap of {self._bytes} bytes has no room for {nbytes} more; raise "
                "COLLECTIVES_SYMMETRIC_HEAP on all ranks"
            )
        return end
