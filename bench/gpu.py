"""Measures reductions over arrays of one GPU, one array per replica, in turn with other ways to do them.

    python bench/gpu.py
    python bench/gpu.py --quick
    python bench/gpu.py --replicas 2,8 --sizes 64K,64M --json gpu.json

Each way reads N arrays of float32 and writes their sum into N others. Beside this library's RingAllReduce,
HierarchicalCopyAllReduce and ReductionToOneDevice are measured

    torch.compile   one function of PyTorch, fused by its compiler
    triton          one fused kernel
    cupy            one ElementwiseKernel
    naive           torch.add, one replica after the other, then copies of the result

The limit is 2 * N * bytes over the bandwidth of a copy from device to device, measured in the same run. Up to 16 MiB a
batch of calls is recorded into a CUDA graph and replayed, so that launches from the host do not count; above, events
stand around batches. A batch goes over many sets of arrays, so that none is left in a cache. Times are medians, in us.
Every result is checked. Without a GPU it says so, and exits with 0.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import statistics
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_check
import table
from collectives.bench.sizes import parse_size
from collectives.bench.text import format_size

REPLICAS = (2, 4, 8)
SIZES = ("4K", "16K", "64K", "256K", "1M", "4M", "16M", "64M", "256M")
QUICK = ("16K", "1M", "64M")
GRAPHED = 16 << 20  # bytes, and below: in a graph, since the host takes longer for a call than the device
BATCH = 20
LEAST_BYTES = 256 << 20  # of the arrays that a batch goes over, so that they are not left in the cache
MOST_SETS = 512

Way = Callable[[list[Any], list[Any]], Any]


def ours() -> dict[str, Way]:
    """The classes. They make the arrays that they return."""
    from collectives import cross_device_ops as ops

    ways: dict[str, Way] = {}
    for name, kind in (
        ("ring", ops.RingAllReduce),
        ("hierarchical", ops.HierarchicalCopyAllReduce),
        ("one device", ops.ReductionToOneDevice),
    ):
        made = kind()
        ways[name] = lambda xs, outs, made=made: made.reduce("sum", xs)
    return ways


def naive(xs: list[Any], outs: list[Any]) -> list[Any]:
    import torch

    torch.add(xs[0], xs[1], out=outs[0])
    for x in xs[2:]:
        outs[0].add_(x)
    for out in outs[1:]:
        out.copy_(outs[0])
    return outs


def compiled() -> Way:
    import torch

    # Each size is a recompilation; beyond this number PyTorch would silently run the function uncompiled.
    for limit in ("recompile_limit", "accumulated_recompile_limit"):
        if hasattr(torch._dynamo.config, limit):
            setattr(torch._dynamo.config, limit, 10_000)

    def fused(xs: list[Any], outs: list[Any]) -> None:
        total = xs[0] + xs[1]
        for x in xs[2:]:
            total = total + x
        for out in outs:
            out.copy_(total)

    way = torch.compile(fused, dynamic=False)

    def call(xs: list[Any], outs: list[Any]) -> list[Any]:
        way(xs, outs)
        return outs

    return call


def by_cupy() -> Way:
    import cupy
    import torch

    warnings.filterwarnings("ignore", message="ExternalStream", category=DeprecationWarning)  # CuPy 13 has no other
    kernels: dict[int, Any] = {}

    def call(xs: list[Any], outs: list[Any]) -> list[Any]:
        n = len(xs)
        if n not in kernels:
            inputs = ", ".join(f"T x{i}" for i in range(n))
            outputs = ", ".join(f"T y{i}" for i in range(n))
            body = " + ".join(f"x{i}" for i in range(n))
            kernels[n] = cupy.ElementwiseKernel(
                inputs, outputs, f"T t = {body}; " + " ".join(f"y{i} = t;" for i in range(n)), f"fused_sum_{n}"
            )
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernels[n](*map(cupy.asarray, xs), *map(cupy.asarray, outs))
        return outs

    return call


def contenders() -> tuple[dict[str, Way], dict[str, str]]:
    """All ways by name, and why others are left out."""
    ways, left_out = ours() | {"naive": naive}, {}
    for name, make in (("torch.compile", compiled), ("triton", _by_triton), ("cupy", by_cupy)):
        try:
            ways[name] = make()
        except Exception as error:  # any error of an installation
            left_out[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return ways, left_out


def _by_triton() -> Way:
    import gpu_triton

    return gpu_triton.fused


def copy_bandwidth() -> float:
    """Bytes a second, read and written."""
    import torch

    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (timed(lambda: target.copy_(source), 10) * 1e-6)


def timed(call: Callable[[], Any], calls: int) -> float:
    """Microseconds of a call: the median of several batches between events."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(7):
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


def recorded(call: Callable[[], Any], batch: int) -> tuple[Callable[[], Any], Any]:
    """A batch of calls as a CUDA graph, and what the last one returned."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    last = None
    with torch.cuda.graph(graph):
        for _ in range(batch):
            last = call()
    return graph.replay, (graph, last)


def measure(ways: dict[str, Way], replicas: int, nbytes: int, rounds: int) -> dict[str, dict[str, Any]]:
    """The times of all ways, taken in turn, and whether the results are right."""
    import torch

    count = nbytes // 4
    sets = max(1, min(MOST_SETS, LEAST_BYTES // (2 * replicas * nbytes)))
    batch = max(BATCH, sets)
    inputs = [[torch.randn(count, device="cuda") for _ in range(replicas)] for _ in range(sets)]
    outputs = [[torch.empty(count, device="cuda") for _ in range(replicas)] for _ in range(sets)]
    exact = inputs[0][0].double()
    for x in inputs[0][1:]:
        exact += x

    def check(results: list[Any]) -> float:
        """The largest error."""
        return max(float((r - exact).abs().max().nan_to_num(nan=math.inf)) for r in results)

    found: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], Any]] = {}
    kept = []  # graphs
    for name, way in ways.items():
        try:
            # Overwrites results: a method that does nothing must not pass with those of another, or in free memory.
            for spoiled in [*outputs[0], *(torch.empty(count, device="cuda") for _ in range(replicas))]:
                spoiled.fill_(math.nan)
            wrong = check(way(inputs[0], outputs[0]))
            found[name] = {"times": [], "error": wrong, "right": wrong < 1e-5 * replicas}
            place = [0]
            # Results are kept as long as those that are written into given arrays.
            latest: collections.deque[Any] = collections.deque(maxlen=sets)

            def call(way: Way = way, place: list[int] = place, latest: collections.deque[Any] = latest) -> Any:
                place[0] = (place[0] + 1) % sets
                latest.append(way(inputs[place[0]], outputs[place[0]]))
                return latest[-1]

            if nbytes <= GRAPHED:
                place[0] = sets - 1 - (3 + batch - 1) % sets  # so that the last call of the graph is on the first set
                calls[name], graph = recorded(call, batch)
                calls[name]()
                again = check(graph[1])
                found[name]["right"] = found[name]["right"] and place[0] == 0 and again < 1e-5 * replicas
                kept.append((graph, latest))
            else:
                calls[name] = call
        except Exception as error:  # the other methods are measured all the same
            found[name] = {"times": [], "why": f"{type(error).__name__}: {error}".splitlines()[0], "right": False}
            torch.cuda.synchronize()
            torch.cuda.set_stream(torch.cuda.default_stream())  # a failed recording may have left another stream
    per_call = batch if nbytes <= GRAPHED else 1
    for _ in range(rounds):
        for name, call in calls.items():
            found[name]["times"].append(timed(call, 5) / per_call)
    for entry in found.values():
        entry["us"] = statistics.median(entry["times"]) if entry["times"] else None
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--replicas", default=",".join(map(str, REPLICAS)))
    parser.add_argument("--sizes", default=",".join(SIZES), help="bytes of each array, with K, M or G")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help=f"sizes {','.join(QUICK)} only")
    parser.add_argument("--json", type=Path, help="a file for the results")
    arguments = parser.parse_args()
    status = gpu_check.status()
    if not status["available"]:
        print(f"no GPU to measure: {status['reason']}")
        return int(gpu_check.torch_has_gpu())
    try:
        import torch

        torch.ones(1, device="cuda")
    except Exception as error:  # not installed, or without CUDA
        print(f"no GPU to measure: PyTorch, which keeps the time, cannot use it ({error})")
        return 0
    ways, left_out = contenders()
    bandwidth = copy_bandwidth()
    sizes = QUICK if arguments.quick else arguments.sizes.split(",")
    print(f"{status['devices'][0]}, copies move {bandwidth / 1e9:.0f} GB/s; times in us, and the part of the limit")
    for name, why in left_out.items():
        print(f"left out: {name} ({why})")
    rows, right = [], True
    mine = ours()
    header = ("replicas", "size", "limit", *ways)
    cells = []
    for replicas in map(int, arguments.replicas.split(",")):
        for nbytes in map(parse_size, sizes):
            found = measure(ways, replicas, nbytes, arguments.rounds)
            torch.cuda.empty_cache()
            limit = 2 * replicas * nbytes / bandwidth * 1e6
            rows.append({"replicas": replicas, "bytes": nbytes, "limit_us": limit, "graph": nbytes <= GRAPHED, **found})
            right = right and all(entry["right"] for entry in found.values() if "why" not in entry)
            right = right and all("why" not in found[name] for name in mine)
            texts = [_cell(found[name], limit) for name in ways]
            cells.append((str(replicas), format_size(nbytes), f"{limit:.2f}", *texts))
    print(table.grid([header, *cells], [False] * len(header)))
    if arguments.json:
        report = {"versions": gpu_check.versions(), "cuda": status, "copy_bytes_per_s": bandwidth, "rows": rows}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if right else 1


def _cell(entry: dict[str, Any], limit: float) -> str:
    if entry["us"] is None:
        return entry["why"][:30]
    return f"{entry['us']:.2f} ({limit / entry['us']:.0%})" + ("" if entry["right"] else " WRONG")


if __name__ == "__main__":
    sys.exit(main())
