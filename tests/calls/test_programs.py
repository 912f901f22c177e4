"""Random programs of collectives against a sequential model, and one collective of more than 2**32 bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import programs
import pytest
import tiers
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from net.hosts import Bridged, why_not
from net.ranks import HostGroup, host_group
from pool import Pools
from programs import DENSE, MAKING, OBJECTS, VECTOR, Item

SHAPES = [(), (0,), (1,), (7,), (3, 5), (4, 0, 2), (1000,), (33, 129), (90_001,)]
LIMIT = 30  # seconds for one program
# As often as they are named.
KINDS = [programs.NOTHING, *2 * DENSE, *2 * VECTOR, *OBJECTS, *5 * ("message",), *2 * MAKING, *2 * ("close",)]

item = st.builds(
    Item,
    kind=st.sampled_from(KINDS),
    group=st.integers(0, programs.MOST_GROUPS),
    op=st.sampled_from(sorted(programs.COMBINE)),
    dtype=st.sampled_from(["int32", "uint8", "int64", "float64"]),
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4).map(tuple),
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=7).map(tuple),
    layout=st.sampled_from(["plain", "fortran", "strided"]),
    root=st.integers(0, 7),
    other=st.integers(0, 7),
    tag=st.integers(0, 2),
    separate=st.booleans(),
    counted=st.booleans(),
    asynchronous=st.booleans(),
    seed=st.integers(0, 1 << 30),
)


def check(group: Callable[[], Any], examples: int) -> None:
    """Runs so many programs on the ranks of a group, which is asked for each time."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(item, min_size=20, max_size=30), st.integers(0, 1 << 30))
    def one(program: list[Item], seed: int) -> None:
        ranks = group()
        note(f"seed of the order {seed}; {programs.text(program, ranks.size)}")
        for rank, wrong in enumerate(ranks.run(programs.run, program, seed, limit=LIMIT)):
            assert not wrong, (rank, wrong[:2])

    one()


@pytest.mark.parametrize(
    ("n", "transport", "examples"),
    [(n, t, k) for n, k in ((4, tiers.few(12, full=25)), (5, 4), (8, 3)) for t in ("local", "shm", "tcp")],
)
def test_random_programs(pools: Pools, n: int, transport: str, examples: int) -> None:
    check(lambda: pools.get(n, transport), examples)


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize(("places", "examples"), [([0, 0, 1, 1], 25), ([0, 1, 1, 0, 1], 4)])
def test_random_programs_between_hosts(places: list[int], examples: int) -> None:
    with Bridged(2) as hosts, host_group(hosts, places) as group:

        def usable() -> HostGroup:
            if group.broken:
                group.connect()
            return group

        check(usable, examples)


def huge(comm: Any, count: int) -> list[Any]:
    x = np.full(count, comm.rank + 1, np.uint8)
    x[-1] = 10 * (comm.rank + 1)
    comm.all_reduce(x)
    found = [int(x[0]), int(x[count // 2]), int(x[-1]), int(x.min()), int(x[:-1].max())]
    x[1 << 32] = 77 + comm.rank
    comm.broadcast(x, 1)
    return [*found, int(x[1 << 32])]


def test_more_than_four_gigabytes(pools: Pools) -> None:
    count = (1 << 32) + 12345
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    if available < 3 * count:
        pytest.skip(f"it needs {3 * count} bytes of memory and {available} are available")
    began = time.monotonic()
    for values in pools.get(2, "shm").run(huge, count, limit=200):
        assert values == [3, 3, 30, 3, 3, 78]
    assert time.monotonic() - began < 200
