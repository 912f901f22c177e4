"""What is asked of the grid of bench/hosts.py, and whether one run, or two, have reached it.

Most lines compare the time of "auto" with another one, cell by cell; some compare all times with predictions. With two
runs the better ratio of a cell counts, so a cell is lost only if it is so in both: where other programs run, too, some
cells of each run are slow.
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
MEDIAN_OFF, NEVER_OFF = 1.2, 2.0
_PREDICTED = "limited ports, from 256 KiB: predictions are off by at most"
AT_THE_WIRE = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
SHOWN = 5  # worst cells of a line

Times = Mapping[Contender, Row]
Pair = tuple[Contender, float, str]  # one of ours, microseconds that it is compared with, and whose they are


@dataclasses.dataclass(frozen=True)
class Line:
    """One requirement.

    Attributes:
        text: what is asked.
        pairs: what is compared in a cell; nothing where the line does not concern it.
        most: ours may take this many times as long.
        part: of all pairs that have to hold.
        both_ways: ours must not take less than the inverse of `most`, either.
    """

    text: str
    pairs: Callable[[Cell, Times], list[Pair]]
    most: float
    part: float = 1.0
    both_ways: bool = False


@dataclasses.dataclass(frozen=True)
class Compared:
    """A pair of a line: how long ours takes in relation to the other, in the better of the runs."""

    cell: Cell
    label: str
    ratio: float
    ours_us: float
    other_us: float
    who: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A line with what was compared, the worst first."""

    line: Line
    cells: list[Compared]

    @property
    def lost(self) -> list[Compared]:
        """Those that do not hold."""
        return [compared for compared in self.cells if compared.ratio > self.line.most]

    @property
    def held(self) -> bool | None:
        """Whether enough hold; None where nothing was compared."""
        if not self.cells:
            return None
        return len(self.cells) - len(self.lost) >= self.line.part * len(self.cells)


def _beside(times: Times, peers: Sequence[str | None]) -> list[Pair]:
    """ "auto" beside the fastest contender of these peers; None is this library."""
    found = [
        (float(row["time_us"]), str(contender))
        for contender, row in times.items()
        if contender.peer in peers and contender != AUTO
    ]
    return [(AUTO, *min(found))] if found else []


def _beside_best(cell: Cell, times: Times) -> list[Pair]:
    return _beside(times, [None])


def _beside_peers(cell: Cell, times: Times) -> list[Pair]:
    return _beside(times, PEERS)


def _beside_gloo(cell: Cell, times: Times) -> list[Pair]:
    return _beside(times, ["gloo"]) if cell.size <= 8 * K else []


def _beside_the_wire(cell: Cell, times: Times) -> list[Pair]:
    if cell.size != 4 * M or cell.setting.rate != GBIT or cell.collective not in AT_THE_WIRE or cell.wire_us is None:
        return []
    return [(AUTO, cell.wire_us, "wire")]


def _beside_predictions(cell: Cell, times: Times) -> list[Pair]:
    if cell.setting.rate is None or cell.size < 256 * K:
        return []
    return [
        (contender, float(row["predicted_us"]), "predicted")
        for contender, row in times.items()
        if contender.peer is None and contender != AUTO and row["predicted_us"]
    ]


def _auto_beside_prediction(cell: Cell, times: Times) -> list[Pair]:
    predicted = times[AUTO]["predicted_us"] if AUTO in times else None
    limited = cell.setting.rate is not None and cell.size >= 256 * K
    return [(AUTO, float(predicted), "predicted")] if predicted and limited else []


LINES = (
    Line(f"auto takes at most {ALMOST_BEST:g} of the best algorithm", _beside_best, ALMOST_BEST, part=ALMOST_ALL),
    Line(f"auto never takes more than {NEVER_WORSE:g} of the best algorithm", _beside_best, NEVER_WORSE),
    Line(f"auto takes at most {BESIDE_PEERS:g} of the faster of Gloo and Open MPI", _beside_peers, BESIDE_PEERS),
    Line(f"up to 8 KiB auto is {FASTER_THAN_GLOO:g} times as fast as Gloo", _beside_gloo, 1 / FASTER_THAN_GLOO),
    Line(f"4 MiB at 1gbit: auto takes at most {BESIDE_THE_WIRE:g} of the wire", _beside_the_wire, BESIDE_THE_WIRE),
    Line(f"{_PREDICTED} {MEDIAN_OFF:g} times, either way", _beside_predictions, MEDIAN_OFF, part=0.5, both_ways=True),
    Line(f"{_PREDICTED} {NEVER_OFF:g} times, either way", _beside_predictions, NEVER_OFF, both_ways=True),
)


# What --short asks, on whatever machine.
SHORT = (
    Line("auto takes at most 1.3 of the best algorithm", _beside_best, 1.3),
    Line(
        "limited ports, from 256 KiB: the prediction of auto is off by half at most",
        _auto_beside_prediction,
        1.5,
        both_ways=True,
    ),
)


def judge(runs: Sequence[Sequence[Row]], lines: Sequence[Line] = LINES) -> list[Verdict]:
    """The lines, for the rows of one or several runs."""
    tables = [by_cell(rows) for rows in runs]
    verdicts = []
    for line in lines:
        found: dict[tuple[Cell, Contender], Compared] = {}
        for table in tables:
            for cell, times in table.items():
                for contender, other_us, who in line.pairs(cell, times):
                    compared = _compare(line, cell, times.get(contender), contender, other_us, who)
                    best = found.get((cell, contender))
                    if compared is not None and (best is None or compared.ratio < best.ratio):
                        found[cell, contender] = compared
        worst_first = sorted(found.values(), key=lambda compared: compared.ratio, reverse=True)
        verdicts.append(Verdict(line, worst_first))
    return verdicts


def _compare(
    line: Line, cell: Cell, row: Row | None, contender: Contender, other_us: float, who: str
) -> Compared | None:
    if row is None:
        return None
    us = float(row["time_us"])
    ratio = max(us / other_us, other_us / us) if line.both_ways else us / other_us
    label = f"auto [{row['chosen']}]" if contender == AUTO else str(contender)
    return Compared(cell, label, ratio, us, other_us, who)


def as_text(verdicts: list[Verdict]) -> str:
    """Each line with how many it holds of, and its worst ones."""
    blocks = []
    for verdict in verdicts:
        state = {True: "held", False: "NOT HELD", None: "not measured"}[verdict.held]
        text = f"{state}: {verdict.line.text}"
        if verdict.line.part < 1:
            text += f", in {verdict.line.part:.0%}"
        if verdict.cells:
            kept = len(verdict.cells) - len(verdict.lost)
            text += f": {kept} of {len(verdict.cells)} ({kept / len(verdict.cells):.0%})\n"
            text += _cells_as_text(verdict.cells[: max(SHOWN, min(len(verdict.lost), 4 * SHOWN))], verdict.line.most)
        blocks.append(text)
    return "\n\n".join(blocks)


def _cells_as_text(cells: list[Compared], most: float) -> str:
    lines = [
        (
            *("  " + str(c.cell.setting), c.cell.collective, format_size(c.cell.size)),
            *(c.label, number(c.ours_us), c.who, number(c.other_us)),
            f"{c.ratio:.2f}" + ("  <- lost" if c.ratio > most else ""),
        )
        for c in cells
    ]
    header = ("  hosts", "", "size", "", "us", "", "us", "ratio")
    return grid([header, *lines], [True, True, False, True, False, True, False, True])
