"""How much address space the memory of ranks may take, where a process may have only so much (``ulimit -v``)."""

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
    """Bytes of address space that this process may still take; None: as much as it likes."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return max(0, limit - pages * resource.getpagesize())


def room_for_segment(machines: Sequence[tuple[str, int, int | None]]) -> int | None:
    """Bytes that the segment of a rank may have, so that every process can map those of all ranks of its machine.

    Args:
        machines: of each process its machine, how many ranks it has, and what is `available` to it.

    Returns:
        the same on all processes: half of what the tightest has is left to its program. None: there is no limit.
    """
    ranks: dict[str, int] = {}
    for machine, count, _ in machines:
        ranks[machine] = ranks.get(machine, 0) + count
    rooms = [space // 2 // ranks[machine] for machine, _, space in machines if space is not None]
    return min(rooms, default=None)


def fit(options: dict[str, Any], size: int, room: int | None) -> None:
    """Makes the symmetric heap and the memory for groups in `options` small enough for a segment of `room` bytes.

    A heap that the user has chosen stays as it is, and where not even a segment without a heap has room, all stays: the
    system says then what is missing.
    """
    if room is None or "arena_bytes" in options or _core.segment_bytes(size, options) <= room:
        return
    chosen = options["heap_bytes"] != DEFAULT_HEAP
    least = _core.segment_bytes(size, {**options, "arena_bytes": 0, **({} if chosen else {"heap_bytes": 0})})
    spare = room - least
    if spare < 0:
        return
    # Groups have heaps, too: a sixteenth of the world's each.
    heap = options["heap_bytes"] if chosen else min(DEFAULT_HEAP, spare // 4 // _PAGE * _PAGE)
    arena = (spare if chosen else spare - heap) // _PAGE * _PAGE
    options.update(heap_bytes=heap, arena_bytes=arena)
    _log.info(
        "address space is limited (ulimit -v): each rank has a symmetric heap of %d bytes, and %d for groups",
        heap,
        arena,
    )
