"""Measures collectives.cross_device_ops: reductions over arrays of one process, one array per replica.

    python bench/replicas.py
    python bench/replicas.py --replicas 4 -b 1K -e 1M -f 4 --json out.json

Times are medians, in us, of calls that take one input per replica and return one new array per replica. Beside the
three classes are measured, in turn with them:

    numpy    np.add, one replica after the other, then copies of the result
    memcpy   a copy of every input: as many bytes read and written, on one thread, and nothing computed

Inputs are rewritten before each call from 8 KiB on; below, calls are timed in batches. All contenders allocate what
they return, as users see it. Exit codes: 0, 1 when a result was wrong, 2 when what was asked for is not possible.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import table
from cases import Array
from collectives import _core, cross_device_ops
from collectives.bench import check
from collectives.bench.memory import on_huge_pages
from collectives.bench.sizes import parse_size, size_range
from collectives.bench.text import format_size, number
from measure import BATCH, BATCH_BELOW, BLOCK, LEAST_BLOCKS, MOST_ITERATIONS

DTYPE = np.dtype(np.float32)
Reduce = Callable[[list[Array]], list[Array]]


def by_numpy(xs: list[Array]) -> list[Array]:
    """The same in plain NumPy."""
    if len(xs) == 1:
        return [xs[0].copy()]
    total = np.add(xs[0], xs[1])
    for x in xs[2:]:
        np.add(total, x, out=total)
    return [total, *(total.copy() for _ in xs[1:])]


def by_memcpy(xs: list[Array]) -> list[Array]:
    """The limit: nothing is reduced."""
    return [x.copy() for x in xs]


def contenders() -> dict[str, Reduce]:
    """All contenders, by the name of their column."""
    ways: dict[str, Reduce] = {}
    for name, kind in (
        ("ring", cross_device_ops.RingAllReduce),
        ("hierarchical", cross_device_ops.HierarchicalCopyAllReduce),
        ("one device", cross_device_ops.ReductionToOneDevice),
    ):
        ops = kind()
        ways[name] = lambda xs, ops=ops: ops.reduce("sum", xs)  # type: ignore[misc]
    return {**ways, "numpy": by_numpy, "memcpy": by_memcpy}


def block(reduce: Reduce, xs: list[Array], iterations: int) -> list[float]:
    """Seconds per call."""
    now = time.perf_counter
    small = xs[0].nbytes < BATCH_BELOW
    times = []
    for _ in range(max(1, iterations // BATCH) if small else iterations):
        for x in xs:
            x.fill(1)
        begin = now()
        for _ in range(BATCH if small else 1):
            reduce(xs)
        times.append((now() - begin) / (BATCH if small else 1))
    return times


def count_wrong(reduce: Reduce, xs: list[Array]) -> int:
    """Elements of all results that are not the sum."""
    length = min(len(xs[0]), check.PERIOD)
    inputs = [check.pattern(DTYPE, "sum", (1, rank), length) for rank in range(len(xs))]
    for x, pattern in zip(xs, inputs, strict=True):
        check.fill(x, pattern)
    expected, tolerance = check.model("sum", inputs)
    return sum(check.count_wrong(result, expected, tolerance) for result in reduce(xs))


def measure(replicas: int, nbytes: int, duration: float) -> dict[str, Any]:
    """One row: the median of each contender, which take turns in blocks of a few ms."""
    xs = [on_huge_pages(nbytes // DTYPE.itemsize, DTYPE) for _ in range(replicas)]
    ways = contenders()
    wrong = sum(count_wrong(reduce, xs) for name, reduce in ways.items() if name != "memcpy")
    samples: dict[str, list[float]] = {name: [] for name in ways}
    last = {name: block(reduce, xs, 2)[-1] for name, reduce in ways.items()}
    blocks = 0
    end = time.monotonic() + duration
    while time.monotonic() < end or blocks < LEAST_BLOCKS:
        for name, reduce in ways.items():
            times = block(reduce, xs, min(MOST_ITERATIONS, max(1, round(BLOCK / last[name]))))
            samples[name] += times
            last[name] = float(np.median(times))
        blocks += 1
    return {
        "replicas": replicas,
        "bytes": nbytes,
        "dtype": str(DTYPE),
        "time_us": {name: float(np.median(times)) * 1e6 for name, times in samples.items()},
        "wrong": wrong,
    }


def rows_as_text(rows: list[dict[str, Any]]) -> str:
    """The table. The last two columns are about "one device", whose order allows the fewest passes."""
    names = list(contenders())
    header = ("replicas", "size", *names, "numpy / ours", "ours / memcpy", "wrong")
    units = ("", "", *["us"] * len(names), "", "", "elements")
    lines = []
    for row in rows:
        times = row["time_us"]
        ours = times["one device"]
        lines.append(
            (
                str(row["replicas"]),
                format_size(row["bytes"]),
                *(number(times[name]) for name in names),
                f"{times['numpy'] / ours:.2f}",
                f"{ours / times['memcpy']:.2f}",
                str(row["wrong"]),
            )
        )
    return table.grid([header, units, *lines], [False] * len(header))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="replicas.py"
    )
    parser.add_argument("-b", "--begin", default="4K", help="smallest size of an array (4K)")
    parser.add_argument("-e", "--end", default="64M", help="largest size (64M)")
    parser.add_argument("-f", "--factor", type=float, default=4, help="between sizes (4)")
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 8], help="numbers of replicas (2 8)")
    parser.add_argument("--duration", type=float, default=1.0, help="seconds per row (1)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    try:
        sizes = size_range(parse_size(arguments.begin), parse_size(arguments.end), arguments.factor)
        if sizes[0] < DTYPE.itemsize or min(arguments.replicas) < 1:
            raise ValueError(f"at least 1 replica and {DTYPE.itemsize} bytes are needed")
    except ValueError as error:
        parser.error(str(error))
    threads = os.environ.get("COLLECTIVES_NUM_THREADS") or len(os.sched_getaffinity(0))
    print(f"{DTYPE}, sum, kernels for {_core.isa()}, {threads} threads, load {os.getloadavg()[0]:.1f}\n")
    rows = [measure(n, size, arguments.duration) for n in arguments.replicas for size in sizes]
    print(rows_as_text(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
