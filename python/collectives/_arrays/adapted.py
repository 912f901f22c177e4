"""An array of any library as the engine uses it, and memory for new ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

ACCEPTED = (
    "a numpy.ndarray, a CPU array of PyTorch, JAX or TensorFlow, an object with the buffer protocol, "
    "__array_interface__ or __dlpack__, or a list of these"
)
ALIGNMENT = 64  # bytes: JAX and TensorFlow adopt memory with this alignment without a copy


class Adapted(NamedTuple):
    """An array of the caller.

    Attributes:
        array: the caller's memory. It keeps the caller's object alive.
        mutable: whether results go into this memory. False for immutable kinds (JAX, TensorFlow), whose results are
            new objects. A read-only buffer is of a mutable kind; the flags of ``array`` say that it cannot be written.
        wrap: turns a new array, which nothing else will write, into the caller's kind. Copies nothing when the array
            comes from ``empty`` and the kind can adopt memory.
    """

    array: Array
    mutable: bool
    wrap: Callable[[Array], Any]


Adapter: TypeAlias = Callable[[Any, str], Adapted]  # of an object and its name in errors: "x", "x[2]", "out"


def same(array: Array) -> Array:
    """``Adapted.wrap`` of kinds whose results are NumPy arrays."""
    return array


def is_aligned(array: Array) -> bool:
    """Whether other libraries can adopt the memory."""
    return bool(array.ctypes.data % ALIGNMENT == 0)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array in native byte order whose memory any ``Adapted.wrap`` can adopt."""
    native = dtype.newbyteorder("=")
    nbytes = math.prod(shape) * native.itemsize
    store = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -store.ctypes.data % ALIGNMENT
    array: Array = store[start : start + nbytes].view(native).reshape(shape)
    return array


def type_name(x: object) -> str:
    """The type as its users write it: ``torch.Tensor``, ``bytes``."""
    kind = type(x)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def elsewhere(what: str, kind: str, device: object, advice: str) -> TypeError:
    """The error for an array that is neither in the host's memory nor in that of a CUDA device."""
    return TypeError(
        f"{what} is a {kind} on device {device}; arrays in the memory of the CPU and of CUDA devices are accepted: "
        f"{advice}"
    )
