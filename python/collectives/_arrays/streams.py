"""CUDA streams, as Python libraries represent them."""

from __future__ import annotations

import operator
from typing import Any

LEGACY = 1  # cudaStreamLegacy: the default stream of a device
PER_THREAD = 2  # cudaStreamPerThread
_ATTRIBUTES = ("cuda_stream", "ptr", "handle")  # of PyTorch; of CuPy; of cuda.core and Numba
_ACCEPTED = (
    "a stream of PyTorch, CuPy, Numba or cuda.core, an object with __cuda_stream__, or the number of its cudaStream_t "
    "is accepted"
)


def handle_of(stream: Any) -> int:
    """The cudaStream_t of a stream, as a number.

    Args:
        stream: an object of a library, or the number itself; 0 and 1 are the default stream of the device.

    Raises:
        TypeError: it is no stream.
        ValueError: the number is negative.
    """
    found = _find_handle(stream)
    if found is None:
        raise TypeError(f"stream is {stream!r} of type {type(stream).__name__}; {_ACCEPTED}")
    if found < 0:
        raise ValueError(f"stream is {found}; {_ACCEPTED}")
    return found or LEGACY


def _find_handle(stream: Any) -> int | None:
    number = _number(stream)
    if number is not None:
        return number
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        shown = protocol() if callable(protocol) else protocol
        if isinstance(shown, tuple) and len(shown) == 2 and shown[0] == 0:
            return _number(shown[1])
        raise TypeError(f"__cuda_stream__ of {stream!r} gives {shown!r}; (0, number) is accepted")
    for name in _ATTRIBUTES:
        if hasattr(stream, name):
            handle = getattr(stream, name)
            # Numba's handle is a pointer of ctypes, whose value is None for the default stream.
            return (handle.value or 0) if hasattr(handle, "value") else _number(handle)
    return None


def _number(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
