"""Tensors of PyTorch: CPU memory is used as it is, without recording anything for autograd."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .adapted import Adapted, Adapter, Array, elsewhere, type_name

# Types that NumPy has from ml_dtypes only, under the same names; PyTorch does not export them.
_EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")


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
            raise _refusal(torch, x, what, error) from error
        if not array.flags.c_contiguous and 0 in array.strides:
            array.flags.writeable = False  # made by expand(): several elements are one place of memory
        return Adapted(array, True, wrap)

    def wrap(result: Array) -> Any:
        extended = to_torch.get(result.dtype)
        if extended is None:
            return torch.from_numpy(result)
        return torch.from_numpy(result.view(extended[0])).view(extended[1])

    return adapt


def _refusal(torch: Any, x: Any, what: str, error: Exception) -> TypeError:
    kind = type_name(x)
    if x.device.type != "cpu":
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
