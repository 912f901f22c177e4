"""Arrays on devices of any library that exports ``__cuda_array_interface__`` or DLPack, and new ones that do."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .. import _core
from . import streams
from .adapted import type_name
from .device import DeviceArray, Library, New, not_contiguous

CUDA, MANAGED = 2, 13  # DLDeviceType of dlpack.h
_VERSIONS = (2, 3)  # of __cuda_array_interface__
_CODES = dict(zip(_core._dtype_names(), _core._dlpack_codes(), strict=True))  # DLDataTypeCode


def dlpack_dtype(dtype: np.dtype[Any]) -> tuple[int, int]:
    """(code, bits) of DLPack, of a type that takes part in collectives."""
    return _CODES[dtype.name], dtype.itemsize * 8


def numpy_dtype(code: int, bits: int, lanes: int) -> np.dtype[Any] | None:
    """The type of DLPack, None where no such type takes part in collectives."""
    for name, known in _CODES.items():
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        if (known, dtype.itemsize * 8, 1) == (code, bits, lanes):
            return dtype
    return None


class DeviceMemory:
    """A new array on a device, for libraries from which this package cannot request one.

    ``torch.from_dlpack``, ``cupy.from_dlpack``, ``jax.dlpack.from_dlpack`` and the like make arrays of it without a
    copy, in the order of their streams; so does ``cupy.asarray`` for the types of NumPy itself.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: int, stream: int) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.stream = stream
        self._memory = _core._device_empty(device, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)

    @property
    def pointer(self) -> int:
        """The address of the memory."""
        return int(self._memory.pointer)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.kind == "V":  # a type that this protocol has no name for
            raise AttributeError(f"__cuda_array_interface__ has no name for {self.dtype}; use DLPack (from_dlpack)")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "stream": self.stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"the array can be exported only where it is, on CUDA device {self.device}")
        if stream != -1:  # -1: the consumer synchronises by itself
            _core._DeviceEvent(self.stream, self.device).stream_wait(stream or streams.LEGACY, self.device)
        return _core._to_dlpack(self, self.pointer, CUDA, self.device, self.shape, *dlpack_dtype(self.dtype))

    def as_device_array(self, like: DeviceArray) -> DeviceArray:
        """As an array of the library of `like`."""
        return DeviceArray(
            pointer=self.pointer,
            device=self.device,
            shape=self.shape,
            dtype=self.dtype,
            stream=self.stream,
            writable=True,
            mutable=True,
            owner=self,
            library=like.library,
            what=like.what,
        )


class _AnyLibrary(Library):
    copy_to_host = "with the array's library"
    make_contiguous = "made by the array's library"

    def current_stream(self, device: int) -> int | None:
        return None  # the protocols name the stream of an array, not that of a device

    def new(self, like: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> New:
        made = DeviceMemory(shape, dtype, like.device, like.stream)
        return New(made.as_device_array(like), lambda: made)


class Interface(_AnyLibrary):
    """By ``__cuda_array_interface__``, versions 2 and 3; without a stream, in the order of the default stream."""

    def on_device(self, x: Any) -> bool:
        return True

    def look(self, x: Any, what: str) -> DeviceArray:
        shown = x.__cuda_array_interface__
        if shown.get("version") not in _VERSIONS:
            raise TypeError(
                f"{what} of type {type_name(x)} shows itself by version {shown.get('version')} of "
                "__cuda_array_interface__; 2 and 3 are accepted"
            )
        if shown.get("mask") is not None:
            raise TypeError(f"{what} of type {type_name(x)} has a mask, which a collective would ignore")
        try:
            dtype = np.dtype(shown["typestr"])
        except TypeError as error:
            raise TypeError(f"{what} of type {type_name(x)} has a dtype that NumPy does not have: {error}") from error
        if dtype.kind == "V":
            raise TypeError(
                f"{what} of type {type_name(x)} has dtype {shown['typestr']!r}, and __cuda_array_interface__ has no "
                "name for bfloat16 and float8; pass an array that shows itself by DLPack"
            )
        shape = tuple(int(d) for d in shown["shape"])
        # NumPy decides what is contiguous: it ignores the strides of axes of length one.
        strides = shown.get("strides")
        seen = np.lib.stride_tricks.as_strided(np.empty((), dtype), shape, strides) if strides is not None else None
        if seen is not None and not seen.flags.c_contiguous:
            raise not_contiguous(x, what, self)
        pointer, read_only = shown["data"]
        empty = 0 in shape
        stream = shown.get("stream")
        if stream == 0:
            raise TypeError(f"{what} of type {type_name(x)} shows stream 0, which has no meaning; 1 or 2 are meant")
        return DeviceArray(
            pointer=0 if empty else int(pointer),
            device=-1 if empty else self._device(x, what, int(pointer)),
            shape=shape,
            dtype=dtype,
            stream=streams.LEGACY if stream is None else int(stream),
            writable=not read_only,
            mutable=True,
            owner=x,
            library=self,
            what=what,
        )

    @staticmethod
    def _device(x: Any, what: str, pointer: int) -> int:
        device = _core._device_of(pointer)
        if device < 0:
            raise TypeError(
                f"{what} of type {type_name(x)} has __cuda_array_interface__, but its memory at {pointer:#x} is the "
                "host's; pass an array of NumPy over it"
            )
        return device


class Dlpack(_AnyLibrary):
    """By DLPack. The array's library makes the default stream wait until the array is computed."""

    def on_device(self, x: Any) -> bool:
        return x.__dlpack_device__()[0] in (CUDA, MANAGED)

    def look(self, x: Any, what: str) -> DeviceArray:
        stream = streams.LEGACY
        try:
            capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
        except TypeError:  # from before DLPack 1.0
            capsule = x.__dlpack__(stream=stream)
        seen = _core._read_dlpack(capsule)
        dtype = numpy_dtype(*seen["dtype"])
        if dtype is None:
            code, bits, lanes = seen["dtype"]
            raise TypeError(
                f"{what} of type {type_name(x)} has elements of {bits} bits and DLPack's type {code} ({lanes} lanes), "
                f"which cannot take part in a collective; accepted are {', '.join(_CODES)}"
            )
        if not seen["contiguous"]:
            raise not_contiguous(x, what, self)
        return DeviceArray(
            pointer=0 if 0 in seen["shape"] else seen["pointer"],
            device=seen["device"],
            shape=seen["shape"],
            dtype=dtype,
            stream=stream,
            writable=not seen["read_only"],
            mutable=True,
            owner=(x, capsule),
            library=self,
            what=what,
        )
