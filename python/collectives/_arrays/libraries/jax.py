"""Arrays of JAX, which are immutable: a result is a new array over the memory that was reduced into."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from .. import device_interface, streams
from ..adapted import Adapted, Adapter, Array, elsewhere, type_name
from ..device import DeviceArray, Library, New
from . import Arrays


def adapter(jax: Any, x: Any) -> Adapter:
    """The adapter for arrays of the type of ``x``, a ``jax.Array``."""
    if isinstance(x, jax.core.Tracer):
        return _refuse_tracer

    def adapt(x: Any, what: str) -> Adapted:
        sharding = x.sharding
        devices = sharding.device_set
        if len(devices) != 1:
            names = ", ".join(sorted(str(d) for d in devices))
            raise TypeError(
                f"{what} is a jax.Array that is sharded over {len(devices)} devices ({names}); pass an array on one "
                "device (x.addressable_shards[i].data)"
            )
        (device,) = devices
        if device.platform != "cpu":
            raise elsewhere(what, "jax.Array", device, "pass a copy (jax.device_put(x, jax.devices('cpu')[0]))")
        try:
            array = np.asarray(x)  # waits until it is computed; no copy
        except TypeError as error:
            raise TypeError(f"{what} is a jax.Array of dtype {x.dtype} without NumPy's equivalent: {error}") from error
        shape, committed = x.shape, x.committed

        # Not jax.dlpack.from_dlpack, which accepts no bfloat16 from NumPy, no device and no sharding.
        def wrap(result: Array) -> Any:
            # Without enable_x64, JAX narrows float64 and int64, also where the program has enabled them for itself.
            wide = np.dtype(jax.dtypes.canonicalize_dtype(result.dtype)) != result.dtype
            with jax.enable_x64(True) if wide else contextlib.nullcontext():
                if committed:
                    where = sharding if result.shape == shape else device
                    return jax.device_put(result, where, may_alias=True)
                # Uncommitted, like the argument: JAX may combine it with arrays of other devices.
                with jax.default_device(device):
                    return jax.device_put(result, may_alias=True)

        return Adapted(array, False, wrap)

    return adapt


def is_cuda(device: Any) -> bool:
    """Whether it is a CUDA device. JAX calls AMD's devices "gpu", too."""
    return device.platform in ("gpu", "cuda") and "rocm" not in device.client.platform_version.lower()


def _refuse_tracer(x: Any, what: str) -> Adapted:
    raise TypeError(
        f"{what} is a {type_name(x)}, which has no value yet; call collectives outside of jax.jit, jax.grad and "
        "jax.vmap, on arrays"
    )


class OnDevices(Library):
    """Arrays of JAX, which are immutable. It does not expose its streams: the host waits until an array is computed."""

    copy_to_host = "jax.device_put(x, jax.devices('cpu')[0])"
    make_contiguous = "jax.numpy.copy(x)"

    def __init__(self, jax: Any) -> None:
        self._jax = jax

    def on_device(self, x: Any) -> bool:
        if isinstance(x, self._jax.core.Tracer):  # it has no value yet
            return False
        devices = x.sharding.device_set
        return len(devices) == 1 and is_cuda(next(iter(devices)))

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


class _Jax(Arrays):
    def adapter(self, module: Any, x: Any) -> Adapter | None:
        return adapter(module, x) if isinstance(x, module.Array) else None

    def on_devices(self, module: Any, x: Any) -> Library | None:
        return OnDevices(module) if isinstance(x, module.Array) else None


ARRAYS = _Jax()
