"""Objects that export their memory: the buffer protocol, ``__array_interface__``, ``__dlpack__``."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import CollectivesError
from .adapted import Adapted, Adapter, Array, elsewhere, same, type_name

# DLDeviceType of dlpack.h. NumPy can read those of the host.
_HOST_DEVICES = (1, 3, 11)
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed memory", 14: "oneAPI"}


def find(x: Any) -> Adapter | None:
    """The adapter for objects of the type of ``x``, or None when they export no memory."""
    try:
        memoryview(x).release()
    except TypeError:
        pass
    except (ValueError, BufferError):
        return buffer  # it has the protocol; the adapter raises the error with the reason
    else:
        return buffer
    if hasattr(x, "__array_interface__"):
        return interface
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return dlpack
    return None


def buffer(x: Any, what: str) -> Adapted:
    """By the buffer protocol: memoryview, bytearray, bytes, array.array, mmap, arrays of ctypes."""
    return Adapted(_view(x, what, lambda o: np.asarray(memoryview(o))), True, _wrap_buffer(x))


def interface(x: Any, what: str) -> Adapted:
    """By NumPy's own protocol, version 3."""
    return Adapted(_view(x, what, np.asarray), True, same)


def dlpack(x: Any, what: str) -> Adapted:
    """By DLPack. Versions before 1.0 do not say whether the memory is writable; NumPy then makes it read-only."""
    device, number = x.__dlpack_device__()
    if device not in _HOST_DEVICES:
        name = f"{_DEVICES.get(int(device), f'of DLPack type {int(device)}')} {number}"
        raise elsewhere(what, type_name(x), name, "copy it to the host first")
    return Adapted(_view(x, what, np.from_dlpack), True, same)


def _view(x: Any, what: str, look: Callable[[Any], Array]) -> Array:
    try:
        return look(x)
    except CollectivesError:  # also a RuntimeError; the object may have to wait for a collective
        raise
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise TypeError(f"{what} of type {type_name(x)} cannot be used as an array: {error}") from error


def _wrap_buffer(x: Any) -> Callable[[Array], Any]:
    if isinstance(x, memoryview):
        return lambda result: result.data
    if isinstance(x, (bytes, bytearray)):
        return lambda result: type(x)(result.tobytes())
    if isinstance(x, array.array):
        return lambda result: array.array(x.typecode, result.tobytes())
    return same
