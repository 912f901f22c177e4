"""`shrink`: the ranks that are left of a communicator go on, whatever dies, and whenever.

    PYTHONPATH=tests/support python tests/groups/test_shrink.py 500 40

makes 500 trials of ranks that are killed at any instant, from number 40 on.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from typing import Any

import pytest
import tiers
from pool import Pools
from shrinking import assert_survived, one_shrink, survive

PATIENCE = 30.0  # seconds; a rank must not count as silent only because the machine is busy
LIMIT = 90.0


def kill_some(pools: Pools, trial: int) -> None:
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


@pytest.mark.parametrize("trial", range(tiers.few(12, full=40)))
def test_killed_at_any_instant(pools: Pools, trial: int) -> None:
    kill_some(pools, trial)


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
@pytest.mark.parametrize(("how", "left"), [("nothing", 3), ("mismatch", 3), ("closed", 2)])
def test_all_are_alive(pools: Pools, transport: str, how: str, left: int) -> None:
    group = pools.get(3, transport)
    outcomes = group.outcomes(one_shrink, how, PATIENCE)
    group.broken = True  # a communicator can be shrunk once
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, outcome.text
        assert outcome.value == ("closed" if how == "closed" and rank == 1 else left)
    if how == "nothing":
        assert all(outcome.usable for outcome in outcomes)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("how", ["absent", "stopped"])
def test_silent_rank_is_left_out_and_learns_it(pools: Pools, transport: str, how: str) -> None:
    group = pools.get(3, transport)
    group.start(one_shrink, how, 4.0)
    for rank in group.ranks:
        assert rank.event() == "ready"
    if how == "stopped":
        time.sleep(0.1)  # the instant
        group.ranks[1].signal(signal.SIGSTOP)
    try:
        for rank in (0, 2):
            outcome = group.ranks[rank].outcome(time.monotonic() + LIMIT)
            assert outcome.error is None, outcome.text
            assert outcome.value == 2
    finally:
        group.ranks[1].signal(signal.SIGCONT)
    if how == "absent":
        group.ranks[1].tell("call")
    late = group.ranks[1].outcome(time.monotonic() + LIMIT)
    assert type(late.error).__name__ == "PeerError", late.text
    assert "without this rank" in str(late.error) or "without rank 1" in str(late.error), late.error


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_no_majority(pools: Pools, transport: str) -> None:
    """Half of the ranks are silent: the other half cannot know that these do not go on."""
    group = pools.get(2, transport)
    group.start(one_shrink, "stopped", 2.0)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[1].signal(signal.SIGSTOP)
    try:
        outcome = group.ranks[0].outcome(time.monotonic() + LIMIT)
        error: Any = outcome.error
        assert type(error).__name__ == "DeadlineError", outcome.text
        assert error.peer == 1
        assert "no majority" in str(error)
        assert "rank 1" in str(error)
    finally:
        group.ranks[1].signal(signal.SIGCONT)
    # The other one comes back, and finds that no rank waits for it.
    late = group.ranks[1].outcome(time.monotonic() + LIMIT)
    assert type(late.error).__name__ == "DeadlineError", late.text


def refused(comm: Any) -> list[str]:
    library: Any = __import__("collectives")
    texts = []
    for timeout in (0, -1, "5", True):
        with pytest.raises(ValueError, match="timeout is"):
            comm.shrink(timeout)
    comm.shrink()
    for closed in (False, True):
        if closed:
            comm.close()
        with pytest.raises(library.CollectivesError) as caught:
            comm.shrink()
        texts.append(f"{type(caught.value).__name__}: {caught.value}")
    return texts


def test_refused(pools: Pools) -> None:
    for again, closed in pools.get(2, "shm").run(refused):
        assert again.startswith("CollectivesError")
        assert "shrunk already" in again
        assert closed.startswith("ClosedError")


if __name__ == "__main__":
    several = Pools()
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for number in range(first, first + int(sys.argv[1])):
        kill_some(several, number)
        print(f"trial {number} ended well", flush=True)
    several.close()
