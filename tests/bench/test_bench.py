"""The bench: runs in small form, what it writes, what it refuses, and that it would see a wrong result."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import collectives
import numpy as np
import pytest
from bench_runs import BENCH, run_bench
from collectives import _core
from collectives.bench import check

PEERS = sorted(path.stem for path in (BENCH / "peers").glob("*.py") if "\nNAME = " in path.read_text())
bench = functools.partial(run_bench, timeout=120)
KEYS = {
    *(
        "collective",
        "transport",
        "algorithm",
        "memory",
        "ranks",
        "bytes",
        "dtype",
        "op",
        "peer",
        "level",
        "tensors",
        "section",
        "against",
        "placement",
    ),
    *("time_us", "time_us_p99", "algbw_gbs", "busbw_gbs", "wrong", "bytes_by_transport"),
}


def names_of(collective):
    """The names of all algorithms for it."""
    return {str(known["name"]) for known in _core._algorithms(collective)}


QUICK = ["--duration", "0.02", "--timeout", "60"]


def test_all_algorithms_of_four_ranks(tmp_path):
    rows_file, picture = tmp_path / "out.json", tmp_path / "out.png"
    run = bench(
        *("-n", 4, "--algorithm", "all", "-b", 8, "-e", "64K", "-f", 8192, "--json", rows_file, "--plot", picture),
        *QUICK,
    )
    assert run.returncode == 0, run.stderr
    assert "left out: hierarchical " in run.stdout
    assert run.stdout.splitlines()[-1].startswith("all_reduce, 4 ranks, shm: ")
    assert run.stdout.splitlines()[-1].endswith(" 0 wrong")
    assert run.stderr == ""  # no bar where stderr is no terminal
    rows = json.loads(rows_file.read_text())["rows"]
    left_out = {name for name in names_of("all_reduce") if f"left out: {name} " in run.stdout}
    assert {row["algorithm"] for row in rows} == names_of("all_reduce") - left_out > {"ring", "two_shot"}
    assert {row["bytes"] for row in rows} == {8, 65536}
    for row in rows:
        assert set(row) == KEYS
        assert row["wrong"] == 0
        assert row["peer"] is None
        assert (row["collective"], row["transport"], row["ranks"], row["op"]) == ("all_reduce", "shm", 4, "sum")
        assert row["placement"] in ("smt", "near", "far", "unknown")
        assert 0 < row["time_us"] <= row["time_us_p99"]
        assert row["busbw_gbs"] == pytest.approx(1.5 * row["algbw_gbs"])
        assert row["algbw_gbs"] == pytest.approx(row["bytes"] / row["time_us"] / 1e3)
        assert set(row["bytes_by_transport"]) == {"shm"}
    pixels = pytest.importorskip("matplotlib.image").imread(picture)
    assert min(pixels.shape[:2]) > 400
    assert len(np.unique((pixels[..., :3] * 255).astype(np.uint8).reshape(-1, 3), axis=0)) > 20


@pytest.mark.parametrize(
    ("arguments", "transport"),
    [
        (["--transport", "tcp"], "tcp"),
        (["--transport", "local", "--memory", "symmetric", "--dtype", "bfloat16"], "local"),
        (["--collective", "broadcast", "--dtype", "int8"], "shm"),
        (["--collective", "reduce", "--op", "prod", "--dtype", "float16"], "shm"),
        (["--level", "c", "--dtype", "int32"], "shm"),
        (["--level", "both", "--tensors", "100"], "shm"),
        (["--level", "both", "--collective", "all_gather", "--dtype", "uint8"], "shm"),
        (["--collective", "reduce_scatter", "--op", "max", "--level", "both", "--transport", "tcp"], "tcp"),
        (["--collective", "all_to_all", "--level", "both", "--transport", "local"], "local"),
    ],
)
def test_two_ranks(tmp_path, arguments, transport):
    rows_file = tmp_path / "out.json"
    run = bench("-b", 8, "-e", "32K", "-f", 4096, "--json", rows_file, *arguments, *QUICK)
    assert run.returncode == 0, run.stderr
    rows = json.loads(rows_file.read_text())["rows"]
    assert {row["bytes"] for row in rows} == {8, 32768}
    assert {row["transport"] for row in rows} == {transport}
    assert {row["algorithm"] for row in rows} == {"auto"}
    assert all(row["wrong"] == 0 and set(row["bytes_by_transport"]) == {transport} for row in rows)


def test_barrier_and_a_world_of_one(tmp_path):
    rows_file = tmp_path / "out.json"
    run = bench("-n", 1, "--collective", "barrier", "--json", rows_file, *QUICK)
    assert run.returncode == 0, run.stderr
    (row,) = json.loads(rows_file.read_text())["rows"]
    assert (row["bytes"], row["busbw_gbs"], row["op"]) == (0, 0, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-b", "12Q"], "'12Q' is not a size"),
        (["-b", "1K", "-e", "8"], "end at 8 bytes, before they begin at 1024"),
        (["-f", "1"], "a number above 1"),
        (["-n", "0"], "a number from 1"),
        (["--algorithm", "fastest"], "there are all, auto, " + ", ".join(sorted(names_of("all_reduce")))),
        (["--algorithm", "hierarchical"], "all ranks are on one host"),
        (["--op", "avg", "--dtype", "int32"], "floats"),
        (["--memory", "symmetric", "--transport", "tcp"], "share memory"),
        (["--vs", "nobody"], ", ".join(["all", *PEERS])),
        (["--vs", "oneccl=/nowhere"], "python bench/peers/oneccl.py --install /nowhere"),
        (["--vs", "oneccl=/nowhere", "--level", "python"], "measured at level c only"),
        (["--vs", "gloo=/nowhere,openmpi"], "python bench/peers/gloo.py --install /nowhere"),
        (["--vs", "openmpi", "--transport", "local"], "threads"),
        (["--vs", "mpich=/nowhere"], "python bench/peers/mpich.py --install /nowhere"),
        (["--json", "/nowhere/out.json"], "cannot be written"),
        (["--plot", "out.xyz"], ".png"),
        (["--timeout", "-1"], "a number above 0"),
    ],
)
def test_bad_input(arguments, words):
    run = bench(*arguments, *QUICK[:2])
    assert run.returncode == 2
    assert words in run.stderr
    assert "Traceback" not in run.stderr


def test_replicas(tmp_path):
    rows_file = tmp_path / "out.json"
    command = [sys.executable, str(BENCH / "replicas.py"), "--duration", "0.02", "--json", str(rows_file)]
    sizes = ["-b", "4K", "-e", "1M", "-f", "256", "--replicas", "1", "3"]
    run = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    rows = json.loads(rows_file.read_text())
    assert [(row["replicas"], row["bytes"]) for row in rows] == [(n, b) for n in (1, 3) for b in (4096, 1 << 20)]
    for row in rows:
        assert row["wrong"] == 0
        assert set(row["time_us"]) == {"ring", "hierarchical", "one device", "numpy", "memcpy"}
        assert all(time > 0 for time in row["time_us"].values())
    refused = subprocess.run([*command, "-b", "2"], capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode == 2
    assert "4 bytes are needed" in refused.stderr


def engines(*arguments):
    command = [sys.executable, str(BENCH / "engines.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_builds_in_turn(collective):
    sizes = ["-b", "64", "-e", "64K", "-f", "1024", "--duration", "0.05", "--starts", "2"]
    run = engines(sys.executable, sys.executable, *sizes, "--collective", collective)
    assert run.returncode == 0, run.stderr
    assert [line for line in run.stdout.splitlines() if line.endswith("__init__.py")] == [
        f"{number}: {collectives.__file__}" for number in range(2)
    ]
    rows = [line.split() for line in run.stdout.splitlines() if re.match(r" *64 (KiB|B)", line)]
    assert {row[1] for row in rows} == {"B", "KiB"}, run.stdout
    for row in rows:
        assert all(float(number) > 0 for number in row[3:7])
        low, high = map(float, row[7].split("-"))
        assert 0 < low <= float(row[6]) <= high


def test_builds_that_cannot_be_compared():
    for arguments, status, words in (
        ([sys.executable], 2, "give one twice"),
        ([sys.executable, sys.executable, "-b", "4"], 2, "at least 8 bytes"),
        ([sys.executable, sys.executable, "--starts", "0"], 2, "not 0 times"),
        ([sys.executable, "/nowhere/python"], 1, "/nowhere/python"),
        ([sys.executable, "/bin/true"], 1, "a rank under /bin/true has ended"),
    ):
        run = engines(*arguments)
        assert run.returncode == status
        assert words in run.stderr
        assert "Traceback" not in run.stderr


def test_missing_matplotlib(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'matplotlib' else find(name, *rest)\n"
    )
    run = bench("--plot", tmp_path / "x.png", environment={"PYTHONPATH": _path(tmp_path)})
    assert run.returncode == 2
    assert "pip install 'collectives-comm[bench]'" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_rank_that_dies_ends_the_run(tmp_path):
    process = subprocess.Popen(
        [sys.executable, str(BENCH / "allreduce.py"), "-e", "64", "--duration", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(_a_rank_of(process), signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "PeerError" in errors
    assert "Traceback" not in errors


def test_wrong_results_are_counted():
    for dtype in map(np.dtype, ("float16", "float32", "float64", "int8", "uint64", "bool")):
        inputs = [check.pattern(dtype, "sum", (1, rank)) for rank in range(3)]
        expected, tolerance = check.model("sum", inputs)
        x = np.empty(3 * check.PERIOD + 5, dtype)
        check.fill(x, expected.astype(dtype))
        assert check.count_wrong(x, expected, tolerance) == 0
        corrupted = [0, check.PERIOD, len(x) - 1]
        x[corrupted] = ~x[corrupted] if dtype.kind in "biu" else x[corrupted] * dtype.type(1.25) + dtype.type(0.1)
        assert check.count_wrong(x, expected, tolerance) == len(corrupted)
        if dtype.kind == "f":
            x[7] = np.nan
            assert check.count_wrong(x, expected, tolerance) == len(corrupted) + 1


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all"])
def test_wrong_parts_are_counted(collective):
    ranks = 3
    count = 3 * (check.PERIOD + 7)  # no part begins where a pattern does
    inputs = [check.pattern(np.dtype(np.int32), "sum", (1, rank)) for rank in range(ranks)]
    wholes = [np.resize(values, count) for values in inputs]
    for rank in range(ranks):
        if collective == "all_gather":
            right = np.concatenate([whole[: count // ranks] for whole in wholes])
        elif collective == "reduce_scatter":
            right = np.split(np.add.reduce(wholes, dtype=np.int32), ranks)[rank]
        else:
            right = np.concatenate([np.split(whole, ranks)[rank] for whole in wholes])
        pieces = check.expected(collective, "sum", inputs, rank, count)

        def wrong(x, pieces=pieces):
            return sum(check.count_wrong(x[piece], *values) for piece, *values in pieces)

        assert sum(len(right[piece]) for piece, *_ in pieces) == len(right)
        assert wrong(right) == 0
        corrupted = [0, len(right) // 2, len(right) - 1]
        right[corrupted] += 1
        assert wrong(right) == len(corrupted)
        assert wrong(np.roll(right, 1)) > len(right) // 2


def test_a_missing_contribution_is_wrong():
    inputs = [check.pattern(np.dtype(np.float32), "sum", (1, rank), 100) for rank in range(4)]
    for op in ("sum", "avg", "prod", "min", "max"):
        expected, tolerance = check.model(op, inputs)
        incomplete, _ = check.model(op, inputs[:3])
        assert check.count_wrong(incomplete.astype(np.float32), expected, tolerance) > 10
    # What another order of summation gives is right.
    expected, tolerance = check.model("sum", inputs)
    assert check.count_wrong(inputs[3] + (inputs[2] + (inputs[1] + inputs[0])), expected, tolerance) == 0


def test_placements_are_kept_apart(bench_module):
    results = bench_module("results")
    data = results.CaseData()
    times = np.array([1.0, 2.0])
    for _ in range(results.ENOUGH_BLOCKS):
        data.add(times, "near", "near", 0.01, 1e-6)
        data.add(3 * times, "far", "far", 0.01, 1e-6)
    data.add(100 * times, "near", "far", 0.01, 1e-6)
    data.add(100 * times, "unknown", "unknown", 0.01, 1e-6)
    kept = data.placements()
    assert {p: s.max() for p, s in kept.items()} == {"near": 2.0, "far": 6.0}
    assert len(data.mixed) == 1


def test_a_case_always_has_a_row(bench_module):
    results = bench_module("results")
    data = results.CaseData()
    data.add(np.array([1.0]), "near", "far", 0.01, 1e-6)
    assert list(data.placements()) == ["unknown"]


def test_a_peer_is_compared_at_its_best(bench_module):
    table = bench_module("table")
    row = {"bytes": 8, "level": "c", "placement": "near", "peer": None, "algorithm": "auto", "time_us": 1.0}
    rows = [
        row,
        row | {"peer": "openmpi", "algorithm": "default", "time_us": 3.0},
        row | {"peer": "openmpi", "algorithm": "coll_sm", "time_us": 0.5},
        row | {"placement": "far"},
    ]
    lines = table.versus_as_text(rows, "openmpi").splitlines()
    assert len(lines) == 3
    assert "coll_sm" in lines[2]
    assert lines[2].endswith("0.50  <- slower")


def test_the_best_of_several_peers(bench_module):
    """Ratios are taken within the run of each peer, whatever the times in the others are."""
    table = bench_module("table")
    row = {"bytes": 8, "placement": "near", "peer": None, "algorithm": "auto", "time_us": 1.0, "against": "a"}
    row |= {"level": "c"}
    rows = [
        row,
        row | {"peer": "a", "time_us": 3.0},
        row | {"against": "b", "time_us": 10.0},
        row | {"against": "b", "peer": "b", "time_us": 20.0},
        row | {"against": "b", "placement": "far"},
    ]
    lines = table.best_as_text(rows).splitlines()
    assert len(lines) == 2
    assert lines[1].split() == ["8", "B", "c", "near", "3.00", "2.00", "b", "2.00"]


def _path(first: Path) -> str:
    return os.pathsep.join([str(first), *filter(None, [os.environ.get("PYTHONPATH")])])


def _a_rank_of(process: subprocess.Popen[str]) -> int:
    """The process of a rank, once it measures: both ranks are there and have threads of the library."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert process.poll() is None
        ranks = []
        for entry in Path("/proc").iterdir():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == process.pid and b"spawn_main" in (entry / "cmdline").read_bytes():
                    ranks.append(int(entry.name))
            except (OSError, ValueError):
                continue
        if len(ranks) == 2:
            return ranks[0]
        time.sleep(0.02)
    raise AssertionError("the ranks did not start")


def test_c_functions_get_all_their_arguments():
    """MPI_Reduce has seven; those beyond the sixth are passed in another way than the first."""
    seen = []
    integers = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_size_t] * 4, ctypes.c_int, ctypes.c_size_t]
    for count in range(len(integers) + 1):
        function = ctypes.CFUNCTYPE(ctypes.c_int, *integers[:count])(lambda *given: seen.append(given) or 0)
        address = ctypes.cast(function, ctypes.c_void_p).value
        arguments = tuple(range(11, 11 + count))
        (comm,) = collectives.local_group(1)
        times = _core._time_function(comm, [np.ones(3)], 2, 1, address, arguments, 0, None)
        comm.close()
        assert len(times) == 2
        assert seen[-2:] == [arguments, arguments]


def test_a_c_function_that_fails_or_has_too_many_arguments():
    failing = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)
    address = ctypes.cast(failing, ctypes.c_void_p).value
    (comm,) = collectives.local_group(1)
    with pytest.raises(ValueError, match="returned 7"):
        _core._time_function(comm, [], 1, 1, address, (), 0, None)
    with pytest.raises(ValueError, match=r"at most 8 arguments .* has 9"):
        _core._time_function(comm, [], 1, 1, address, range(9), 0, None)
    with pytest.raises(ValueError, match="that can be written"):
        _core._time_function(comm, [np.frombuffer(b"12345678")], 1, 1, address, (), 0, None)
    comm.close()
