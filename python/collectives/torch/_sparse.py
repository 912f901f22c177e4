"""All-reduce of sparse tensors of layout COO."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..communicator import Communicator
from ..work import Work


def all_reduce(comm: Communicator, tensor: Tensor, op: str, asynchronous: bool, timeout: float | None) -> Any:
    """Adds up the tensors of all ranks, in place.

    Raises:
        TypeError: of another layout than COO, or on a device.
        ValueError: `op` is neither a sum nor a mean.
    """
    if tensor.layout is not torch.sparse_coo:
        raise TypeError(
            f"the tensor has layout {tensor.layout}; sparse tensors of layout torch.sparse_coo are accepted"
        )
    if tensor.device.type != "cpu":
        raise TypeError(f"the tensor is sparse and on device {tensor.device}; pass a copy on the CPU (x.cpu())")
    if op not in ("sum", "avg"):
        raise ValueError(f"op of a sparse all_reduce is {op!r}; a sum or a mean is accepted")
    own = tensor.detach().coalesce()
    shape = own.shape[: own.sparse_dim()]
    # One number for each place: the engine adds up rows of an array that is long in one dimension.
    widths = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    places = (own.indices() * torch.tensor(widths).reshape(-1, 1)).sum(0)
    begun: Any = comm.all_reduce_sparse(places, own.values(), op, async_op=True, timeout=timeout)

    def finish() -> None:
        summed, values = begun.result()
        indices = torch.stack([(summed // width) % size for width, size in zip(widths, shape, strict=True)])
        with torch.no_grad():
            tensor.copy_(torch.sparse_coo_tensor(indices, values, tensor.shape, is_coalesced=True))

    work = Work(begun._work, finish)
    return work if asynchronous else work.wait()
