"""What the bench has aims for: a section that runs, and the table that says whether they were reached."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest
from bench_runs import BENCH, run_bench

bench = functools.partial(run_bench, "--duration", 0.02)


@pytest.fixture
def suite(bench_module):
    return bench_module("suite")


def row(section, **other):
    shape = {"ranks": 2, "collective": "all_reduce", "transport": "shm", "memory": "private", "tensors": 1}
    place = {"bytes": 8, "level": "c", "placement": "near", "peer": None, "against": "a", "algorithm": "auto"}
    return {"section": section, "time_us": 1.0, **shape, **place, **other}


def line(text, *words):
    (found,) = [found for found in text.splitlines() if all(word in found for word in words)]
    return found


def test_one_section(tmp_path):
    file = tmp_path / "out.json"
    run = bench("--vs", "memcpy", "--section", "fused", "--json", file)
    assert run.returncode == 0, run.stderr
    written = json.loads(file.read_text())
    assert {"command", "date", "machine", "versions"} <= written["about"].keys()
    assert written["about"]["versions"]["numpy"]
    rows = written["rows"]
    assert {(r["level"], r["tensors"]) for r in rows} == {(level, n) for level in ("python", "c") for n in (1, 300)}
    assert {r["bytes"] for r in rows} == {100_000_000}
    assert all(r["wrong"] == 0 and r["section"] == "fused 300 tensors" for r in rows)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--section", "fastest"], "'fastest' is no section; there are private, symmetric, tcp"),
        (["--section", "tcp", "--vs", "memcpy", "-b", "8"], "--section says what to measure, and so does --begin"),
        (["--tensors", "0"], "'0' tensors"),
        (["--tries", "0"], "'0' tries; a number from 1 to 100"),
        (["--vs", "memcpy", "--level", "python"], "it is measured at level c only"),
    ],
)
def test_bad_input(arguments, words):
    run = bench(*arguments)
    assert run.returncode == 2
    assert words in run.stderr
    assert "Traceback" not in run.stderr


def test_an_aim_is_judged_by_the_closest_peer_within_its_own_run(suite):
    rows = [
        row("private buffers"),
        row("private buffers", peer="a", time_us=2.5),
        row("private buffers", against="b", time_us=2.0),
        row("private buffers", against="b", peer="b", time_us=3.0),
        # Another level, placement and section, which must not count.
        row("private buffers", against="b", peer="b", time_us=0.1, level="python"),
        row("private buffers", against="b", peer="b", time_us=0.1, placement="far"),
        row("broadcast", peer="a", time_us=0.1),
    ]
    found = line(suite.aims_as_text(rows), "private buffers", " c ", " near ", "8 B - 1 KiB")
    assert "1.50  missed" in found
    assert found.endswith("b")
    rows[3]["time_us"] = 5.0
    found = line(suite.aims_as_text(rows), "private buffers", " c ", " near ", "8 B - 1 KiB")
    assert "2.50" in found
    assert "missed" not in found
    assert "not measured" in line(suite.aims_as_text(rows), "private buffers", " c ", " near ", " 4 MiB ")


def test_lists_are_judged_by_one_tensor(suite):
    rows = [
        row("fused 300 tensors", bytes=10**8, against=None, time_us=9.0),
        row("fused 300 tensors", bytes=10**8, against=None, time_us=12.0, tensors=300),
    ]
    assert "0.75  missed" in line(suite.aims_as_text(rows), "fused 300 tensors", " c ")


def test_slow_peers_are_a_reason_to_doubt(suite):
    size = 32 << 20
    rows = [
        row("private buffers", bytes=size, against="memcpy", time_us=10.0),
        row("private buffers", bytes=size, against="memcpy", peer="memcpy", algorithm="update", time_us=4.0),
        row("private buffers", bytes=size, peer="a", time_us=30.0),
    ]
    assert suite.doubts_as_text(rows) == ""
    rows[2]["time_us"] = 31.0
    assert "7.8 times the limit at 32 MiB, where 5.1" in suite.doubts_as_text(rows)
    rows.append(row("private buffers", bytes=size, peer="b", time_us=20.0))
    assert suite.doubts_as_text(rows) == ""


def test_limits_come_from_primitives_of_the_same_run(suite):
    size = 32 << 20
    rows = [
        row("private buffers", bytes=size, against="memcpy", time_us=10.0),
        row("private buffers", bytes=size, against="memcpy", peer="memcpy", algorithm="update", time_us=4.0),
        row("private buffers", bytes=size, time_us=4.0),
        row("private buffers", bytes=size, peer="a", time_us=8.0),
    ]
    text = suite.aims_as_text(rows)
    assert "0.40  missed" in line(text, "private buffers", "4 MiB - 128 MiB", "limit")
    assert "2.00" in line(text, "private buffers", " c ", " near ", "32 MiB - 128 MiB")


def compared_row(where: str, nbytes: int, time_us: float, **other: object) -> dict[str, object]:
    return row("TCP loopback", bytes=nbytes, placement=where, time_us=time_us, **other)


def test_a_run_that_is_repeated_fills_in_what_was_not_seen(suite) -> None:
    first = [
        *(compared_row("near", 8, 1.0), compared_row("near", 8, 2.0, peer="a")),
        *(compared_row("far", 8, 3.0), compared_row("near", 64, 4.0)),  # of these ours alone
        compared_row("near", 64, 5.0, level="python"),  # which the peer cannot do
    ]
    assert suite.compared(first, "a") == {("c", 8, "near")}
    assert suite.one_placement_only(first, "a")
    again = [
        *(compared_row("far", 8, 6.0), compared_row("far", 8, 7.0, peer="a")),
        *(compared_row("near", 8, 8.0), compared_row("near", 8, 9.0, peer="a")),
        *(compared_row("near", 64, 4.0), compared_row("near", 64, 5.0, peer="a")),
    ]
    both = suite.with_more(first, again, "a")
    times = [(r["bytes"], r["placement"], r["peer"], r["time_us"]) for r in both if r["level"] == "c"]
    assert sorted(times, key=str) == [
        *((64, "near", "a", 5.0), (64, "near", None, 4.0)),
        *((8, "far", "a", 7.0), (8, "far", None, 6.0)),
        *((8, "near", "a", 2.0), (8, "near", None, 1.0)),
    ]
    assert suite.one_placement_only(both, "a")  # 64 far is still missing
    last = [compared_row("far", 64, 1.0), compared_row("far", 64, 1.0, peer="a")]
    assert not suite.one_placement_only(suite.with_more(both, last, "a"), "a")


def test_tries(tmp_path) -> None:
    file = tmp_path / "out.json"
    run = bench("--vs", "memcpy", "-b", "8", "-e", "8", "--level", "c", "--tries", "2", "--json", file)
    assert run.returncode == 0, run.stderr
    rows = json.loads(file.read_text())["rows"]
    seen = {
        where
        for where in ("near", "far")
        if {"flag", "meet"} <= {r["algorithm"] for r in rows if r["placement"] == where}
    }
    # Where the second run has seen both, the first had not.
    assert run.stdout.count("limit / ours") in ((1, 2) if len(seen) == 2 else (2,))


def test_the_report_says_which_peers_were_not_seen(bench_module) -> None:
    far = {"placement": "far"}
    rows = [
        *(row("TCP loopback", time_us=1.0), row("TCP loopback", time_us=2.0, peer="a")),
        *(row("TCP loopback", time_us=1.0, **far), row("TCP loopback", time_us=2.0, peer="a", **far)),
        *(row("TCP loopback", time_us=1.0, against="b"), row("TCP loopback", time_us=1.5, peer="b", against="b")),
    ]
    table = bench_module("suite_report").aims_as_markdown([rows])
    assert "| 1.50 |  |" in line(table, "TCP loopback", "near", "8 B to 1 KiB")
    assert "| 2.00 | without b |" in line(table, "TCP loopback", "far", "8 B to 1 KiB")


def test_the_documented_aims_are_those_of_the_kept_runs() -> None:
    runs = sorted((BENCH / "results" / "2026-11-23").glob("suite-all-[5-7].json"))
    assert len(runs) == 3
    command = [sys.executable, BENCH / "suite_report.py", *runs]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    table = done.stdout.partition("\n\n")[0]
    assert "(impossible)" in table
    assert table in (BENCH.parent / "docs" / "performance.md").read_text(encoding="utf-8")
