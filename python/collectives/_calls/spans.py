"""Finds spans of memory that overlap, in O(n log n) where few do, instead of comparing all pairs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Span = tuple[int, int]  # addresses: begin, and end (exclusive)


def span_of(array: npt.NDArray[Any]) -> Span:
    """From the lowest to the highest byte of the array; with strides, not all bytes in between belong to it."""
    low = high = array.__array_interface__["data"][0]
    if array.size == 0:
        return low, low
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + array.itemsize


def overlaps(left: Sequence[Span], right: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """The pairs (i, j) for which left[i] and right[j] have a byte in common; empty spans have none.

    >>> list(overlaps([(0, 4), (8, 9)], [(3, 8)]))
    [(0, 0)]
    """
    both = [(low, high, side, i) for side, spans in enumerate((left, right)) for i, (low, high) in enumerate(spans)]
    open_spans: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])  # heaps of (end, index)
    for low, high, side, i in sorted(span for span in both if span[0] < span[1]):
        others = open_spans[1 - side]
        while others and others[0][0] <= low:
            heapq.heappop(others)
        yield from ((i, j) if side == 0 else (j, i) for _, j in others)
        heapq.heappush(open_spans[side], (high, i))


def overlaps_among(spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """The pairs i < j for which spans[i] and spans[j] have a byte in common."""
    open_spans: list[tuple[int, int]] = []
    for (low, high), i in sorted((span, i) for i, span in enumerate(spans) if span[0] < span[1]):
        while open_spans and open_spans[0][0] <= low:
            heapq.heappop(open_spans)
        yield from ((min(i, j), max(i, j)) for _, j in open_spans)
        heapq.heappush(open_spans, (high, i))


def first_overlap(arrays: Sequence[npt.NDArray[Any]]) -> tuple[int, int] | None:
    """Two arrays, i < j, that share memory; None where no two do."""
    pairs = overlaps_among([span_of(a) for a in arrays])
    return next((pair for pair in pairs if np.shares_memory(arrays[pair[0]], arrays[pair[1]])), None)
