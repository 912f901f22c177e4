"""Ranks that make calls of all kinds for a long time: what they hold must stay flat."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import chaos_jobs
import chaos_ranks
import pool

SIZE = 4
LARGEST = 50_000  # elements: what comes and goes with larger ones hides what stays
SAMPLES = 60  # of each rank
WARM = 0.3  # part of the time in which memory is touched for the first time
# How much more the second half of the samples may have than the first, taken as medians: allocators keep pages.
GROWTH = 6 << 20
SHORT_GROWTH = 64 << 20  # where a busy machine may still touch memory for the first time at the end


@dataclass
class Samples:
    """Of one rank: resident bytes, and open descriptors."""

    resident: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def take(self, pid: int) -> None:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                self.resident.append(int(line.split()[1]) << 10)
        self.descriptors.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))

    def warm(self, values: list[int]) -> list[int]:
        return values[int(WARM * len(values)) :]

    def growth(self) -> int:
        """Bytes, from the first half of the samples that count to the second."""
        values = self.warm(self.resident)
        half = len(values) // 2
        return sorted(values[half:])[(len(values) - half) // 2] - sorted(values[:half])[half // 2]

    def faults(self, growth: int) -> list[str]:
        found = []
        if self.growth() > growth:
            found.append(f"resident memory grew by {self.growth() >> 10} KiB: {[v >> 10 for v in self.resident]}")
        descriptors = self.warm(self.descriptors)
        # The least of the last ones: some calls open descriptors for a moment.
        if min(descriptors[-len(descriptors) // 4 :]) > max(self.descriptors[: -len(descriptors)]):
            found.append(f"descriptors grew: {self.descriptors}")
        return found


def soak(
    jobs: chaos_jobs.Jobs,
    transport: str,
    seconds: float,
    seed: int,
    update: Callable[[float], None] = lambda part: None,
    growth: int = GROWTH,
) -> tuple[list[str], str]:
    """One job; what is wrong, and a line about it. update: is told which part is done.

    growth: how many bytes more may be resident at the end.
    """
    places = [0, 0, 1, 1] if transport == "mixed" else [0] * SIZE
    crew = jobs.crew(transport, places)
    crew.start(chaos_ranks.run, seed, pool.say, pool.told, LARGEST)
    for rank in crew.ranks:
        rank.event()
    samples = [Samples() for _ in crew.ranks]
    began = time.monotonic()
    for number in range(1, SAMPLES + 1):
        time.sleep(max(0.0, began + number * seconds / SAMPLES - time.monotonic()))  # the time between samples
        for rank, sample in zip(crew.ranks, samples, strict=True):
            if rank.process.poll() is not None:
                return [f"{transport}: rank {rank.number} has ended with code {rank.process.returncode}"], ""
            sample.take(rank.pid)
        update(number / SAMPLES)
    crew.ranks[0].tell("enough")
    wrong, calls = [], 0
    for number, outcome in enumerate(crew.collect(60)):
        if not isinstance(outcome.value, chaos_ranks.Report) or outcome.value.first is not None:
            wrong.append(f"{transport}: rank {number}: {outcome.error!r} {outcome.value!r}")
            continue
        calls += outcome.value.calls
        wrong += outcome.value.wrong
    wrong += [f"{transport}: rank {r}: {fault}" for r, sample in enumerate(samples) for fault in sample.faults(growth)]
    grown = max(sample.growth() for sample in samples)
    most = max(max(sample.resident) for sample in samples)
    line = (
        f"{transport}: {seconds:.0f} s, {calls} results checked, {most >> 20} MiB resident at most, "
        f"{grown / 2**20:+.1f} MiB from the first half to the second, "
        f"{max(max(sample.warm(sample.descriptors)) for sample in samples)} descriptors"
    )
    return wrong, line
