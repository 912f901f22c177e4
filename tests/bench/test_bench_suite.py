"""What the bench has aims for: a section that runs, and the table that says whether they were reached."""

from __future__ import annotations

import functools
import json
import types

import pytest
from bench_runs import run_bench

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
    assert suite.doubts_as_text(rows).endswith("7.8 times the limit at 32 MiB, where 5.1 times is known to be possible")
    rows.append(row("private buffers", bytes=size, peer="c", time_us=20.0, placement="far"))
    assert suite.doubts_as_text(rows).endswith("possible (not seen there: c)")
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


def test_the_limit_is_compared_by_an_empty_call_with_the_cores_anywhere(suite) -> None:
    rows = [
        compared_row("far", 8192, 2.0, transport="shm", memory="symmetric", against="memcpy"),
        *(
            compared_row("far", 8192, 1.0, peer="memcpy", against="memcpy", algorithm=name)
            for name in ("flag", "meet", "push", "reduce_all")
        ),
        compared_row("near", 8192, 1.0, peer="memcpy", against="memcpy", algorithm="empty"),
    ]
    assert suite.compared(rows, "memcpy") == {("c", 8192, "far")}
    assert suite.compared(rows[:-1], "memcpy") == set()


@pytest.mark.parametrize(("tries", "runs"), [(1, 1), (2, 2), (5, 3)])
def test_tries(tries, runs, bench_module, monkeypatch) -> None:
    allreduce = bench_module("allreduce")
    seen = iter(["near", "near", "far", "far", "far"])

    def run(*_: object) -> dict[str, object]:
        where = next(seen)
        rows = [row("", placement=where, time_us=time_us, peer=peer) for time_us, peer in ((1.0, None), (2.0, "a"))]
        return {"versions": {}, "rows": rows}

    monkeypatch.setattr(allreduce.ranks, "run", run)
    monkeypatch.setattr(allreduce, "_print_report", lambda *_: None)
    config = types.SimpleNamespace(peer="a")
    rows = allreduce._measure(config, None, "TCP loopback", tries, {})
    assert len(list(seen)) == 5 - runs
    assert [r["placement"] for r in rows] == (["near"] * 2 + ["far"] * 2 if runs == 3 else ["near"] * 2)
    assert {r["section"] for r in rows} == {"TCP loopback"}


def test_tries_on_the_command_line() -> None:
    run = bench("--vs", "memcpy", "-b", "8", "-e", "8", "--level", "c", "--tries", "2")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("limit / ours") in (1, 2)


def pairs_of(name: str, ratio: float, **other: object) -> list[dict[str, object]]:
    return [
        row("TCP loopback", time_us=1.0, against=name, **other),
        row("TCP loopback", time_us=ratio, against=name, peer=name, **other),
    ]


def test_the_report_says_which_peers_were_not_seen(bench_module) -> None:
    rows = [
        *(pairs_of("a", 2.0) + pairs_of("a", 2.0, placement="far") + pairs_of("b", 1.5)),
        *(
            pairs_of("a", 2.0, bytes=1024)
            + pairs_of("b", 1.6, bytes=1024)
            + pairs_of("b", 1.6, bytes=1024, placement="far")
        ),
    ]
    table = bench_module("suite_report").aims_as_markdown([rows])
    assert "| 1.50 |  |" in line(table, "TCP loopback", "near", "8 B to 1 KiB")
    # a was not seen far at 1 KiB, b not at 8 B.
    assert "| 1.60 | without a, b |" in line(table, "TCP loopback", "far", "8 B to 1 KiB")
    crowded = [r | {"section": "4 ranks, private"} for r in rows]
    table = bench_module("suite_report").aims_as_markdown([crowded])
    assert "without a far, b far |" in line(table, "4 ranks, private")


def test_an_aim_is_judged_where_the_median_is_lowest(bench_module) -> None:
    # One run sees the smaller ratio of the larger size only; medians over sizes would hide it.
    runs = [pairs_of("a", 1.6), [*pairs_of("a", 1.5), *pairs_of("a", 1.2, bytes=1024)]]
    table = bench_module("suite_report").aims_as_markdown(runs)
    assert "| 1.60, 1.20 | **missed** (1 KiB, a: 1.200) |" in line(table, "TCP loopback", "near", "8 B to 1 KiB")


def test_over_tcp_a_bare_exchange_is_a_bare_loop(bench_module) -> None:
    here = {"bytes": 8192, "transport": "tcp"}
    ours, _ = pairs_of("memcpy", 1.0, **here)
    primitives = [
        row("TCP loopback", time_us=time_us, against="memcpy", peer="memcpy", algorithm=name, **here)
        for name, time_us in (("exchange", 0.96), ("ping_pong", 1.6))
    ]
    table = bench_module("suite_report").aims_as_markdown([[*pairs_of("a", 1.2, **here), ours, *primitives]])
    # At the limit, which is half a ping-pong, and as the exchange.
    assert "**missed** (8 KiB, a: 1.200) | 1.50 | 1.25 |" in line(table, "TCP loopback", "near", "| 8 KiB |")
