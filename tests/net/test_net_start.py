"""Networks that fail while a job starts: the start goes on when they come back, and else says who is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from namespaces import job
from net.hosts import Bridged, why_not
from net.ranks import PORT, await_connections
from net.work import TRIALS

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

TIMEOUT = 4.0  # seconds that starting may take
LONGER = 8.0  # where all ranks must have come before, also when they do not get a core at once
LOSSY = 120.0  # where packets get lost: what is lost several times in a row comes late
SLACK = 15.0


@pytest.fixture
def hosts() -> Iterator[Bridged]:
    with Bridged(3) as made:
        yield made


def reports(ranks: Any, began: float, timeout: float = TIMEOUT) -> list[dict[str, Any]]:
    """What all ranks say: an error at the deadline, not before."""
    heard = [rank.hear() for rank in ranks]
    took = time.monotonic() - began
    assert [report["error"] for report in heard] == ["DeadlineError"] * len(heard), heard
    assert 0.6 * timeout < took < timeout + SLACK
    assert all(report["leaked"] == 0 for report in heard)
    return heard


def test_loss_during_the_start(hosts: Bridged) -> None:
    """One packet in ten is lost."""
    for host in range(3):
        hosts.lose(host, 100)
    with job(hosts.names, [0, 1, 1, 2], hosts.rendezvous(PORT), timeout=str(LOSSY)) as ranks:
        for rank, report in enumerate(rank.hear(LOSSY + SLACK) for rank in ranks):
            assert report.get("rank") == rank, report
            assert report["host"] == [0, 1, 1, 3] or report["host"] == [0, 1, 1, 2]


def test_cut_before_a_rank_comes(hosts: Bridged) -> None:
    hosts.cut(1)
    began = time.monotonic()
    with job(hosts.names, [0, 1, 2], hosts.rendezvous(PORT), timeout=str(LONGER)) as ranks:
        heard = reports(ranks, began, LONGER)
    assert heard[1]["peer"] == 0
    assert heard[0]["text"].startswith("rank 1 did not come")
    assert heard[2]["text"].startswith("rank 1 did not come")
    assert [heard[0]["peer"], heard[2]["peer"]] == [1, 1]


def test_cut_after_a_rank_has_come(hosts: Bridged) -> None:
    """Rank 0 holds a connection that has gone dead, and waits for a third rank, which comes."""
    timeout = str(LONGER)
    began = time.monotonic()
    with job(hosts.names, [0, 1], hosts.rendezvous(PORT), size="3", timeout=timeout) as ranks:
        await_connections(ranks[0].process.pid, lambda found: len(found) >= 1)
        hosts.cut(1)
        with job(hosts.names, [2], hosts.rendezvous(PORT), size="3", timeout=timeout, rank="2") as last:
            heard = reports([*ranks, *last], began, LONGER)
    assert heard[0]["peer"] == heard[2]["peer"] == 1
    assert "rank 1 " in heard[0]["text"]
    assert "rank 1 " in heard[2]["text"]
    assert heard[1]["peer"] == 0


@pytest.mark.parametrize("both", [False] if TRIALS == 1 else [True, False])
def test_two_hosts_that_do_not_reach_each_other(hosts: Bridged, both: bool) -> None:
    """Both reach rank 0, so the rendezvous works, and the connection between them does not."""
    hosts.deafen(1, 2)
    if both:
        hosts.deafen(2, 1)
    began = time.monotonic()
    with job(hosts.names, [0, 1, 2], hosts.rendezvous(PORT), timeout=str(LONGER)) as ranks:
        heard = reports(ranks, began, LONGER)
    # Ranks 1 and 2 are the two ends; one of them reports it to rank 0, or rank 0 gives up before they do.
    for report in heard:
        text = report["text"].replace("ranks 1, 2 did not send their word", "rank 1, rank 2 did not send their word")
        assert report["peer"] in (1, 2), heard
        assert "rank 1" in text, heard
        assert "rank 2" in text, heard
    assert hosts.dropped(1) > 0


def test_cut_for_two_seconds_during_the_start(hosts: Bridged) -> None:
    with job(hosts.names, [0, 1], hosts.rendezvous(PORT), size="3") as ranks:
        await_connections(ranks[0].process.pid, lambda found: len(found) >= 1)
        hosts.cut(1)
        with job(hosts.names, [2], hosts.rendezvous(PORT), size="3", rank="2") as last:
            await_connections(ranks[0].process.pid, lambda found: len(found) >= 2)
            time.sleep(2)  # how long the cut lasts
            hosts.mend(1)
            for rank, report in enumerate(rank.hear() for rank in [*ranks, *last]):
                assert report["rank"] == rank
                assert len(report["peers"]) == 2
