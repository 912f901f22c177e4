"""The published figures: bench/results/figures.csv, and what is made of it for docs/performance.md.

    python bench/figures.py           # writes the tables of docs/performance.md anew
    python bench/figures.py --plot    # its pictures, too (needs matplotlib)
    python bench/chart.py --plot      # the chart of README.md, of the same rows

A row is one figure, or one time and what it is compared with. The columns:

    page        the document that publishes it: its name without .md
    machine     a key that docs/performance.md explains
    date        of the measurement
    engine      the commit that was measured
    command     what measured it; a program in bench/ where no folder is named
    versions    of whatever else decides: the libraries compared with, the framework
    cores       "near", "far", "smt", "any", or nothing: where the ranks were, see docs/performance.md
    what        the collective, or what else was measured
    transport, memory, level    as the bench names them
    n           ranks or replicas, or how many things were tried
    bytes       of the buffer of a rank
    runs        how many runs the figures are the medians of
    median, p99, unit           of this library
    against     the library, or the limit, that comes closest to this library there
    ratio       its time over that of this library: above 1 this library is faster
    others      what else belongs to it, each behind its name; in rows of the suite these are ratios
    raw         the file of raw results, below bench/results/ in the commit that docs/performance.md names
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import suite
from cases import NO_LIBRARIES
from collectives.bench.text import format_size

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "bench" / "results" / "figures.csv"
PAGE = ROOT / "docs" / "performance.md"
FIELDS = (
    *("page", "machine", "date", "engine", "command", "versions", "cores", "what", "transport", "memory", "level"),
    *("n", "bytes", "runs", "median", "p99", "unit", "against", "ratio", "others", "raw"),
)
Figure = dict[str, str]

# A table has these columns, a picture these panels; each is a section of the suite and where the cores were.
COLUMNS = tuple((section, cores) for section in ("private", "symmetric", "tcp") for cores in ("near", "far"))
PANELS = (*COLUMNS, ("broadcast", "near"), ("crowded", "near"))
PICTURES = {"zen4": "performance.png"}
# What is made of the rows of a machine stands between these two.
_MARKED = re.compile(r"(<!-- bench/figures\.py: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

# Distinguishable with impaired colour vision (Okabe and Ito); black is for curves that are no library.
_STYLES: dict[str, dict[str, Any]] = {
    "impi": {"color": "#0072B2", "marker": "o"},
    "openmpi": {"color": "#D55E00", "marker": "s"},
    "openmpi_debian": {"color": "#E69F00", "marker": "D"},
    "mpich": {"color": "#009E73", "marker": "^"},
    "oneccl": {"color": "#CC79A7", "marker": "v"},
    "gloo": {"color": "#56B4E9", "marker": "P"},
    "limit": {"color": "#000000", "linestyle": ":", "marker": "."},
    "bare": {"color": "#000000", "linestyle": "--", "marker": "."},
}
_HIGHEST = 64.0  # larger ratios are not drawn


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--plot", action="store_true", help="draw the pictures anew, too")
    arguments = parser.parse_args()
    figures = read(FIGURES)
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")
    for machine, name in PICTURES.items() if arguments.plot else ():
        draw(of_suite(figures, machine), PAGE.parent / name)
    return 0


def read(path: Path) -> list[Figure]:
    """All rows of the file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, figures: Iterable[Figure]) -> None:
    """Writes the rows, with the names of the columns above them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(figures)


def of_suite(figures: Iterable[Figure], machine: str) -> list[Figure]:
    """What the suite measured on the machine."""
    return [row for row in figures if (row["page"], row["machine"]) == ("performance", machine) and row["transport"]]


def of_section(figures: Iterable[Figure], key: str, cores: str) -> dict[int, Figure]:
    """The rows of a section in C++, by size."""
    section = suite.SECTIONS[key]
    shape = (section.collective, section.transport, section.memory, str(section.ranks), "c", cores)
    columns = ("what", "transport", "memory", "n", "level", "cores")
    return {int(row["bytes"]): row for row in figures if tuple(row[column] for column in columns) == shape}


def with_tables(page: str, figures: list[Figure]) -> str:
    """The page, with the tables of each machine made from the rows."""

    def made(mark: re.Match[str]) -> str:
        rows = of_suite(figures, mark[2])
        return f"{mark[1]}\n{table(rows)}\n{slower(rows)}\n{mark[4]}"

    return _MARKED.sub(made, page)


def table(figures: list[Figure]) -> str:
    """Times of this library by size, and the time of the fastest other library relative to it."""
    head = ["size", *(f"{key}, {cores}" for key, cores in COLUMNS)]
    places = [of_section(figures, key, cores) for key, cores in COLUMNS]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for nbytes in sorted({nbytes for rows in places for nbytes in rows}):
        cells = [_cell(rows[nbytes]) if nbytes in rows else "" for rows in places]
        lines.append(f"| {' | '.join([format_size(nbytes), *cells])} |")
    return "".join(f"{line}\n" for line in lines)


def _cell(row: Figure) -> str:
    if not row["ratio"]:
        return row["median"]
    ratio = f"{row['ratio']} {row['against']}"
    return f"{row['median']}; " + (ratio if float(row["ratio"]) >= 1 else f"**{ratio}**")


def slower(figures: list[Figure]) -> str:
    """All cases in which a library is faster than this one, in all sections and in C++."""
    found = []
    for key, section in suite.SECTIONS.items():
        for cores in ("near", "far") if section.tensors == 1 else ():
            rows = sorted(of_section(figures, key, cores).items())
            lost = [(size, row) for size, row in rows if row["ratio"] and float(row["ratio"]) < 1]
            cells = [f"{format_size(size)} {row['ratio']} {row['against']}" for size, row in lost]
            found += [f"- {section.title}, {cores}: {', '.join(cells)}\n"] if cells else []
    return "A library is faster here:\n\n" + "".join(found)


def ratios(row: Figure) -> dict[str, float]:
    """All ratios of a row, by name."""
    found = [(row["against"], row["ratio"])] if row["ratio"] else []
    found += [(name, ratio) for name, ratio in (pair.split() for pair in row["others"].split(";") if pair)]
    return {name: float(ratio) for name, ratio in found}


def draw(figures: list[Figure], path: Path) -> None:
    """Each library's time over that of this one, against size."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullLocator
    from PIL import Image

    figure, axes = pyplot.subplots(2, 4, figsize=(16, 7.6), constrained_layout=True)
    for panel, (key, cores) in zip(axes.flat, PANELS, strict=True):
        rows = of_section(figures, key, cores)
        for name, style in _STYLES.items():
            # A line has a gap where nothing was measured, or nothing that is drawn.
            ys = [ratios(rows[size]).get(name, math.nan) for size in sorted(rows)]
            ys = [y if y <= _HIGHEST else math.nan for y in ys]
            panel.plot(sorted(rows), ys, label=name, linewidth=1.5, markersize=5, **style)
        panel.axhline(1.0, color="#444444", linewidth=1)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        low, high = panel.get_ylim()
        panel.set_ylim(min(low, 0.5), max(high, 4.0))
        panel.set_xticks([size for size in suite.SECTIONS[key].sizes if size != 64])
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_size(int(value))))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.tick_params(axis="x", labelsize=8, rotation=30)
        panel.grid(visible=True, alpha=0.3)
        panel.set_title(f"{suite.SECTIONS[key].title}, {cores}", fontsize=11)
    for panel in axes[:, 0]:
        panel.set_ylabel("time over ours (above 1: ours is faster)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), fontsize=10)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100)
    pyplot.close(figure)
    # A palette is enough for lines, and a third of the bytes.
    Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def closest(found: dict[str, float]) -> str:
    """The fastest other library; "" where none was measured."""
    return min((name for name in found if name not in ("limit", *NO_LIBRARIES)), key=found.__getitem__, default="")


if __name__ == "__main__":
    sys.exit(main())
