"""The checks of gpu_check.py, as functions over a library of arrays, so that tests can run them without a GPU.

A check returns what it found, as text, and raises AssertionError where it fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import collectives
import ml_dtypes
import numpy as np
import numpy.typing as npt
from collectives.cross_device_ops import HierarchicalCopyAllReduce, ReductionToOneDevice, RingAllReduce

Array = npt.NDArray[Any]
CLASSES = {"ring": RingAllReduce, "hierarchical_copy": HierarchicalCopyAllReduce, "reduce_to_one": ReductionToOneDevice}
DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in ("float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8", "bool")
}
OPS = ("sum", "mean", "min", "max", "prod")
COUNTS = (1, 7, 1000, 65537)


class ArrayLibrary(Protocol):
    """The operations of PyTorch, CuPy or JAX that the checks need.

    Attributes:
        name: of the library.
        mutable: whether results go into the array itself.
    """

    name: str
    mutable: bool

    def array(self, values: Array) -> Any:
        """An array on the first device."""

    def read(self, x: Any) -> Array:
        """Its values, when all work is done."""

    def pointer(self, x: Any) -> int:
        """The address of its memory."""

    def stream(self) -> Any:
        """A new stream."""

    def using(self, stream: Any) -> AbstractContextManager[Any]:
        """Makes the stream the current one."""

    def delay(self, seconds: float) -> None:
        """Queues work of about that length in the current stream."""

    def set(self, x: Any, value: float) -> None:
        """Queues a change of all elements in the current stream."""

    def busy(self, stream: Any) -> bool:
        """Whether work is left in the stream."""


def inputs(dtype: np.dtype[Any], op: str, count: int, replicas: int, seed: int) -> list[Array]:
    random = np.random.default_rng([seed, count, replicas])
    if dtype.kind == "b":
        return [random.integers(0, 2, count).astype(dtype) for _ in range(replicas)]
    if dtype.kind in "iu":
        return [random.integers(0, 100, count).astype(dtype) for _ in range(replicas)]
    low, high = (0.8, 1.2) if op == "prod" else (-1.0, 1.0)
    return [random.uniform(low, high, count).astype(dtype) for _ in range(replicas)]


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def reductions(library: ArrayLibrary, counts: Sequence[int] = COUNTS, most: int = 8) -> str:
    """Fresh inputs; the same bits on every replica, those of the CPU, and near the sum in float64."""
    done = 0
    for replicas in range(2, most + 1):
        for way, kind in CLASSES.items():
            for dtype in DTYPES.values():
                for op in OPS:
                    if dtype.kind == "b" and op in ("sum", "mean"):
                        continue
                    for count in counts:
                        done += 1
                        label = f"{way}, {replicas} replicas, {op} of {count} {dtype}"
                        _one_reduction(library, kind(), op, inputs(dtype, op, count, replicas, done), label)
    return f"{done} reductions"


def _one_reduction(library: ArrayLibrary, ops: Any, op: str, hosts: list[Array], label: str) -> None:
    expected = ops.reduce(op, hosts)[0]
    given = [library.array(host) for host in hosts]
    results = [library.read(r) for r in ops.reduce(op, given)]
    assert len(results) == len(hosts), label
    for replica, result in enumerate(results):
        assert same_bits(result, results[0]), f"{label}: replica {replica} has other bits than replica 0"
    assert same_bits(results[0], expected), f"{label}: the CPU has other bits"
    for x, host in zip(given, hosts, strict=True):
        assert same_bits(library.read(x), host), f"{label}: an input was changed"
    if hosts[0].dtype.kind not in "biu" and op in ("sum", "mean"):
        wide = np.stack(hosts).astype(np.float64)
        exact = wide.sum(0) / (len(hosts) if op == "mean" else 1)
        bound = 2 * len(hosts) * float(ml_dtypes.finfo(expected.dtype).eps) * np.abs(wide).sum(0)
        assert (np.abs(results[0].astype(np.float64) - exact) <= bound).all(), f"{label}: far from float64"


def gathers(library: ArrayLibrary) -> str:
    """broadcast, and gather along the first and the last axis."""
    host = np.arange(600, dtype=np.float32).reshape(20, 30)
    ops = ReductionToOneDevice()
    for copy in ops.broadcast(library.array(host), [0, 1, 2]):
        assert same_bits(library.read(copy), host), "broadcast"
    for axis in (0, 1):
        joined = np.concatenate([host, host + 1, host + 2], axis)
        for result in ops.gather([library.array(host + i) for i in range(3)], axis):
            assert same_bits(library.read(result), joined), f"gather along axis {axis}"
    return "broadcast, gather along 2 axes"


def streams(library: ArrayLibrary, rounds: int) -> str:
    """A producer that is late, in a stream of its own, and a consumer that does not wait."""
    ops = RingAllReduce()
    count = 1 << 12
    stream = library.stream()
    xs = [library.array(np.zeros(count, np.float32)) for _ in range(4)]
    library.read(xs[0])
    with library.using(stream):
        for number in range(rounds):
            library.delay(0.0002)
            for i, x in enumerate(xs):
                library.set(x, number + i)
            results = ops.reduce("sum", xs)
            for x in xs:
                library.set(x, -1.0)  # may not overtake the reduction
            if number % 50 == 0 or number == rounds - 1:
                for result in results:
                    found = library.read(result)
                    assert (found == 4 * number + 6).all(), f"round {number}: {found[:4]}, expected {4 * number + 6}"
    return f"{rounds} rounds"


def returns_early(library: ArrayLibrary) -> str:
    """The host comes back while the device has not begun."""
    stream = library.stream()
    xs = [library.array(np.ones(1 << 10, np.float32)) for _ in range(2)]
    ops = RingAllReduce()
    with library.using(stream):
        ops.reduce("sum", xs)  # loads libraries and kernels
        library.read(xs[0])
        library.delay(0.2)
        begin = time.perf_counter()
        (result, _) = ops.reduce("sum", xs)
        passed = time.perf_counter() - begin
        assert library.busy(stream), "the stream was waited for"
    assert (library.read(result) == 2).all()
    return f"{passed * 1e6:.0f} us"


def on_threads(n: int, work: Callable[[Any], None]) -> None:
    """Runs `work` on each rank of a group of threads."""
    errors: list[BaseException] = []

    def run(comm: Any) -> None:
        try:
            work(comm)
        except BaseException as error:
            errors.append(error)
        finally:
            comm.close()

    threads = [threading.Thread(target=run, args=(comm,)) for comm in collectives.local_group(n, timeout=60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def communicator(library: ArrayLibrary, ranks: int = 2) -> str:
    """Every collective on arrays of the device; the same memory comes back where values of the kind may change."""
    hosts = [np.arange(12, dtype=np.float32).reshape(6, 2) + 100 * rank for rank in range(ranks)]
    total = np.sum(hosts, 0)

    def work(comm: Any) -> None:
        with library.using(library.stream()):
            _every_collective(library, comm, hosts, total)

    on_threads(ranks, work)
    return f"{ranks} ranks"


def types(library: ArrayLibrary, counts: Sequence[int] = (1, 7, 65537), sizes: Sequence[int] = (2, 3, 8)) -> str:
    """all_reduce of ranks that are threads, in every type and operation: the bits of the same call on the CPU."""
    cases = [
        (dtype, op, count)
        for dtype in DTYPES.values()
        for op in OPS
        for count in counts
        if not (op == "mean" and dtype.kind in "biu") and not (op == "sum" and dtype.kind == "b")
    ]

    def work(comm: Any) -> None:
        with library.using(library.stream()):
            for number, (dtype, op, count) in enumerate(cases):
                host = inputs(dtype, op, count, comm.size, number)[comm.rank]
                named = "avg" if op == "mean" else op
                expected = comm.all_reduce(host.copy(), named, deterministic=True)
                found = library.read(comm.all_reduce(library.array(host), named))
                label = f"{comm.size} ranks, {op} of {count} {dtype}"
                assert same_bits(found, expected), f"{label}: {found[:4]}, the CPU has {expected[:4]}"

    for ranks in sizes:
        on_threads(ranks, work)
    return f"{len(cases)} cases with {', '.join(map(str, sizes))} ranks"


def _every_collective(library: ArrayLibrary, comm: Any, hosts: list[Array], total: Array) -> None:
    rank, ranks = comm.rank, comm.size
    mine = hosts[rank]
    part = slice(6 // ranks * rank, 6 // ranks * (rank + 1))

    def check(label: str, result: Any, expected: Array, x: Any = None) -> None:
        assert same_bits(library.read(result), expected), f"{library.name}, {label}: {library.read(result)}"
        if x is not None and library.mutable:
            assert result is x, f"{library.name}, {label}: another object came back"
            assert library.pointer(result) == library.pointer(x), f"{library.name}, {label}: other memory came back"

    for label, call, expected in (
        ("all_reduce", comm.all_reduce, total),
        ("broadcast", comm.broadcast, hosts[0]),
        ("asynchronous all_reduce", lambda x: comm.all_reduce(x, async_op=True).result(), total),
    ):
        x = library.array(mine)
        check(label, call(x), expected, x)
    x = library.array(mine)
    result = comm.reduce(x, "max", 0)
    check("reduce", result, hosts[-1] if rank == 0 else mine)
    xs = [library.array(mine), library.array(mine[:1])]
    first, second = comm.all_reduce(xs)
    check("fused", first, total)
    check("fused", second, total[:1])
    x = library.array(mine)
    check("all_gather", comm.all_gather(x), np.concatenate(hosts))
    check("reduce_scatter", comm.reduce_scatter(x), total[part])
    check("all_to_all", comm.all_to_all(x), np.concatenate([host[part] for host in hosts]))
    gathered = comm.gather(x, 0)
    if rank == 0:
        check("gather", gathered, np.concatenate(hosts))
        check("scatter", comm.scatter(x, 0), hosts[0][part])
        comm.send(x, 1)
    else:
        comm.scatter(None, 0)
        if rank == 1:
            check("recv", comm.recv(library.array(mine), 0), hosts[0])
    if library.mutable:
        out = library.array(np.zeros_like(mine))
        check("out", comm.all_reduce(x, out=out), total, out)
    check("the argument", x, mine)


def overhead(library: ArrayLibrary, calls: int = 1000) -> str:
    """The host's time for a reduction of two small arrays, including the launch."""
    xs = [library.array(np.ones(256, np.float32)) for _ in range(2)]
    ops = RingAllReduce()
    stream = library.stream()
    with library.using(stream):
        for _ in range(50):
            ops.reduce("sum", xs)
        library.read(xs[0])
        begin = time.perf_counter()
        for _ in range(calls):
            ops.reduce("sum", xs)
        passed = (time.perf_counter() - begin) / calls
        library.read(xs[0])
    return f"{passed * 1e6:.2f} us per call of the host"


def between_threads(library: ArrayLibrary, counts: Sequence[tuple[int, int]] = ((256, 1000), (1 << 24, 100))) -> str:
    """all_reduce of two ranks that are threads: microseconds a call, for (elements of float32, calls)."""
    found: list[str] = []

    def work(comm: Any) -> None:
        with library.using(library.stream()):
            for count, calls in counts:
                x = library.array(np.ones(count, np.float32))
                for _ in range(10):
                    comm.all_reduce(x, "max")
                library.read(x)
                comm.barrier()
                begin = time.perf_counter()
                for _ in range(calls):
                    comm.all_reduce(x, "max")
                values = library.read(x)
                passed = (time.perf_counter() - begin) / calls
                assert (values == 1).all(), f"{values[:4]}, expected ones"
                if comm.rank == 0:
                    found.append(f"{4 * count} B in {passed * 1e6:.1f} us")

    on_threads(2, work)
    return ", ".join(found)
