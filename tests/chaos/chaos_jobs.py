"""Jobs for one trial after the other, of 2 to 8 ranks on one or two hosts, whose interpreters stay.

To start an interpreter takes longer than a trial. So those that survive join the next job, and only what was killed is
started again. Hosts are network namespaces.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import leftovers
import namespaces
import pool

TRANSPORTS = ("local", "shm", "tcp", "mixed")
PORT = 29533


class Crew(pool.ProcessGroup):
    """Interpreters on one host, or on two: then some ranks share memory and others do not."""

    def __init__(self, hosts: Sequence[str], limits: dict[str, Any]) -> None:
        pool.Group.__init__(self, 0, "")
        self._hosts = hosts
        self._limits = limits
        self._timeout = pool.LIMIT
        self._variables: dict[str, str] = {}
        if hosts:
            self._variables = {"COLLECTIVES_RENDEZVOUS": f"10.91.0.1:{PORT}", "COLLECTIVES_RENDEZVOUS_FD": ""}
        self._idle: dict[int, list[pool.Rank]] = {0: [], 1: []}
        self._places: list[int] = []
        self.ranks: list[Any] = []

    def arrange(self, transport: str, places: Sequence[int]) -> None:
        """A new job with a rank at each of these places, 0 or 1; interpreters that are too many stay idle."""
        for rank, place in zip(self.ranks, self._places, strict=True):
            if rank.lost or rank.process.poll() is not None:
                rank.process.kill()
                rank.close()
            else:
                self._idle[place].append(rank)
        self._places = list(places)
        self.size = len(places)
        self.transport = "auto" if transport == "mixed" else transport
        self.ranks = [self._idle[place].pop() if self._idle[place] else None for place in places]
        self.connect()

    def prefix(self, rank: int) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._hosts[self._places[rank]]) if self._hosts else ()

    def close(self) -> None:
        self.ranks = [rank for ranks in [self.ranks, *self._idle.values()] for rank in ranks if rank is not None]
        self._idle = {0: [], 1: []}
        super().close()
        self.ranks = []


class Threads(pool.ThreadGroup):
    """Ranks as threads of this process, of which one can be ended from outside."""

    def __init__(self, size: int, timeout: float) -> None:
        super().__init__(size, timeout=timeout)
        self.ready = threading.Semaphore(0)

    def say(self, _: str) -> None:
        self.ready.release()

    def await_ready(self) -> None:
        """Until all have said something."""
        for _ in range(self.size):
            assert self.ready.acquire(timeout=pool.LIMIT)


class Jobs:
    """The jobs of a run of trials; hosts are made when they are first needed."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._crews: dict[Any, Crew] = {}
        self._hosts: Sequence[str] = ()

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def crew(self, transport: str, places: Sequence[int], **limits: Any) -> Crew:
        """A job with a rank at each place. limits: options of its communicators, see `pool.ProcessGroup`."""
        mixed = transport == "mixed"
        if mixed and not self._hosts:
            self._hosts = self._stack.enter_context(namespaces.two_hosts())
        key = (mixed, *sorted(limits.items()))
        if key not in self._crews:
            self._crews[key] = Crew(self._hosts if mixed else (), limits)
            self._stack.callback(self._end, self._crews[key])
        self._crews[key].arrange(transport, places)
        return self._crews[key]

    @staticmethod
    def _end(crew: Crew) -> None:
        crew.broken = True  # whatever has become of the last job
        crew.close()


def usable_transports() -> list[str]:
    """Those that can be had here; several hosts need root and the command `ip`."""
    return [t for t in TRANSPORTS if t != "mixed" or namespaces.REASON is None]


def left_over() -> list[str]:
    """What jobs that are over have left: files of shared memory, and segments that this process has mapped."""
    return [*(str(path) for path in Path("/dev/shm").glob("*collectives*")), *leftovers.mapped_segments()]
