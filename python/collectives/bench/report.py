"""What the bench prints and writes: the header, rows as they come, the summary, and a file of JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import text
from .measure import Half, Row
from .options import AVERAGES, Options

# Width and units of the columns, on the left of a row, and twice on its right.
_LEFT = (("size", 12, "(B)"), ("count", 12, "(elements)"), ("type", 9, ""), ("redop", 6, ""), ("root", 5, ""))
_TIME = (("time", 9, "(us)"),)
_PERCENTILES = (("p50", 9, "(us)"), ("p99", 9, "(us)"))
_RATES = (("algbw", 8, "(GB/s)"), ("busbw", 8, "(GB/s)"), ("#wrong", 7, ""))


class Table:
    """The lines of the table.

    Args:
        percentiles: whether the columns p50 and p99 are shown.
    """

    def __init__(self, percentiles: bool) -> None:
        self._right = _TIME + (_PERCENTILES if percentiles else ()) + _RATES
        self._percentiles = percentiles

    def head(self) -> str:
        """The names of the columns and their units, as comments."""
        half = sum(width + 1 for _, width, _ in self._right) - 1
        left = " ".join(" " * width for _, width, _ in _LEFT)
        columns = (*_LEFT, *self._right, *self._right)
        lines = [
            " ".join((left, "out-of-place".center(half), "in-place".center(half))),
            " ".join(name.rjust(width) for name, width, _ in columns),
            " ".join(unit.rjust(width) for _, width, unit in columns),
        ]
        return "\n".join(f"#{line[1:]}".rstrip() for line in lines)

    def line(self, row: Row) -> str:
        """A row. What was not measured or checked is N/A."""
        left = (str(row.nbytes), str(row.count), row.type, row.op, str(row.root))
        cells = (*left, *self._half(row.out_of_place), *self._half(row.in_place))
        widths = [width for _, width, _ in (*_LEFT, *self._right, *self._right)]
        return " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))

    def _half(self, half: Half | None) -> list[str]:
        if half is None:
            return ["N/A"] * len(self._right)
        times = [half.time_us, *((half.p50_us, half.p99_us) if self._percentiles else ())]
        return [
            *("N/A" if value is None else text.number(value) for value in times),
            text.bandwidth(half.algbw_gbs),
            text.bandwidth(half.busbw_gbs),
            "N/A" if half.wrong is None else str(half.wrong),
        ]


def about(options: Options, place: dict[str, Any]) -> str:
    """The lines before the table.

    Args:
        options: what is measured.
        place: "version", "isa", "ranks", "hosts" (text), "transport" and "started_by".
    """
    first, last = (text.format_size(nbytes) for nbytes in (options.sizes[0], options.sizes[-1]))
    calls = "blocking" if options.blocking else "asynchronous"
    lines = [
        f"# collectives {place['version']} ({place['isa']}), started by {place['started_by']}",
        f"# {place['ranks']} rank{'s' * (place['ranks'] != 1)} on {place['hosts']}",
        f"# {options.collective}, algorithm {options.algorithm}, transport {place['transport']}",
        f"# sizes {first} to {last}, {options.iters} {calls} calls after {options.warmup_iters} to warm up, time: "
        f"{AVERAGES[options.average]}, results {'checked' if options.check else 'not checked'}",
    ]
    if options.left_out:
        lines.append(
            f"# left out, since they do not exist: {', '.join(f'{op} of {name}' for name, op in options.left_out)}"
        )
    return "\n".join((*lines, "#"))


def wrong(rows: Sequence[Row]) -> int:
    """Wrong elements of all rows."""
    return sum(half.wrong or 0 for half in _halves(rows))


def average(rows: Sequence[Row]) -> float:
    """The average of all bus bandwidths, in GB/s; 0 where there are no rows."""
    bandwidths = [half.busbw_gbs for half in _halves(rows)]
    return sum(bandwidths) / len(bandwidths) if bandwidths else 0.0


def summary(rows: Sequence[Row]) -> str:
    """The lines after the table."""
    count = wrong(rows)
    return (
        f"# Out of bounds values : {count} {'FAILED' if count else 'OK'}\n"
        f"# Avg bus bandwidth    : {text.bandwidth(average(rows))}"
    )


def save(path: Path, options: Options, place: dict[str, Any], rows: Sequence[Row]) -> None:
    """Writes rows and circumstances as JSON. Raises OSError."""
    asked = {key: value for key, value in dataclasses.asdict(options).items() if key != "json"}
    whole = {
        "about": {**place, "options": asked},
        "rows": [{"collective": options.collective, **dataclasses.asdict(row)} for row in rows],
        "out_of_bounds": wrong(rows),
        "average_busbw_gbs": average(rows),
    }
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def _halves(rows: Sequence[Row]) -> list[Half]:
    return [half for row in rows for half in (row.out_of_place, row.in_place) if half is not None]
