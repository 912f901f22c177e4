"""Tensors of PyTorch: collectives use their CPU memory directly, and record nothing for autograd."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .adapted import Adapted, Adapter, Array, elsewhere, type_name

# Types that NumPy has from ml_dtypes only, under the same names; PyTorch does not export them.
_SHARED = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")

_LOWEST = 1 << 16  # valid addresses are above: data_ptr() of a freed storage is only the offset of the tensor


def dtypes(torch: Any) -> dict[Any, np.dtype[Any]]:
    """NumPy's types of those of PyTorch that have one."""
    found = {getattr(torch, name): np.dtype(name) for name in _SHARED if hasattr(torch, name)}
    for name in _EXTENDED:
        if hasattr(torch, name) and hasattr(ml_dtypes, name):
            found[getattr(torch, name)] = np.dtype(getattr(ml_dtypes, name))
    return found


def adapter(torch: Any) -> Adapter:
    """The adapter for ``torch.Tensor`` and its subclasses."""
    to_numpy: dict[Any, tuple[Any, np.dtype[Any]]] = {}  # type: (integers of its size, NumPy's type)
    to_torch: dict[np.dtype[Any], tuple[Any, Any]] = {}  # and back
    for name in _EXTENDED:
        if hasattr(torch, name) and hasattr(ml_dtypes, name):
            theirs, ours = getattr(torch, name), np.dtype(getattr(ml_dtypes, name))
            to_numpy[theirs] = (torch.int16 if ours.itemsize == 2 else torch.uint8, ours)
            to_torch[ours] = (np.int16 if ours.itemsize == 2 else np.uint8, theirs)

    def adapt(x: Any, what: str) -> Adapted:
        extended = to_numpy.get(x.dtype)
        try:
            tensor = x.detach()
            array = tensor.numpy() if extended is None else tensor.view(extended[0]).numpy().view(extended[1])
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
