"""busbw over algbw: what makes a bandwidth comparable with the speed of a link, whatever the number of ranks.

algbw is the size in the first column over the time. busbw is what each rank's link carried at least, by the best
algorithm that there can be, as nccl-tests has it in PERFORMANCE.md; n is the number of ranks, S the size.
"""

from __future__ import annotations

from collections.abc import Callable

_FACTORS: dict[str, Callable[[int], float]] = {
    # Each element takes n - 1 transfers to be reduced and n - 1 to reach all: 2 (n - 1) S over n links.
    "all_reduce": lambda n: 2 * (n - 1) / n,
    # S is the whole array: each rank needs the n - 1 parts of S / n that it does not have.
    "all_gather": lambda n: (n - 1) / n,
    # Each rank's part of S / n is reduced from those of n - 1 others.
    "reduce_scatter": lambda n: (n - 1) / n,
    # Each rank keeps one of n parts of S / n and sends the others.
    "all_to_all": lambda n: (n - 1) / n,
    # The link of the root carries the parts of all others: what it has itself stays.
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    # S leaves the root once, and enters each of the others once: links in a chain carry S each.
    "broadcast": lambda n: 1.0,
    # The same the other way round.
    "reduce": lambda n: 1.0,
    # S leaves each rank, and another S enters it.
    "sendrecv": lambda n: 1.0,
    # It moves no data.
    "barrier": lambda n: 0.0,
}


def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw of a collective between so many ranks, at least 1.

    Example:
        >>> bus_factor("all_reduce", 4)
        1.5
    """
    return _FACTORS[collective](ranks)
