"""Puts several runs of the suite together: what was aimed at and reached, and the rows that publish it.

    python bench/allreduce.py --vs all --json run1.json   # and run2.json, run3.json
    python bench/suite_report.py run1.json run2.json run3.json
    python bench/suite_report.py run1.json run2.json run3.json --rows zen4 --engine eae5c2f

Of each run the ratios are taken by themselves; what is published is the median of the runs. The third command puts the
rows of the machine "zen4" into bench/results/figures.csv, in place of those that the suite gave there before; then
bench/figures.py writes tables and pictures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import figures
import limit
import suite
from cases import LIMIT, NO_LIBRARIES
from collectives.bench.text import format_size, number
from table import Row, pair

_NO_LIMIT = 1.1  # times ours: noise explains less
# Entries of the versions of a run that are not published.
_LEFT_OUT = {"collectives", "isa", "numpy", "mpi4py", "oneccl-cpu-devel", "intel-cmplr-lib-rt"}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="what --json has written")
    parser.add_argument("--rows", metavar="MACHINE", help=f"put the rows of the machine into {figures.FIGURES.name}")
    parser.add_argument("--engine", default="", metavar="COMMIT", help="that was measured")
    parser.add_argument("--raw", default="", metavar="TEXT", help="where the files are kept, if they are")
    arguments = parser.parse_args()
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in arguments.files]
    if arguments.rows:
        known = figures.read(figures.FIGURES)
        old = figures.of_suite(known, arguments.rows)
        new = rows_of_runs(runs, arguments.rows, arguments.engine, arguments.raw)
        figures.write(figures.FIGURES, new + [row for row in known if row not in old])
    print(aims_as_markdown([run["rows"] for run in runs]))
    return 0


def rows_of_runs(runs: list[dict[str, Any]], machine: str, engine: str, raw: str) -> list[figures.Figure]:
    """One row for each size of each section, and where the cores were."""
    about = runs[0]["about"]
    given = {
        "page": "performance",
        "machine": machine,
        "date": about["date"][:10],
        "engine": engine,
        "command": about["command"].removeprefix("python bench/").partition(" --json")[0],
        "versions": ", ".join(f"{name} {of}" for name, of in about["versions"].items() if name not in _LEFT_OUT),
        "unit": "us",
        "raw": raw,
    }
    rows = [run["rows"] for run in runs]
    found = []
    for section in suite.SECTIONS.values():
        # The overhead of calls from Python is much the same everywhere: all-reduce over shared memory suffices.
        both = section.level == "both" and (section.collective, section.transport) == ("all_reduce", "shm")
        for level in ("c", "python") if both else ("c",):
            measured = _of_lists if section.tensors > 1 else _of_section
            shape = {"what": section.collective, "transport": section.transport, "memory": section.memory}
            found += [{**given, **shape, "level": level, **row} for row in measured(rows, section, level)]
    return found


def _of_section(runs: list[list[Row]], section: suite.Section, level: str) -> Iterator[figures.Figure]:
    seen = [{found[:2] for found in _pairs(section.rows(rows), level)} for rows in runs]
    for (nbytes, cores), (ours, peers) in sorted(_collect(runs, section, level).items()):
        medians = {name: statistics.median(ratios) for name, ratios in peers.items()}
        best = figures.closest(medians)
        yield {
            "cores": cores,
            "n": str(section.ranks),
            "bytes": str(nbytes),
            "runs": str(sum((nbytes, cores) in places for places in seen)),
            "median": number(statistics.median(row["time_us"] for row in ours)),
            "p99": number(statistics.median(row["time_us_p99"] for row in ours)),
            "against": best,
            "ratio": f"{medians[best]:.2f}" if best else "",
            "others": ";".join(f"{name} {ratio:.2f}" for name, ratio in medians.items() if name != best),
        }


def _of_lists(runs: list[list[Row]], section: suite.Section, level: str) -> Iterator[figures.Figure]:
    """The times of a list of tensors, and of one tensor of the same length relative to it."""
    rows = [[row for row in section.rows(run) if row["level"] == level] for run in runs]
    for nbytes, cores in sorted({(row["bytes"], row["placement"]) for run in rows for row in run}):
        here = [[row for row in run if (row["bytes"], row["placement"]) == (nbytes, cores)] for run in rows]
        pairs = [
            (min(lists, key=lambda row: row["time_us"]), min(row["time_us"] for row in run if row["tensors"] == 1))
            for run in here
            if (lists := [row for row in run if row["tensors"] > 1]) and len(lists) < len(run)
        ]
        if pairs and cores in ("near", "far"):
            yield {
                "what": f"{section.collective} of {section.tensors} tensors",
                "cores": cores,
                "n": str(section.ranks),
                "bytes": str(nbytes),
                "runs": str(len(pairs)),
                "median": number(statistics.median(row["time_us"] for row, _ in pairs)),
                "p99": number(statistics.median(row["time_us_p99"] for row, _ in pairs)),
                "against": "one tensor",
                "ratio": f"{statistics.median(one / row['time_us'] for row, one in pairs):.2f}",
            }


def aims_as_markdown(runs: list[list[Row]]) -> str:
    """What was aimed at and what each run reached.

    A run sees each peer only where the cores happened to be. So an aim is judged by the size, the placement and the
    peer where the median of the runs is lowest; peers that no run has seen at some size of the range are named. Of aims
    that were missed the table says what would be reached there by a library that takes no longer than the limit, and by
    one that takes no longer than a bare loop.
    """
    lines = [
        "| | level | cores | sizes | over | aim | reached, by run | | at the limit | as a bare loop |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for aim in suite.AIMS:
        least = [suite.least(rows, aim) for rows in runs]
        sizes = format_size(aim.first) + (f" to {format_size(aim.last)}" if aim.last != aim.first else "")
        reached = ", ".join(f"{result.ratio:.2f}" if result else "-" for result in least)
        judged = _judged(runs, aim, least)
        marks, most = [] if judged else ["not seen"], ("", "")
        if judged and judged.ratio < aim.floor:
            where = format_size(judged.nbytes) + ("" if aim.placement else f" {judged.placement}")
            marks.append(f"**missed** ({where}, {judged.who}: {judged.ratio:.3f})")
            most = (_at_best(runs, aim, judged, "limit"), _at_best(runs, aim, judged, "bare"))
        if judged and (unseen := _not_seen(runs, aim)):
            marks.append(f"without {', '.join(unseen)}")
        what = (suite.SECTIONS[aim.section].title, aim.level, aim.placement or "any", sizes, aim.over)
        lines.append(f"| {' | '.join(what)} | {aim.floor:.2f} | {reached} | {'; '.join(marks)} | {' | '.join(most)} |")
    return "\n".join(lines)


class Judged(NamedTuple):
    """The lowest of the medians over the runs, and where it was."""

    ratio: float
    nbytes: int
    placement: str
    who: str


def _judged(runs: list[list[Row]], aim: suite.Aim, least: list[suite.Result | None]) -> Judged | None:
    if aim.over == "one tensor":
        found = [result for result in least if result is not None]
        median = statistics.median_low([result.ratio for result in found]) if found else None
        return next((Judged(r.ratio, r.nbytes, r.placement, r.who) for r in found if r.ratio == median), None)
    medians = [
        Judged(statistics.median(ratios), nbytes, placement, who)
        for (nbytes, placement), (_, peers) in _collect(runs, suite.SECTIONS[aim.section], aim.level).items()
        for who, ratios in peers.items()
        if (who == "limit" if aim.over == "limit" else who not in ("limit", *NO_LIBRARIES))
        if aim.first <= nbytes <= aim.last and aim.placement in (None, placement)
    ]
    return min(medians, default=None)


def _not_seen(runs: list[list[Row]], aim: suite.Aim) -> list[str]:
    """The peers that were measured at some size of the range, but never with the cores where the aim is about."""
    if aim.over != "best peer":
        return []
    section = suite.SECTIONS[aim.section]
    seen = {
        (name, nbytes, placement)
        for rows in runs
        for nbytes, placement, name, _, _ in _pairs(section.rows(rows), aim.level)
        if name not in NO_LIBRARIES and aim.first <= nbytes <= aim.last
    }
    found = []
    for where in [aim.placement] if aim.placement else sorted({placement for _, _, placement in seen}):
        names = sorted({name for name, nbytes, _ in seen if (name, nbytes, where) not in seen})
        found += [name if aim.placement else f"{name} {where}" for name in names]
    return found


def _at_best(runs: list[list[Row]], aim: suite.Aim, judged: Judged, what: str) -> str:
    """The ratio if ours took as long as the "limit", or as "bare" loops, by the medians of the runs.

    Nothing where none was measured, or one that is none, since ours took clearly less.
    """
    if aim.over != "best peer":
        return ""
    found = _collect(runs, suite.SECTIONS[aim.section], aim.level)
    ratios = found[judged.nbytes, judged.placement][1].get(what)
    part = statistics.median(ratios) if ratios else _NO_LIMIT
    if part >= 1:
        return "ours is there" if part < _NO_LIMIT else ""
    less = " (impossible)" if what == "limit" else " (less than aimed at)"
    return f"{judged.ratio / part:.2f}" + (less if judged.ratio / part < aim.floor else "")


Found = dict[tuple[int, str], tuple[list[Row], dict[str, list[float]]]]


def _collect(runs: list[list[Row]], section: suite.Section, level: str) -> Found:
    """By size and placement: the rows of ours, and the ratios of each peer. The limit counts as a peer."""
    found: Found = {}
    for rows in runs:
        for nbytes, placement, name, ours, theirs in _pairs(section.rows(rows), level):
            mine, peers = found.setdefault((nbytes, placement), ([], {}))
            mine.append(ours)
            peers.setdefault("limit" if name == LIMIT else name, []).append(theirs / ours["time_us"])
    return found


def _pairs(rows: list[Row], level: str) -> Iterator[tuple[int, str, str, Row, float]]:
    rows = [row for row in rows if row["level"] == level and row["placement"] in ("near", "far")]
    for name in dict.fromkeys(row["against"] for row in rows if row["against"]):
        of_run = [row for row in rows if row["against"] == name]
        for nbytes, placement in dict.fromkeys((row["bytes"], row["placement"]) for row in of_run):
            here = [row for row in of_run if (row["bytes"], row["placement"]) == (nbytes, placement)]
            ours, theirs = pair(here)
            if ours is None:
                continue
            time_us = limit.of_row(ours, of_run) if name == LIMIT else theirs["time_us"] if theirs else None
            if time_us is not None:
                yield nbytes, placement, name, ours, time_us
            # Over TCP the exchange from which the limit is computed is a bare loop, too, unless it is the limit itself.
            exchange = limit.times(of_run, nbytes, placement).get("exchange")
            if exchange is not None and exchange != time_us:
                yield nbytes, placement, "bare", ours, exchange


if __name__ == "__main__":
    sys.exit(main())
