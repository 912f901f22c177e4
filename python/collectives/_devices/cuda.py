"""Whether GPUs can be used."""

from __future__ import annotations

from .. import _core


def cuda_available() -> bool:
    """Whether arrays in GPU memory can take part in calls.

    That needs an installation with CUDA kernels (``libcollectives_cuda.so``), an NVIDIA driver and a device. The first
    call loads the library; the answer stays the same for the life of the process. Where it is False, ``python -m
    collectives info`` says why, and so does the ``BackendError`` of a call with a GPU array.
    """
    return bool(_core._device_status()["available"])
