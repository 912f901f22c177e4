"""What ranks do while something is done to them: an endless mix of calls, every result of which is checked.

All ranks draw from the same random numbers, so they make the same calls. Small calls of every kind, groups, objects and
messages are the random programs of `programs`; the calls here have arrays up to tens of megabytes, whose values cost
little to make and to check.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pool
import programs
from programs import DENSE, MAKING, OBJECTS, VECTOR

COUNTS = {0: 8, 1: 15, 10: 15, 3000: 20, 50_000: 20, 700_000: 12, 5_000_000: 2}  # elements, and how often
LARGEST = max(COUNTS)
DTYPES = ("float32", "float64", "int32", "float16", "uint16")
PERIOD = 97  # of the values of an array
# As often as they are named.
SHORT = [*2 * DENSE, *2 * VECTOR, *OBJECTS, *4 * ("message",), *2 * MAKING, "close"]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (4, 0, 2), (1000,), (33, 129)]


@dataclass
class Received:
    """An error, without what it holds on to."""

    kind: str
    text: str
    peer: int | None

    @staticmethod
    def of(error: Exception) -> Received:
        return Received(type(error).__name__, str(error), getattr(error, "peer", None))


@dataclass
class Report:
    """What a rank lived through.

    Attributes:
        calls: how many results it was given, all of which were checked.
        wrong: the results that were not right.
        began: when the call began that failed, by the monotonic clock, which all processes of a machine share.
        step: when the first of the calls began that were in flight then.
        received: when the first error came.
        noticed: when the world of this rank had failed.
        first: the first error, of the world or of a group.
        error: the error of the world. Both are None where there was none.
    """

    calls: int = 0
    wrong: list[str] = field(default_factory=list)
    began: float = 0.0
    step: float = 0.0
    received: float = 0.0
    noticed: float = 0.0
    first: Received | None = None
    error: Received | None = None


class Timed:
    """A communicator, a group or a work, with the time of its last call: between calls a rank notices no failure."""

    def __init__(self, inner: Any, report: Report) -> None:
        self._inner, self._report = inner, report

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return functools.partial(self._call, value) if callable(value) else value

    def _call(self, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        self._report.began = time.monotonic()
        result = function(*args, **more)
        if result is not None and type(result).__module__.startswith("collectives"):
            return Timed(result, self._report)
        return result


class Mix:
    """The calls of one rank. `step` makes some, and notes what is wrong in the report.

    largest: elements of an array at most. groups: whether groups are made, which fail by themselves.
    """

    def __init__(self, comm: Any, seed: int, largest: int = LARGEST, groups: bool = True) -> None:
        self.counts = {count: often for count, often in COUNTS.items() if count <= largest}
        self.kinds = [kind for kind in SHORT if groups or kind not in (*MAKING, "close")]
        self.rank, self.size = comm.rank, comm.size
        self.rng = random.Random(seed)
        self.report = Report()
        self.comm = Timed(comm, self.report)
        self.symmetric: list[Any] = []
        self._patterns: dict[str, Any] = {}

    # The array of rank r in call number k has values (i % PERIOD) + r + k % 50 at i: exact in every dtype here, also
    # added up over eight ranks.

    def values(self, count: int, dtype: str, extra: int, times: int = 1) -> Any:
        pattern = self._patterns.get(dtype)
        if pattern is None or pattern.size < count:
            pattern = self._patterns[dtype] = np.resize(np.arange(PERIOD).astype(dtype), max(count, PERIOD))
        return pattern[:count] * pattern.dtype.type(times) + pattern.dtype.type(extra)

    def expect(self, what: str, got: Any, wanted: Any) -> None:
        self.report.calls += 1
        if got.dtype != wanted.dtype or not np.array_equal(got, wanted):
            where = np.flatnonzero(got.ravel() != wanted.ravel())[:3] if got.shape == wanted.shape else got.shape
            self.report.wrong.append(f"rank {self.rank}, result {self.report.calls}, {what}: differs at {where}")

    def begin(self, asynchronous: bool = False) -> Callable[[], None]:
        """Starts one call; what is returned waits for it and checks it."""
        rng, n = self.rng, self.size
        kind = rng.choice([*3 * ("all_reduce",), "list", "symmetric", "broadcast", "reduce", "barrier", *VECTOR])
        count = rng.choices(list(self.counts), list(self.counts.values()))[0]
        dtype, root, k = rng.choice(DTYPES), rng.randrange(n), rng.randrange(50)
        what = f"{kind} {count} {dtype} root {root}"
        more: dict[str, Any] = {"async_op": asynchronous}
        total, ramp = n * k + n * (n - 1) // 2, n

        def done(value: Any) -> Any:
            return value.result() if asynchronous else value

        if kind == "barrier":
            work = self.comm.barrier(**more)
            return lambda: done(work)
        mine = self.values(count, dtype, self.rank + k)
        if kind in ("all_reduce", "symmetric", "list"):
            op = rng.choice(["sum", "max", "min"])
            extra, times = {"sum": (total, ramp), "max": (n - 1 + k, 1), "min": (k, 1)}[op]
            if kind == "list":
                arrays = [mine, self.values(17, dtype, self.rank + k), self.values(count // 3, dtype, self.rank + k)]
                work = self.comm.all_reduce(arrays, op, **more)

                def check_list() -> None:
                    for array in done(work):
                        self.expect(what, array, self.values(array.size, dtype, extra, times))

                return check_list
            if kind == "symmetric":
                mine, plain = self.comm.empty(count, dtype), mine
                mine[...] = plain
                self.symmetric.append(mine)
                del self.symmetric[: -rng.randint(1, 4)]
            if rng.random() < 0.3:
                more["out"] = np.zeros_like(mine)
            work = self.comm.all_reduce(mine, op, **more)
            return lambda: self.expect(what, done(work), self.values(count, dtype, extra, times))
        if kind == "broadcast":
            work = self.comm.broadcast(mine, root, **more)
            return lambda: self.expect(what, done(work), self.values(count, dtype, root + k))
        if kind == "reduce":
            out = np.zeros_like(mine)
            work = self.comm.reduce(mine, "sum", root, out=out, **more)

            def check_reduce() -> None:
                done(work)
                if self.rank == root:
                    self.expect(what, out, self.values(count, dtype, total, ramp))

            return check_reduce
        return self._parts(kind, count // n, dtype, root, k, more, done, what)

    def _parts(
        self, kind: str, count: int, dtype: str, root: int, k: int, more: dict[str, Any], done: Any, what: str
    ) -> Callable[[], None]:
        """The vector collectives, with parts of equal lengths."""
        n, rank = self.size, self.rank
        part = self.values(count, dtype, rank + k)
        whole = self.values(count * n, dtype, rank + k)
        parts = slice(rank * count, (rank + 1) * count)
        if kind in ("all_gather", "gather"):
            more |= {"root": root} if kind == "gather" else {}
            work = getattr(self.comm, kind)(part, counts=count, **more)
            wanted = np.concatenate([self.values(count, dtype, r + k) for r in range(n)])
        elif kind == "reduce_scatter":
            work = self.comm.reduce_scatter(whole, "sum", **more)
            wanted = self.values(count * n, dtype, n * k + n * (n - 1) // 2, n)[parts]
        elif kind == "all_to_all":
            work = self.comm.all_to_all(whole, **more)
            wanted = np.concatenate([self.values(count * n, dtype, r + k)[parts] for r in range(n)])
        else:
            work = self.comm.scatter(whole if rank == root else None, root, **more)
            wanted = self.values(count * n, dtype, root + k)[parts]

        def check() -> None:
            result = done(work)
            if kind != "gather" or rank == root:
                self.expect(what, result, wanted)

        return check

    def step(self) -> None:
        """A call, several at once, or a random program."""
        self.report.step = time.monotonic()
        choice = self.rng.random()
        if choice < 0.6:
            self.begin()()
        elif choice < 0.8:
            checks = [self.begin(asynchronous=True) for _ in range(self.rng.randint(2, 6))]
            random.Random(self.rng.random() + self.rank).shuffle(checks)
            for check in checks:
                check()
        else:
            program = [programs.random_item(self.rng, self.kinds, SHAPES) for _ in range(self.rng.randint(3, 10))]
            self.report.wrong += programs.run(self.comm, program, self.rng.randrange(1 << 30))
            self.report.calls += len(program)


def world_error(report: Report, comm: Any) -> None:
    """Notes the error of the world. Groups fail by themselves, so it is asked when the first error came from one."""
    try:
        comm.barrier()
    except Exception as error:
        report.noticed = time.monotonic()
        report.error = Received.of(error)


def run(
    comm: Any,
    seed: int,
    say: Callable[[str], None] = pool.say,
    stop: Callable[[], bool] | None = None,
    largest: int = LARGEST,
    groups: bool = True,
) -> Report:
    """Makes calls until something fails, or until `stop()` holds on rank 0."""
    mix = Mix(comm, seed, largest, groups)
    report = mix.report
    say("begin")
    try:
        for step in itertools.count(1):
            mix.step()
            if stop is not None and step % 5 == 0 and mix.comm.broadcast(np.array([comm.rank == 0 and stop()]), 0)[0]:
                break
    except Exception as error:
        report.received = time.monotonic()
        report.wrong += getattr(error, "faults", [])
        report.first = Received.of(error)
        world_error(report, comm)
    return report


def meant(text: str) -> list[int]:
    """The world ranks that a text names, in order."""
    return [int(world or rank) for rank, world in re.findall(r"rank (\d+)(?: \(world rank (\d+))?", text)]
