"""The pictures of bench/hosts.py: time against size, a panel for each collective, with what the wire allows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import plot
from collectives.bench.text import number
from hosts_cells import AUTO, Cell, Contender, Row, Setting, by_cell

_PEERS = {"gloo": ("#8A6D00", "P"), "openmpi": ("#000000", "X")}
_COLUMNS = 3


def save(rows: list[Row], path: Path) -> list[Path]:
    """Draws a picture for each setting of hosts, and returns the files: `path`, or several that begin like it."""
    table = by_cell(rows)
    settings = list(dict.fromkeys(cell.setting for cell in table))
    files = []
    for setting in settings:
        mark = "" if len(settings) == 1 else "-" + str(setting).replace(" ", "-")
        files.append(path.with_name(f"{path.stem}{mark}{path.suffix}"))
        _draw({cell: times for cell, times in table.items() if cell.setting == setting}, setting, files[-1])
    return files


def _draw(table: dict[Cell, dict[Contender, Row]], setting: Setting, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    collectives = list(dict.fromkeys(cell.collective for cell in table))
    columns = min(_COLUMNS, len(collectives))
    lines = -(-len(collectives) // columns)
    figure, panels = pyplot.subplots(
        lines, columns, figsize=(7 * columns, 4.2 * lines + 0.4), squeeze=False, layout="constrained"
    )
    for panel in panels.flat[len(collectives) :]:
        panel.set_visible(False)
    for panel, collective in zip(panels.flat, collectives, strict=False):
        cells = {cell: times for cell, times in table.items() if cell.collective == collective}
        (_bars if collective == "barrier" else _lines)(panel, cells)
        panel.set_title(collective, fontsize=11, loc="left")
    ranks = f"{setting.ranks} rank{'s' if setting.ranks > 1 else ''}"
    rate = str(setting).partition(" ")[2]
    figure.suptitle(f"{setting.hosts} hosts with {ranks} each, ports: {rate}, float32\n{plot.machine()}", fontsize=11)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _lines(panel: Any, table: dict[Cell, dict[Contender, Row]]) -> None:
    """Time over bytes of each contender."""
    cells = sorted(table, key=lambda cell: cell.nbytes)
    sizes = [cell.nbytes for cell in cells]
    for contender in _contenders(table):
        times = [table[cell].get(contender, {}).get("time_us", math.nan) for cell in cells]
        panel.plot(sizes, times, label=str(contender), markersize=5, **_style(contender, table))
    limits = [cell.wire_us or math.nan for cell in cells]
    if not all(map(math.isnan, limits)):
        panel.plot(sizes, limits, "--", color="#7F7F7F", linewidth=1.5, label="what the wire allows")
    plot.axes(panel, "median time of a call (us)", sizes)
    measured = [row["time_us"] for times in table.values() for row in times.values()]
    if measured:
        panel.set_ylim(bottom=min(measured) / 2)  # the limit of a few bytes is far below all
    panel.set_xlabel("size (bytes, as in nccl-tests)")
    panel.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))  # beside the lines: inside it would hide some


def _bars(panel: Any, table: dict[Cell, dict[Contender, Row]]) -> None:
    """A barrier has no sizes: a bar for each contender."""
    (times,) = table.values()
    contenders = _contenders(table)
    us = [times[contender]["time_us"] for contender in contenders]
    colours = [_style(contender, table)["color"] for contender in contenders]
    bars = panel.barh([str(contender) for contender in contenders], us, color=colours)
    panel.bar_label(bars, [number(value) for value in us], padding=3, fontsize=8)
    panel.invert_yaxis()
    panel.margins(x=0.15)
    panel.set_xlabel("median time of a call (us)")


def _contenders(table: dict[Cell, dict[Contender, Row]]) -> list[Contender]:
    """Those with a line, "auto" last, so that nothing hides it."""
    found = list(dict.fromkeys(contender for times in table.values() for contender in times))
    return sorted(found, key=lambda contender: (contender == AUTO, contender.peer or "", contender.algorithm))


def _style(contender: Contender, table: dict[Cell, dict[Contender, Row]]) -> dict[str, Any]:
    if contender == AUTO:
        return {"color": plot.COLOURS[1], "marker": "o", "linewidth": 3.0, "alpha": 0.75}
    if contender.peer is not None:
        colour, marker = _PEERS[contender.peer]
        dashes = "-" if contender.algorithm == "default" else ":"
        return {"color": colour, "marker": marker, "linewidth": 1.8, "linestyle": dashes}
    named = sorted({one.algorithm for times in table.values() for one in times if one.peer is None and one != AUTO})
    place = named.index(contender.algorithm)
    colours = [plot.COLOURS[0], *plot.COLOURS[2:]]
    markers = plot.MARKERS[1:]
    return {"color": colours[place % len(colours)], "marker": markers[place % len(markers)], "linewidth": 1.3}
