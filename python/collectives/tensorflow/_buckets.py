"""Reduces lists of tensors in buckets: several collectives that overlap with the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _ops

__all__ = ["packs_of", "reduce_in_buckets"]


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
    by_dtype: dict[tf.DType, list[int]] = {}
    for k, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype, []).append(k)
    for positions in by_dtype.values():
        chosen = positions[::-1]
        for pack in packs_of([tensors[k] for k in chosen], bytes_per_bucket):
            members = [chosen[i] for i in pack]
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


def packs_of(tensors: Sequence[Any], bytes_per_pack: int) -> list[list[int]]:
    """Splits a list of tensors into packs of at least so many bytes, except for the last; returns their positions.

    One pack when ``bytes_per_pack`` is 0 or a shape is unknown. The same on all workers: it depends on shapes only.
    """
    sizes = [value.shape.num_elements() for value in tensors]
    if bytes_per_pack <= 0 or any(size is None for size in sizes):
        return [list(range(len(tensors)))]
    packs: list[list[int]] = []
    held = bytes_per_pack
    for i, value in enumerate(tensors):
        if held >= bytes_per_pack:
            packs.append([])
            held = 0
        packs[-1].append(i)
        held += sizes[i] * value.dtype.size
    return packs
