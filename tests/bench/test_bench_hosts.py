"""The bench between hosts: a short run, what it refuses, what the wire allows, and how the grid is judged."""

from __future__ import annotations

import functools
import json
import re
import signal
import subprocess
import sys

import net.hosts
import numpy as np
import pytest
from bench_runs import BENCH, run_bench

bench = functools.partial(run_bench, program="hosts.py", timeout=280)
REASON = net.hosts.why_no_ports()
KEYS = {
    *("hosts", "ranks", "rate", "collective", "size", "bytes", "peer", "algorithm", "chosen"),
    *("time_us", "time_us_quartiles", "calls", "wire_us", "predicted_us", "least_us", "wrong"),
}


@pytest.fixture
def cells(bench_module):
    return bench_module("hosts_cells")


@pytest.fixture
def judge(bench_module):
    return bench_module("hosts_judge")


needs_hosts = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def start(*arguments: object) -> subprocess.Popen[str]:
    """The running bench, whose namespaces bear its process number."""
    command = [sys.executable, str(BENCH / "hosts.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@needs_hosts
def test_short_run(tmp_path):
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    with start(
        *("--hosts", 2, "--ranks", 2, "--rate", "1gbit", "--sizes", "8,64K", "--algorithm", "auto,ring,one_shot"),
        *("--vs", "none", "--duration", 0.05, "--json", file, "--plot", picture),
    ) as run:
        output, errors = run.communicate(timeout=280)
    assert run.returncode == 0, output + errors
    assert errors == ""
    assert output.splitlines()[-1] == "2 of 2 cells, 6 rows, 0 wrong"
    rows = json.loads(file.read_text())["rows"]
    assert {(row["size"], row["algorithm"]) for row in rows} == {
        (size, name) for size in (8, 65536) for name in ("auto", "ring", "one_shot")
    }
    for row in rows:
        assert set(row) == KEYS
        assert (row["hosts"], row["ranks"], row["rate"], row["peer"]) == (2, 2, 10**9, None)
        low, high = row["time_us_quartiles"]
        assert 0 < low <= row["time_us"] <= high
        assert row["wire_us"] == pytest.approx(max(0, row["bytes"] - (128 << 10)) * 8e-3)
        assert row["chosen"] == row["algorithm"] or row["algorithm"] == "auto"
        assert 0 < row["least_us"] <= row["predicted_us"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not net.hosts.left(run.pid)


@needs_hosts
def test_nothing_is_left_when_it_is_ended():
    with start("--vs", "none", "--duration", 100) as run:
        assert run.stdout is not None
        while "seconds" not in (line := run.stdout.readline()):
            assert line, run.communicate()
        while not net.hosts.left(run.pid):
            assert run.poll() is None, run.communicate()
        run.terminate()
        output, errors = run.communicate(timeout=100)
    assert run.returncode == 128 + signal.SIGTERM, output + errors
    assert not net.hosts.left(run.pid)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate", "fast"], "'fast' is no rate of a port; 1gbit, 100mbit and the like"),
        (["--rate", "0gbit"], "'0gbit' is no rate"),
        (["--sizes", "8,many"], "'many' is not a size"),
        (["--sizes", "8,9"], "9 bytes; positive multiples of 4"),
        (["--hosts", "65"], "65 hosts; at most 64"),
        (["--ranks", "0"], "a whole number of at least 1"),
        (["--hosts", "1", "--ranks", "1"], "nobody to talk to"),
        (["--collective", "all_gather,scan"], "'scan' is no collective; there are all, all_reduce"),
        (["--collective", "broadcast", "--algorithm", "two_shot"], "'two_shot' is no algorithm of these"),
        (["--vs", "mpich"], "'mpich' is no peer between hosts; there are none, gloo, openmpi"),
        (["--vs", "openmpi=/nowhere"], "python bench/peers/openmpi.py --install /nowhere"),
        (["--suite", "--rate", "1gbit"], "--suite says what to measure, and so does --rate"),
        (["--anew"], "--anew is for --suite"),
        (["--short", "--hosts", "2"], "--short says what to measure"),
        (["--json", "/nowhere/out.json"], "cannot be written"),
        (["--plot", "out.xyz"], ".png"),
        (["--judge", "/nowhere/out.json"], "is no file of results of this bench"),
    ],
)
@needs_hosts
def test_bad_input(arguments, words):
    run = bench(*arguments)
    assert run.returncode == 2
    assert words in run.stderr
    assert "Traceback" not in run.stderr


def test_where_namespaces_cannot_be_made_it_says_so(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        f"sys.path[:0] = [{str(BENCH)!r}]\n"
        "import os, hosts\n"
        "os.geteuid = lambda: 1000\n"
        "sys.exit(hosts.main())\n"
    )
    run = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=100, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "not measured: it needs root to make network namespaces\n"


@pytest.mark.parametrize(
    ("collective", "hosts", "ranks", "passes"),
    [
        ("all_reduce", 2, 2, 1.0),
        ("all_reduce", 8, 1, 1.75),
        ("reduce", 4, 2, 1.0),
        ("broadcast", 4, 2, 1.0),
        ("all_gather", 4, 2, 0.75),
        ("reduce_scatter", 4, 2, 0.75),
        ("all_to_all", 4, 2, 1.5),
        ("gather", 8, 1, 0.875),
        ("scatter", 8, 1, 0.875),
        ("broadcast", 1, 4, 0.0),
        ("all_to_all", 1, 4, 0.0),
    ],
)
def test_what_the_wire_allows(cells, collective, hosts, ranks, passes):
    """In microseconds, of a megabyte at 8 bits a microsecond and byte: `passes` times a million."""
    assert cells.wire_us(collective, 10**6, hosts, ranks, 8 * 10**6) == pytest.approx(passes * 1e6)
    assert cells.wire_us(collective, 10**6, hosts, ranks, None) is None
    assert cells.wire_us("barrier", 0, hosts, ranks, 10**9) is None


@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_wire_of_exchanges_is_what_parts_add_up_to(cells, hosts, ranks):
    """Counts what has to leave or enter the busiest host, part by part."""
    n = hosts * ranks
    part = 100
    home = [rank // ranks for rank in range(n)]
    crossing = [[part * (home[a] != home[b]) for b in range(n)] for a in range(n)]

    def busiest(pairs):
        leaving, entering = np.zeros(hosts), np.zeros(hosts)
        for source, target in pairs:
            leaving[home[source]] += crossing[source][target]
            entering[home[target]] += crossing[source][target]
        return max(leaving.max(), entering.max())

    def bytes_of(collective):
        return cells.wire_us(collective, n * part, hosts, ranks, 8 * 10**6)

    assert bytes_of("all_to_all") == pytest.approx(busiest((a, b) for a in range(n) for b in range(n)))
    assert bytes_of("gather") == pytest.approx(busiest((a, 0) for a in range(n)))
    assert bytes_of("scatter") == pytest.approx(busiest((0, b) for b in range(n)))
    # Of an all_gather each part enters each host once.
    assert bytes_of("all_gather") == pytest.approx(part * (n - ranks))


def test_rates(cells):
    for text, rate in (("1gbit", 10**9), ("2.5gbit", 25 * 10**8), ("100mbit", 10**8), ("64kbit", 64000), ("8bit", 8)):
        assert cells.parse_rate(text) == rate
        assert cells.rate_as_text(rate) == text
    assert cells.parse_rate("unlimited") is None
    assert cells.rate_as_text(None) == "unlimited"


def test_cells(cells):
    grid = cells.cells_of(cells.SHAPES, cells.RATES, cells.COLLECTIVES, cells.SIZES)
    assert len(grid) == len(set(grid)) == 3 * 2 * (8 * 4 + 1)
    small = [cell for cell in grid if cell.setting.hosts == 8 and cell.size == 8 and cell.setting.rate]
    # A part has an element at least, so 8 bytes between 8 ranks are 32.
    assert {cell.collective: cell.nbytes for cell in small} == {
        **dict.fromkeys(("all_reduce", "broadcast", "reduce"), 8),
        **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"), 32),
    }


class Grid:
    """Rows of a run; times are those of all cells unless something else is said of one."""

    def __init__(self, cells, collectives=("all_reduce",)):
        self.cells = cells
        self.grid = cells.cells_of(cells.SHAPES, cells.RATES, collectives, cells.SIZES)

    def rows(self, usual, predicted=None, **other):
        """`other`: times by contender, of the cell of its key: "c0", "c1", ...; `predicted`: over the time."""
        return [
            {
                "hosts": cell.setting.hosts,
                "ranks": cell.setting.ranks,
                "rate": cell.setting.rate,
                "collective": cell.collective,
                "size": cell.size,
                "bytes": cell.nbytes,
                "wire_us": cell.wire_us,
                "peer": name if name in self.cells.PEERS else None,
                "chosen": "ring",
                "time_us": us,
                "predicted_us": us * predicted if predicted and name not in self.cells.PEERS else None,
                "algorithm": "default" if name in self.cells.PEERS else name,
            }
            for number, cell in enumerate(self.grid)
            for name, us in {**usual, **other.get(f"c{number}", {})}.items()
        ]


USUAL = {"auto": 10.0, "ring": 10.0, "two_shot": 20.0, "gloo": 60.0, "openmpi": 11.0}


def held(verdicts):
    """Of the lines that predictions have no part in."""
    return [verdict.held for verdict in verdicts[:5]]


def lost(verdicts):
    return [len(verdict.lost) for verdict in verdicts[:5]]


def test_all_lines_hold(cells, judge):
    verdicts = judge.judge([Grid(cells).rows(USUAL)])
    assert held(verdicts) == [True] * 5
    # all_reduce: 24 cells, of which 12 are small, and 3 are of 4 MiB at 1 Gbit/s.
    assert [len(verdict.cells) for verdict in verdicts] == [24, 24, 24, 12, 3, 0, 0]
    text = judge.as_text(verdicts)
    assert text.count("held: ") == 5
    assert text.count("not measured: ") == 2  # predictions
    assert "NOT" not in text and "lost" not in text


def test_each_line_can_be_lost(cells, judge):
    grid = Grid(cells)
    # Two of 24 cells are within a tenth, three are not.
    for count, first in ((2, True), (3, False)):
        slow = {f"c{number}": {"ring": 7.0} for number in range(count)}
        assert held(judge.judge([grid.rows(USUAL, **slow)])) == [first, True, True, True, True]
    verdicts = judge.judge([grid.rows(USUAL, c5={"two_shot": 6.0})])
    assert (held(verdicts), lost(verdicts)) == ([True, False, True, True, True], [1, 1, 0, 0, 0])
    assert held(judge.judge([grid.rows(USUAL, c6={"openmpi": 8.0})])) == [True, True, False, True, True]
    assert held(judge.judge([grid.rows(USUAL, c6={"gloo": 8.0})])) == [True, True, False, True, True]  # of 256 KiB
    assert held(judge.judge([grid.rows(USUAL, c1={"gloo": 49.0})])) == [True, True, True, False, True]
    (large,) = [n for n, cell in enumerate(grid.grid) if str(cell.setting) == "4x2 1gbit" and cell.size == 4 << 20]
    limit = grid.grid[large].wire_us
    for factor, expected in ((1.14, True), (1.16, False)):
        us = limit * factor
        times = {"auto": us, "ring": us, "gloo": us, "openmpi": us}
        assert held(judge.judge([grid.rows(USUAL, **{f"c{large}": times})]))[4] is expected
    text = judge.as_text(judge.judge([grid.rows(USUAL, c5={"two_shot": 5.0})]))
    assert "NOT HELD: auto never takes more than 1.6 of the best algorithm: 23 of 24 (96%)" in text
    (worst,) = [line for line in text.splitlines() if line.endswith("2.00  <- lost") and "two_shot" in line][:1]
    assert worst.split()[:5] == ["2x2", "unlimited", "all_reduce", "8", "KiB"]
    assert "auto [ring]" in worst


def test_a_cell_is_lost_only_if_it_is_so_in_both_runs(cells, judge):
    grid = Grid(cells)
    one, other = grid.rows(USUAL, c5={"ring": 5.0}), grid.rows(USUAL, c6={"ring": 5.0})
    assert lost(judge.judge([one]))[:2] == lost(judge.judge([other]))[:2] == [1, 1]
    assert lost(judge.judge([one, other])) == [0] * 5
    assert lost(judge.judge([one, one]))[:2] == [1, 1]
    again = grid.rows(USUAL, c5={"ring": 5.5})
    (worst, *_) = judge.judge([one, again])[1].cells
    assert worst.ratio == pytest.approx(10 / 5.5)  # that of the better run


def test_what_was_not_measured_is_not_judged(cells, judge):
    grid = Grid(cells, ("barrier",))
    verdicts = judge.judge([grid.rows({"auto": 10.0, "tree": 10.0})])
    assert held(verdicts) == [True, True, None, None, None]
    assert [len(verdict.cells) for verdict in verdicts] == [6, 6, 0, 0, 0, 0, 0]
    assert "not measured: up to 8 KiB" in judge.as_text(verdicts)
    # Gathers have no limit that is asked for.
    gathers = Grid(cells, ("gather", "scatter")).rows(USUAL)
    assert held(judge.judge([gathers]))[4] is None


def test_predictions_may_be_off_both_ways(cells, judge):
    grid = Grid(cells)
    # 6 cells with limited ports from 256 KiB, with two algorithms each. "auto" is one of them, and does not count.
    for factor, expected in (
        (1.19, (True, True)),
        (1 / 1.19, (True, True)),
        (1.3, (False, True)),
        (0.45, (False, False)),
    ):
        verdicts = judge.judge([grid.rows(USUAL, predicted=factor)])[5:]
        assert [len(verdict.cells) for verdict in verdicts] == [12, 12]
        assert tuple(verdict.held for verdict in verdicts) == expected
    verdicts = judge.judge([grid.rows(USUAL, predicted=1.3), grid.rows(USUAL, predicted=0.9)])[5:]
    assert [verdict.held for verdict in verdicts] == [True, True]
    assert verdicts[0].cells[0].ratio == pytest.approx(1 / 0.9)


def test_results_are_continued(bench_module, cells, tmp_path):
    hosts = bench_module("hosts")
    file = tmp_path / "out.json"
    rows = Grid(cells).rows(USUAL)
    first = hosts.Results(file, resumed=True)
    first.add(rows[:5])
    first.add(rows[5:10])
    again = hosts.Results(file, resumed=True)
    assert again.rows == rows[:10]
    slower = [{**row, "time_us": 1.0} for row in rows[:5]]
    again.add(slower)
    assert again.rows == rows[5:10] + slower
    assert hosts.Results(file, resumed=False).rows == []
    written = json.loads(file.read_text())
    for name, words in (("collectives", "of collectives other (engine "), ("engine", " (engine other), and this is ")):
        versions = {**written["about"]["versions"], name: "other"}
        file.write_text(json.dumps({"about": {"versions": versions}, "rows": rows}))
        with pytest.raises(ValueError, match=rf"out\.json has results .*{re.escape(words)}.* --anew"):
            hosts.Results(file, resumed=True)


def test_the_time_is_divided(bench_module, monkeypatch):
    hosts = bench_module("hosts")
    now = 100.0
    monkeypatch.setattr(hosts.time, "monotonic", lambda: now)
    assert hosts.Clock(0.5, None).duration(10**6) == 0.5
    clock = hosts.Clock(0.5, 100)
    assert clock.duration(100) == 0.5
    assert clock.duration(400) == 0.25
    now += 50  # for 50 contenders, which were to take 0.25 seconds each: 0.75 go elsewhere
    clock.spent(50, 0.25)
    assert clock.duration(50) == pytest.approx(0.25)
    assert clock.duration(100) == hosts.LEAST_DURATION
    now += 50
    assert clock.duration(1) is None


def test_files_are_judged_and_drawn(bench_module, cells, tmp_path):
    file = tmp_path / "out.json"
    rows = Grid(cells, ("all_reduce", "broadcast", "barrier")).rows(USUAL, c5={"ring": 5.0})
    file.write_text(json.dumps({"about": {"versions": {"collectives": "1"}}, "rows": rows}))
    run = bench("--judge", file, file, "--plot", tmp_path / "out.png")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("out.json: 54 of 198 cells of the grid; collectives 1, no date") == 2
    assert run.stdout.count("NOT HELD: ") == 1
    pictures = sorted(tmp_path.glob("*.png"))
    assert run.stdout.count("# drawn: ") == len(pictures) == 6
    assert {picture.name for picture in pictures} >= {"out-2x2-1gbit.png", "out-8x1-unlimited.png"}
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
