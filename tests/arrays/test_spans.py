"""Which arrays share memory, found in the time of sorting."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from collectives._calls import layout, spans


def brute(left: list[spans.Span], right: list[spans.Span]) -> set[tuple[int, int]]:
    return {
        (i, j) for i, (a, b) in enumerate(left) for j, (c, d) in enumerate(right) if a < b and c < d and a < d and c < b
    }


@pytest.mark.parametrize("seed", range(20))
def test_pairs_are_those_of_each_with_each(seed: int) -> None:
    rng = random.Random(seed)
    left, right = ([(at, at + rng.randrange(5)) for at in rng.choices(range(40), k=30)] for _ in range(2))
    assert sorted(spans.overlaps(left, right)) == sorted(brute(left, right))
    assert sorted(spans.overlaps_among(left)) == sorted((i, j) for i, j in brute(left, left) if i < j)


def test_spans_of_views() -> None:
    base = np.zeros((6, 8), np.int32)
    address = base.ctypes.data
    for view in (base, base[2:4], base[:, 3], base[::-2, ::-3], base.T, base[5:, 7:], base[:0]):
        held = {view[tuple(slice(i, i + 1) for i in index)].ctypes.data for index in np.ndindex(view.shape)}
        assert all(address <= at < address + base.nbytes for at in held)
        low, high = spans.span_of(view)
        assert (low, high) == (min(held), max(held) + 4) if held else low == high


def test_columns_that_interleave_share_nothing() -> None:
    base = np.zeros((10, 4))
    columns = [base[:, k] for k in range(4)]
    assert spans.first_overlap(columns) is None
    assert spans.first_overlap([*columns, base[3]]) is not None
    separate = layout.separate_inputs(columns, [base[:, 1], np.zeros(3)])
    assert [a is b for a, b in zip(columns, separate, strict=True)] == [*(True, False, True, True)]
    with pytest.raises(ValueError, match=r"out\[0\] and out\[1\] share memory"):
        layout.check_writable([base[:2], base[1:]])


def looks(n: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often two arrays are compared when n of them that lie side by side are given, and half go to themselves."""
    base = np.zeros((2 * n, 4))
    arrays = [base[i] for i in range(n)]
    outs = [base[i] for i in range(n // 2, n + n // 2)]
    compared = []

    def share(a: Any, b: Any) -> bool:
        compared.append((a, b))
        return a.ctypes.data == b.ctypes.data

    monkeypatch.setattr(np, "shares_memory", share)
    layout.check_writable(outs)
    assert sum(a is not b for a, b in zip(arrays, layout.separate_inputs(arrays, outs), strict=True)) == n // 2
    return len(compared)


def test_arrays_side_by_side_are_not_compared_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(1000, monkeypatch) == 500
    assert looks(10_000, monkeypatch) == 5000
