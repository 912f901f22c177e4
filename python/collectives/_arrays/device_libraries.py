"""Arrays on devices of PyTorch, CuPy and JAX, through the API of each library."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from . import device_interface, jax_arrays, streams, torch_tensors
from .adapted import type_name
from .device import DeviceArray, Library, New, not_contiguous


class Torch(Library):
    """CUDA tensors of PyTorch, in the order of ``torch.cuda.current_stream``."""

    copy_to_host = "x.cpu()"
    make_contiguous = "x.contiguous()"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._dtypes = torch_tensors.dtypes(torch)
        self._back = {ours: theirs for theirs, ours in self._dtypes.items()}

    def on_device(self, x: Any) -> bool:
        return bool(x.is_cuda)

    def look(self, x: Any, what: str) -> DeviceArray:
        torch = self._torch
        if x.is_nested or x.layout != torch.strided or x.is_quantized or x.is_conj() or x.is_neg():
            raise torch_tensors.refusal(torch, x, what)
        if x.dtype not in self._dtypes:
            raise TypeError(f"{what} is a {type_name(x)} of dtype {x.dtype}, which NumPy does not have")
        if not x.is_contiguous():
            raise not_contiguous(x, what, self)
        return self._describe(x, what, self.current_stream(x.device.index))

    def _describe(self, x: Any, what: str, stream: int) -> DeviceArray:
        return DeviceArray(
            pointer=x.data_ptr() if x.numel() else 0,
            device=x.device.index,
            shape=tuple(x.shape),
            dtype=self._dtypes[x.dtype],
            stream=stream,
            writable=True,
            mutable=True,
            owner=x,
            library=self,
            what=what,
        )

    def current_stream(self, device: int) -> int:
        return int(self._torch.cuda.current_stream(device).cuda_stream) or streams.LEGACY

    def new(self, like: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> New:
        made = self._torch.empty(shape, dtype=self._back[dtype], device=f"cuda:{like.device}")
        if like.stream != self.current_stream(like.device):  # PyTorch's allocator knows only the current stream
            cuda = self._torch.cuda
            default = like.stream == streams.LEGACY  # PyTorch has no ExternalStream for it
            made.record_stream(
                cuda.default_stream(like.device) if default else cuda.ExternalStream(like.stream, device=like.device)
            )
        return New(self._describe(made, like.what, like.stream), lambda: made)


class Cupy(Library):
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


class Jax(Library):
    """Arrays of JAX, which are immutable. It does not expose its streams: the host waits until an array is computed."""

    copy_to_host = "jax.device_put(x, jax.devices('cpu')[0])"
    make_contiguous = "jax.numpy.copy(x)"

    def __init__(self, jax: Any) -> None:
        self._jax = jax

    def on_device(self, x: Any) -> bool:
        devices = x.sharding.device_set
        return len(devices) == 1 and jax_arrays.is_cuda(next(iter(devices)))

    def look(self, x: Any, what: str) -> DeviceArray:
        (device,) = x.sharding.device_set
        x.block_until_ready()  # waits for this array, not for the device
        number = int(device.local_hardware_id)
        return DeviceArray(
            pointer=x.unsafe_buffer_pointer() if x.size else 0,
            device=number,
            shape=tuple(x.shape),
            dtype=np.dtype(x.dtype),
            stream=self.current_stream(number),
            writable=False,
            mutable=False,
            owner=x,
            library=self,
            what=what,
        )

    def current_stream(self, device: int) -> int:
        return streams.LEGACY

    def new(self, like: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> New:
        made = device_interface.DeviceMemory(shape, dtype, like.device, like.stream)
        jax, source = self._jax, like.owner

        def finish() -> Any:
            # Without enable_x64, JAX narrows float64 and int64, also where the program has enabled them for itself.
            wide = np.dtype(jax.dtypes.canonicalize_dtype(dtype)) != dtype
            with jax.enable_x64(True) if wide else contextlib.nullcontext():
                array = jax.dlpack.from_dlpack(made)  # JAX's stream waits for ours
                return jax.device_put(array, source.sharding) if source.committed and source.shape == shape else array

        return New(made.as_device_array(like), finish)
