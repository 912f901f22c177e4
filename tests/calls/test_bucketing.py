"""Buckets without any framework: how lists are split, and that buckets start while tensors are still being made."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import threaded
from collectives._calls.bucketing import Buckets, buckets_of


def of(sizes: list[int | None], least: int, dtypes: list[str] | None = None, **order: Any) -> list[list[int]]:
    return buckets_of(sizes, dtypes or ["f"] * len(sizes), least, **order)


@pytest.mark.parametrize(
    ("sizes", "least", "expected"),
    [
        ([], 100, []),
        ([], 0, []),
        ([7, 13, 11, 5, 3], 17, [[0, 1], [2, 3, 4]]),  # they divide by nothing; the last bucket may be smaller
        ([7, 13, 11, 5, 3], 1, [[0], [1], [2], [3], [4]]),
        ([7, 13, 11, 5, 3], 0, [[0, 1, 2, 3, 4]]),
        ([10, 10, 10, 10], 20, [[0, 1], [2, 3]]),
        ([1000], 17, [[0]]),
        ([3, 1000, 3], 17, [[0, 1], [2]]),  # larger than a bucket: it fills the one that is open
        ([1000, 3, 3], 17, [[0], [1, 2]]),
        ([0, 0, 0], 17, [[0, 1, 2]]),
        ([0, 17, 0, 0], 17, [[0, 1], [2, 3]]),  # tensors without elements have results, too
        ([7, None, 11], 1, [[0, 1, 2]]),  # a shape that is not known yet
    ],
)
def test_sizes(sizes: list[int | None], least: int, expected: list[list[int]]) -> None:
    assert of(sizes, least) == expected


def test_from_the_end() -> None:
    """As a backward pass makes gradients."""
    assert of([40, 400, 4, 4000], 1000, order=[3, 2, 1, 0]) == [[3], [2, 1, 0]]


def test_dtypes_are_not_mixed_and_keep_their_order() -> None:
    dtypes = ["a", "b", "a", "b", "a", "b"]
    assert of([8] * 6, 16, dtypes) == [[0, 2], [4], [1, 3], [5]]
    assert of([8] * 6, 16, dtypes, order=[5, 4, 3, 2, 1, 0]) == [[4, 2], [0], [5, 3], [1]]
    assert of([8] * 6, 0, dtypes) == [[0, 2, 4], [1, 3, 5]]
    assert of([8, None, 8, 8], 8, ["a", "b", "a", "b"]) == [[0], [2], [1, 3]]
    # A bucket can start when its last tensor is there.
    assert of([8] * 6, 16, dtypes, interleave=True) == [[0, 2], [1, 3], [4], [5]]
    assert of([8] * 6, 16, dtypes, order=[5, 0, 2, 4, 3, 1], interleave=True) == [[0, 2], [4], [5, 3], [1]]


def test_every_tensor_is_in_one_bucket_whatever_the_sizes() -> None:
    numbers = random.Random(5)
    for _ in range(200):
        count = numbers.randrange(30)
        sizes = [numbers.choice([0, 1, 3, 17, 64, 1000]) for _ in range(count)]
        dtypes = [numbers.choice("abc") for _ in range(count)]
        order = numbers.sample(range(count), count)
        least = numbers.choice([0, 1, 50, 2000])
        buckets = buckets_of(sizes, dtypes, least, order=order)
        assert sorted(k for bucket in buckets for k in bucket) == list(range(count))
        for bucket in buckets:
            assert len({dtypes[k] for k in bucket}) == 1
            assert [order.index(k) for k in bucket] == sorted(order.index(k) for k in bucket)
            assert sum(sizes[k] for k in bucket[:-1]) < max(least, 1) or least == 0
        for dtype in set(dtypes):
            full = [sum(sizes[k] for k in bucket) >= least for bucket in buckets if dtypes[bucket[0]] == dtype]
            assert all(full[:-1])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([1, 2], ["f"], 0), "2 sizes and 1 dtypes"),
        (([1, -2], ["f", "f"], 0), r"sizes\[1\] is -2"),
        (([1], ["f"], -1), "bytes_per_bucket is -1"),
    ],
)
def test_wrong_arguments(arguments: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        buckets_of(*arguments)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3], [0, 1, 2, 2]])
def test_an_order_names_each_tensor_once(order: list[int]) -> None:
    with pytest.raises(ValueError, match="each position from 0 to 2 is needed once"):
        buckets_of([1, 2, 3], ["f"] * 3, 0, order=order)


def test_a_bucket_starts_when_it_and_all_before_it_are_complete() -> None:
    started: list[list[int]] = []
    buckets = Buckets([[3, 2], [1], [0, 4]], lambda members: started.append(members) or len(started))
    for _ in range(2):  # one round after another
        started.clear()
        seen = []
        for k in (1, 0, 2, 3, 4):
            buckets.ready(k)
            seen.append(len(started))
        assert seen == [0, 0, 0, 2, 3]
        assert buckets.finish() == [([3, 2], 1), ([1], 2), ([0, 4], 3)]
        assert started == [[3, 2], [1], [0, 4]]
    assert Buckets([], started.append).finish() == []


def test_what_is_missing_or_said_twice() -> None:
    buckets = Buckets([[0, 1], [2]], tuple)
    buckets.ready(2)
    with pytest.raises(ValueError, match="tensor 2 is ready a second time"):
        buckets.ready(2)
    with pytest.raises(ValueError, match="position 3 is in no bucket; there are 3 tensors"):
        buckets.ready(3)
    buckets.ready(1)
    with pytest.raises(ValueError, match=r"the tensors \[0\] were not ready"):
        buckets.finish()
    buckets.ready(0)
    assert buckets.finish() == [([0, 1], (0, 1)), ([2], (2,))]


def test_a_start_that_fails_ends_the_round() -> None:
    """No later bucket starts: other ranks could not match it."""
    fails, asked = [True], []

    def start(members: list[int]) -> None:
        asked.append(members)
        if fails[0]:
            raise OSError("this one")

    buckets = Buckets([[0], [1]], start)
    for call in (lambda: buckets.ready(0), lambda: buckets.ready(1), buckets.finish):
        with pytest.raises(OSError, match="this one"):
            call()
    assert asked == [[0]]
    fails[0] = False
    buckets.ready(1)
    buckets.ready(0)
    assert buckets.finish() == [([0], None), ([1], None)]


def test_fused_collectives_of_ranks_that_are_ready_in_different_orders() -> None:
    sizes = [7, 0, 1000, 13, 1, 300, 11, 64]
    dtypes = ["float32", "float64", "float32", "float32", "int64", "float64", "float32", "int64"]
    rounds = 5
    # Rank 1 makes its last tensor only when the first bucket of both is over: it has started while others were missing.
    over = [threading.Event() for _ in range(rounds)]

    def work(comm: Any) -> list[list[int]]:
        numbers = random.Random(comm.rank)
        tensors: list[Any] = []
        issued: list[list[int]] = []

        def start(members: list[int]) -> Any:
            issued.append(members)
            return comm.all_reduce([tensors[k] for k in members], async_op=True)

        nbytes = [size * np.dtype(dtype).itemsize for size, dtype in zip(sizes, dtypes, strict=True)]
        order = range(len(sizes))[::-1]
        plan = buckets_of(nbytes, dtypes, 200, order=order, interleave=True)
        buckets = Buckets(plan, start)
        for turn in range(rounds):
            tensors[:] = [
                np.full(size, (comm.rank + 1) * (k + turn), dtype)
                for k, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True))
            ]
            late = plan[-1][-1]
            early = [k for k in order if k != late]
            numbers.shuffle(early)
            for k in early:
                buckets.ready(k)
            if comm.rank == 0:
                buckets.ready(late)
                (_, first), *rest = buckets.finish()
                first.wait()
                over[turn].set()
            else:
                assert over[turn].wait(60)
                buckets.ready(late)
                (_, first), *rest = buckets.finish()
            for _, one in [(None, first), *rest]:
                one.wait()
            for k, tensor in enumerate(tensors):
                assert (tensor == 3 * (k + turn)).all(), (k, tensor)
        return issued

    one, other = threaded.on_ranks(2, work)
    assert one == other and len(one) > 3 * rounds
