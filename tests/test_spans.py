"""Which arrays share memory, found in the time of sorting."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from collectives import _layout, _spans


def brute(left: list[_spans.Span], right: list[_spans.Span]) -> set[tuple[int, int]]:
    return {
        (i, j) for i, (a, b) in enumerate(left) for j, (c, d) in enumerate(right) if a < b and c < d and a < d and c < b
    }


@pytest.mark.parametrize("seed", range(20))
def test_pairs_are_those_of_each_with_each(seed: int) -> None:
    rng = random.Random(seed)
    left, right = ([(at, at + rng.randrange(5)) for at in rng.choices(range(40), k=30)] for _ in range(2))
    assert sorted(_spans.meeting(left, right)) == sorted(brute(left, right))
    assert sorted(_spans.meeting_each_other(left)) == sorted((i, j) for i, j in brute(left, left) if i < j)


def test_spans_of_views() -> None:
    base = np.zeros((6, 8), np.int32)
    address = base.ctypes.data
    for view in (base, base[2:4], base[:, 3], base[::-2, ::-3], base.T, base[5:, 7:], base[:0]):
        held = {view[tuple(slice(i, i + 1) for i in index)].ctypes.data for index in np.ndindex(view.shape)}
        assert all(address <= at < address + base.nbytes for at in held)
        low, high = _spans.span_of(view)
        assert (low, high) == (min(held), max(held) + 4) if held else low == high


def test_columns_that_interleave_share_nothing() -> None:
    base = np.zeros((10, 4))
    columns = [base[:, k] for k in range(4)]
    assert _spans.sharing(columns) is None
    assert _spans.sharing([*columns, base[3]]) is not None
    assert [a is b for a, b in zip(columns, _layout.apart(columns, [base[:, 1], np.zeros(3)]), strict=True)] == [
        *(True, False, True, True)
    ]
    with pytest.raises(ValueError, match=r"out\[0\] and out\[1\] share memory"):
        _layout.check_writable([base[:2], base[1:]])


def seconds(n: int) -> float:
    """Of the checks of a list of n arrays that lie side by side, of which half go to themselves."""
    base = np.zeros((2 * n, 4))
    arrays = [base[i] for i in range(n)]
    outs = [base[i] for i in range(n // 2, n + n // 2)]
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        _layout.check_writable(outs)
        _layout.apart(arrays, outs)
        best = min(best, time.perf_counter() - begin)
    return best


def test_ten_times_as_many_arrays_take_ten_times_as_long() -> None:
    """Not a hundred times."""
    assert seconds(10_000) < 40 * seconds(1000)
