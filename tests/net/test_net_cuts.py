"""Links that are cut for good, and hosts that vanish: every rank ends at its deadline, and says who is to blame."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pool
import pytest
from net.hosts import Bridged, why_not
from net.ranks import HostGroup, await_connections, connections
from net.work import TRIALS, one_round, until_error, wait_then_call

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

DEADLINE = 6.0  # seconds that a call may take; a sixth of it is how long a rank may be slow to say for whom it waits
EARLY = 1.0  # a call that hangs may have begun so much before the cut, when the machine is busy
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


def check_survivors(
    group: HostGroup, cut: float, blamed: Callable[[int], list[int]], ranks: list[int]
) -> dict[int, dict[str, Any]]:
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
        assert report["after_seconds"] < SLACK, (rank, report)  # the call may take a minute
    # A rank that received no report waited for all of its own time.
    assert max(report["age"] for report in reports.values()) >= DEADLINE
    for rank in ranks:
        if "reported by" not in reports[rank]["text"]:
            assert reports[rank]["age"] >= DEADLINE, (rank, reports[rank])
    for rank in ranks:
        group.ranks[rank].link.close()
    for rank in ranks:
        assert group.ranks[rank].process.wait(SLACK) == 0
    return reports


@pytest.mark.parametrize(
    ("places", "where"), [(TWO, "port"), (THREE, "device")], ids=["two-hosts-of-two", "three-hosts"]
)
@pytest.mark.parametrize("trial", range(TRIALS))
def test_cut_for_good(hosts: Bridged, start: Any, places: list[int], where: str, trial: int) -> None:
    group = start(places)
    group.start(until_error, DEADLINE)
    await_rounds(group, 3 + trial)
    cut = time.monotonic()
    hosts.cut(1, where)

    def blamed(rank: int) -> list[int]:
        """Ranks behind the cut, as seen from this one."""
        return [r for r, place in enumerate(places) if (place == 1) != (places[rank] == 1)]

    check_survivors(group, cut, blamed, list(range(len(places))))


@pytest.mark.parametrize(
    "kind", ["all_gather", "message"] if TRIALS == 1 else ["barrier", "broadcast", "ring", "message"]
)
@pytest.mark.parametrize("trial", range(TRIALS))
def test_cut_for_good_in(hosts: Bridged, start: Any, kind: str, trial: int) -> None:
    """Calls in which some ranks of a host only wait for others of the same host, who wait for the other host."""
    group = start(TWO)
    group.start(until_error, DEADLINE, kind)
    await_rounds(group, 3 + trial)
    cut = time.monotonic()
    hosts.cut(1)
    check_survivors(group, cut, group.elsewhere, list(range(len(TWO))))


def when_told(comm: Any, algorithm: str) -> dict[str, Any]:
    one_round(comm, 0)
    comm.barrier()
    pool.say("idle")
    pool.hear()
    return until_error(comm, DEADLINE, algorithm)


@pytest.mark.parametrize("algorithm", ["recursive_doubling"] if TRIALS == 1 else ["recursive_doubling", "ring"])
def test_the_blame_moves_on(hosts: Bridged, start: Any, algorithm: str) -> None:
    """The rank whose deadline comes first waits for its neighbour on the same host, who is as innocent as itself."""
    group = start(TWO)
    group.start(when_told, algorithm)
    for rank in group.ranks:
        assert rank.event() == "idle"
    hosts.cut(1)
    cut = time.monotonic()
    group.ranks[1].tell("go")
    group.ranks[1].await_sleep()
    time.sleep(DEADLINE / 3)  # by so much its deadline is the first
    for rank in (0, 2, 3):
        group.ranks[rank].tell("go")
    reports = check_survivors(group, cut, group.elsewhere, list(range(len(TWO))))
    assert "rank 0 was there and waited for others" in reports[1]["text"]
    assert reports[0]["age"] < reports[1]["age"]


@pytest.mark.parametrize("trial", range(TRIALS))
def test_host_vanishes(hosts: Bridged, start: Any, trial: int) -> None:
    """As when its power fails: no process says good-bye, and no packet shows that they are gone."""
    group = start(TWO)
    group.start(until_error, DEADLINE)
    await_rounds(group, 3 + trial)
    cut = time.monotonic()
    hosts.cut(1, "device")
    for rank in (2, 3):
        group.ranks[rank].signal(signal.SIGKILL)
    check_survivors(group, cut, group.elsewhere, [0, 1])


@pytest.mark.parametrize("trial", range(TRIALS))
def test_one_direction_is_dead(hosts: Bridged, start: Any, trial: int) -> None:
    """Host 1 receives nothing from host 0 any more; what it sends arrives, but for what host 0 must acknowledge."""
    group = start(TWO)
    group.start(until_error, DEADLINE)
    await_rounds(group, 3 + trial)
    cut = time.monotonic()
    hosts.deafen(1, 0)
    check_survivors(group, cut, group.elsewhere, list(range(len(TWO))))
    assert hosts.dropped(1) > 0


def test_host_vanishes_while_nothing_is_in_flight(hosts: Bridged, start: Any) -> None:
    """Nothing shows it before the next call, which then waits for its own deadline."""
    group = start(TWO)
    group.start(wait_then_call, DEADLINE)
    for rank in group.ranks:
        assert rank.event() == "idle"
    hosts.cut(1, "device")
    for rank in (2, 3):
        group.ranks[rank].signal(signal.SIGKILL)
        group.ranks[rank].process.wait()
    began = time.monotonic()
    for rank in (0, 1):
        group.ranks[rank].tell("go")
    check_survivors(group, began, group.elsewhere, [0, 1])


def probed(comm: Any, timeout: float) -> dict[str, Any]:
    """As `wait_then_call`, with probes that come every second instead of every minute."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # no socket
        with sock:
            if sock.family != socket.AF_INET or sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            for option, seconds in ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 60), (socket.TCP_KEEPCNT, 15)):
                assert sock.getsockopt(socket.IPPROTO_TCP, option) == seconds
                sock.setsockopt(socket.IPPROTO_TCP, option, 1)
            found += 1
    assert found == comm.size - comm.local_size
    return wait_then_call(comm, timeout)


def test_probes_find_a_host_that_vanished(hosts: Bridged, start: Any) -> None:
    """While nothing is in flight the kernel still asks, and the next call need not wait for its deadline."""
    group = start(TWO)
    group.start(probed, 60.0)
    for rank in group.ranks:
        assert rank.event() == "idle"
    pid = group.ranks[0].pid
    assert len(connections(pid)) == 4
    await_connections(pid, lambda found: not any(c.unacknowledged for c in found))
    hosts.cut(1, "device")
    for rank in (2, 3):
        group.ranks[rank].signal(signal.SIGKILL)
    await_connections(pid, lambda found: not found)
    for rank in (0, 1):
        group.ranks[rank].tell("go")
    for rank in (0, 1):
        outcome = group.ranks[rank].outcome(time.monotonic() + 30)
        assert outcome.error is None, outcome.text
        report = outcome.value
        assert report["type"] == report["after"] == "PeerError"
        assert report["peer"] in (2, 3)
        assert "its host does not answer any more" in report["text"]
        assert report["took"] < 30
