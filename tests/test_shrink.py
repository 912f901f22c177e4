"""`shrink`: the ranks that are left of a communicator go on, whatever dies, and whenever."""

from __future__ import annotations

import random
import signal
import time

import pytest
from pool import Outcome, Pools
from shrinking import survive

PATIENCE = 30.0  # seconds; nobody is to be taken for silent only because the machine is busy
LIMIT = 90.0


def assert_survived(outcomes: list[Outcome], left: list[int], order: int = 1) -> None:
    for rank in left:
        assert outcomes[rank].error is None, f"rank {rank}: {outcomes[rank].text}"
        assert outcomes[rank].value == left[::order], f"rank {rank}: {outcomes[rank].value}"


@pytest.mark.parametrize("trial", range(40))
def test_killed_at_any_instant(pools: Pools, trial: int) -> None:
    """Several ranks one after another, at any instant: also while the others shrink for the one before."""
    rng = random.Random(4000 + trial)
    transport = ("shm", "tcp")[trial % 2]
    n = rng.choice([2, 3, 4, 5, 6])
    victims = rng.sample(range(n), rng.randint(1, n - 1))
    group = pools.get(n, transport)
    group.start(survive, trial, n - len(victims), PATIENCE, trial % 4 >= 2)
    for rank in group.ranks:
        assert rank.event() == "working"
    for victim in victims:
        time.sleep(rng.choice([0, 0, rng.uniform(0, 0.01), rng.uniform(0, 0.3)]))  # the instant
        group.ranks[victim].signal(signal.SIGKILL)
    outcomes = group.collect(LIMIT)
    left = sorted(set(range(n)) - set(victims))
    assert_survived(outcomes, left, -1 if trial % 4 >= 2 else 1)
