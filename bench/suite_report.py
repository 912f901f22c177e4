"""Puts several runs of the suite together: the tables of docs/performance.md, and its picture.

    python bench/allreduce.py --vs all --json run1.json   # and run2.json, run3.json
    python bench/suite_report.py run1.json run2.json run3.json --plot docs/performance.png

Of each run the ratios are taken by themselves; the tables show the median of the runs and, in brackets, the lowest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import limit
import suite
from cases import LIMIT, NO_LIBRARIES, format_size
from table import Row, number, pair

PANELS = (
    ("private", "c", "near"),
    ("private", "c", "far"),
    ("symmetric", "c", "near"),
    ("crowded", "c", None),
    ("tcp", "c", "near"),
    ("tcp", "c", "far"),
    ("broadcast", "c", "near"),
    ("broadcast", "c", "far"),
)
_DASHES = {"limit": ":", "bare": "--"}  # of what is no library
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B")
_MARKERS = "osD^vPX*"
_NO_LIMIT = 1.1  # times ours: noise explains less
_HIGHEST = 64.0  # ratios beyond are not drawn: nobody compares by them


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="what --json has written")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw all peers over ours there")
    arguments = parser.parse_args()
    runs = [json.loads(file.read_text(encoding="utf-8"))["rows"] for file in arguments.files]
    print(aims_as_markdown(runs))
    for section in suite.SECTIONS.values():
        levels = ("c", "python") if section.level == "both" else ("c",)
        measured = section.tensors == 1 and any(section.rows(rows) for rows in runs)
        for level in levels if measured else ():
            print(f"\n{section.title}, level {level}\n\n{section_as_markdown(runs, section, level)}")
    if arguments.plot:
        draw(runs, arguments.plot)
    return 0


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


def section_as_markdown(runs: list[list[Row]], section: suite.Section, level: str) -> str:
    """Times of ours, and each peer's over ours."""
    found = _collect(runs, section, level)
    names = list(dict.fromkeys(name for _, peers in found.values() for name in peers))
    head = ["size", "cores", "ours, us", *names]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for (nbytes, placement), (ours, peers) in sorted(found.items()):
        cells = [format_size(nbytes), placement, number(statistics.median(ours))]
        for name in names:
            ratios = peers.get(name)
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f})" if ratios else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


Found = dict[tuple[int, str], tuple[list[float], dict[str, list[float]]]]


def _collect(runs: list[list[Row]], section: suite.Section, level: str) -> Found:
    """By size and placement: the times of ours, and the ratios of each peer. The limit counts as a peer."""
    found: Found = {}
    for rows in runs:
        for nbytes, placement, name, ours, theirs in _pairs(section.rows(rows), level):
            times, peers = found.setdefault((nbytes, placement), ([], {}))
            times.append(ours)
            peers.setdefault("limit" if name == LIMIT else name, []).append(theirs / ours)
    return found


def _pairs(rows: list[Row], level: str) -> Iterator[tuple[int, str, str, float, float]]:
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
                yield nbytes, placement, name, ours["time_us"], time_us
            # Over TCP the exchange of which the limit is made is a bare loop, too, where it is not the limit itself.
            exchange = limit.times(of_run, nbytes, placement).get("exchange")
            if exchange is not None and exchange != time_us:
                yield nbytes, placement, "bare", ours["time_us"], exchange


def draw(runs: list[list[Row]], path: Path) -> None:
    """Each peer's time over ours, against size."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure, axes = pyplot.subplots(2, 4, figsize=(20, 8.5), constrained_layout=True)
    styles: dict[str, dict[str, Any]] = {}
    for panel, (key, level, placement) in zip(axes.flat, PANELS, strict=True):
        section = suite.SECTIONS[key]
        found = _collect(runs, section, level)
        lines: dict[str, list[tuple[int, float]]] = {}
        for (nbytes, where), (_, peers) in sorted(found.items()):
            # Where placements are not told apart, the one that most runs were in.
            if where == (placement or "near"):
                for name, ratios in peers.items():
                    lines.setdefault(name, []).append((nbytes, statistics.median(ratios)))
        for name, points in lines.items():
            if name not in styles:
                i = len([n for n in styles if n not in _DASHES])
                styles[name] = (
                    {"color": "#000000", "linestyle": _DASHES[name]}
                    if name in _DASHES
                    else {
                        "color": _COLOURS[i % len(_COLOURS)],
                        "marker": _MARKERS[i % len(_MARKERS)],
                        "markersize": 4.5,
                    }
                )
            xs, ys = zip(*points, strict=True)
            panel.plot(xs, ys, label=name, linewidth=1.5, **styles[name])
        panel.axhline(1.0, color="#444444", linewidth=1)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_ylim(top=min(_HIGHEST, panel.get_ylim()[1]))
        panel.set_xticks([size for size in section.sizes if size != 64])
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_size(int(value))))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.tick_params(axis="x", labelsize=8, rotation=30)
        panel.grid(visible=True, alpha=0.3)
        panel.set_title(section.title + (f", cores {placement}" if placement else ""), fontsize=11)
    for panel in axes[:, 0]:
        panel.set_ylabel("time over ours (above 1: ours is faster)")
    handles = {}
    for panel in axes.flat:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
