"""The report as text: the table, the comparison with a peer, and a summary line."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

from cases import LIMIT, NO_LIBRARIES, Config
from collectives.bench.text import bandwidth, format_size, number

Row = dict[str, Any]

_HEADER = ("size", "count", "type", "level", "algorithm", "placement", "median", "p99", "algbw", "busbw", "wrong")
_UNITS = ("", "elements", "", "", "", "", "us", "us", "GB/s", "GB/s", "elements")
# A fraction of the blocks: the scheduler's own housekeeping interrupts a few.
DISTURBED_PART = 0.1

_LEFT = {"type", "level", "algorithm", "placement"}


def rows_as_text(report: dict[str, Any], config: Config) -> str:
    """The table of all rows, and notes about them."""
    cells = [
        (
            format_size(row["bytes"]),
            str(row["bytes"] // config.element.itemsize),
            row["dtype"],
            row["level"],
            _label(row, report["chosen"]),
            row["placement"],
            number(row["time_us"]),
            number(row["time_us_p99"]),
            bandwidth(row["algbw_gbs"]),
            bandwidth(row["busbw_gbs"]),
            str(row["wrong"]) if config.check and config.rewrites and row["peer"] != LIMIT else "-",
        )
        for row in report["rows"]
    ]
    lines = [grid([_HEADER, _UNITS, *cells], [name in _LEFT for name in _HEADER]), ""]
    lines += [f"left out: {name} ({reason})" for name, reason in report["left_out"].items()]
    mixed, blocks = report["mixed"], report["blocks"]
    if mixed:
        lines.append(f"{mixed} of {blocks} blocks dropped: the cores moved within them")
    # With more ranks than cores they preempt each other.
    if report["disturbed"] > DISTURBED_PART * blocks and config.ranks <= len(os.sched_getaffinity(0)):
        part = report["disturbed"] / blocks
        lines.append(f"rank 0 was interrupted in {part:.0%} of the blocks: other programs run, and times are too long")
    return "\n".join(lines).rstrip()


def versus_as_text(rows: list[Row], peer: str) -> str:
    """Peer over ours, by size and placement: the medians of the best way of each. Above 1, ours is faster."""
    header = ("size", "level", "placement", "ours", "median", peer, "median", f"{peer} / ours")
    cells = []
    for (nbytes, level, placement), here in by_place(rows):
        ours, theirs = pair(here)
        if ours is None or theirs is None:
            continue
        ratio = theirs["time_us"] / ours["time_us"]
        cells.append(
            (
                *(format_size(nbytes), level, placement),
                *(ours["algorithm"], number(ours["time_us"])),
                *(theirs["algorithm"], number(theirs["time_us"])),
                f"{ratio:.2f}" + ("" if ratio >= 1 else "  <- slower"),
            )
        )
    units = ("", "", "", "", "us", "", "us", "")
    left = [False, True, True, True, False, True, False, True]
    return grid([header, units, *cells], left)


def by_place(rows: list[Row]) -> list[tuple[tuple[int, str, str], list[Row]]]:
    """The rows that may be compared with each other, by size, level and placement."""
    groups: dict[tuple[int, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["bytes"], row["level"], row["placement"]), []).append(row)
    return sorted(groups.items())


def pair(rows: list[Row]) -> tuple[Row | None, Row | None]:
    """The row that represents ours, and the best row of the peer. Lists of tensors are compared separately."""
    ours = _ours([row for row in rows if row["peer"] is None and row.get("tensors", 1) == 1])
    return ours, min((row for row in rows if row["peer"]), key=_time, default=None)


def best_as_text(rows: list[Row]) -> str:
    """Each peer over ours, each ratio from the run in which both took part, and which peer comes closest."""
    names = [name for name in dict.fromkeys(str(row["against"]) for row in rows) if name != LIMIT]
    cells = []
    for (nbytes, level, placement), here in by_place(rows):
        ratios: dict[str, float] = {}
        for name in names:
            ours, theirs = pair([row for row in here if row["against"] == name])
            if ours is not None and theirs is not None:
                ratios[name] = theirs["time_us"] / ours["time_us"]
        peers = [name for name in ratios if name not in NO_LIBRARIES]
        if not peers:
            continue
        best = min(peers, key=lambda name: ratios[name])
        shown = [f"{ratios[name]:.2f}" if name in ratios else "-" for name in names]
        mark = "" if ratios[best] >= 1 else "  <- slower"
        cells.append((format_size(nbytes), level, placement, *shown, best, f"{ratios[best]:.2f}{mark}"))
    if not cells:
        return "no library was measured"
    header = ("size", "level", "placement", *(f"{name} / ours" for name in names), "best peer", "best / ours")
    return grid([header, *cells], [False, True, True, *(False for _ in names), True, True])


def summary(rows: list[Row], config: Config) -> str:
    """One line: the time at the smallest size, the bandwidth at the largest, and how much was wrong."""
    ours = [row for row in rows if row["peer"] is None]
    sizes = [row["bytes"] for row in ours]
    first = _ours([row for row in ours if row["bytes"] == min(sizes)])
    last = _ours([row for row in ours if row["bytes"] == max(sizes)])
    assert first is not None
    assert last is not None
    ranks = f"{config.ranks} rank{'s' if config.ranks > 1 else ''}"
    start = f"{config.collective}, {ranks}, {first['transport']}: {number(first['time_us'])} us"
    if not config.rewrites:
        return start
    wrong = f"{total_wrong(ours)} wrong" if config.check else "not checked"
    return (
        f"{start} at {format_size(first['bytes'])}, {bandwidth(last['busbw_gbs'])} GB/s busbw at "
        f"{format_size(last['bytes'])}, {wrong}"
    )


def total_wrong(rows: list[Row]) -> int:
    """Wrong elements of all cases; the rows of one case, by placement, share their count."""
    keys = ("algorithm", "peer", "bytes", "level", "tensors", "against")
    cases = {tuple(row.get(key) for key in keys): row["wrong"] for row in rows}
    return sum(cases.values())


def _ours(rows: list[Row]) -> Row | None:
    """The row that represents ours: "auto" where it was measured, else the fastest."""
    automatic = [row for row in rows if row["algorithm"] == "auto"]
    return min(automatic or rows, key=_time, default=None)


def _time(row: Row) -> float:
    return float(row["time_us"])


def _label(row: Row, chosen: dict[str, str]) -> str:
    if row["peer"]:
        return f"{row['peer']} ({row['algorithm']})"
    name = chosen.get(str(row["bytes"])) if row["algorithm"] == "auto" else None
    label = f"auto [{name}]" if name else str(row["algorithm"])
    return f"{label}, {row['tensors']} tensors" if row["tensors"] > 1 else label


def grid(lines: list[tuple[str, ...]], left: list[bool], least: Sequence[int] = ()) -> str:
    """Lines of cells as a table; the columns that `left` names are aligned to the left.

    Args:
        least: widths of columns at least, so that tables which are printed one after the other look like one.
    """
    widths = [max(len(line[i]) for line in lines) for i in range(len(left))]
    widths = [max(pair) for pair in itertools.zip_longest(widths, least, fillvalue=0)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in lines
    )
