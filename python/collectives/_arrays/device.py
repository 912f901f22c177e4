"""Arrays in the memory of CUDA devices: what a call has to know of them, and which libraries have them."""

from __future__ import annotations

import abc
import math
import sys
import weakref
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


_libraries: weakref.WeakKeyDictionary[type, Library | None] = weakref.WeakKeyDictionary()


def library_of(x: Any) -> Library | None:
    """The library of an array that is in the memory of a device; None when it is elsewhere, or is no array."""
    kind = type(x)
    if kind is np.ndarray:
        return None
    if kind not in _libraries:
        _libraries[kind] = _find(x)
    library = _libraries[kind]
    return library if library is not None and library.on_device(x) else None


def look(x: Any, what: str) -> DeviceArray:
    """The memory of an array for which ``library_of`` has found a library."""
    library = library_of(x)
    assert library is not None
    return library.look(x, what)


def _find(x: Any) -> Library | None:
    """The library of the type of `x`, whether or not this one is on a device."""
    from . import device_interface, device_libraries

    if isinstance(x, (np.ndarray, np.generic, int, float, complex, str, bytes, bytearray, memoryview)):
        return None
    if (torch := sys.modules.get("torch")) is not None and isinstance(x, torch.Tensor):
        return device_libraries.Torch(torch)
    if (jax := sys.modules.get("jax")) is not None and isinstance(x, jax.Array):
        return None if isinstance(x, jax.core.Tracer) else device_libraries.Jax(jax)
    if (cupy := sys.modules.get("cupy")) is not None and isinstance(x, cupy.ndarray):
        return device_libraries.Cupy(cupy)
    if hasattr(x, "__cuda_array_interface__"):
        return device_interface.Interface()
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return device_interface.Dlpack()
    return None


def not_contiguous(x: Any, what: str, library: Library) -> ValueError:
    """The error for an array on a device whose elements are not one piece of memory in C order."""
    return ValueError(
        f"{what} is a {type_name(x)} on a device whose elements are not one piece of memory in C order; pass a "
        f"contiguous copy ({library.make_contiguous}) and copy a result back"
    )
