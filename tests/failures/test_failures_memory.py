"""What a failure costs the survivors: neither the time nor the memory of the arrays that they have."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pool
import tiers

GIB = 1 << 30
MIB = 1 << 20


def own_memory() -> int:
    """Bytes of this process that it shares with no process, as copies of pages are."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def dumped() -> list[str]:
    """Large mappings of this process that a core dump would hold."""
    large, found = "", []
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        first, *rest = line.split()
        if "-" in first:
            large = line
        elif first == "Size:" and int(rest[0]) < GIB >> 10:
            large = ""
        elif first == "VmFlags:" and large and "dd" not in rest:
            found.append(large)
    return found


def memory_of_a_failure(comm: Any, touched: int, groups: int) -> list[float]:
    """What the survivor needed for a failure while it held 2 GiB of symmetric arrays, and that they stay."""
    everything = comm.empty(2 * GIB, np.uint8)
    everything[:touched] = 7
    small = [comm.dup() for _ in range(groups)]
    arrays = [group.empty(MIB, np.uint8) for group in small]
    for array in arrays:
        array[:] = comm.rank
    x = comm.empty(1000, np.float32)
    comm.barrier()
    assert not dumped(), dumped()
    before = own_memory()
    pool.say("working")
    try:
        while True:
            comm.all_reduce(x)
    except Exception as error:
        ended = time.monotonic()
        assert type(error).__name__ == "PeerError", error
    more = own_memory() - before
    assert not dumped(), dumped()
    assert (everything[:touched] == 7).all()
    assert all((array == comm.rank).all() for array in arrays)
    everything[: 16 * MIB] = 9
    assert (everything[: 16 * MIB] == 9).all() and (everything[16 * MIB : touched] == 7).all()
    return [ended, more]


def test_a_death_beside_two_gib_of_symmetric_arrays(groups: Any) -> None:
    touched = 2 * GIB if tiers.full() else 64 * MIB
    group = groups(2, "shm")
    group.start(memory_of_a_failure, touched, 2)
    for rank in group.ranks:
        assert rank.event() == "working"
    killed = time.monotonic()
    group.ranks[1].signal(signal.SIGKILL)
    ended, more = group.ranks[0].outcome(killed + 60).value
    assert more <= 64 * MIB, f"{more / MIB:.0f} MiB more"
    assert ended - killed < pool.NOTICED, f"{ended - killed:.2f} s"
