"""Arrays of JAX, which are immutable: a result is a new array over the memory that was reduced into."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from .adapted import Adapted, Adapter, Array, elsewhere, type_name


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
