"""Arrays in the memory of CUDA devices: what a call has to know of them, and which libraries have them."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .adapted import type_name


@dataclass(frozen=True)
class DeviceArray:
    """An array of the caller in the memory of a device.

    Attributes:
        pointer: where it begins; 0 when it has no elements.
        device: the number of the device; -1 when its library does not say, which happens to empty arrays only.
        shape, dtype: as NumPy has them.
        stream: cudaStream_t, as a number, in whose order its memory may be read and written.
        writable: False when results cannot go into it.
        mutable: False where values of the kind never change (JAX): then a result is a new array.
        owner: keeps the memory alive.
        library: of the array.
        what: what the caller calls it in errors: "x", "x[2]", "out".
    """

    pointer: int
    device: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stream: int
    writable: bool
    mutable: bool
    owner: Any
    library: Library
    what: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def on(self, stream: int) -> DeviceArray:
        """The same array, to be used in the order of another stream."""
        return self if stream == self.stream else replace(self, stream=stream)


@dataclass(frozen=True)
class New:
    """A new array for a result.

    Attributes:
        array: its memory.
        finish: gives the array of the caller's library, after the copies into it were put into the stream.
    """

    array: DeviceArray
    finish: Callable[[], Any]


class Library(abc.ABC):
    """What a library of arrays shows of its arrays on devices, and how it makes new ones."""

    copy_to_host: str  # how its users do it
    make_contiguous: str

    @abc.abstractmethod
    def on_device(self, x: Any) -> bool:
        """Whether this array of the library is in the memory of a CUDA device."""

    @abc.abstractmethod
    def look(self, x: Any, what: str) -> DeviceArray:
        """The memory of an array on a device. Raises TypeError or ValueError where it cannot be used."""

    @abc.abstractmethod
    def current_stream(self, device: int) -> int | None:
        """The stream in which the library works on that device just now; None when it has no such thing."""

    @abc.abstractmethod
    def new(self, like: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> New:
        """An array on the device of `like`, in the order of its stream; of `like`'s kind if it has several."""


def not_contiguous(x: Any, what: str, library: Library) -> ValueError:
    """The error for an array on a device whose elements are not one piece of memory in C order."""
    return ValueError(
        f"{what} is a {type_name(x)} on a device whose elements are not one piece of memory in C order; pass a "
        f"contiguous copy ({library.make_contiguous}) and copy a result back"
    )
