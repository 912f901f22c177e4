"""Arrays in the memory of CUDA devices, and the interface to the libraries that they come from."""

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
        pointer: the address of its memory; 0 when it has no elements.
        device: the number of the device; -1 when its library does not say, which happens for empty arrays only.
        shape, dtype: as in NumPy.
        stream: the cudaStream_t, as a number, in whose order its memory may be read and written.
        writable: False when results cannot go into it.
        mutable: False for immutable kinds (JAX), whose results are new arrays.
        owner: keeps the memory alive.
        library: of the array.
        what: its name in errors: "x", "x[2]", "out".
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
        finish: makes the array of the caller's library; to be called when the copies into it are queued in the stream.
    """

    array: DeviceArray
    finish: Callable[[], Any]


class Library(abc.ABC):
    """A library of arrays on devices: how to find the memory of its arrays, and how to make new ones."""

    copy_to_host: str  # code for its users, for the text of errors
    make_contiguous: str  # the same

    @abc.abstractmethod
    def on_device(self, x: Any) -> bool:
        """Whether this array of the library is in the memory of a CUDA device."""

    @abc.abstractmethod
    def look(self, x: Any, what: str) -> DeviceArray:
        """The memory of an array on a device. Raises TypeError or ValueError where it cannot be used."""

    @abc.abstractmethod
    def current_stream(self, device: int) -> int | None:
        """The current stream of the library on that device; None when it has no such thing."""

    @abc.abstractmethod
    def new(self, like: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> New:
        """An array on the device of `like`, for use in its stream; of `like`'s kind if the library has several."""


def not_contiguous(x: Any, what: str, library: Library) -> ValueError:
    """The error for an array on a device whose elements are not one piece of memory in C order."""
    return ValueError(
        f"{what} is a {type_name(x)} on a device whose elements are not one piece of memory in C order; pass a "
        f"contiguous copy ({library.make_contiguous}) and copy a result back"
    )
