"""Reduces lists of tensors in buckets: several collectives that overlap with the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._calls.bucketing import buckets_of
from . import _ops

__all__ = ["reduce_in_buckets"]


def reduce_in_buckets(
    group: _ops.Group,
    tensors: Sequence[Any],
    op: str,
    *,
    names: Sequence[str] | None,
    bytes_per_bucket: int = 0,
    algorithm: str = "auto",
    timeout: float | None = None,
) -> list[Any]:
    """Reduces dense tensors of any dtypes over the ranks of a group.

    Buckets are formed from the end of the list, the order in which a backward pass computes gradients, by dtypes and
    shapes only; so they are the same on all ranks. They start in that order, each when its tensors are computed.

    Args:
        bytes_per_bucket: a bucket has at least so many bytes, except for the last of a dtype. 0: one for each dtype.
        group, tensors, op, names, algorithm, timeout: as for ``_ops.all_reduce``.

    Returns:
        The results, in the order of ``tensors``, with their shapes.
    """
    results: list[Any] = list(tensors)
    elements = [tensor.shape.num_elements() for tensor in tensors]
    sizes = [None if n is None else n * tensor.dtype.size for n, tensor in zip(elements, tensors, strict=True)]
    order = range(len(tensors))[::-1]
    for members in buckets_of(sizes, [tensor.dtype for tensor in tensors], max(0, bytes_per_bucket), order=order):
        reduced = _ops.all_reduce(
            group,
            [tensors[k] for k in members],
            op,
            names=None if names is None else [names[k] for k in members],
            algorithm=algorithm,
            timeout=timeout,
        )
        for k, value in zip(members, reduced, strict=True):
            value.set_shape(tensors[k].shape)
            results[k] = value
    return results
