"""PyTorch, CuPy and JAX on one GPU, behind the interface of gpu_checks.py."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import ml_dtypes
import numpy as np
from gpu_checks import Array, ArrayLibrary

CLOCK = 1.98e9  # cycles a second of an H200 at work; only delays are made of it


class TorchLibrary:
    name = "torch"
    mutable = True

    def __init__(self) -> None:
        import torch

        self._torch = torch
        torch.ones(1, device="cuda")  # sets CUDA up

    def array(self, values: Array) -> Any:
        torch = self._torch
        values = np.ascontiguousarray(values)
        if values.dtype == ml_dtypes.bfloat16:
            host = torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        else:
            host = torch.from_numpy(values)
        return host.to("cuda:0", copy=True)

    def read(self, x: Any) -> Array:
        torch = self._torch
        torch.cuda.synchronize()
        if x.dtype == torch.bfloat16:
            return x.view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)
        return x.cpu().numpy()

    def pointer(self, x: Any) -> int:
        return int(x.data_ptr())

    def stream(self) -> Any:
        return self._torch.cuda.Stream()

    def using(self, stream: Any) -> AbstractContextManager[Any]:
        return self._torch.cuda.stream(stream)

    def delay(self, seconds: float) -> None:
        self._torch.cuda._sleep(int(seconds * CLOCK))

    def set(self, x: Any, value: float) -> None:
        x.fill_(value)

    def busy(self, stream: Any) -> bool:
        return not stream.query()


class CupyLibrary:
    name = "cupy"
    mutable = True

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._spin = cupy.RawKernel(
            'extern "C" __global__ void spin(long long n) {'
            " long long begin = clock64(); while (clock64() - begin < n) { } }",
            "spin",
        )

    def array(self, values: Array) -> Any:
        return self._cupy.asarray(np.ascontiguousarray(values))

    def read(self, x: Any) -> Array:
        self._cupy.cuda.Device().synchronize()
        return np.asarray(x.get())

    def pointer(self, x: Any) -> int:
        return int(x.data.ptr)

    def stream(self) -> Any:
        return self._cupy.cuda.Stream(non_blocking=True)

    def using(self, stream: Any) -> AbstractContextManager[Any]:
        return stream

    def delay(self, seconds: float) -> None:
        self._spin((1,), (1,), (np.int64(seconds * CLOCK),))

    def set(self, x: Any, value: float) -> None:
        x.fill(value)

    def busy(self, stream: Any) -> bool:
        return not stream.done


class JaxLibrary:
    """The operations that immutable arrays support: no streams, no delays."""

    name = "jax"
    mutable = False

    def __init__(self) -> None:
        import jax

        jax.config.update("jax_enable_x64", True)  # else JAX narrows the arrays of the checks
        self._jax = jax
        self._device = jax.devices("cuda")[0]

    def array(self, values: Array) -> Any:
        return self._jax.device_put(np.ascontiguousarray(values), self._device)

    def read(self, x: Any) -> Array:
        return np.asarray(x)

    def pointer(self, x: Any) -> int:
        return int(x.unsafe_buffer_pointer())

    def stream(self) -> Any:
        return None

    def using(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def delay(self, seconds: float) -> None:
        raise NotImplementedError("JAX has no streams of the caller")

    def set(self, x: Any, value: float) -> None:
        raise NotImplementedError("arrays of JAX do not change")

    def busy(self, stream: Any) -> bool:
        raise NotImplementedError("JAX has no streams of the caller")


LIBRARIES: dict[str, type[ArrayLibrary]] = {"torch": TorchLibrary, "cupy": CupyLibrary, "jax": JaxLibrary}
