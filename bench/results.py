"""Collects the measurements on rank 0, and makes rows of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from cases import REDUCING, Array, Case, Config
from collectives.bench.factors import bus_factor
from collectives.bench.place import carrier
from placement import PLACEMENTS

# A placement gets a row of its own when it was seen in this many blocks, or in this part of all blocks of the case.
ENOUGH_BLOCKS = 5
ENOUGH_PART = 1 / 3


@dataclasses.dataclass
class CaseData:
    """Measurements of one case.

    Attributes:
        samples: microseconds per call by the slowest rank, a list of blocks for each placement.
        mixed: the blocks whose probes disagree.
        spent: seconds in blocks.
        iteration: seconds that one timed call took in the last block, with all that goes around it.
        disturbed: blocks in which rank 0 had to leave its core to something else.
        chosen: the algorithm that "auto" stands for.
        moved: payload bytes that all ranks together moved in one call, by transport.
    """

    samples: dict[str, list[Array]] = dataclasses.field(default_factory=dict)
    mixed: list[Array] = dataclasses.field(default_factory=list)
    blocks: int = 0
    spent: float = 0.0
    iteration: float = 0.0
    disturbed: int = 0
    wrong: int = 0
    chosen: str = ""
    moved: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, times: Array, before: str, after: str, wall: float, iteration: float) -> None:
        """Adds the times of a block."""
        if before == after:
            self.samples.setdefault(before, []).append(times)
        else:
            self.mixed.append(times)
        self.blocks += 1
        self.spent += wall
        self.iteration = iteration

    def forget_samples(self) -> None:
        """Drops all samples, but keeps the duration of an iteration."""
        self.samples, self.mixed, self.blocks, self.spent, self.disturbed = {}, [], 0, 0.0, 0

    def placements(self) -> dict[str, Array]:
        """All samples of each placement that was seen often enough; at least one placement.

        Blocks of an unknown placement, or of two, count only when there are no others.
        """
        known = {p: self.samples[p] for p in PLACEMENTS if p != "unknown" and p in self.samples}
        enough = {p: b for p, b in known.items() if len(b) >= ENOUGH_BLOCKS or len(b) >= ENOUGH_PART * self.blocks}
        if not enough:
            unknown = self.samples.get("unknown", [])
            most = max([*known, "unknown"], key=lambda p: len(known.get(p, unknown)))
            enough = {most: known.get(most, unknown) or self.mixed}
            if not enough[most]:
                enough = known
        return {p: np.concatenate(b) for p, b in enough.items()}


class Collected:
    """The measurements of a run."""

    def __init__(self, config: Config, cases: list[Case], left_out: dict[str, str], hosts: list[int]) -> None:
        self._config = config
        self._cases = cases
        self._left_out = left_out
        self._transport = carrier(config.transport, hosts)
        self.data = [CaseData() for _ in cases]

    def report(self) -> dict[str, Any]:
        """Rows as `--json` has them, and what else the table says, as JSON values."""
        rows = []
        chosen = {}
        for case, data in zip(self._cases, self.data, strict=True):
            rows += [self._row(case, data, p, samples) for p, samples in data.placements().items()]
            if data.chosen and case.algorithm == "auto":
                chosen[str(case.nbytes)] = data.chosen
        return {
            "rows": rows,
            "versions": {"numpy": np.__version__},
            "chosen": chosen,
            "left_out": self._left_out,
            "blocks": sum(d.blocks for d in self.data),
            "disturbed": sum(d.disturbed for d in self.data),
            "mixed": sum(len(d.mixed) for d in self.data),
        }

    def _row(self, case: Case, data: CaseData, placement: str, samples: Array) -> dict[str, Any]:
        c = self._config
        median = float(np.median(samples))
        algbw = case.nbytes / (median * 1e3) if median > 0 else 0.0  # bytes per ns are GB/s
        return {
            "collective": c.collective,
            "transport": self._transport,
            "algorithm": case.algorithm,
            "memory": c.memory if case.peer is None else "private",
            "ranks": c.ranks,
            "bytes": case.nbytes,
            "dtype": c.dtype,
            "op": c.op if c.collective in REDUCING else None,
            "peer": case.peer,
            "level": case.level,
            "tensors": case.tensors,
            "placement": placement,
            "time_us": median,
            "time_us_p99": float(np.percentile(samples, 99)),
            "algbw_gbs": algbw,
            "busbw_gbs": algbw * bus_factor(c.collective, c.ranks),
            "wrong": data.wrong,
            "bytes_by_transport": data.moved,
        }
