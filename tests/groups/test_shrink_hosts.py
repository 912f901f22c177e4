"""`shrink` where ranks are on two hosts: shared memory inside a host and TCP across, ranks of both die."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator

import pytest
from net.hosts import Bridged, why_not
from net.ranks import host_group
from shrinking import assert_survived, survive

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

PATIENCE = 30.0  # seconds; a rank must not count as silent only because the machine is busy
LIMIT = 90.0
CASES = [([0, 0, 1], [1]), ([0, 0, 1, 1], [2, 3]), *[([0, 1, 1, 0, 1], [0, 4])] * 4]


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[Bridged]:
    with Bridged(2) as made:
        yield made


@pytest.mark.parametrize(("seed", "places", "victims"), [(seed, *case) for seed, case in enumerate(CASES)])
def test_killed_at_any_instant(two_hosts: Bridged, places: list[int], victims: list[int], seed: int) -> None:
    rng = random.Random(seed)
    within = seed % 2 == 1
    with host_group(two_hosts, places) as group:
        group.start(survive, seed, len(places) - len(victims), PATIENCE, within)
        for rank in group.ranks:
            assert rank.event() == "working"
        for victim in victims:
            time.sleep(rng.choice([0, rng.uniform(0, 0.3)]))  # the instant
            group.ranks[victim].signal(signal.SIGKILL)
        left = [rank for rank in range(len(places)) if rank not in victims]
        assert_survived(group.collect(LIMIT), left, -1 if within else 1)
