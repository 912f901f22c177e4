"""Tensors of a call: what is accepted, and how the engine sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from .. import _core
from .._arrays import adapt
from .._arrays.adapted import Array
from .._calls.arguments import listed

# The engine's name of each operation, by its number in torch.
OPS: list[str | None] = [None] * 16
for _theirs, _ours in {
    "SUM": "sum",
    "AVG": "avg",
    "PRODUCT": "prod",
    "MIN": "min",
    "MAX": "max",
    "BAND": "bitwise_and",
    "BOR": "bitwise_or",
    "BXOR": "bitwise_xor",
}.items():
    OPS[hash(ReduceOp(getattr(ReduceOp, _theirs)))] = _ours

DTYPES = {getattr(torch, name) for name in _core._dtype_names() if isinstance(getattr(torch, name, None), torch.dtype)}


def operation(op: Any) -> tuple[str, float | None]:
    """The engine's name of a ``ReduceOp``, and the factor where it has one. Raises ValueError for others."""
    name = OPS[hash(op)]
    if name is not None:
        return name, None
    state = op.__getstate__() if type(op) is ReduceOp else None
    if isinstance(state, tuple) and "PREMUL_SUM" in str(state[0]):
        factor = state[1]
        if isinstance(factor, Tensor) and factor.numel() != 1:
            raise ValueError(f"the factor of PREMUL_SUM is a tensor of shape {tuple(factor.shape)}; pass a number")
        return "premul_sum", float(factor)
    raise ValueError(f"op {op} is none of torch.distributed that this backend has")


def plain(tensor: Tensor, what: str) -> Tensor:
    """The tensor, or a view of it in which its memory is in C order. Raises ValueError where there is none."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{what} is a {type(tensor).__name__}; a torch.Tensor is accepted")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{what} has layout {tensor.layout}; a dense tensor is needed here: x.to_dense()")
    if tensor.dtype not in DTYPES:
        names = listed(sorted(str(dtype).removeprefix("torch.") for dtype in DTYPES))
        raise TypeError(f"{what} has dtype {tensor.dtype}; the backend collectives has {names}")
    if tensor.is_contiguous():
        return tensor
    order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d))
    view = tensor.detach().permute(order)  # of torch.channels_last, for example
    if not view.is_contiguous():
        raise ValueError(
            f"{what}, of shape {tuple(tensor.shape)} and strides {tensor.stride()}, is not contiguous: its memory has "
            "gaps or overlaps. Pass a copy (x.contiguous()), and copy the result back"
        )
    return view


def flat(tensor: Tensor, what: str) -> Tensor:
    """All elements in one dimension, the same memory."""
    return plain(tensor, what).detach().view(-1)


def flats(tensors: Sequence[Tensor], what: str) -> list[Tensor]:
    """The same of a list, whose tensors are on one device and have one dtype."""
    found = [flat(tensor, f"{what}[{i}]") for i, tensor in enumerate(tensors)]
    for i, tensor in enumerate(found):
        if tensor.device != found[0].device:
            raise ValueError(
                f"{what}[{i}] is on device {tensor.device} and {what}[0] on {found[0].device}; "
                "one call takes one device"
            )
        if tensor.dtype != found[0].dtype:
            raise ValueError(
                f"{what}[{i}] has dtype {tensor.dtype} and {what}[0] {found[0].dtype}; one call takes one dtype"
            )
    return found


def arrays(tensors: Sequence[Tensor]) -> list[Array]:
    """What the engine reads and writes of flat tensors in the memory of the host."""
    return [adapt(tensor, "x").array for tensor in tensors]


def on_device(tensors: Sequence[Tensor]) -> bool:
    """Whether the tensors are in the memory of a device; they are all on one."""
    return bool(tensors) and tensors[0].device.type != "cpu"


def single(tensors: Any, what: str) -> Tensor:
    """The only tensor of a list, or the tensor itself. Raises ValueError for another number."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{what} has {len(tensors)} tensors; this call takes one")
    return tensors[0]
