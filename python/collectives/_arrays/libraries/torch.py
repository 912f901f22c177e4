"""Tensors of PyTorch: collectives use their memory directly, and record nothing for autograd."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ... import _core
from ...errors import CollectivesError
from .. import streams
from ..adapted import Adapted, Adapter, Array, elsewhere, type_name
from ..device import DeviceArray, Library, New, not_contiguous
from . import Arrays

_LOWEST = 1 << 16  # valid addresses are above: data_ptr() of a freed storage is only the offset of the tensor


def dtypes(torch: Any) -> dict[Any, np.dtype[Any]]:
    """NumPy's types of those of PyTorch that have one of the same name, in NumPy itself or in ml_dtypes."""
    of_numpy = [name for name in _core._dtype_names() if not hasattr(ml_dtypes, name)]
    return {getattr(torch, name): np.dtype(name) for name in of_numpy if hasattr(torch, name)} | _extended(torch)


def _extended(torch: Any) -> dict[Any, np.dtype[Any]]:
    """Those that NumPy has from ml_dtypes only; PyTorch does not export them."""
    both = [name for name in dir(ml_dtypes) if isinstance(getattr(torch, name, None), torch.dtype)]
    return {getattr(torch, name): np.dtype(getattr(ml_dtypes, name)) for name in both}


def adapter(torch: Any) -> Adapter:
    """The adapter for ``torch.Tensor`` and its subclasses."""
    to_numpy: dict[Any, tuple[Any, np.dtype[Any]]] = {}  # type: (integers of its size, NumPy's type)
    to_torch: dict[np.dtype[Any], tuple[Any, Any]] = {}  # and back
    integers = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16), 4: (torch.int32, np.int32)}  # by size
    for theirs, ours in _extended(torch).items():
        to_numpy[theirs] = (integers[ours.itemsize][0], ours)
        to_torch[ours] = (integers[ours.itemsize][1], theirs)

    def adapt(x: Any, what: str) -> Adapted:
        extended = to_numpy.get(x.dtype)
        try:
            tensor = x.detach()
            array = tensor.numpy() if extended is None else tensor.view(extended[0]).numpy().view(extended[1])
        except CollectivesError:  # also a RuntimeError; of a subclass whose values a collective has yet to bring
            raise
        except (TypeError, RuntimeError) as error:
            raise refusal(torch, x, what, error) from error
        if array.size and x.data_ptr() < _LOWEST:
            raise TypeError(f"{what} is a {type_name(x)} whose storage has been freed (resize_(0)); allocate it")
        if not array.flags.c_contiguous and 0 in array.strides:
            array.flags.writeable = False  # made by expand(): several elements share one address
        return Adapted(array, True, wrap)

    def wrap(result: Array) -> Any:
        extended = to_torch.get(result.dtype)
        if extended is None:
            return torch.from_numpy(result)
        return torch.from_numpy(result.view(extended[0])).view(extended[1])

    return adapt


def refusal(torch: Any, x: Any, what: str, error: object = "") -> TypeError:
    """The error for a tensor whose memory a collective cannot use."""
    kind = type_name(x)
    if x.device.type not in ("cpu", "cuda"):
        return elsewhere(what, kind, x.device, "pass a copy (x.cpu()) and copy the result back")
    if x.is_nested:
        return TypeError(f"{what} is a nested tensor; pass its dense parts as a list (x.unbind())")
    if x.layout != torch.strided:
        return TypeError(f"{what} is a {kind} of layout {x.layout}; pass a dense tensor (x.to_dense())")
    if x.is_quantized:
        return TypeError(f"{what} is quantised ({x.dtype}); pass x.dequantize() or x.int_repr()")
    if x.is_conj():
        return TypeError(f"{what} is a lazy complex conjugate of other memory; pass x.resolve_conj()")
    if x.is_neg():
        return TypeError(f"{what} is a lazy negative of other memory; pass x.resolve_neg()")
    return TypeError(f"{what} is a {kind} of dtype {x.dtype} without memory that NumPy can see: {error}")


class OnDevices(Library):
    """CUDA tensors of PyTorch, in the order of ``torch.cuda.current_stream``."""

    copy_to_host = "x.cpu()"
    make_contiguous = "x.contiguous()"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._dtypes = dtypes(torch)
        self._back = {ours: theirs for theirs, ours in self._dtypes.items()}

    def on_device(self, x: Any) -> bool:
        return bool(x.is_cuda)

    def look(self, x: Any, what: str) -> DeviceArray:
        torch = self._torch
        if x.is_nested or x.layout != torch.strided or x.is_quantized or x.is_conj() or x.is_neg():
            raise refusal(torch, x, what)
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


class _Torch(Arrays):
    def adapter(self, module: Any, x: Any) -> Adapter | None:
        return adapter(module) if isinstance(x, module.Tensor) else None

    def on_devices(self, module: Any, x: Any) -> Library | None:
        return OnDevices(module) if isinstance(x, module.Tensor) else None


ARRAYS = _Torch()
