"""Arrays of CuPy, which are all in the memory of CUDA devices."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from .. import streams
from ..device import DeviceArray, Library, New, not_contiguous
from . import Arrays


class OnDevices(Library):
    """Arrays of CuPy, in the order of ``cupy.cuda.get_current_stream``."""

    copy_to_host = "x.get()"
    make_contiguous = "cupy.ascontiguousarray(x)"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def on_device(self, x: Any) -> bool:
        return True

    def look(self, x: Any, what: str) -> DeviceArray:
        if not x.flags.c_contiguous:
            raise not_contiguous(x, what, self)
        device = int(x.device.id)
        return self._describe(x, what, device, self.current_stream(device))

    def _describe(self, x: Any, what: str, device: int, stream: int) -> DeviceArray:
        return DeviceArray(
            pointer=int(x.data.ptr) if x.size else 0,
            device=device,
            shape=tuple(x.shape),
            dtype=np.dtype(x.dtype),
            stream=stream,
            writable=True,
            mutable=True,
            owner=x,
            library=self,
            what=what,
        )

    def current_stream(self, device: int) -> int:
        return int(self._cupy.cuda.get_current_stream(device).ptr) or streams.LEGACY

    def new(self, like: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> New:
        cupy = self._cupy
        # CuPy's pool hands out memory for immediate use in the stream that is current at the allocation.
        usual = like.stream == self.current_stream(like.device)
        on = contextlib.nullcontext() if usual else cupy.cuda.ExternalStream(like.stream, like.device)
        with cupy.cuda.Device(like.device), on:
            made = cupy.empty(shape, dtype)
        return New(self._describe(made, like.what, like.device, like.stream), lambda: made)


class _Cupy(Arrays):
    def on_devices(self, module: Any, x: Any) -> Library | None:
        return OnDevices(module) if isinstance(x, module.ndarray) else None


ARRAYS = _Cupy()
