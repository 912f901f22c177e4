"""Networks that delay, reorder, double and drop packets: everything comes out right."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from net.hosts import why_no_relay
from net.ranks import HostGroup
from net.relay import Relay, Settings
from net.relayed import Relayed
from net.work import ALGORITHMS, TRIALS, judge, large

needs_hosts = pytest.mark.skipif(why_no_relay() is not None, reason=str(why_no_relay()))


@pytest.fixture(scope="module")
def faulty_hosts() -> Iterator[Relayed]:
    with Relayed(3) as made:
        yield made


FAULTS = {
    "reordered": Settings(delay_ms=2, late=0.1, late_ms=8),
    "doubled": Settings(double=0.1),
    "dropped": Settings(drop=0.01),
    "all": Settings(delay_ms=5, late=0.05, late_ms=10, double=0.05, drop=0.01),
}


@needs_hosts
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("trial", range(TRIALS))
def test_faults(faulty_hosts: Relayed, host_ranks: HostGroup, fault: str, trial: int) -> None:
    settings = FAULTS[fault]
    faulty_hosts.change(Settings(**{**vars(settings), "seed": trial}))
    host_ranks.run(large, 200_000, ALGORITHMS)
    for seed in range(2):
        judge(host_ranks, 100 * trial + 30 + seed, 25)
    done = faulty_hosts.change()
    assert (done["late"] > 0, done["doubled"] > 0, done["dropped"] > 0) == (
        settings.late > 0,
        settings.double > 0,
        settings.drop > 0,
    )


@needs_hosts
@pytest.mark.parametrize("trial", range(TRIALS))
def test_delay(faulty_hosts: Relayed, host_ranks: HostGroup, trial: int) -> None:
    """100 ms on each way: a round trip of 200 ms."""
    faulty_hosts.change(Settings(delay_ms=100))
    took = host_ranks.run(large, 50_000, ["auto"])
    assert min(took) >= 0.1, "nothing was delayed"
    judge(host_ranks, 100 * trial + 40, 12)
    faulty_hosts.change()


def test_the_relay_itself() -> None:
    """The same seed does the same to the same packets; each comes as often as the counts say."""

    def play(settings: Settings) -> tuple[list[bytes], dict[str, int]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            relay = Relay({b"\x0a\x00\x00\x01": theirs.fileno()})
            relay.change(settings)
            came: list[bytes] = []
            for number in range(400):
                packet = b"\x45" + bytes(15) + b"\x0a\x00\x00\x01" + number.to_bytes(4, "big")
                os.write(ours.fileno(), packet)
                relay.take(theirs.fileno())
                relay.hand_on()
                try:
                    while True:
                        came.append(os.read(ours.fileno(), 100)[20:])
                except BlockingIOError:
                    pass
            return came, relay.done

    plain, counts = play(Settings())
    assert plain == [number.to_bytes(4, "big") for number in range(400)]
    assert counts["packets"] == 400
    settings = Settings(drop=0.2, double=0.3, seed=5)
    came, counts = play(settings)
    assert (came, counts) == play(settings)
    assert counts["dropped"] > 0
    assert len(came) == 400 - counts["dropped"] + counts["doubled"]
    assert len(set(came)) == 400 - counts["dropped"]
    assert came != play(Settings(drop=0.2, double=0.3, seed=6))[0]
    held, counts = play(Settings(late=0.2, late_ms=10_000))
    assert len(held) == 400 - counts["late"] < 400
