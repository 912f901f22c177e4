"""The limit in the bench: the formulas, the primitives, and runs that measure them."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import mmap
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import built
import numpy as np
import pytest
from bench_runs import BENCH
from collectives import _core

HUGE = 2 << 20
BOUNCE = 512 << 10
CONFIG_REST = (False, 1.0, 1.0, 1)  # check, timeout, duration, seed


class Pair:
    """Both ranks' primitives in one process, and the memory they share."""

    def __init__(self, memcpy):
        library = built.once("memcpy", lambda folder: memcpy.loops.build("memcpy", folder)) / "memcpy.so"
        file = memcpy.loops.shared_memory(memcpy.loops.shared_bytes(library, HUGE))
        self.memory = np.frombuffer(mmap.mmap(file, 0), np.uint8)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connections = [socket.create_connection(listener.getsockname()), listener.accept()[0]]
        for connection in connections:
            connection.setblocking(False)
        self.connections = connections
        self.ranks = [
            memcpy.loops.Loops.open(library, file, connections[rank].fileno(), rank, HUGE) for rank in range(2)
        ]
        self.prepared = memcpy.call
        self.function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_size_t] * 4)
        os.close(file)

    def close(self):
        for rank, connection in zip(self.ranks, self.connections, strict=True):
            rank.close()
            connection.close()

    def bounce(self, rank, number, offset, count):
        begin = HUGE + (3 * rank + number) * BOUNCE + offset
        return self.memory[begin : begin + 4 * count].view(np.float32)

    def buffer(self, rank, count):
        begin = 3 * HUGE + rank * HUGE
        return self.memory[begin : begin + 4 * count].view(np.float32)

    def words(self, rank):
        """The first word of the line of `flag`, and of those of `meet`."""
        return self.memory[rank * HUGE // 2 :][: 128 * 1025].view(np.uint64)[::16]

    def call(self, rank, way, x, parts=1, before=False):
        call = self.prepared(self.ranks[rank], way, x, parts)
        assert self.function(call.before if before else call.address)(*call.arguments) == 0

    def together(self, way, xs, parts=1, before=False):
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(self.call, rank, way, x, parts, before) for rank, x in enumerate(xs)]:
                done.result(60)


@pytest.fixture
def pair(bench_module):
    both = Pair(bench_module("peers.memcpy"))
    yield both
    both.close()


def test_memory_of_gigabytes(bench_module, tmp_path):
    loops = bench_module("peers.loops")
    assert loops.shared_bytes(loops.build("memcpy", tmp_path), 1 << 32) == (2 << 32) + 3 * HUGE


def numbers(count, seed):
    return np.random.default_rng(seed).uniform(-1, 1, count).astype(np.float32)


@pytest.mark.parametrize(
    ("times", "case", "expected"),
    [
        # 8 bytes travel with the flag: 1.6 us / 16 meetings, or 6.4 us / 32 flags.
        ({"meet": 1.6, "flag": 6.4}, ("all_reduce", "private", "shm", 8), 0.1),
        ({"meet": 16.0, "flag": 6.4}, ("all_reduce", "private", "shm", 8), 0.2),
        # 4 KiB: 2 * 0.1 + 0.2, or 0.1 + 0.25, which is less.
        (
            {"meet": 1.6, "flag": 6.4, "reduce_half": 0.2, "reduce_all": 0.25},
            ("all_reduce", "private", "shm", 4096),
            0.35,
        ),
        (
            {"meet": 1.6, "flag": 6.4, "reduce_half": 0.2, "reduce_all": 0.5},
            ("all_reduce", "private", "shm", 4096),
            0.4,
        ),
        # 512 KiB: two pieces of each half; 0.03 + 2 * 0.1 + 2 * 5.
        (
            {"empty": 0.03, "meet": 1.63, "flag": 6.43, "reduce_half": 5.03},
            ("all_reduce", "private", "shm", 512 << 10),
            10.23,
        ),
        # 4 MiB: 0.03 + 50 + 32 pieces that cross in 3 us each.
        (
            {"empty": 0.03, "meet": 1.63, "flag": 6.43, "update": 50.03, "copy_back": 3.03},
            ("all_reduce", "private", "shm", 4 << 20),
            146.03,
        ),
        ({"update": 1000.0}, ("all_reduce", "private", "shm", 32 << 20), 1000.0),
        (
            {"empty": 0.03, "meet": 1.63, "flag": 6.43, "push": 5.03},
            ("all_reduce", "symmetric", "shm", 512 << 10),
            5.23,
        ),
        (
            {"empty": 0.03, "meet": 1.63, "flag": 6.43, "push": 900.03},
            ("all_reduce", "symmetric", "shm", 32 << 20),
            900.23,
        ),
        ({"empty": 0.03, "flag": 6.43, "receive": 8.03}, ("broadcast", "private", "shm", 512 << 10), 8.23),
        ({"empty": 0.03, "flag": 6.43, "receive": 8.03}, ("broadcast", "private", "shm", 2 << 20), 32.23),
        ({"update": 700.0}, ("broadcast", "symmetric", "shm", 32 << 20), 700.0),
        ({"exchange": 7.0, "ping_pong": 12.0}, ("all_reduce", "private", "tcp", 8), 6.0),
        ({"exchange": 5.0, "ping_pong": 12.0}, ("all_reduce", "private", "tcp", 8), 5.0),
        ({"exchange": 90.0}, ("all_reduce", "private", "tcp", 1 << 20), 90.0),
        ({"send_one_way": 70.0}, ("broadcast", "private", "tcp", 1 << 20), 70.0),
        # Not measured, or not known.
        ({"meet": 1.6, "flag": 6.4}, ("all_reduce", "private", "shm", 4096), None),
        ({"meet": 1.6, "flag": 6.4}, ("reduce", "private", "shm", 8), None),
        ({"meet": 1.6, "flag": 6.4}, ("all_reduce", "private", "shm+tcp", 8), None),
    ],
)
def test_formulas(bench_module, times, case, expected):
    limit = bench_module("limit")
    found = limit.limit_us(times, *case, 2)
    assert found == (None if expected is None else pytest.approx(expected))
    assert limit.limit_us(times, *case, 3) is None
    if expected is not None:
        assert set(limit.primitives(*case, 2)) == set(times)


def test_times_of_a_placement(bench_module):
    row = {"peer": "memcpy", "bytes": 8192, "placement": "near", "algorithm": "push", "time_us": 1.0}
    rows = [
        row,
        row | {"placement": "far", "time_us": 2.0},
        row | {"algorithm": "empty", "time_us": 0.5},
        row | {"peer": None, "algorithm": "auto"},
        row | {"bytes": 8},
    ]
    assert bench_module("limit").times(rows, 8192, "far") == {"push": 2.0, "empty": 0.5}


@pytest.mark.parametrize("count", [2, 16, 37, 4096, 100003])
def test_reduce_half(pair, count):
    x, own, back = numbers(count, 1), numbers(count, 2), numbers(count, 3)
    piece = min(count // 2, (128 << 10) // 4)
    pair.bounce(1, 1, 0, piece)[:] = own[:piece]
    pair.bounce(1, 2, 0, piece)[:] = back[:piece]
    result = x.copy()
    pair.call(1, "reduce_half", result)
    theirs, mine = slice(count - 2 * piece, count - piece), slice(count - piece, count)
    assert np.array_equal(pair.bounce(1, 0, 0, piece), x[theirs])
    assert np.array_equal(result[mine], x[mine] + own[:piece])
    assert np.array_equal(pair.bounce(1, 1, 0, piece), x[mine] + own[:piece])
    assert np.array_equal(result[theirs], back[:piece])
    assert np.array_equal(result[: theirs.start], x[: theirs.start])


def test_calls_of_a_batch_work_on_different_parts(pair):
    x, other = numbers(37, 1), numbers(4 * 37, 2).reshape(4, 37)
    pair.call(0, "reduce_all", x, 4, before=True)  # rank 1 finds zeros in its bounce buffers 1 and 2
    for part in range(4):
        assert not pair.bounce(1, 1, 192 * part, 37).any()
        pair.bounce(1, 1, 192 * part, 37)[:] = other[part]
    result = x.copy()
    expected = x.copy()
    for part in range(4):
        pair.call(1, "reduce_all", result, 4)
        assert np.array_equal(pair.bounce(1, 0, 192 * part, 37), expected)
        expected = expected + other[part]
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("count", [2, 37, 4096, 100003])
def test_push(pair, count):
    inputs = [numbers(count, seed) for seed in (1, 2)]
    for rank, values in enumerate(inputs):
        pair.buffer(rank, count)[:] = values
    for rank in range(2):
        pair.call(rank, "push", np.zeros(count, np.float32))
    for rank in range(2):
        assert np.array_equal(pair.buffer(rank, count), inputs[0] + inputs[1])


def test_what_moves_one_way(pair, bench_module):
    limit = bench_module("limit")
    count = 2 * limit.RECEIVED // 4
    values = numbers(count, 1)
    pair.buffer(0, count)[:] = values
    x = np.zeros(count, np.float32)
    pair.call(0, "receive", x)
    assert not x.any()  # the root has it
    received, piece = limit.RECEIVED // 4, limit.PIECE // 4
    pair.call(1, "receive", x)
    assert np.array_equal(x[-received:], values[:received])
    assert not x[:-received].any()
    x[:] = values
    pair.call(1, "update", x)
    assert np.array_equal(x, values + np.float32(1))
    pair.bounce(0, 2, 0, piece)[:] = values[:piece]
    x[:] = 5
    pair.call(0, "copy_back", x)
    assert np.array_equal(x[-piece:], values[:piece])
    assert (x[:-piece] == 5).all()


def test_flags(pair, bench_module):
    limit = bench_module("limit")
    xs = [np.zeros(2, np.float32)] * 2
    pair.together("flag", xs)
    rounds = limit.FLAGS_PER_CALL // 2
    assert [pair.words(rank)[0] for rank in range(2)] == [rounds, rounds]
    pair.together("meet", xs, 3, before=True)
    for _ in range(3):
        pair.together("meet", xs, 3)
    for rank in range(2):
        meetings = pair.words(rank)[1 : 1 + 3 * limit.MEETINGS_PER_CALL]
        assert np.array_equal(meetings, rounds + 1 + np.arange(3 * limit.MEETINGS_PER_CALL))


@pytest.mark.parametrize("count", [2, 3 << 18])
def test_over_tcp(pair, count):
    xs = [numbers(count, 1), numbers(count, 2)]
    inputs = [x.copy() for x in xs]
    pair.together("exchange", xs)
    assert all(np.array_equal(x, values) for x, values in zip(xs, reversed(inputs), strict=True))
    pair.together("send_one_way", xs)
    assert all(np.array_equal(x, inputs[1]) for x in xs)
    xs[1][:] = 0
    pair.together("ping_pong", xs)
    assert all(np.array_equal(x, inputs[1]) for x in xs)


@pytest.mark.parametrize(
    ("arguments", "transport"),
    [
        (["-b", "8", "-e", "8K", "-f", "32"], "shm"),
        (["-b", "1M", "-e", "16M", "-f", "16"], "shm"),
        (["-b", "64", "-e", "64K", "-f", "1024", "--memory", "symmetric"], "shm"),
        (["-b", "8", "-e", "64K", "-f", "8192", "--transport", "tcp"], "tcp"),
        (["-b", "8", "-e", "64K", "-f", "8192", "--collective", "broadcast"], "shm"),
    ],
)
def test_runs(tmp_path, bench_module, arguments, transport):
    limit = bench_module("limit")
    file = tmp_path / "rows.json"
    command = [sys.executable, str(BENCH / "allreduce.py"), "--vs", "memcpy", "--level", "c", *arguments]
    run = subprocess.run(
        [*command, "--duration", "0.01", "--timeout", "60", "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    rows = json.loads(file.read_text())["rows"]
    sizes = {row["bytes"] for row in rows}
    assert len(sizes) >= 2
    for nbytes in sizes:
        # In a run as short as this the cores may be elsewhere for each primitive.
        times = {row["algorithm"]: row["time_us"] for row in rows if row["peer"] and row["bytes"] == nbytes}
        one = rows[0]
        case = (one["collective"], "symmetric" if "symmetric" in arguments else "private", transport, nbytes, 2)
        assert set(times) == set(limit.primitives(*case))
        found = limit.limit_us(times, *case)
        assert found is not None
        assert found > 0


def test_what_it_cannot_do(bench_module, monkeypatch, tmp_path):
    memcpy, cases = bench_module("peers.memcpy"), bench_module("cases")
    config = cases.Config(*("all_reduce", ("auto",), False, (8,), 2, "shm", "private", "float32", "sum"), *CONFIG_REST)
    change = dataclasses.replace
    assert memcpy.unsupported(config) == ""
    for name, value, words in [
        ("dtype", "float64", "float32"),
        ("op", "max", "sum"),
        ("ranks", 3, "not for 3"),
        ("collective", "reduce", "limit of reduce"),
    ]:
        assert words in memcpy.unsupported(change(config, **{name: value}))
    assert memcpy.locate(None) == Path(sys.prefix)
    missing = bench_module("peers").PeerMissingError
    with pytest.raises(missing, match="without =/nowhere"):
        memcpy.locate(Path("/nowhere"))
    with pytest.raises(missing, match="failed with exit code"):
        memcpy.loops.build("memcpy", tmp_path / "nowhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(missing, match="no cc in PATH"):
        memcpy.locate(None)
    with pytest.raises(missing, match="needs a C compiler"):
        memcpy.loops.build("memcpy", tmp_path)


def test_what_is_prepared_is_not_timed(bench_module):
    """The bench's loop calls `before` once per round and the function once per call, with the same arguments."""
    ctypes = bench_module("ctypes")
    calls = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t)
    function, before = (kind(lambda a, b, name=name: calls.append((name, a, b)) or 0) for name in ("call", "before"))
    addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in (function, before)]
    (comm,) = bench_module("collectives").local_group(1)
    times = _core._time_function(comm, [], 2, 3, addresses[0], (5, 7), addresses[1], None)
    assert len(times) == 2
    assert calls == [("before", 5, 7), *[("call", 5, 7)] * 3] * 2
    comm.close()


@pytest.mark.parametrize("prepared", [False, True])
def test_what_is_prepared_takes_the_place_of_rewriting(bench_module, prepared):
    ctypes, timed, cases, peers = (bench_module(name) for name in ("ctypes", "timed", "cases", "peers"))
    seen = []
    x = np.full(4, 7, np.float32)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: seen.append(float(x[0])) or 0)
    address = ctypes.cast(function, ctypes.c_void_p).value

    class OneFunction:
        @staticmethod
        def prepare_c(way, collective, x, op):
            return peers.CCall(address, (), function, address if prepared else 0)

        fetch = None

    config = cases.Config(
        *("all_reduce", ("auto",), False, (16,), 1, "local", "private", "float32", "sum"), *CONFIG_REST
    )
    (comm,) = bench_module("collectives").local_group(1)
    timed.theirs(comm, config, cases.Case("way", 4, 16, "memcpy", "c"), x, OneFunction).rounds(1, 1)
    comm.close()
    assert seen == ([7, 7] if prepared else [0])
