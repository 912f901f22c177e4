"""Buckets: which tensors of a list travel in one fused collective, and when each of these starts.

It knows numbers of bytes and positions only, no array and no framework, so that all of them form the same buckets:

>>> buckets_of([400, 40, 4000], ["float32"] * 3, 1000, order=[2, 1, 0])
[[2], [1, 0]]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

__all__ = ["Buckets", "buckets_of"]

_T = TypeVar("_T")


def buckets_of(
    sizes: Sequence[int | None],
    dtypes: Sequence[Hashable],
    bytes_per_bucket: int,
    *,
    order: Sequence[int] | None = None,
    interleave: bool = False,
) -> list[list[int]]:
    """Splits a list of tensors into buckets of one dtype each.

    The result depends on the arguments alone: ranks that pass the same form the same buckets.

    Args:
        sizes: bytes of each tensor; ``None`` where unknown.
        dtypes: of each tensor; anything that can be compared.
        bytes_per_bucket: a bucket has at least so many bytes, except for the last of a dtype. All tensors of a dtype
            are one bucket where this is 0, or a size among them is unknown.
        order: all positions, in the order in which the tensors are expected to be ready; the list's by default.
        interleave: whether the buckets of all dtypes come in the order in which they can start, by their last tensors;
            else those of one dtype come after those of another, as dtypes first occur in the list.

    Returns:
        positions by bucket, in `order` within each.

    Raises:
        ValueError: the lists differ in length, a number is negative, or `order` does not name each position once.
    """
    if len(sizes) != len(dtypes):
        raise ValueError(f"there are {len(sizes)} sizes and {len(dtypes)} dtypes; one of each is needed for a tensor")
    if bytes_per_bucket < 0:
        raise ValueError(f"bytes_per_bucket is {bytes_per_bucket}; 0 or more is accepted")
    chosen = range(len(sizes)) if order is None else order
    if order is not None and sorted(order) != list(range(len(sizes))):
        raise ValueError(f"order is {list(order)}; each position from 0 to {len(sizes) - 1} is needed once")
    by_dtype: dict[Hashable, list[int]] = {dtype: [] for dtype in dtypes}
    for k in chosen:
        if (size := sizes[k]) is not None and size < 0:
            raise ValueError(f"sizes[{k}] is {size}; a number of bytes is accepted, or None")
        by_dtype[dtypes[k]].append(k)
    buckets = [bucket for members in by_dtype.values() for bucket in _split(members, sizes, bytes_per_bucket)]
    if interleave:
        place = {k: i for i, k in enumerate(chosen)}
        buckets.sort(key=lambda bucket: place[bucket[-1]])
    return buckets


def _split(members: list[int], sizes: Sequence[int | None], least: int) -> list[list[int]]:
    """Splits after every tensor by which a bucket reaches `least` bytes."""
    buckets: list[list[int]] = []
    held = least
    for k in members:
        size = sizes[k]
        if least == 0 or size is None:
            return [members]
        if held >= least:
            buckets.append([])
            held = 0
        buckets[-1].append(k)
        held += size
    return buckets


class Buckets(Generic[_T]):
    """Starts the collective of each bucket while later tensors are still being computed.

    Tensors may be ready in any order, which may differ between ranks. A bucket starts when all its tensors are ready
    and all buckets before it have started, so all ranks issue the same collectives in the same order. Threads may call.

    Args:
        buckets: of ``buckets_of``, the same on all ranks.
        start: gets the positions of a bucket, issues one fused collective and returns what stands for it, such as a
            ``Work``. It is called with a lock held, by the call of ``ready`` that completes the bucket.

    Example:
        >>> buckets = Buckets(
        ...     buckets_of([g.nbytes for g in gradients], [g.dtype for g in gradients], 4 << 20),
        ...     lambda members: comm.all_reduce([gradients[k] for k in members], async_op=True),
        ... )
        >>> for k in backward():  # yields the position of each gradient that is computed
        ...     buckets.ready(k)
        >>> for members, work in buckets.finish():
        ...     work.wait()
    """

    def __init__(self, buckets: Sequence[Sequence[int]], start: Callable[[list[int]], _T]) -> None:
        self._buckets = [list(bucket) for bucket in buckets]
        self._home = {k: b for b, bucket in enumerate(self._buckets) for k in bucket}
        self._start = start
        self._lock = threading.Lock()
        self._begin_round()

    def _begin_round(self) -> None:
        self._missing = [set(bucket) for bucket in self._buckets]
        self._started: list[_T] = []
        self._error: BaseException | None = None

    def ready(self, position: int) -> None:
        """Says that a tensor is computed; starts all buckets that can start now.

        Raises:
            ValueError: no bucket has the position, or it was ready before in this round.
            What `start` raises. The round is then over: later calls raise the same until ``finish`` has.
        """
        with self._lock:
            home = self._home.get(position)
            if home is None:
                raise ValueError(f"position {position} is in no bucket; there are {len(self._home)} tensors")
            if self._error is not None:
                raise self._error
            if position not in self._missing[home]:
                raise ValueError(f"tensor {position} is ready a second time; call finish() before the next round")
            self._missing[home].remove(position)
            while len(self._started) < len(self._buckets) and not self._missing[len(self._started)]:
                try:
                    self._started.append(self._start(list(self._buckets[len(self._started)])))
                except BaseException as error:
                    self._error = error
                    raise

    def finish(self) -> list[tuple[list[int], _T]]:
        """Ends the round, so that the next one may begin.

        Returns:
            for each bucket its positions and what `start` has returned, in the order of the starts.

        Raises:
            ValueError: tensors were not ready. The round goes on, so they can still be.
            What `start` has raised.
        """
        with self._lock:
            error = self._error
            missing = sorted(k for bucket in self._missing for k in bucket)
            if error is None and missing:
                raise ValueError(f"the tensors {missing} were not ready; the buckets that have them have not started")
            started = self._started
            self._begin_round()
            if error is not None:
                raise error
            return list(zip(map(list, self._buckets), started, strict=True))
