"""Which processors each rank of a host may run on."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

CHOICES = ("none", "core", "socket")
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/{}"

Identify = Callable[[int], tuple[int, int]]


def cores_of_ranks(
    bind: str, ranks: int, allowed: Collection[int] | None = None, identify: Identify | None = None
) -> list[list[int]]:
    """The processors for each rank of this host, in the order of the ranks; an empty list: all.

    Args:
        bind: "none"; "core": neighbouring cores, as many for each rank as there are for all (ranks share cores in turn
            where there are fewer); "socket": the cores of one socket, which neighbouring ranks share.
        allowed: the processors to share, by default those that this process may use.
        identify: (socket, core) of a processor, by default from /sys.
    """
    if bind == "none":
        return [[] for _ in range(ranks)]
    processors = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    identify = _identify if identify is None else identify
    units: dict[tuple[int, ...], list[int]] = {}  # a core has several processors under hyper-threading
    for processor in processors:
        socket, core = identify(processor)
        units.setdefault((socket, core) if bind == "core" else (socket,), []).append(processor)
    parts = [units[key] for key in sorted(units)]
    return [_share(parts, rank, ranks) for rank in range(ranks)]


def _share(parts: list[list[int]], rank: int, ranks: int) -> list[int]:
    """The parts of a rank: neighbours get neighbouring ones, and each at least one."""
    first, last = rank * len(parts) // ranks, (rank + 1) * len(parts) // ranks
    return sorted(processor for part in parts[first : max(last, first + 1)] for processor in part)


def _identify(processor: int) -> tuple[int, int]:
    """From /sys; a processor that it does not describe counts as a core of socket 0."""
    try:
        socket, core = (
            int(Path(_TOPOLOGY.format(processor, name)).read_text()) for name in ("physical_package_id", "core_id")
        )
    except (OSError, ValueError):
        return 0, processor
    return max(socket, 0), core
