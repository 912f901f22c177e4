"""What bench/torch_step.py collects, its ratios, and both as text and JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
from collectives.bench.text import format_size, number
from placement import PLACEMENTS
from table import DISTURBED_PART, grid
from torch_cases import NOTHING, OURS, THEIRS

MIXED = "mixed"  # the cores moved within a block, which says nothing
K, M = 1 << 10, 1 << 20
# How many times faster than Gloo on one host: calls up to so many bytes, then the step.
CALL_TARGETS = {8 * K: 10.0, 64 * K: 5.0, 16 * M: 3.0}
STEP_TARGET = 1.15
HOSTS_TARGET = 0.95  # between hosts: not slower, but for noise


class Report:
    """Medians of blocks, in rounds, by case and by the placement of the cores."""

    def __init__(self, cases: list[tuple[str, str]], hosts: int) -> None:
        self._hosts = hosts
        self._blocks: dict[tuple[str, str], list[tuple[float, str]]] = {case: [] for case in cases}

    def add(self, case: tuple[str, str], median: float, before: str, after: str) -> None:
        """Adds a block: the median in microseconds, and the placements that were probed around it."""
        self._blocks[case].append((median, before if before == after else MIXED))

    def as_json(self) -> dict[str, Any]:
        """Rows and ratios; blocks in which the cores moved are counted and left out."""
        rows = [row for case in self._blocks for row in self._rows(case)]
        mixed = sum(place == MIXED for blocks in self._blocks.values() for _, place in blocks)
        return {"hosts": self._hosts, "rows": rows, "ratios": self._ratios(rows), "mixed": mixed}

    def _rows(self, case: tuple[str, str]) -> list[dict[str, Any]]:
        rows = []
        for placement in PLACEMENTS:
            times = [time for time, place in self._blocks[case] if place == placement]
            if times:
                low, median, high = (float(value) for value in np.percentile(times, (25, 50, 75)))
                rows.append(
                    {
                        "what": case[0],
                        "contender": case[1],
                        "placement": placement,
                        "time_us": median,
                        "time_us_quartiles": [low, high],
                        "blocks": len(times),
                    }
                )
        return rows

    def _ratios(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        times = {(row["what"], row["placement"], row["contender"]): row["time_us"] for row in rows}
        found = []
        for what in dict.fromkeys(what for what, _ in self._blocks):
            for placement in PLACEMENTS:
                ours, theirs = (times.get((what, placement, name)) for name in (OURS, THEIRS))
                if ours is None or theirs is None:
                    continue
                nothing = times.get((what, placement, NOTHING))
                # Targets are for cores that share a cache, or for hosts.
                target = self._target(what) if placement == "near" or self._hosts > 1 else None
                found.append(
                    {
                        "what": what,
                        "placement": placement,
                        "ratio": theirs / ours,
                        "communication": None if nothing is None else 1 - nothing / theirs,
                        "target": target,
                        "met": None if target is None else theirs / ours >= target,
                    }
                )
        return found

    def _target(self, what: str) -> float | None:
        if self._hosts > 1:
            return HOSTS_TARGET
        if what.startswith("all_reduce "):
            nbytes = int(what.split()[1])
            return next((target for most, target in CALL_TARGETS.items() if nbytes <= most), None)
        return STEP_TARGET if what == "DDP step" else None


def label(what: str) -> str:
    """The name of a case, with a size that is easy to read."""
    name, _, rest = what.partition(" ")
    return f"{name} {format_size(int(rest))}" if rest.isdigit() else what


def as_text(report: dict[str, Any]) -> str:
    """The tables of times and of ratios, and how busy the machine was."""
    times = [("", "", "placement", "median", "quartiles", "blocks"), ("", "", "", "us", "us", "")]
    for row in report["rows"]:
        low, high = row["time_us_quartiles"]
        times.append(
            (
                label(row["what"]),
                row["contender"],
                row["placement"],
                number(row["time_us"]),
                f"{number(low)} .. {number(high)}",
                str(row["blocks"]),
            )
        )
    ratios = [("", "placement", f"{THEIRS} / {OURS}", "must be", "", f"communication of {THEIRS}")]
    for ratio in report["ratios"]:
        target, part = ratio["target"], ratio["communication"]
        ratios.append(
            (
                label(ratio["what"]),
                ratio["placement"],
                f"{ratio['ratio']:.2f}",
                "" if target is None else f">= {target:g}",
                "" if target is None else "met" if ratio["met"] else "NOT MET",
                "" if part is None else f"{part:.0%} of the step",
            )
        )
    others = report["others"]
    end = (
        f"{report['rounds']} rounds; {report['mixed']} blocks left out, in which the cores moved; other programs took "
    )
    end += f"{others:.0%} of the processors' time"
    end += ", so times are too long and ratios uncertain" if others > DISTURBED_PART else ""
    return "\n\n".join(
        (
            grid(times, [True, True, True, False, False, False]),
            grid(ratios, [True, True, False, False, True, False]),
            end,
        )
    )
