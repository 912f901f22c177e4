"""What ranks do while the network is at fault: all of it is checked against what must come out."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import numpy as np
import pool
import programs
from programs import DENSE, MAKING, OBJECTS, VECTOR, Item

ALGORITHMS = ["auto", "ring", "two_shot", "hierarchical"]
TRIALS = int(os.environ.get("TESTS_NET_TRIALS", "1"))  # of each fault; more of them for a long run
_SHAPES = [(), (0,), (7,), (3, 5), (1000,), (33, 129), (20_001,), (60_001,)]
_KINDS = [*2 * DENSE, *2 * VECTOR, *OBJECTS, *5 * ("message",), *2 * MAKING, "close"]


def program(seed: int, length: int) -> list[Item]:
    """Random calls of every kind, on groups and groups of groups too, blocking and not; the same for the same seed."""
    chance = random.Random(seed)
    return [programs.random_item(chance, _KINDS, _SHAPES) for _ in range(length)]


def judge(group: Any, seed: int, length: int, limit: float = 60.0) -> None:
    """Runs a program on a group; fails with what is wrong."""
    made = program(seed, length)
    for rank, wrong in enumerate(group.run(programs.run, made, seed, limit=limit)):
        assert not wrong, f"rank {rank}: {wrong[:2]} in program {seed}:\n{programs.text(made, group.size)}"


def large(comm: Any, count: int, algorithms: list[str]) -> float:
    """Sums of long arrays by some algorithms, and what else moves much; seconds that the sums took."""
    n, me = comm.size, comm.rank
    numbers = np.arange(count, dtype=np.int64)
    began = time.monotonic()
    for algorithm in algorithms:
        x = numbers * (me + 1)
        comm.all_reduce(x, algorithm=algorithm)
        assert (x == numbers * (n * (n + 1) // 2)).all(), algorithm
    took = time.monotonic() - began
    assert (comm.broadcast(numbers * (me + 1), n - 1) == numbers * n).all()
    got = comm.all_gather(numbers[: count // n + me] + me)
    assert (got == np.concatenate([numbers[: count // n + r] + r for r in range(n)])).all()
    return took


def one_round(comm: Any, number: int, **more: Any) -> None:
    """A sum of many bytes, one of few, and a message to the next rank."""
    n, me = comm.size, comm.rank
    x = comm.all_reduce(np.full(40_000, number * n + me, np.int64), **more)
    assert (x == number * n * n + n * (n - 1) // 2).all(), number
    assert comm.all_reduce(np.array([me + number]), **more)[0] == n * (n - 1) // 2 + n * number
    sent = comm.send(np.full(30_000, number + me, np.int64), (me + 1) % n, async_op=True, **more)
    y = comm.recv(np.zeros(30_000, np.int64), (me - 1) % n, **more)
    assert (y == number + (me - 1) % n).all(), number
    sent.wait()


def steady(comm: Any) -> int:
    """Rounds, of which each rank tells the number, until the test tells rank 0 to end; how many there were."""
    number = 0
    while True:
        one_round(comm, number)
        number += 1
        pool.say(number)
        assert pool._parent is not None
        enough = comm.rank == 0 and pool._parent.poll(0) and pool.hear() == "enough"
        if comm.all_reduce(np.array([int(enough)]))[0]:
            return number


def until_error(comm: Any, timeout: float, kind: str = "round") -> dict[str, Any]:
    """Rounds with a time limit for each call, until one fails; what the error says, and what calls say afterwards.

    Other kinds: "message", names of collectives, and algorithms of all_reduce.
    """
    number, n, me = 0, comm.size, comm.rank
    try:
        while True:
            if kind == "round":
                one_round(comm, number, timeout=timeout)
            elif kind == "barrier":
                comm.barrier(timeout=timeout)
            elif kind == "broadcast":
                comm.broadcast(np.full(100_000, number), number % n, timeout=timeout)
            elif kind == "all_gather":
                comm.all_gather(np.full(20_000, number), timeout=timeout)
            elif kind == "message":
                # Of rank r and the one n/2 further, which is on another host: each waits for the other.
                other = (me + n // 2) % n
                sent = comm.send(np.full(300_000, me), other, async_op=True, timeout=timeout)
                assert (comm.recv(np.zeros(300_000, int), other, timeout=timeout) == other).all()
                sent.wait()
            else:
                comm.all_reduce(np.full(100_000, number), algorithm=kind, timeout=timeout)
            number += 1
            pool.say(number)
    except Exception as error:
        ended = time.monotonic()
        report = {
            "type": type(error).__name__,
            "text": str(error),
            "peer": getattr(error, "peer", None),
            "rank": getattr(error, "rank", None),
            "age": getattr(error, "age", None),
            "ended": ended,
        }
    try:
        comm.barrier()
        report["after"] = "no error"
    except Exception as error:
        report["after"] = type(error).__name__
    report["after_seconds"] = time.monotonic() - ended
    return report


def wait_then_call(comm: Any, timeout: float) -> dict[str, Any]:
    """Says "idle", waits for the word of the test without a call in flight, then calls."""
    one_round(comm, 0)
    comm.barrier()
    pool.say("idle")
    pool.hear()
    began = time.monotonic()
    report = until_error(comm, timeout)
    report["took"] = report["ended"] - began
    return report
