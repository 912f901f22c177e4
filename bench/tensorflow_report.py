"""What bench/tensorflow_step.py collects, its ratios, and both as text and JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from collectives.bench.text import number
from placement import PLACEMENTS
from table import DISTURBED_PART, grid

NOTHING = "no all-reduce"

# (group, part, ours, theirs, what ours over theirs must not exceed, if anything)
_Comparison = tuple[str, str, str, str, float | None]


def _comparisons() -> list[_Comparison]:
    found: list[_Comparison] = []
    for group in ("2 replicas", "8 replicas"):
        for ours, theirs, target in (
            ("one device", "tf one device", 1.1),
            ("hierarchical copy", "tf hierarchical copy", 1 / 3),
            ("ring", "tf default", 1 / 4),
        ):
            found.append((group, "all-reduce", ours, theirs, target if group == "8 replicas" else None))
            found.append((group, "step", ours, theirs, None))
        found.append((group, "step", "one device", "tf dtensor", None))
    for ours, target in (("shm", 1 / 4), ("tcp", 1 / 3)):
        found.append(("2 workers", "all-reduce", ours, "tf ring", target))
        found.append(("2 workers", "step", ours, "tf ring", None))
        found.append(("2 workers", "step", f"{ours} tape", ours, 1.15 if ours == "shm" else None))
    return found


@dataclasses.dataclass(frozen=True)
class Case:
    """What is timed: a part ("step" or "all-reduce") of a contender in a group."""

    group: str
    name: str
    part: str


@dataclasses.dataclass(frozen=True)
class Block:
    """Times of one block: the median, in ms, and the placement of the cores before and after."""

    median: float
    before: str
    after: str


class Report:
    """Blocks of all cases, in rounds.

    Args:
        cases: each gets one block in every round.
    """

    def __init__(self, cases: list[Case]) -> None:
        self._blocks: dict[Case, list[Block]] = {case: [] for case in cases}

    def add(self, case: Case, block: Block) -> None:
        """Adds the block of a case in the current round."""
        self._blocks[case].append(block)

    def as_json(self) -> dict[str, Any]:
        """Rows and ratios. Quartiles of a ratio are of the ratios within rounds."""
        return {"rows": [self._row(case) for case in self._blocks], "ratios": self._ratios()}

    def _row(self, case: Case) -> dict[str, Any]:
        blocks = self._blocks[case]
        low, median, high = np.percentile([block.median for block in blocks], (25, 50, 75))
        where = [block.before if block.before == block.after else "mixed" for block in blocks]
        return {
            "group": case.group,
            "contender": case.name,
            "part": case.part,
            "time_ms": float(median),
            "time_ms_quartiles": [float(low), float(high)],
            "blocks": len(blocks),
            "placements": {name: where.count(name) for name in (*PLACEMENTS, "mixed") if name in where},
        }

    def _ratios(self) -> list[dict[str, Any]]:
        found = []
        for group, part, ours, theirs, target in _comparisons():
            mine = self._medians(Case(group, ours, part))
            other = self._medians(Case(group, theirs, part))
            if not mine or not other:
                continue  # the group was not measured
            low, high = np.percentile(np.divide(mine, other), (25, 75))
            around = np.median(self._medians(Case(group, NOTHING, part)) or [np.nan])
            ratio = float(np.median(mine) / np.median(other))
            found.append(
                {
                    "group": group,
                    "part": part,
                    "ours": ours,
                    "theirs": theirs,
                    "ratio": ratio,
                    # In steps the difference is lost in noise.
                    "net": _net(np.median(mine) - around, np.median(other) - around) if part == "all-reduce" else None,
                    "quartiles": [float(low), float(high)],
                    "target": target,
                    "met": None if target is None else ratio <= target,
                }
            )
        return found

    def _medians(self, case: Case) -> list[float]:
        return [block.median for block in self._blocks.get(case, [])]


def _net(mine: float, other: float) -> float | None:
    """The quotient of what an all-reduce adds to a time; None where noise hides it."""
    return float(mine / other) if mine > 0 and other > 0 else None


def as_text(report: dict[str, Any]) -> str:
    """The tables of times and of ratios, and where the cores were."""
    times = {(row["group"], row["contender"], row["part"]): row for row in report["rows"]}
    lines = [("", "", "step", "quartiles", "all-reduce", "quartiles"), ("", "", "ms", "ms", "ms", "ms")]
    for group, name in dict.fromkeys((row["group"], row["contender"]) for row in report["rows"]):
        cells = []
        for part in ("step", "all-reduce"):
            row = times.get((group, name, part))
            cells += ["-", ""] if row is None else [number(row["time_ms"]), _quartiles(row["time_ms_quartiles"])]
        lines.append((group, name, *cells))  # type: ignore[arg-type]
    ratios = [("", "", "ours", "theirs", "ours / theirs", "quartiles", "must be", "", "net")]
    for ratio in report["ratios"]:
        target = ratio["target"]
        ratios.append(
            (
                ratio["group"],
                ratio["part"],
                ratio["ours"],
                ratio["theirs"],
                _fraction(ratio["ratio"]),
                " .. ".join(_fraction(value) for value in ratio["quartiles"]),
                "" if target is None else f"<= {_fraction(target)}",
                "" if target is None else "met" if ratio["met"] else "NOT MET",
                "-" if ratio["net"] is None else _fraction(ratio["net"]),
            )
        )
    return "\n\n".join(
        (
            grid(lines, [True, True, False, False, False, False]),
            grid(ratios, [True, True, True, True, False, False, False, True, False]),
            _where(report["rows"]) + _busy(report["others"]),
        )
    )


def _fraction(value: float) -> str:
    return f"{value:.2f}"


def _quartiles(values: list[float]) -> str:
    return f"{number(values[0])} .. {number(values[1])}"


def _busy(others: float) -> str:
    text = f"; other programs took {others:.0%} of the processors' time"
    return text + ", so times are too long and ratios uncertain" if others > DISTURBED_PART else text


def _where(rows: list[dict[str, Any]]) -> str:
    blocks = sum(row["blocks"] for row in rows)
    parts = []
    for name in (*PLACEMENTS, "mixed"):
        here = sum(row["placements"].get(name, 0) for row in rows)
        if here:
            parts.append(f"{name} {here / blocks:.0%}")
    return f"{blocks} blocks; the cores' placement: {', '.join(parts)}"
