"""Finds the library of an array on a device, without importing any."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from . import device_interface, libraries
from .device import DeviceArray, Library

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
    """The library of the type of `x`, whether or not `x` itself is on a device."""
    if isinstance(x, (np.ndarray, np.generic, int, float, complex, str, bytes, bytearray, memoryview)):
        return None
    if (library := libraries.find_on_devices(x)) is not None:
        return library
    if hasattr(x, "__cuda_array_interface__"):
        return device_interface.Interface()
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return device_interface.Dlpack()
    return None
