"""Links that are cut for good, and hosts that vanish: every rank ends at its deadline, and says who is to blame."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from net.hosts import Bridged, why_not
from net.ranks import HostGroup
from net.work import TRIALS, until_error

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

DEADLINE = 3.0  # seconds that a call may take
EARLY = 0.5  # a call that hangs may have begun so much before the cut, when the machine is busy
SLACK = 15.0  # for ranks that do not get a core at once
TWO = [0, 0, 1, 1]
THREE = [0, 1, 2]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Bridged]:
    with Bridged(3) as made:
        yield made


@pytest.fixture
def start(hosts: Bridged) -> Iterator[Callable[[list[int]], HostGroup]]:
    made = []

    def start(places: list[int], **settings: Any) -> HostGroup:
        made.append(HostGroup(hosts, places, **settings))
        return made[-1]

    yield start
    for group in made:
        group.broken = True
        group.close()
    for host in range(len(hosts.names)):
        hosts.filter(host)
        for where in ("port", "device"):
            hosts.mend(host, where)


def await_rounds(group: HostGroup, rounds: int) -> None:
    for rank in group.ranks:
        while rank.event() < rounds:
            pass


def check_survivors(group: HostGroup, cut: float, blamed: Callable[[int], list[int]], ranks: list[int]) -> None:
    """Each rank has failed at the deadline, not before, blames one of `blamed(rank)`, and its process ends."""
    end = time.monotonic() + DEADLINE + SLACK
    reports = {}
    for rank in ranks:
        outcome = group.ranks[rank].outcome(end)
        assert outcome.error is None, outcome.text
        reports[rank] = outcome.value
    for rank, report in reports.items():
        assert report["type"] == "DeadlineError", (rank, report)
        assert report["peer"] in blamed(rank), (rank, report)
        assert f"rank {report['peer']}" in report["text"], (rank, report)
        assert report["rank"] == rank
        assert DEADLINE - EARLY < report["ended"] - cut < DEADLINE + SLACK, (rank, report)
        # Failed once and for all: later calls say so at once.
        assert report["after"] == "DeadlineError", (rank, report)
        assert report["after_seconds"] < 1, (rank, report)
    # Whoever did not hear it from another waited for all of its own time.
    assert max(report["age"] for report in reports.values()) >= DEADLINE
    for rank in ranks:
        if "reported by" not in reports[rank]["text"]:
            assert reports[rank]["age"] >= DEADLINE, (rank, reports[rank])
    for rank in ranks:
        group.ranks[rank].link.close()
    for rank in ranks:
        assert group.ranks[rank].process.wait(SLACK) == 0


@pytest.mark.parametrize("places", [TWO, THREE], ids=["two-hosts-of-two", "three-hosts"])
@pytest.mark.parametrize("where", ["port", "device"])
@pytest.mark.parametrize("trial", range(TRIALS))
def test_cut_for_good(hosts: Bridged, start: Any, places: list[int], where: str, trial: int) -> None:
    group = start(places)
    group.start(until_error, DEADLINE)
    await_rounds(group, 3 + trial)
    hosts.cut(1, where)
    cut = time.monotonic()

    def blamed(rank: int) -> list[int]:
        """Ranks behind the cut, as seen from this one."""
        return [r for r, place in enumerate(places) if (place == 1) != (places[rank] == 1)]

    check_survivors(group, cut, blamed, list(range(len(places))))
