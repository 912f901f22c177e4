"""The bench for users, `python -m collectives.bench`: its rows, what it refuses, and that it sees a wrong result."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import namespaces
import numpy as np
import pytest
from collectives.bench import check, dtypes, place
from collectives.bench.calls import COLLECTIVES
from collectives.bench.factors import bus_factor
from collectives.bench.options import BadUsageError, parse
from collectives.bench.sizes import parse_size, size_range
from collectives.bench.text import format_size

LIMIT = 60.0  # seconds that nothing here may reach
RUN = [sys.executable, "-m", "collectives", "run"]


def run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with what it printed; the lines of rank 0 have no prefix."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    done = subprocess.run(
        [*map(str, command)],
        env=environment | {"OMP_NUM_THREADS": "1"} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    done.stdout = re.sub(r"^\[0\] ", "", done.stdout, flags=re.MULTILINE)
    return done


def under_run(ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run(*RUN, "-n", ranks, "-m", "collectives.bench", *arguments)


def cells_of(text: str) -> list[list[str]]:
    """The rows of a table."""
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_rows_have_the_columns_of_nccl_tests(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = under_run(2, "-b", 8, "-e", "8K", "-f", 32, "-n", 3, "--percentiles", "--json", file)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("# collectives ") and lines[0].endswith("started by collectives run")
    assert re.fullmatch(r"# 2 ranks on \S+ \(ranks 0-1\)", lines[1])
    assert lines[2] == "# all_reduce, algorithm auto, transport shm"
    half = ["time", "p50", "p99", "algbw", "busbw", "#wrong"]
    (names,) = (line for line in lines if line.split()[1:2] == ["size"])
    assert names.split()[1:] == ["size", "count", "type", "redop", "root", *half, *half]
    rows = cells_of(done.stdout)
    assert [row[:5] for row in rows] == [[str(n), str(n // 4), "float", "sum", "-1"] for n in (8, 256, 8192)]
    assert {len(row) for row in rows} == {5 + 2 * len(half)}
    assert {(row[10], row[16]) for row in rows} == {("0", "0")}
    assert lines[-2] == "# Out of bounds values : 0 OK"
    assert re.fullmatch(r"# Avg bus bandwidth    : [\d.]+", lines[-1])

    written = json.loads(file.read_text())
    assert written["out_of_bounds"] == 0
    assert written["about"]["ranks"] == 2
    assert written["about"]["started_by"] == "collectives run"
    assert [row["nbytes"] for row in written["rows"]] == [8, 256, 8192]
    halves = [half for row in written["rows"] for half in (row["out_of_place"], row["in_place"])]
    for row in written["rows"]:
        assert (row["collective"], row["type"], row["op"], row["root"]) == ("all_reduce", "float", "sum", -1)
        assert row["algorithm"] not in ("", "auto")
        half = row["out_of_place"]
        assert half["algbw_gbs"] == half["busbw_gbs"] == pytest.approx(row["nbytes"] / half["time_us"] / 1e3)
    assert all(0 < half["p50_us"] <= half["p99_us"] and half["wrong"] == 0 for half in halves)
    average = sum(half["busbw_gbs"] for half in halves) / len(halves)
    assert written["average_busbw_gbs"] == pytest.approx(average)


# Several runs of the bench in one job: each joins again.
SEVERAL = """
import json, sys
from collectives.bench.run import main

for words in json.loads(sys.argv[1]):
    print("##", *words, "->", main(words), flush=True)
"""


def several(ranks: int, *runs: str) -> dict[str, tuple[int, str]]:
    """By command line, the exit code and the table of rank 0."""
    done = run(*RUN, "-n", ranks, sys.executable, "-c", SEVERAL, json.dumps([words.split() for words in runs]))
    assert done.returncode == 0, done.stderr
    mine = "".join(line for line in done.stdout.splitlines(keepends=True) if not re.match(r"\[\d+\] ", line))
    parts = re.split(r"^## (.*) -> (\d+)\n", mine, flags=re.MULTILINE)
    found = {words: (int(code), text) for text, words, code in zip(parts[::3], parts[1::3], parts[2::3], strict=False)}
    assert list(found) == list(runs), done.stdout
    return found


def test_every_collective() -> None:
    """Three ranks and a root that is not the first; sizes that do not divide."""
    sizes = "-b 8 -e 400K -f 200 -n 2 -w 1"
    runs = {name: f"{name} {sizes} {'-r 2' if COLLECTIVES[name].rooted else ''}".strip() for name in COLLECTIVES}
    found = several(3, *runs.values())
    for name, kind in COLLECTIVES.items():
        code, text = found[runs[name]]
        assert code == 0, text
        rows = cells_of(text)
        counts = [2, 400, 80_000] if not kind.in_parts else [0, 133, 26_666]
        whole = 3 if kind.in_parts else 1
        op, root = "sum" if kind.reduces else "none", "2" if kind.rooted else "-1"
        assert [row[:5] for row in rows] == [[str(4 * whole * n), str(n), "float", op, root] for n in counts], text
        assert {row[8] for row in rows} == {"0"}, text
        assert {row[12] for row in rows} == {"0" if kind.in_place else "N/A"}, text


def test_options() -> None:
    """Types, ops, steps, asynchronous calls, another transport and no check, on two ranks."""
    many = "-d all -o all -b 64 -e 64 -n 1 -w 0"
    steps = "all_gather -d bfloat16 -b 1K -e 3K -i 1K -n 2 -z 0 -a 3"
    messages = "sendrecv -b 4K -e 4K -z 0 -n 4 --transport tcp --percentiles"
    unchecked = "reduce_scatter -b 1K -e 1K -c 0 -a 0 --algorithm ring"
    found = several(2, many, steps, messages, unchecked)
    assert {code for code, _ in found.values()} == {0}, found
    rows = cells_of(found[many][1])
    assert {row[2] for row in rows} == set(dtypes.DTYPES) >= {"half", "float", "double", "bfloat16", "f8e4m3", "int8"}
    assert {row[3] for row in rows} == {*dtypes.OPS}
    assert {(row[8], row[12]) for row in rows} == {("0", "0")}
    assert "# left out, since they do not exist: avg of int8, " in found[many][1]
    assert [row[:3] for row in cells_of(found[steps][1])] == [
        [str(n << 10), str(n << 8), "bfloat16"] for n in (1, 2, 3)
    ]
    assert ", 2 asynchronous calls after 5 to warm up, time: most, " in found[steps][1]
    assert "algorithm auto, transport tcp" in found[messages][1]
    (row,) = cells_of(found[unchecked][1])
    assert (row[8], row[12]) == ("N/A", "N/A")


BROKEN = """
import sys
import numpy as np
import collectives
from collectives.bench.run import main

right = collectives.Communicator.all_reduce

def wrong(self, x, *rest, **keywords):
    result = right(self, x, *rest, **keywords)
    if self.rank == 1 and x.dtype == np.float32:
        if keywords.get("async_op"):
            result.wait()
        keywords.get("out", x)[-2:] += 1
    return result

collectives.Communicator.all_reduce = wrong
sys.exit(main(["-b", "64", "-e", "1K", "-f", "16", "-n", "2"]))
"""


def test_wrong_results_are_counted() -> None:
    done = run(*RUN, "-n", 2, sys.executable, "-c", BROKEN)
    assert done.returncode == 1
    assert [(row[8], row[12]) for row in cells_of(done.stdout)] == [("2", "2"), ("2", "2")]
    assert "# Out of bounds values : 8 FAILED\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("all_reduce_perf", "'all_reduce_perf' is no collective, nor the value of an option that is known"),
        ("-b 12Q", "'12Q' is not a size"),
        ("-b 1K -e 8", "end at 8 bytes, before they begin at 1024"),
        ("-f 1", "more than 1 is accepted"),
        ("-f 2 -i 8", "not allowed with"),
        ("-n 0", "at least 1"),
        ("-w -1", "at least 0"),
        ("-d decimal", "there are all, half, "),
        ("-o median", "invalid choice: 'median'"),
        ("-o avg -d int32", "avg needs floats, not int32"),
        ("-o max -d complex64", "complex numbers have sum and avg only"),
        ("-z 2", "invalid choice: 2"),
        ("-T 0", "a number above 0"),
        ("-g 1", "start as many ranks as you want: collectives run -n 2 -m collectives.bench"),
        ("--nthreads 8", "-t/--nthreads of nccl-tests does not apply: a rank is a process here"),
        ("--algorithm fastest", "there are auto, "),
        ("sendrecv --algorithm ring", "none of sendrecv"),
        ("-m 4", "-m/--agg_iters of nccl-tests does not apply: calls are not aggregated"),
        ("-G 1", "it is about GPUs; leave it out"),
        ("--unknown", "unrecognized arguments: --unknown"),
    ],
)
def test_bad_options(arguments: str, words: str) -> None:
    with pytest.raises(BadUsageError, match=re.escape(words)):
        parse(arguments.split())


# By rank another command line, and when all have said what they return.
REFUSED = """
import os, sys
from collectives.bench.run import main

rank = int(os.environ["COLLECTIVES_RANK"])
codes = [main(words.split()) for words in (
    "-z 2", "broadcast -r 2", "--ranks 2", "--json /nowhere/x", "--algorithm hierarchical", "-e 900T",
    "-e 64" if rank == 0 else "-e 32", "-e 64" if rank == 0 else "-q",
)]
print(codes, flush=True)
"""


def test_all_ranks_refuse_and_rank_0_says_why() -> None:
    done = run(*RUN, "-n", 2, sys.executable, "-c", REFUSED)
    assert done.returncode == 0, done.stderr
    assert sorted(line[-24:] for line in done.stdout.splitlines()) == 2 * [str([2, 2, 2, 2, 2, 1, 2, 2])]
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert all(line.startswith("[0] collectives.bench: error: ") for line in errors)
    said = [line.partition("error: ")[2] for line in errors]
    assert said[0] == "argument -z/--blocking: invalid choice: 2 (choose from 0, 1)"
    assert said[1] == "--root 2: there are ranks 0 to 1"
    assert said[2].startswith("--ranks 2: collectives run has started 2 ranks already")
    assert said[3].startswith("--json /nowhere/x: ")
    assert said[4].startswith("--algorithm hierarchical cannot be used here: ")
    asked = 2 * 2 * (1 << 49)  # the sizes double
    assert re.fullmatch(rf"the arrays of 2 ranks on \S+ need {asked} bytes of memory .* --maxbytes", said[5])
    assert said[6].startswith("rank 1 was started with other options than rank 0")
    assert said[7] == "rank 1: unrecognized arguments: -q"
    assert len(said) == 8


def test_bad_options_end_a_job() -> None:
    done = under_run(2, "-o", "median")
    assert done.returncode == 2
    assert "[0] collectives.bench: error: argument -o/--op: invalid choice: 'median'" in done.stderr
    assert "Traceback" not in done.stderr


def test_ranks_of_its_own_and_one_alone() -> None:
    bench = [sys.executable, "-m", "collectives.bench", "-b", 64, "-e", 64, "-n", 2]
    done = run(*bench, "--ranks", 3)
    assert done.returncode == 0, done.stderr
    assert "started by --ranks 3\n" in done.stdout
    assert len(cells_of(done.stdout)) == 1
    done = run(*bench)
    assert done.returncode == 0, done.stderr
    assert "# The world has one rank, so nothing moves between ranks. To start several: collectives run" in done.stdout
    (row,) = cells_of(done.stdout)
    assert row[7] == "0.0000"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install '.[torch]'")
def test_under_torchrun() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", 1, "--nproc-per-node", 2]
    done = run(*torchrun, "-m", "collectives.bench", "scatter", "-b", "1K", "-e", "1K", "-n", 2)
    assert done.returncode == 0, done.stderr
    assert "started by torchrun\n" in done.stdout
    (row,) = cells_of(done.stdout)
    assert row[:5] == ["1024", "128", "float", "none", "0"]


@pytest.mark.skipif(namespaces.REASON is not None, reason=str(namespaces.REASON))
def test_on_two_hosts(hosts: list[str]) -> None:
    program = "from collectives.bench.run import main; raise SystemExit(main(['-b', '1K', '-e', '1K', '-n', '2']))"
    first, *others = namespaces.run_program(hosts, [0, 0, 1, 1], program)
    assert {rank.returncode for rank in (first, *others)} == {0}, first.errors
    assert "transport shm+tcp\n" in first.out
    assert "started by COLLECTIVES_RANK and COLLECTIVES_SIZE\n" in first.out
    assert len(cells_of(first.out)) == 1
    assert not any(rank.out for rank in others)


def test_ctrl_c_ends_all_ranks_after_a_row() -> None:
    bench = [*RUN, "-n", "2", "-m", "collectives.bench", "-b", "64", "-e", "64K", "-i", "4", "-n", "100"]
    with subprocess.Popen(
        bench, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            assert job.stdout is not None
            while not re.match(r"\[0\] +64 ", job.stdout.readline()):
                assert job.poll() is None
            job.send_signal(signal.SIGINT)
            out, errors = job.communicate(timeout=LIMIT)
        finally:
            job.kill()
    assert job.returncode == 128 + signal.SIGINT
    assert "[0] # interrupted\n" in out and "[0] # Out of bounds values : 0 OK\n" in out
    assert [line for line in errors.splitlines() if not line.startswith("collectives run: ")] == []


def test_factors_are_those_of_nccl_tests() -> None:
    factors = {name: bus_factor(name, 4) for name in COLLECTIVES}
    part = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    assert factors == {"all_reduce": 1.5, "broadcast": 1, "reduce": 1, "sendrecv": 1, **dict.fromkeys(part, 0.75)}
    assert bus_factor("all_reduce", 1) == bus_factor("barrier", 4) == 0


def test_sizes() -> None:
    assert [parse_size(text) for text in ("8", "1K", "4M", "1G", "1.5k", "2MiB")] == [
        *(8, 1 << 10, 4 << 20, 1 << 30, 1536, 2 << 20)
    ]
    assert size_range(8, 100, 4) == (8, 32)
    assert size_range(8, 128, 4) == (8, 32, 128)
    assert size_range(8, 8, 2) == (8,)
    assert size_range(8, 20, step=4) == (8, 12, 16, 20)
    assert format_size(3 << 19) == "1.5 MiB"
    parts = COLLECTIVES["all_to_all"]
    assert [parts.count(nbytes, 4, 3) for nbytes in (8, 12, 100)] == [0, 3, 24]


def test_hosts_are_shown_by_name() -> None:
    assert place.hosts_as_text(["a", "b", "a", "a", "c"]) == "a (ranks 0, 2-3), b (rank 1), c (rank 4)"


@pytest.mark.parametrize("name", [*dtypes.DTYPES])
def test_one_wrong_element_is_seen(name: str) -> None:
    dtype = dtypes.DTYPES[name]
    for op in (op for op in dtypes.OPS if not dtypes.refusal(op, dtype)):
        inputs = [check.pattern(dtype, op, (1, rank), 1000) for rank in range(3)]
        expected, tolerance = check.model(op, inputs)
        x = np.resize(expected.astype(dtype), 2500)
        assert check.count_wrong(x, expected, tolerance) == 0, op
        x[2400] = ~x[2400] if dtype.kind in "biu" else dtype.type(7)
        assert check.count_wrong(x, expected, tolerance) == 1, op
