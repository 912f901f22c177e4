"""Measures collectives between hosts: network namespaces of this machine, with limited ports, which it makes itself.

    python bench/hosts.py --hosts 4 --ranks 2 --rate 1gbit --collective all --algorithm all
    python bench/hosts.py --hosts 8 --ranks 1 --sizes 8,64K,1M --json out.json --plot out.png
    python bench/hosts.py --suite --json run1.json          # continues where run1.json ends; --anew begins again
    python bench/hosts.py --judge run1.json run2.json
    python bench/hosts.py --short                           # for CI

It needs root, `ip` and `tc`; where it may not make namespaces it says so in one line, and exits with 0. All hosts lie
on one bridge and share the cores of this machine. Each has a port with a rate in each direction.

Peers are measured in the same namespaces and in turn with ours: `gloo`, that of torch.distributed, in the same
processes, and `openmpi` over TCP, in processes of its own that mpirun starts (python bench/peers/openmpi.py --install).
Within a cell, blocks of all contenders alternate. Before each call the ranks write their arrays anew and meet in memory
that all of them share, whatever the library; a call takes from when the first rank begins until the last one is done,
and the time is the median over calls. The results of one call of each contender are checked.

Sizes are those of nccl-tests, see bench/hosts_cells.py; there is also what the wire allows, with the reasons. --suite
measures a grid of hosts, ports, sizes and all collectives, and judges what is asked of it. Exit codes: 0, 1 when a rank
failed or anything was wrong, 2 when what was asked for is not possible. Requirements that are not met leave it at 0.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib.util
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import about
import collectives
import hosts_judge
import hosts_network
import hosts_options
import hosts_plot
import peers
import plot
from cases import BadRequestError
from collectives.bench.text import format_size, number
from hosts_cells import PEERS, Cell, Contender, Row, by_cell, cell_of
from hosts_measure import Failure, Shape, contenders_of
from hosts_options import DURATION
from hosts_ranks import RanksError
from table import grid

MOST_RUNS = 3  # of --short
LEAST_DURATION = 0.02  # for which the least number of calls is made
_HEADER = ("hosts", "collective", "size", "", "median", "quartiles", "calls", "over wire", "predicted", "wrong")
_LEFT = [name in ("hosts", "collective", "") for name in _HEADER]
_WIDTHS = (13, 14, 7, 28, 7, 18, 5, 9, 9, 5)


def main() -> int:
    """The command line."""
    parser = hosts_options.parser(__doc__ or "")
    a = parser.parse_args()
    try:
        hosts_options.check(a)
        if a.judge:
            runs = [_judged(file) for file in a.judge]
            print()
            print(hosts_judge.as_text(hosts_judge.judge(runs)))
            _draw(runs[0], a.plot)
            return 0
        reason = hosts_network.why_no_ports()
        if reason is not None:
            print(f"not measured: {reason}")
            return 0
        return _short(a.duration or DURATION) if a.short else _run(a)
    except (BadRequestError, plot.NoPlotError, peers.PeerMissingError) as error:
        parser.error(str(error))
    except RanksError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _found_peers(wanted: dict[str, Path | None] | None) -> dict[str, Path]:
    """The environments of the peers that take part. Raises PeerMissingError for one that was asked for by name."""
    found = {}
    for name, directory in (dict.fromkeys(PEERS) if wanted is None else wanted).items():
        try:
            found[name] = _gloo(directory) if name == "gloo" else peers.load(name).locate(directory)
        except peers.PeerMissingError as error:
            if wanted is not None:
                raise
            print(f"# not measured: {error}")
    return found


def _gloo(directory: Path | None) -> Path:
    """It lives in the processes of this library, so it is that of this environment."""
    if directory is not None:
        raise BadRequestError(f"--vs gloo={directory}: between hosts it is that of the environment of the bench")
    if importlib.util.find_spec("torch") is None:
        raise peers.PeerMissingError("gloo is in PyTorch, which is not installed: pip install torch")
    return Path(sys.prefix)


class Results:
    """The rows of a run, in a file after each cell if there is one.

    Args:
        file: of --json, or None.
        resumed: whether to begin with the rows that it has. Raises BadRequestError where it is of another version.
    """

    def __init__(self, file: Path | None, resumed: bool) -> None:
        self._file = file
        self.rows: list[Row] = []
        if file is not None and resumed and file.exists():
            before = _read(file)
            versions, ours = before["about"]["versions"], {"collectives": about.own_version(), "engine": _engine()}
            if versions | ours != versions:
                raise BadRequestError(
                    f"{file} has results of collectives {versions['collectives']} (engine {versions.get('engine')}), "
                    f"and this is {ours['collectives']} ({ours['engine']}): name another file, or begin with --anew"
                )
            self.rows = before["rows"]
        self._about = about.this_run({"engine": _engine()})

    def add(self, rows: list[Row]) -> None:
        """Adds the rows of a cell; they replace those that it had."""
        cells = {cell_of(row) for row in rows}
        self.rows = [row for row in self.rows if cell_of(row) not in cells] + rows
        if self._file is not None:
            new = self._file.with_name(self._file.name + ".new")
            new.write_text(about.as_json(self._about, self.rows), encoding="utf-8")
            new.replace(self._file)


@functools.cache
def _engine() -> str:
    """Tells builds of one version apart."""
    library = Path(collectives.__file__).with_name("libcollectives_core.so")
    return hashlib.sha256(library.read_bytes()).hexdigest()[:12] if library.exists() else ""


class Clock:
    """How long contenders are measured, so that all of them fit into a time.

    Args:
        most: seconds for each.
        total: seconds for all, with starting, checks and warming up; None: as long as it takes.
    """

    def __init__(self, most: float, total: float | None) -> None:
        self._most, self._total = most, total
        self._begin = time.monotonic()
        self._contenders, self._planned = 0, 0.0

    def duration(self, waiting: int) -> float | None:
        """Seconds for the next, if so many wait; None where no time is left."""
        if self._total is None:
            return self._most
        passed = time.monotonic() - self._begin
        if passed >= self._total:
            return None
        besides = max(0.0, passed - self._planned) / max(1, self._contenders)
        return max(LEAST_DURATION, min(self._most, (self._total - passed) / waiting - besides))

    def spent(self, contenders: int, duration: float) -> None:
        """So many contenders were measured for so long each."""
        self._contenders += contenders
        self._planned += contenders * duration


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        by_cell(found["rows"])
        found["about"]["versions"]["collectives"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRequestError(f"{file} is no file of results of this bench: {type(error).__name__}: {error}") from None
    return dict(found)


def _run(a: argparse.Namespace) -> int:
    cells = hosts_options.cells(a)
    print(about.first_line())
    found = _found_peers(a.vs)
    plan = {cell: contenders_of(cell, hosts_options.names(a), found) for cell in cells}
    results = Results(a.json, resumed=a.suite and not a.anew)
    done = by_cell(results.rows)
    waiting = [cell for cell in cells if not set(plan[cell][0]) <= set(done.get(cell, ()))]
    for reason in dict.fromkeys(
        f"{cell.collective}, {cell.setting.hosts}x{cell.setting.ranks}: {name} ({reason})"
        for cell in cells
        for name, reason in plan[cell][1].items()
    ):
        print(f"# left out: {reason}")
    if len(waiting) < len(cells):
        print(f"# {len(cells) - len(waiting)} of {len(cells)} cells are in {a.json}, and are not measured again")
    print(f"# hosts x ranks on each; {a.duration or DURATION:g} seconds for each contender of a cell\n", flush=True)
    clock = Clock(a.duration or DURATION, 60 * a.budget if a.suite else None)
    with _terminated_in_order():
        failures, left = _measure(waiting, plan, found, results, clock)
    if left:
        print(f"# {len(left)} cells are not measured within {a.budget:g} minutes, from {_place(left[0])} on", end="")
        print("; the same command goes on there" if a.json else "")
    for failure in failures:
        print(f"# failed: {_place(failure.cell)}, {failure.contender}: {failure.reason}")
    asked = set(cells)
    rows = [row for row in results.rows if cell_of(row) in asked]
    _draw(rows, a.plot)
    if a.suite:
        print("\n" + hosts_judge.as_text(hosts_judge.judge([rows])))
    wrong = sum(row["wrong"] for row in rows)
    print(f"\n{len(by_cell(rows))} of {len(cells)} cells, {len(rows)} rows, {wrong} wrong")
    return 1 if wrong or failures else 0


def _short(duration: float) -> int:
    """A few cells. What is lost in one run may have met another program, so it counts only if two more lose it, too."""
    print(about.first_line())
    plan = {cell: contenders_of(cell, ["all"], {}) for cell in hosts_options.SHORT}
    runs: list[list[Row]] = []
    for _ in range(MOST_RUNS):
        results = Results(None, resumed=False)
        with _terminated_in_order():
            failures, _ = _measure(hosts_options.SHORT, plan, {}, results, Clock(duration, None))
        for failure in failures:
            print(f"# failed: {_place(failure.cell)}, {failure.contender}: {failure.reason}")
        if failures or any(row["wrong"] for row in results.rows):
            return 1
        runs.append(results.rows)
        verdicts = hosts_judge.judge(runs, hosts_judge.SHORT)
        print("\n" + hosts_judge.as_text(verdicts))
        if all(verdict.held for verdict in verdicts):
            return 0
    return 1


def _judged(file: Path) -> list[Row]:
    """The rows of a file, of which it says what it is."""
    found = _read(file)
    rows = [row for row in found["rows"] if cell_of(row) in hosts_options.GRID]
    version, date = found["about"]["versions"]["collectives"], found["about"].get("date", "no date")
    cells = f"{len(by_cell(rows))} of {len(hosts_options.GRID)} cells"
    print(f"# {file}: {cells} of the grid; collectives {version}, {date}")
    return rows


def _draw(rows: list[Row], path: Path | None) -> None:
    if path is not None and rows:
        print("\n".join(f"# drawn: {file}" for file in hosts_plot.save(rows, path)))


def _measure(
    cells: list[Cell],
    plan: dict[Cell, tuple[list[Contender], dict[str, str]]],
    found: dict[str, Path],
    results: Results,
    clock: Clock,
) -> tuple[list[Failure], list[Cell]]:
    """Measures the cells, shape by shape, until the time is up. Returns what failed, and the cells that are left."""
    failures: list[Failure] = []
    left = list(cells)
    first = True
    # Not named after the package: its tests take what bears that name for something left behind.
    with tempfile.TemporaryDirectory(prefix="hosts_") as folder:
        for hosts, ranks in dict.fromkeys((cell.setting.hosts, cell.setting.ranks) for cell in cells):
            here = [cell for cell in left if (cell.setting.hosts, cell.setting.ranks) == (hosts, ranks)]
            with Shape(hosts, ranks, found, Path(folder)) as shape:
                for cell in here:
                    seconds = clock.duration(sum(len(plan[cell][0]) for cell in left))
                    if seconds is None:
                        return failures + shape.failures, left
                    rows = shape.measure(cell, plan[cell][0], seconds)
                    clock.spent(len(plan[cell][0]), seconds)
                    results.add(rows)
                    left.remove(cell)
                    print(_rows_as_text(rows, with_header=first), flush=True)
                    first = False
                failures += shape.failures
    return failures, left


def _place(cell: Cell) -> str:
    return f"{cell.setting}, {cell.collective}, {format_size(cell.size)}"


def _rows_as_text(rows: list[Row], with_header: bool) -> str:
    lines: list[tuple[str, ...]] = [_HEADER, ("", "", "", "", "us", "us", "", "", "us", "")] if with_header else []
    for row in rows:
        cell, low_high = cell_of(row), row["time_us_quartiles"]
        label = str(Contender(row["peer"], row["algorithm"]))
        lines.append(
            (
                *(str(cell.setting), cell.collective, format_size(cell.size)),
                f"{label} [{row['chosen']}]" if label == "auto" else label,
                number(row["time_us"]),
                " .. ".join(map(number, low_high)),
                str(row["calls"]),
                number(row["time_us"] / row["wire_us"]) if row["wire_us"] else "-",
                "-" if row["predicted_us"] is None else number(row["predicted_us"]),
                str(row["wrong"]),
            )
        )
    return grid(lines, _LEFT, _WIDTHS) if lines else ""


@contextlib.contextmanager
def _terminated_in_order() -> Any:
    """SIGTERM ends this program as an exit does, so that its namespaces go."""

    def leave(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
