"""The faults of chaos.py: what is done to a job, and what must become of it."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import chaos_ranks
import pool
from chaos_jobs import Jobs, Threads, left_over
from chaos_ranks import Report, meant
from pool import Outcome

PROMISED = 1.0  # seconds after which every survivor has its error
# More, for a machine whose cores are taken by others: all ranks have to run once or twice. Past this it is a miss; had
# no rank noticed anything, the error would have come at the deadline of a minute.
SLACK = 4.0
GRACE = 60.0  # seconds for the test to receive the error


@dataclass
class Result:
    """What became of one trial.

    Attributes:
        late: for each survivor how many seconds after the fault, or after it called again, it had its error.
        end: how many seconds the victim took to be gone, which no other rank can know before.
        calls: results that were checked.
        failures: what is not as it should be.
    """

    fault: str
    transport: str
    size: int
    places: list[int]
    victim: int
    late: list[float] = field(default_factory=list)
    end: float = 0.0
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


def judge(result: Result, rank: int, report: Report, kinds: Sequence[str], since: float, allowed: float) -> None:
    """A survivor has an error of the world of such a kind that names the victim, so many seconds after the fault."""
    first, world = report.first, report.error
    if first is None or world is None:
        result.failures.append(f"rank {rank} has received no error")
        return
    if world.kind not in kinds or world.peer != result.victim or f"rank {result.victim}" not in world.text:
        result.failures.append(f"rank {rank}: {world} does not name rank {result.victim}; first {first}")
    # In a group without the victim another survivor may have left or closed it, as programs do that fail.
    closed = "has left the group" in first.text or "closed the communicator" in first.text
    if result.victim not in meant(first.text) and not closed:
        result.failures.append(f"rank {rank}: the first error names others: {first}")
    late = report.noticed - max(since, report.began)  # a rank that computes notices nothing before its next call
    result.late.append(late)
    if late > allowed + SLACK:
        result.failures.append(f"rank {rank}: the error came {late:.2f} s after the fault")


def begin(jobs: Jobs, result: Result, rng: random.Random, *args: Any, **limits: Any) -> Any:
    """A job whose ranks have begun to make calls. args: of `chaos_ranks.run`."""
    crew = jobs.crew(result.transport, result.places, **limits)
    result.failures += [
        f"rank {r} holds more from job to job: (descriptors, segments, threads) {rank.held}"
        for r, rank in enumerate(crew.ranks)
        # The first job of a process may open what stays, as the recorder does.
        if any(now > then for now, then in zip(rank.held[-1], rank.held[min(1, len(rank.held) - 1)], strict=True))
    ]
    crew.start(chaos_ranks.run, rng.randrange(1 << 30), pool.say, *args)
    for rank in crew.ranks:
        rank.event()
    return crew


def kill(jobs: Jobs, transport: str, rng: random.Random) -> Result:
    result = draw("kill", transport, rng)
    if transport == "local":
        return end_thread(result, rng)
    crew = begin(jobs, result, rng)
    time.sleep(instant(rng))  # the instant, not a wait for something
    since = time.monotonic()
    result.end = end_by_signal(crew.ranks[result.victim])
    for rank, outcome in enumerate(crew.collect(GRACE)):
        if rank == result.victim:
            if not isinstance(outcome.error, pool.RankDied):
                result.failures.append(f"the victim outlived SIGKILL: {outcome}")
        elif (report := result.take(rank, outcome)) is not None:
            judge(result, rank, report, ["PeerError"], since, PROMISED)
    result.failures += left_over()
    return result


def end_by_signal(victim: pool.Rank) -> float:
    """Kills, and waits until the kernel says that the process is no more. How long that took."""
    since = time.monotonic()
    descriptor = os.pidfd_open(victim.pid)
    try:
        victim.signal(signal.SIGKILL)
        select.select([descriptor], [], [], GRACE)
    finally:
        os.close(descriptor)
    return time.monotonic() - since


def end_thread(result: Result, rng: random.Random) -> Result:
    """A thread cannot be killed. Its communicator is closed under it at a random instant, as its exception would."""
    with threads(result, pool.LIMIT) as group:
        # Without groups: a thread that leaves both makes others leave the world by a call that the rest does not make.
        group.start(chaos_ranks.run, rng.randrange(1 << 30), group.say, None, chaos_ranks.LARGEST, False)
        group.await_ready()
        time.sleep(instant(rng))
        since = time.monotonic()
        group.comms[result.victim].close()
        for rank, outcome in enumerate(group.collect(GRACE)):
            report = result.take(rank, outcome)
            if report is not None and rank != result.victim:
                # A rank that closes with collectives in flight reports that, and the others receive the report.
                judge(result, rank, report, ["PeerError", "ClosedError"], since, PROMISED)
    return result


@contextlib.contextmanager
def threads(result: Result, timeout: float) -> Iterator[Threads]:
    before = pool.open_descriptors()
    group = Threads(result.size, timeout)
    try:
        yield group
    finally:
        group.close()
    if pool.open_descriptors() > before:
        result.failures.append(f"{pool.open_descriptors() - before} descriptors are left")


DEADLINE = 6.0  # seconds for a call, where a deadline is to pass
QUICK = 700_000  # elements: no call takes so long by itself


def stop(jobs: Jobs, transport: str, rng: random.Random) -> Result:
    """The victim is silent, and no rank may give it up before the deadline."""
    result = draw("stop", transport, rng)
    if transport == "local":
        return lazy_thread(result, rng)
    crew = begin(jobs, result, rng, None, QUICK, False, timeout=DEADLINE)
    time.sleep(instant(rng))
    since = time.monotonic()
    crew.ranks[result.victim].signal(signal.SIGSTOP)
    survivors = [rank for rank in range(result.size) if rank != result.victim]
    try:
        outcomes = {rank: crew.ranks[rank].outcome(time.monotonic() + GRACE) for rank in survivors}
    finally:
        crew.ranks[result.victim].signal(signal.SIGKILL)
    judge_deadline(result, outcomes, since)
    return result


def judge_deadline(result: Result, outcomes: dict[int, Outcome], since: float) -> None:
    reports = {r: report for r, o in outcomes.items() if (report := result.take(r, o)) is not None}
    for rank, report in reports.items():
        judge(result, rank, report, ["DeadlineError"], since, DEADLINE)
    for rank, report in reports.items():
        if report.received < min(r.step for r in reports.values()) + DEADLINE:
            result.failures.append(f"rank {rank} was told of a deadline before any can have passed: {report.first}")


def lazy_thread(result: Result, rng: random.Random) -> Result:
    """A thread that calls no more, and closes nothing."""
    steps = rng.randint(0, 20)
    since = [0.0]

    def work(comm: Any, seed: int, say: Any) -> Report:
        if comm.rank != result.victim:
            return chaos_ranks.run(comm, seed, say, None, QUICK, False)
        mix = chaos_ranks.Mix(comm, seed, QUICK, groups=False)
        for _ in range(steps):
            mix.step()
        since[0] = time.monotonic()
        return mix.report

    with threads(result, DEADLINE) as group:
        group.start(work, rng.randrange(1 << 30), group.say)
        outcomes = dict(enumerate(group.collect(GRACE)))
        result.take(result.victim, outcomes.pop(result.victim))
        judge_deadline(result, outcomes, since[0])
    return result


def resume(jobs: Jobs, transport: str, rng: random.Random) -> Result:
    """The victim goes on before the deadline of any rank: the others may notice no more than that it took longer."""
    result = draw("resume", transport, rng)
    crew = begin(jobs, result, rng, pool.told, QUICK)
    victim = crew.ranks[result.victim]
    for _ in range(rng.randint(1, 3)):
        time.sleep(instant(rng))
        victim.signal(signal.SIGSTOP)
        time.sleep(instant(rng) * 3)
        victim.signal(signal.SIGCONT)
    crew.ranks[0].tell("enough")
    for rank, outcome in enumerate(crew.collect(GRACE)):
        report = result.take(rank, outcome)
        if report is not None and report.first is not None:
            result.failures.append(f"rank {rank} failed: {report.first}")
    return result


FAULTS = {
    "kill": Fault("SIGKILL; among threads: the communicator is closed under the thread", kill),
    "stop": Fault(f"SIGSTOP, with a deadline of {DEADLINE:g} s; among threads: one calls no more", stop),
    "resume": Fault("SIGSTOP, and SIGCONT before the deadline, up to three times", resume, lambda t: t != "local"),
}


def attempt(jobs: Jobs, fault: str, transport: str, seed: int, number: int) -> Result:
    """Trial `number` of a run of this seed."""
    try:
        result = FAULTS[fault].trial(jobs, transport, random.Random(f"{seed} {number}"))
    except Exception:  # the other trials go on
        result = Result(fault, transport, 0, [], -1, failures=[traceback.format_exc()])
    result.repeat = f"python tests/chaos/chaos.py --fault {fault} --transport {transport} --seed {seed} --only {number}"
    return result
