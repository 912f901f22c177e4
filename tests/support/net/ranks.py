"""Ranks on hosts, as groups that run functions (see ../pool.py)."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pool import LIMIT, Outcome, ProcessGroup, Rank, RankDied, TestTimeout

from net.hosts import Hosts

PORT = 29431
_ports = itertools.count(PORT)  # one for each job, so that none finds what another has left in the kernel
_ESTABLISHED = "01"
_OURS = "005D0A"  # 10.93.0. as the kernel prints it


class HostRank(Rank):
    """A rank whose events need not be read before its outcome."""

    def outcome(self, end: float) -> Outcome:
        try:
            while self.link.poll(max(0.0, end - time.monotonic())):
                kind, what = pickle.loads(self.link.recv_bytes())
                if kind == "outcome":
                    self.lost = False
                    outcome: Outcome = what
                    return outcome
        except (EOFError, ConnectionResetError):
            return Outcome(error=RankDied(f"rank {self.number} ended with code {self.process.wait(LIMIT)}"))
        raise TestTimeout(f"rank {self.number} (pid {self.pid}) gave no answer in time")


class HostGroup(ProcessGroup):
    """One rank for each entry of `places`, on the host of that number."""

    rank_class = HostRank

    def __init__(self, hosts: Hosts, places: list[int], **settings: Any) -> None:
        self.hosts = hosts
        self.places = places
        super().__init__(len(places), "auto", **settings)

    def connect(self) -> list[int]:
        """Starts all ranks anew."""
        for rank in self.ranks:
            rank.process.kill()
            rank.close()
        self.ranks = []
        self._variables |= {
            "COLLECTIVES_RENDEZVOUS": self.hosts.rendezvous(next(_ports), self.places[0]),
            "COLLECTIVES_RENDEZVOUS_FD": "",
        }
        return super().connect()

    def prefix(self, rank: int) -> tuple[str, ...]:
        return self.hosts.inside(self.places[rank])

    def elsewhere(self, rank: int) -> list[int]:
        """The ranks of the other hosts."""
        return [other for other, place in enumerate(self.places) if place != self.places[rank]]


@contextlib.contextmanager
def host_group(hosts: Hosts, places: list[int], **settings: Any) -> Iterator[HostGroup]:
    """A group, whose processes are killed afterwards, whatever has become of it."""
    made = HostGroup(hosts, places, **settings)
    try:
        yield made
    finally:
        made.broken = True
        made.close()


class Connection(NamedTuple):
    """A TCP connection that is established.

    Attributes:
        own, other: addresses as the kernel prints them.
        unacknowledged: bytes that the other side has not acknowledged.
    """

    own: str
    other: str
    unacknowledged: int


def connections(pid: int) -> list[Connection]:
    """Those of the host of a process, between hosts.

    A process that has just been started is not on its host yet, so those of other networks do not count.
    """
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [
        Connection(words[1], words[2], int(words[4].split(":")[0], 16))
        for words in lines
        if words[3] == _ESTABLISHED and words[1].split(":")[0].endswith(_OURS)
    ]


def await_connections(pid: int, wanted: Callable[[list[Connection]], bool], limit: float = LIMIT) -> None:
    """Until the connections of the host of a process are as wanted."""
    end = time.monotonic() + limit
    while not wanted(found := connections(pid)):
        assert time.monotonic() < end, f"the connections stay {found}"
        time.sleep(0.01)  # a poll: /proc cannot be waited for
