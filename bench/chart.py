"""The chart at the top of README.md, and the words under it, made of rows of bench/results/figures.csv.

    python bench/chart.py           # writes what stands under the chart anew
    python bench/chart.py --plot    # the pictures, too: one for light and one for dark pages (needs matplotlib)

Each line is a library's time of an all-reduce over that of this library, from the same run. It is for telephones, too:
few lines, large letters, and a picture of 1200 pixels.
"""

from __future__ import annotations

import argparse
import io
import math
import re
import sys
from pathlib import Path
from typing import Any

import figures
from collectives.bench.text import format_size

PAGE = figures.ROOT / "README.md"
PICTURES = {False: figures.ROOT / "docs" / "speed.png", True: figures.ROOT / "docs" / "speed_dark.png"}  # dark or not
MACHINE, SECTION, CORES = "zen4", "private", "near"
LABELLED = (8, 1024, 64 * 1024, 4 << 20, 128 << 20)  # bytes; other sizes have no label
MOST, LEAST = 64.0, 0.8  # times: what the axis shows

# Distinguishable with impaired colour vision, and against both backgrounds: (on light, on dark, marker).
NAMES = {"gloo": "Gloo", "oneccl": "oneCCL", "mpich": "MPICH", "openmpi": "Open MPI", "impi": "Intel MPI"}
_STYLES = {
    "gloo": ("#8A6D00", "#E6C84A", "P"),
    "oneccl": ("#B8558F", "#E08DBB", "v"),
    "mpich": ("#00795A", "#19C295", "^"),
    "openmpi": ("#C24E00", "#F08A3C", "s"),
    "impi": ("#0059A8", "#7AA9FF", "o"),
}
_PAGES = {False: ("#ffffff", "#1f2328", "#d1d9e0"), True: ("#0d1117", "#f0f6fc", "#3d444d")}  # page, ink, grid
_MARKED = re.compile(r"(<!-- bench/chart\.py -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--plot", action="store_true", help="draw the pictures anew, too")
    arguments = parser.parse_args()
    rows = measured(figures.read(figures.FIGURES))
    PAGE.write_text(with_caption(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    for dark, path in PICTURES.items() if arguments.plot else ():
        draw(rows, path, dark=dark)
    return 0


def measured(published: list[figures.Figure]) -> dict[int, figures.Figure]:
    """The rows of the chart, by size in bytes."""
    return dict(sorted(figures.of_section(figures.of_suite(published, MACHINE), SECTION, CORES).items()))


def with_caption(page: str, rows: dict[int, figures.Figure]) -> str:
    """The page, with the chart and its caption made from the rows."""
    return _MARKED.sub(lambda mark: mark[1] + caption(rows) + mark[2], page)


def caption(rows: dict[int, figures.Figure]) -> str:
    """The chart as HTML, and the sentence under it; both say what was measured, where and when."""
    fastest = [float(row["ratio"]) for row in rows.values()]
    shown = [figures.ratios(row)[name] for row in rows.values() for name in NAMES if name in figures.ratios(row)]
    sizes = f"{format_size(min(rows))} to {format_size(max(rows))}"
    (date,) = {row["date"] for row in rows.values()}
    names = [*NAMES.values()]
    said = (
        f"Time of an all-reduce of {sizes}, relative to collectives: "
        f"{', '.join(names[:-1])} and {names[-1]} take {min(shown):.1f} times as long, or more, at every size."
    )
    light, dark = (PICTURES[which].relative_to(figures.ROOT).as_posix() for which in (False, True))
    return (
        f'<picture>\n<source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
        f'<img src="{light}" width="720" alt="{said}">\n</picture>\n\n'
        "All-reduce of float32 between two processes, called from C++, on two cores of an AMD EPYC (Zen 4) that share\n"
        f"a cache, {date}. The fastest other library takes {min(fastest):.1f} to {max(fastest):.1f} times as long.\n"
    )


def draw(rows: dict[int, figures.Figure], path: Path, *, dark: bool) -> None:
    """Draws the chart into a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
    from PIL import Image

    page, ink, lines = _PAGES[dark]
    colours = {
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": lines,
        "xtick.color": ink,
        "ytick.color": ink,
    }
    with mpl.rc_context({**colours, "font.size": 15, "figure.facecolor": page, "axes.facecolor": page}):
        figure, panel = pyplot.subplots(figsize=(8, 5.8), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
        for name, (on_light, on_dark, marker) in _STYLES.items():
            ys = [figures.ratios(row).get(name, math.nan) for row in rows.values()]
            style: dict[str, Any] = {"color": on_dark if dark else on_light, "marker": marker}
            # What takes longer than the axis shows leaves the frame at its top.
            panel.plot([*rows], ys, label=NAMES[name], linewidth=2.2, markersize=8, **style)
        panel.plot([*rows], [1.0] * len(rows), label="collectives", color=ink, linewidth=5, solid_capstyle="round")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_ylim(LEAST, MOST)
        panel.xaxis.set_major_locator(FixedLocator([size for size in LABELLED if size in rows]))
        panel.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{format_size(int(value))}\n{took(rows[int(value)])}")
        )
        panel.yaxis.set_major_locator(FixedLocator([2.0**i for i in range(7)]))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_minor_locator(NullLocator())
        panel.grid(visible=True, color=lines)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlabel("size of the array; below it, the time of collectives")
        panel.set_title("All-reduce: time relative to collectives (lower is faster)", fontsize=16, loc="left", pad=14)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=150)
        pyplot.close(figure)
    Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def took(row: figures.Figure) -> str:
    """The time of this library in two digits: "0.07 µs", "2.5 µs", "10 ms"."""
    microseconds = float(row["median"])
    value, unit = (microseconds / 1000, "ms") if microseconds >= 1000 else (microseconds, "µs")
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"


if __name__ == "__main__":
    sys.exit(main())
