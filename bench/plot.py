"""The picture: bus bandwidth and latency against size."""

from __future__ import annotations

import collections
import importlib.util
import math
import os
import platform
from pathlib import Path
from typing import Any

from cases import Config
from collectives._distribution import install_command
from collectives.bench.text import format_size

# Distinguishable with impaired colour vision (Okabe and Ito); black is for the reference.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B")
_PEER_COLOUR = "#000000"
MARKERS = "osD^vPX*"
_LINES: dict[str, Any] = {"near": "-", "smt": "-.", "far": "--", "unknown": ":"}


FORMATS = (".png", ".svg", ".pdf")


class NoPlotError(Exception):
    """The plot is not possible, for example without matplotlib; the text says what to do."""


def check_possible(path: Path) -> None:
    """Raises NoPlotError where nothing can be drawn."""
    if path.suffix.lower() not in FORMATS:
        raise NoPlotError(f"--plot {path}: the name has to end in {', '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise NoPlotError(f"--plot needs matplotlib, which is not installed: {install_command('bench')}")


def save(rows: list[dict[str, Any]], config: Config, path: Path) -> None:
    """Draws `rows` into a file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    figure, panels = pyplot.subplots(1, 2, figsize=(13, 5.5), constrained_layout=True)
    names = list(dict.fromkeys((row["peer"], row["algorithm"]) for row in rows))
    placements = list(dict.fromkeys(row["placement"] for row in rows))
    sizes = sorted({row["bytes"] for row in rows})
    handles = []
    ours = 0
    for number, (peer, algorithm) in enumerate(names):
        marker = MARKERS[number % len(MARKERS)]
        if peer is None:
            colour, label = COLOURS[ours % len(COLOURS)], algorithm
            ours += 1
        else:
            colour, label = _PEER_COLOUR, f"{peer} ({algorithm})"
        mine = [row for row in rows if (row["peer"], row["algorithm"]) == (peer, algorithm)]
        seen = collections.Counter(row["placement"] for row in mine)
        for placement, times in seen.items():
            line = {row["bytes"]: row for row in mine if row["placement"] == placement}
            # The main line of an algorithm is drawn through. A placement that was seen at some sizes only is drawn
            # only there: a line across the other sizes would suggest measurements that do not exist.
            main = times == max(seen.values())
            xs = [size for size in sizes if size in line or not main]
            for panel, key in zip(panels, ("busbw_gbs", "time_us"), strict=True):
                panel.plot(
                    xs,
                    [line[x][key] if x in line else math.nan for x in xs],
                    linestyle=_LINES[placement],
                    color=colour,
                    marker=marker,
                    markersize=4.5,
                    markerfacecolor=colour if main else "none",
                    linewidth=1.5,
                )
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=4.5, label=label))
    if len(placements) > 1:
        handles += [Line2D([], [], color="#444444", linestyle=_LINES[p], label=f"cores: {p}") for p in placements]
    for panel, what in zip(panels, ("bus bandwidth (GB/s)", "median latency (us)"), strict=True):
        axes(panel, what, [row["bytes"] for row in rows])
    panels[0].legend(handles=handles, fontsize=9, loc="best")
    figure.suptitle(_title(rows, config, placements), fontsize=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def axes(panel: Any, what: str, sizes: list[int]) -> None:
    """Sizes from left to right, and `what` upwards, both logarithmic."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    if sizes and min(sizes) > 0:
        panel.set_xscale("log", base=2)
        low, high = min(sizes).bit_length() - 1, max(sizes).bit_length() - 1
        step = max(1, -(-(high - low) // 8))
        panel.set_xticks([1 << i for i in range(low, high + 1, step)])
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_size(int(value))))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.set_xlabel("size of the buffer of a rank")
    panel.set_ylabel(what)
    panel.grid(visible=True, which="major", alpha=0.35)
    panel.grid(visible=True, which="minor", alpha=0.12)
    panel.tick_params(axis="x", labelsize=8)


def _title(rows: list[dict[str, Any]], config: Config, placements: list[str]) -> str:
    first = rows[0]
    operation = f" {first['op']}" if first["op"] else ""
    where = f", cores {placements[0]}" if len(placements) == 1 and placements[0] != "unknown" else ""
    return (
        f"{config.collective}{operation}, {config.ranks} ranks, {first['transport']}, {config.memory} memory, "
        f"{config.dtype}{where}\n{machine()}"
    )


def machine() -> str:
    """The processor and the number of cores that this process may use."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} core{'s' if cores > 1 else ''}"
