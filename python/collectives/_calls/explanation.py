"""Why `algorithm="auto"` takes an algorithm, in numbers: what `Communicator.explain` returns."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import _core
from .._startup.overrides import COLLECTIVES

if TYPE_CHECKING:
    from ..communicator import Communicator

_MOST_BYTES = 1 << 50


@dataclass(frozen=True)
class Candidate:
    """One algorithm of an explanation.

    Attributes:
        algorithm: its name, as ``algorithm=`` takes it.
        us: predicted time of the call in microseconds; ``None`` where the algorithm cannot be used.
        formula: whether it was not simulated: the time is that of the algorithm's formula, as always on one host.
        at_least: whether it takes longer, ten times as long as the fastest or more: the simulation ends there.
        wire_us: for how much of it the busiest port of a host carries bytes; ``None`` on one host.
        processor_us: for how much of it the slowest rank's thread moves or adds bytes; ``None`` on one host.
        unsupported: why it cannot be used here, ``""`` where it can.
    """

    algorithm: str
    us: float | None
    wire_us: float | None
    processor_us: float | None
    unsupported: str
    formula: bool
    at_least: bool

    @property
    def waiting_us(self) -> float | None:
        """How long the slowest rank's thread waits for others and for the wire."""
        return None if self.us is None or self.processor_us is None else self.us - self.processor_us


@dataclass(frozen=True)
class Explanation:
    """The algorithms for one call, the fastest first. ``print`` shows a table.

    Attributes:
        collective: its name.
        nbytes: of what a rank gives or gets, whichever is more.
        source: where the times come from, in words.
        candidates: the algorithms, those that cannot be used last.
        override: the algorithm that ``COLLECTIVES_ALGORITHM`` or the profile names for this call, ``""`` where neither
            names one.
        override_by: which of the two, in words.
        profile: the file that ``COLLECTIVES_PROFILE`` names and its digest, ``""`` where there is none.
    """

    collective: str
    nbytes: int
    source: str
    candidates: Sequence[Candidate]
    override: str = ""
    override_by: str = ""
    profile: str = ""

    @property
    def chosen(self) -> str:
        """The algorithm that ``algorithm="auto"`` takes."""
        return self.override or self.candidates[0].algorithm

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("algorithm", "predicted", "wire", "processor", "waiting", "")]
        for candidate in self.candidates:
            remark = candidate.unsupported or ("or more" if candidate.at_least else "")
            if candidate.algorithm == self.chosen:
                remark = "chosen" if not self.override else f"chosen by {self.override_by}"
            times = (candidate.us, candidate.wire_us, candidate.processor_us, candidate.waiting_us)
            rows.append((candidate.algorithm, *map(_microseconds, times), remark))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [f"{self.collective} of {self.nbytes} bytes; {self.source}"]
        lines += [f"profile {self.profile}"] if self.profile else []
        for row in rows:
            cells = [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:5], widths[1:5], strict=True)),
            ]
            lines.append("  ".join([*cells, row[5]]).rstrip())
        return "\n".join(lines)


def _microseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} us"


def explain(communicator: Communicator, collective: str, nbytes: int, root: int) -> Explanation:
    if collective not in COLLECTIVES:
        raise ValueError(f"collective is {collective!r}; accepted are {', '.join(COLLECTIVES)}")
    count = operator.index(nbytes)
    if not 0 <= count <= _MOST_BYTES:
        raise ValueError(f"nbytes is {nbytes!r}; a number of bytes from 0 to {_MOST_BYTES} is accepted")
    found = _core._predictions(communicator, collective, count, operator.index(root))
    if found["simulated"]:
        rate, latency = found["bytes_per_ms"] * 8e3 / 1e9, found["latency_ns"] / 1e3
        burst = f", bursts of {found['burst_bytes']} bytes" if found["burst_bytes"] else ""
        source = f"simulated with ports of {rate:g} Gbit/s for each host{burst} and {latency:g} us between hosts"
    else:
        source = "by the formula of each algorithm"
    single = communicator.size == 1
    candidates = [
        Candidate(
            entry["algorithm"],
            entry["us"],
            None if entry["formula"] else entry["wire_us"],
            None if entry["formula"] else entry["processor_us"],
            entry["unsupported"],
            entry["formula"],
            entry["at_least"],
        )
        for entry in found["candidates"]
    ]
    source = "there is no other rank" if single else source
    by = "" if not found["override"] else "the profile" if found["of_profile"] else "COLLECTIVES_ALGORITHM"
    return Explanation(collective, count, source, candidates, found["override"], by, found["profile"])
