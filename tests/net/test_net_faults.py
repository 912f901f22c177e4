"""Networks that lose packets or are slow, and links that are cut for a while: everything comes out right."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from net.hosts import Bridged, why_not
from net.ranks import HostGroup
from net.work import ALGORITHMS, TRIALS, judge, large, steady

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(scope="module")
def faulty_hosts() -> Iterator[Bridged]:
    with Bridged(3) as made:
        yield made


@pytest.fixture
def mended(faulty_hosts: Bridged) -> Iterator[Bridged]:
    """The hosts, whose network is as it was afterwards."""
    yield faulty_hosts
    for host in range(len(faulty_hosts.names)):
        faulty_hosts.filter(host)
        faulty_hosts.slow(host, 0)
        for where in ("port", "device"):
            faulty_hosts.mend(host, where)


@pytest.mark.parametrize("trial", range(TRIALS))
def test_loss(mended: Bridged, host_ranks: HostGroup, trial: int) -> None:
    """One packet in a hundred is lost on its way to each host."""
    for host in set(host_ranks.places):
        mended.lose(host, 10)
    host_ranks.run(large, 200_000, ALGORITHMS)
    for seed in range(3):
        judge(host_ranks, 100 * trial + seed, 25)
    assert all(mended.dropped(host) > 0 for host in set(host_ranks.places))


@pytest.mark.parametrize("trial", range(TRIALS))
def test_slow(mended: Bridged, host_ranks: HostGroup, trial: int) -> None:
    """Each link carries 8 Mbit/s."""
    for host in set(host_ranks.places):
        mended.slow(host, 8)
    # A host sends at least its sum once, and receives another: 320 kB take a third of a second.
    took = host_ranks.run(large, 40_000, ["auto"])
    assert min(took) > 0.16, "the network was not slow"
    judge(host_ranks, 100 * trial + 10, 25)


@pytest.mark.parametrize("where", ["port", "device"])
@pytest.mark.parametrize("trial", range(TRIALS))
def test_cut_for_two_seconds(mended: Bridged, host_ranks: HostGroup, where: str, trial: int) -> None:
    """The job stands still, goes on, and is right."""
    host_ranks.start(steady)
    first = host_ranks.ranks[0]
    while (number := first.event()) < 3:
        pass
    mended.cut(1, where)
    while first.link.poll(0):
        number = first.event()
    end, before = time.monotonic() + 2, number
    while first.link.poll(max(0.0, end - time.monotonic())):
        number = first.event()
    # What was on its way when the link was cut may still finish a round or two.
    assert number <= before + 5, "the rounds did not stand still"
    mended.mend(1, where)
    while first.event() < number + 3:
        pass
    first.tell("enough")
    rounds = {outcome.value if outcome.error is None else outcome.text for outcome in host_ranks.collect()}
    assert len(rounds) == 1, rounds
    judge(host_ranks, 100 * trial + 20, 20)
