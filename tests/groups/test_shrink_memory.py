"""A rank that was given up writes where no other reads: symmetric arrays become private when a communicator fails."""

from __future__ import annotations

import signal
import time
from typing import Any

import numpy as np
import pool
import pytest
from pool import Pools

VICTIM = 1
COUNT = 1 << 24


def fill_after_failure(comm: Any, within: bool) -> bool:
    """Reduces in symmetric memory until that fails, then fills the array; whether it stays as it was filled."""
    comm = comm.split(0, 0) if within else comm
    array = comm.empty(COUNT, np.float32)
    kept = comm.empty(1000, np.int64)
    kept[:] = np.arange(1000) + comm.rank
    array[:] = 0
    comm.barrier()
    pool.say("working")
    try:
        while True:
            comm.all_reduce(array, timeout=3)
    except Exception as error:
        assert type(error).__name__ in ("DeadlineError", "PeerError"), error
    assert (kept == np.arange(1000) + comm.rank).all()
    array[:] = 77
    pool.say("filled")
    pool.hear()
    return bool((array == 77).all())


@pytest.mark.parametrize("within", [False, True], ids=["world", "group"])
def test_stopped_rank_cannot_write(pools: Pools, within: bool) -> None:
    group = pools.get(3, "shm")
    group.start(fill_after_failure, within)
    for rank in group.ranks:
        assert rank.event() == "working"
    time.sleep(0.3)  # the instant: some collective is under way
    group.ranks[VICTIM].signal(signal.SIGSTOP)
    try:
        for survivor in (0, 2):
            assert group.ranks[survivor].event() == "filled"
    finally:
        group.ranks[VICTIM].signal(signal.SIGCONT)
    assert group.ranks[VICTIM].event() == "filled"  # it has come out of its call
    for rank in group.ranks:
        rank.tell("check")
    outcomes = group.collect()
    group.broken = True  # in a group only that has failed, not the world
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, outcome.text
        assert outcome.value, f"the array of rank {rank} has changed"
