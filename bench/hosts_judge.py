"""What is asked of the grid of bench/hosts.py, and whether one run, or two, have reached it.

Each line compares the time of "auto" with another one, cell by cell. With two runs the better ratio of a cell counts,
so a cell is lost only if it is so in both: where other programs run, too, some cells of each run are slow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from collectives.bench.text import format_size, number
from hosts_cells import AUTO, GBIT, PEERS, Cell, Contender, K, M, Row, by_cell
from table import grid

ALMOST_BEST, NEVER_WORSE = 1.25, 1.6
ALMOST_ALL = 0.9  # of the cells
BESIDE_PEERS = 1.2
FASTER_THAN_GLOO = 5.0
BESIDE_THE_WIRE = 1.15
AT_THE_WIRE = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
SHOWN = 5  # worst cells of a line

Times = Mapping[Contender, Row]
Against = tuple[float, str]  # microseconds, and whose they are


@dataclasses.dataclass(frozen=True)
class Line:
    """One requirement.

    Attributes:
        text: what is asked.
        other: what "auto" is compared with in a cell, or None where the line does not concern it.
        most: "auto" may take this many times as long.
        part: of the cells that have to hold.
    """

    text: str
    other: Callable[[Cell, Times], Against | None]
    most: float
    part: float = 1.0


@dataclasses.dataclass(frozen=True)
class Compared:
    """A cell of a line: how long "auto" takes in relation to the other, in the better of the runs."""

    cell: Cell
    ratio: float
    ours_us: float
    other_us: float
    chosen: str
    who: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A line with its cells, the worst first."""

    line: Line
    cells: list[Compared]

    @property
    def lost(self) -> list[Compared]:
        """The cells that do not hold."""
        return [compared for compared in self.cells if compared.ratio > self.line.most]

    @property
    def held(self) -> bool | None:
        """Whether enough cells hold; None where there are none."""
        if not self.cells:
            return None
        return len(self.cells) - len(self.lost) >= self.line.part * len(self.cells)


def _fastest(times: Times, peers: Sequence[str | None]) -> Against | None:
    """The fastest contender of these peers; None is this library, without "auto"."""
    found = [
        (float(row["time_us"]), str(contender))
        for contender, row in times.items()
        if contender.peer in peers and contender != AUTO
    ]
    return min(found, default=None)


def _best_algorithm(cell: Cell, times: Times) -> Against | None:
    return _fastest(times, [None])


def _faster_peer(cell: Cell, times: Times) -> Against | None:
    return _fastest(times, PEERS)


def _gloo_if_small(cell: Cell, times: Times) -> Against | None:
    return _fastest(times, ["gloo"]) if cell.size <= 8 * K else None


def _wire_if_large(cell: Cell, times: Times) -> Against | None:
    if cell.size != 4 * M or cell.setting.rate != GBIT or cell.collective not in AT_THE_WIRE or cell.wire_us is None:
        return None
    return cell.wire_us, "wire"


LINES = (
    Line(f"auto takes at most {ALMOST_BEST:g} of the best algorithm", _best_algorithm, ALMOST_BEST, ALMOST_ALL),
    Line(f"auto never takes more than {NEVER_WORSE:g} of the best algorithm", _best_algorithm, NEVER_WORSE),
    Line(f"auto never takes more than {BESIDE_PEERS:g} of the faster of Gloo and Open MPI", _faster_peer, BESIDE_PEERS),
    Line(f"up to 8 KiB auto is {FASTER_THAN_GLOO:g} times as fast as Gloo", _gloo_if_small, 1 / FASTER_THAN_GLOO),
    Line(f"4 MiB at 1gbit: auto takes at most {BESIDE_THE_WIRE:g} of the wire", _wire_if_large, BESIDE_THE_WIRE),
)


def judge(runs: Sequence[Sequence[Row]]) -> list[Verdict]:
    """All lines, for the rows of one or several runs."""
    tables = [by_cell(rows) for rows in runs]
    verdicts = []
    for line in LINES:
        found: dict[Cell, Compared] = {}
        for table in tables:
            for cell, times in table.items():
                compared = _compare(line, cell, times)
                if compared is not None and (cell not in found or compared.ratio < found[cell].ratio):
                    found[cell] = compared
        worst_first = sorted(found.values(), key=lambda compared: compared.ratio, reverse=True)
        verdicts.append(Verdict(line, worst_first))
    return verdicts


def _compare(line: Line, cell: Cell, times: Times) -> Compared | None:
    ours, other = times.get(AUTO), line.other(cell, times)
    if ours is None or other is None:
        return None
    us = float(ours["time_us"])
    return Compared(cell, us / other[0], us, other[0], str(ours["chosen"]), other[1])


def as_text(verdicts: list[Verdict]) -> str:
    """Each line with how many cells it has lost, and its worst ones."""
    blocks = []
    for verdict in verdicts:
        state = {True: "held", False: "NOT HELD", None: "not measured"}[verdict.held]
        text = f"{state}: {verdict.line.text}"
        if verdict.line.part < 1:
            text += f", in {verdict.line.part:.0%} of the cells"
        if verdict.cells:
            kept = len(verdict.cells) - len(verdict.lost)
            text += f": {kept} of {len(verdict.cells)} cells ({kept / len(verdict.cells):.0%})\n"
            text += _cells_as_text(verdict.cells[: max(SHOWN, min(len(verdict.lost), 4 * SHOWN))], verdict.line.most)
        blocks.append(text)
    return "\n\n".join(blocks)


def _cells_as_text(cells: list[Compared], most: float) -> str:
    lines = [
        (
            *("  " + str(c.cell.setting), c.cell.collective, format_size(c.cell.size)),
            *(f"auto [{c.chosen}]", number(c.ours_us), c.who, number(c.other_us)),
            f"{c.ratio:.2f}" + ("  <- lost" if c.ratio > most else ""),
        )
        for c in cells
    ]
    header = ("  hosts", "", "size", "", "us", "", "us", "ratio")
    return grid([header, *lines], [True, True, False, True, False, True, False, True])
