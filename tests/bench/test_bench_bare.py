"""The bare loops of the bench: what they compute, and that tables show them without comparing others with them."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
from concurrent.futures import ThreadPoolExecutor

import built
import numpy as np
import pytest
from bench_runs import run_bench
from test_bench_suite import line, row

REST = (False, 1.0, 1.0, 1)  # check, timeout, duration, seed


@pytest.fixture
def bare(bench_module):
    return bench_module("peers.bare")


class Ranks:
    """All ranks' loops in one process."""

    def __init__(self, bare, size):
        library = built.once("bare", lambda folder: bare.loops.build("bare", folder)) / "bare.so"
        file = bare.loops.shared_memory(bare.loops.shared_bytes(library, size))
        self.ranks = [bare.loops.Loops.open(library, file, rank, size) for rank in range(size)]
        os.close(file)
        self.prepared = bare.call
        self.function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_size_t] * 4)

    def call(self, way, xs):
        def of_rank(rank):
            call = self.prepared(self.ranks[rank], way, xs[rank])
            # Of the arguments behind its own ones a function knows nothing.
            return self.function(call.address)(*(*call.arguments, 0)[:4])

        with ThreadPoolExecutor(len(xs)) as pool:
            assert [done.result(60) for done in [pool.submit(of_rank, r) for r in range(len(xs))]] == [0] * len(xs)

    def close(self):
        for rank in self.ranks:
            rank.close()


@pytest.fixture(params=[2, 3, 4])
def ranks(request, bare):
    found = Ranks(bare, request.param)
    yield found
    found.close()


@pytest.mark.parametrize("count", [1, 2, 14, 15, 16, 17, 300, 5001, 300_007])
def test_results(ranks, bare, count):
    size = len(ranks.ranks)
    for collective in ("all_reduce", "broadcast"):
        for way in bare.ways(collective, 4 * count, size):
            for repetition in range(6):  # so that every slot is used again
                given = np.random.default_rng(repetition).integers(-99, 99, (size, count)).astype(np.float32)
                xs = list(given.copy())
                ranks.call(way, xs)
                for x in xs:
                    assert np.array_equal(x, given.sum(axis=0) if collective == "all_reduce" else given[0]), way


def test_chunks_that_are_many(ranks):
    given = np.random.default_rng(1).integers(-99, 99, (len(ranks.ranks), 100_003)).astype(np.float32)
    for chunk in (64 << 10, 512 << 10):
        xs = list(given.copy())
        ranks.call(f"two_shot {chunk}", xs)
        assert all(np.array_equal(x, given.sum(axis=0)) for x in xs)


def test_ways(bare):
    assert bare.ways("all_reduce", 8, 2) == ["one_shot"]
    assert bare.ways("all_reduce", 8 << 10, 2) == ["one_shot", "two_shot 524288"]
    assert bare.ways("all_reduce", 4 << 20, 4) == ["two_shot 524288", "two_shot 262144", "two_shot 65536"]
    assert bare.ways("all_reduce", 32 << 20, 2) == []
    assert bare.ways("broadcast", 1 << 20, 2) == ["broadcast"]
    assert bare.ways("broadcast", 2 << 20, 2) == []


def test_what_there_is_no_loop_for(bare, bench_module):
    cases = bench_module("cases")
    config = cases.Config(*("all_reduce", ("auto",), False, (8,), 2, "shm", "private", "float32", "sum"), *REST)
    assert bare.unsupported(config) == ""
    for name, value, words in [
        ("dtype", "float64", "float32"),
        ("op", "max", "sum"),
        ("ranks", 17, "not for 17"),
        ("collective", "all_gather", "no bare all_gather"),
        ("memory", "symmetric", "private buffers"),
        ("transport", "tcp", "shared memory"),
    ]:
        assert words in bare.unsupported(dataclasses.replace(config, **{name: value}))


@pytest.mark.parametrize("arguments", [["-n", 2], ["-n", 3], ["-n", 2, "--collective", "broadcast"]])
def test_a_run(tmp_path, arguments):
    file = tmp_path / "out.json"
    run = run_bench("--vs", "bare", "-b", 8, "-e", "64K", "-f", 64, "--duration", 0.02, "--json", file, *arguments)
    assert run.returncode == 0, run.stderr
    rows = json.loads(file.read_text())["rows"]
    assert {r["bytes"] for r in rows if r["peer"] == "bare"} == {8, 512, 32 << 10}
    assert all(r["wrong"] == 0 and r["level"] == "c" for r in rows)


def test_nobody_competes_with_them(bench_module):
    suite, report, table = bench_module("suite"), bench_module("suite_report"), bench_module("table")
    size = 8 << 10
    rows = [
        row("private buffers", bytes=size),
        row("private buffers", bytes=size, peer="a", time_us=2.0),
        row("private buffers", bytes=size, against="bare", time_us=2.0),
        row("private buffers", bytes=size, against="bare", peer="bare", time_us=1.6),
    ]
    found = line(suite.aims_as_text(rows), "private buffers", " c ", " near ", "8 KiB ")
    assert "2.00  missed" in found
    assert found.endswith(" a")
    assert " 0.80  a " in table.best_as_text(rows)
    aims = report.aims_as_markdown([rows])
    assert line(aims, "private buffers | c | near | 8 KiB").endswith("(8 KiB, a: 2.000) |  | 2.50 |")
    rows[3]["time_us"] = 1.8
    aims = report.aims_as_markdown([rows])
    assert line(aims, "private buffers | c | near | 8 KiB").endswith("a: 2.000) |  | 2.22 (less than aimed at) |")
