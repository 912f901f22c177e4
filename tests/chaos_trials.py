"""The faults of chaos.py: what is done to a job, and what must become of it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import chaos_ranks
import pool
from chaos_jobs import Jobs, Threads, left_over
from chaos_ranks import Report, meant
from pool import Outcome

PROMISED = 1.0  # seconds after which every survivor has its error
# More, for a machine whose cores are taken by others: all ranks have to run once or twice. Past this it is a miss; had
# nobody noticed anything, the error would have come at the deadline of a minute.
SLACK = 4.0
GRACE = 60.0  # seconds for the test to hear of it


@dataclass
class Result:
    """What became of one trial.

    Attributes:
        late: for each survivor how many seconds after the fault it had its error.
        calls: results that were checked.
        failures: what is not as it should be.
    """

    fault: str
    transport: str
    size: int
    places: list[int]
    victim: int
    late: list[float] = field(default_factory=list)
    calls: int = 0
    failures: list[str] = field(default_factory=list)
    repeat: str = ""

    def text(self) -> str:
        head = f"{self.fault} of rank {self.victim} of {self.size}, {self.transport} {self.places}: {self.repeat}"
        return "\n  ".join([head, *self.failures])

    def take(self, rank: int, outcome: Outcome) -> Report | None:
        """The report of a rank, whose results must all have been right."""
        if outcome.error is not None or not isinstance(outcome.value, Report):
            self.failures.append(f"rank {rank}: {outcome.error!r} {outcome.value!r}\n{outcome.text}")
            return None
        self.calls += outcome.value.calls
        self.failures += outcome.value.wrong
        return outcome.value


@dataclass(frozen=True)
class Fault:
    """Attributes: does: in words; trial: does it once; possible: whether it can be done to a transport."""

    does: str
    trial: Callable[[Jobs, str, random.Random], Result]
    possible: Callable[[str], bool] = lambda transport: True


def draw(fault: str, transport: str, rng: random.Random, least: int = 2) -> Result:
    """Which job."""
    size = rng.randint(least, 8)
    places = [0] * size
    if transport == "mixed":
        places = [0, *(rng.randrange(2) for _ in range(size - 1))]
        places[rng.randrange(1, size)] = 1
    return Result(fault, transport, size, places, rng.randrange(size))


def instant(rng: random.Random) -> float:
    """From one millisecond to 0.3 seconds."""
    return 0.001 * 300 ** rng.random()


def judge(result: Result, rank: int, report: Report, since: float, named: Callable[[str], bool]) -> None:
    """A survivor has a PeerError of the world that names the victim, soon after the fault."""
    kind, peer, _, text = report.error or ("no error", None, None, "")
    if kind != "PeerError" or peer != result.victim or not named(text):
        result.failures.append(f"rank {rank}: {kind} names rank {peer}: {text}; first {report.first}")
    if result.victim not in meant(report.first) and "has left the group" not in report.first:
        result.failures.append(f"rank {rank}: the first error names others: {report.first}")
    result.late.append(report.noticed - since)
    if report.noticed - since > PROMISED + SLACK:
        result.failures.append(f"rank {rank}: the error came {report.noticed - since:.2f} s after the fault")


def begin(jobs: Jobs, result: Result, rng: random.Random, timeout: float, *args: Any) -> Any:
    """A job whose ranks have begun to make calls."""
    crew = jobs.crew(result.transport, result.places, timeout)
    result.failures += [
        f"rank {r} holds more from job to job: (descriptors, segments, threads) {rank.held}"
        for r, rank in enumerate(crew.ranks)
        if any(now > then for now, then in zip(rank.held[-1], rank.held[0], strict=True))
    ]
    crew.start(chaos_ranks.run, rng.randrange(1 << 30), pool.say, *args)
    for rank in crew.ranks:
        rank.event()
    return crew


def kill(jobs: Jobs, transport: str, rng: random.Random) -> Result:
    result = draw("kill", transport, rng)
    if transport == "local":
        return end_thread(result, rng)
    crew = begin(jobs, result, rng, pool.LIMIT)
    victim = crew.ranks[result.victim]
    time.sleep(instant(rng))  # the instant, not a wait for something
    since = time.monotonic()
    victim.signal(signal.SIGKILL)
    outcomes = crew.collect(GRACE)
    for rank, outcome in enumerate(outcomes):
        if rank == result.victim:
            if not isinstance(outcome.error, pool.RankDied):
                result.failures.append(f"the victim outlived SIGKILL: {outcome}")
        elif (report := result.take(rank, outcome)) is not None:
            judge(result, rank, report, since, lambda text: f"pid {victim.pid})" in text or "reported" in text)
    result.failures += left_over()
    return result


def end_thread(result: Result, rng: random.Random) -> Result:
    """A thread cannot be killed. Its communicator is closed under it at a random instant, as its exception would."""
    group = Threads(result.size, pool.LIMIT)
    before = pool.open_descriptors()
    try:
        group.start(chaos_ranks.run, rng.randrange(1 << 30), group.say)
        for _ in range(result.size):
            assert group.ready.acquire(timeout=pool.LIMIT)
        time.sleep(instant(rng))
        since = time.monotonic()
        group.comms[result.victim].close()
        for rank, outcome in enumerate(group.collect(GRACE)):
            report = result.take(rank, outcome)
            if report is not None and rank != result.victim:
                kind, peer, age, text = report.error or ("no error", None, None, "")
                # Whoever closes with collectives in flight says so, and that is what the others hear.
                report.error = ("PeerError" if kind == "ClosedError" else kind, peer, age, text)
                judge(result, rank, report, since, lambda text: f"rank {result.victim}" in text)
    finally:
        group.close()
    if pool.open_descriptors() > before:
        result.failures.append(f"{pool.open_descriptors() - before} descriptors are left")
    return result


FAULTS = {
    "kill": Fault("SIGKILL; among threads: the communicator is closed under the thread", kill),
}
