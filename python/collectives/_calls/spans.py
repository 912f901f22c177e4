"""Which pieces of memory meet: in the time that sorting takes, where few do, and not each with each."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Span = tuple[int, int]  # the address of the first byte, and that behind the last


def span_of(array: npt.NDArray[Any]) -> Span:
    """From the lowest to the highest byte of the array, which need not have all between them."""
    low = high = array.__array_interface__["data"][0]
    if array.size == 0:
        return low, low
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + array.itemsize


def meeting(left: Sequence[Span], right: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """The pairs (i, j) for which left[i] and right[j] have a byte in common; empty spans have none.

    >>> list(meeting([(0, 4), (8, 9)], [(3, 8)]))
    [(0, 0)]
    """
    both = [(low, high, side, i) for side, spans in enumerate((left, right)) for i, (low, high) in enumerate(spans)]
    under_way: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])  # by where they end
    for low, high, side, i in sorted(span for span in both if span[0] < span[1]):
        others = under_way[1 - side]
        while others and others[0][0] <= low:
            heapq.heappop(others)
        yield from ((i, j) if side == 0 else (j, i) for _, j in others)
        heapq.heappush(under_way[side], (high, i))


def meeting_each_other(spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """The pairs i < j for which spans[i] and spans[j] have a byte in common."""
    under_way: list[tuple[int, int]] = []
    for (low, high), i in sorted((span, i) for i, span in enumerate(spans) if span[0] < span[1]):
        while under_way and under_way[0][0] <= low:
            heapq.heappop(under_way)
        yield from ((min(i, j), max(i, j)) for _, j in under_way)
        heapq.heappush(under_way, (high, i))


def sharing(arrays: Sequence[npt.NDArray[Any]]) -> tuple[int, int] | None:
    """Two arrays, i < j, that share memory; None where all are apart."""
    pairs = meeting_each_other([span_of(a) for a in arrays])
    return next((pair for pair in pairs if np.shares_memory(arrays[pair[0]], arrays[pair[1]])), None)
