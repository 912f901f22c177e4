"""How much address space the memory of ranks may use, where that of a process is limited (``ulimit -v``)."""

from __future__ import annotations

import logging
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import _core
from .environment import DEFAULT_HEAP

_log = logging.getLogger("collectives")
_PAGE = 4096


def available() -> int | None:
    """Bytes of address space that this process may still use; None: no limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return max(0, limit - pages * resource.getpagesize())


def room_for_segment(machines: Sequence[tuple[str, int, int | None]]) -> int | None:
    """Bytes that the segment of a rank may have, so that every process can map those of all ranks of its machine.

    Args:
        machines: for each process its machine, its number of ranks, and its `available` address space.

    Returns:
        the same number in all processes, such that half of the available space stays free. None: no limit.
    """
    ranks: dict[str, int] = {}
    for machine, count, _ in machines:
        ranks[machine] = ranks.get(machine, 0) + count
    rooms = [space // 2 // ranks[machine] for machine, _, space in machines if space is not None]
    return min(rooms, default=None)


def fit(options: dict[str, Any], size: int, room: int | None) -> None:
    """Makes the symmetric heap and the memory for groups in `options` small enough for a segment of `room` bytes.

    A heap size that the user has set is not changed. Where not even a segment without a heap fits, nothing is changed,
    and the system reports an error later.
    """
    if room is None or "arena_bytes" in options or _core.segment_bytes(size, options) <= room:
        return
    chosen = options["heap_bytes"] != DEFAULT_HEAP
    least = _core.segment_bytes(size, {**options, "arena_bytes": 0, **({} if chosen else {"heap_bytes": 0})})
    spare = room - least
    if spare < 0:
        return
    # Each group has a heap of its own, a sixteenth of that of the world.
    heap = options["heap_bytes"] if chosen else min(DEFAULT_HEAP, spare // 4 // _PAGE * _PAGE)
    arena = (spare if chosen else spare - heap) // _PAGE * _PAGE
    options.update(heap_bytes=heap, arena_bytes=arena)
    _log.info(
        "address space is limited (ulimit -v): each rank has a symmetric heap of %d bytes, and %d for groups",
        heap,
        arena,
    )
