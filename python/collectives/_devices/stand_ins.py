"""Host arrays that stand for arrays on a device."""

from __future__ import annotations

import bisect

import numpy as np

from .._arrays.device import DeviceArray
from .._calls.arguments import Array


class StandIns:
    """Host arrays of the same shapes, which are never read or written.

    The address of a piece of a stand-in gives that of the piece on the device.
    """

    def __init__(self) -> None:
        self._known: list[tuple[int, int, int]] = []  # host addresses (begin, end) and the pointer on the device

    def add(self, array: DeviceArray) -> Array:
        """A stand-in for the array."""
        made: Array = np.empty(array.shape, array.dtype)
        if array.nbytes:
            begin = made.ctypes.data
            bisect.insort(self._known, (begin, begin + array.nbytes, array.pointer))
        return made

    def find(self, piece: Array) -> tuple[int, int]:
        """The device pointer and the bytes of a piece."""
        begin = piece.ctypes.data
        at = bisect.bisect_right(self._known, begin, key=lambda known: known[0])
        if not piece.nbytes or at == 0 or begin >= self._known[at - 1][1]:
            return 0, 0
        low, _, pointer = self._known[at - 1]
        return pointer + begin - low, piece.nbytes
