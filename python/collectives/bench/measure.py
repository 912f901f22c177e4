"""The measuring of one row on every rank, as nccl-tests does it.

After some calls to warm up and a barrier, each rank makes all calls one after the other, and its time is theirs over
their number. Other calls, on random values, are checked.
"""

from __future__ import annotations

import itertools
import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import check
from .calls import COLLECTIVES, Buffers
from .dtypes import DTYPES
from .factors import bus_factor
from .memory import on_huge_pages
from .options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..communicator import Communicator

_FEW = 64  # ranks whose patterns are computed in full
_SHORT = 4093  # elements of a pattern among more ranks: each rank computes those of all
_HOUSEKEEPING = 20  # times in a second; on an idle machine the kernel's own work takes a core away less often


@dataclass(frozen=True)
class Half:
    """What was measured out of place, or in place.

    Attributes:
        time_us: of a call, in microseconds, by the rule of ``--average``.
        p50_us, p99_us: over single calls, each as long as on its slowest rank; None where they were not timed.
        algbw_gbs, busbw_gbs: in 10**9 bytes per second.
        wrong: elements, over all ranks; None where they were not checked.
    """

    time_us: float
    p50_us: float | None
    p99_us: float | None
    algbw_gbs: float
    busbw_gbs: float
    wrong: int | None


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        nbytes: of the whole array.
        count: elements of it; for collectives of parts of one part, as in nccl-tests.
        root: -1 where there is none.
        algorithm: the one that was used; "" where there is none.
        in_place: None where the collective has no such call.
    """

    nbytes: int
    count: int
    type: str
    op: str
    root: int
    algorithm: str
    out_of_place: Half
    in_place: Half | None


class Bench:
    """The arrays of this rank, and what is measured on them.

    Args:
        comm: of all ranks.
        options: the same on all of them.

    Raises:
        MemoryError: the arrays do not fit.
    """

    def __init__(self, comm: Communicator, options: Options) -> None:
        self._comm = comm
        self._options = options
        self._kind = COLLECTIVES[options.collective]
        self._interruptions = 0
        self._measured = 0.0  # seconds
        given, gotten = needed(options, comm.rank, comm.size)
        byte = np.dtype(np.uint8)
        self._given, self._gotten = on_huge_pages(given, byte), on_huge_pages(gotten, byte)
        for array in (self._given, self._gotten):
            array.fill(0)  # so that pages are there before the clock runs, or a MemoryError is

    @property
    def disturbed(self) -> bool:
        """Whether something else has used the core of this rank so often that times are too long."""
        return self._interruptions > _HOUSEKEEPING * max(self._measured, 1.0)

    def rows(self) -> Iterator[Row]:
        """The rows, as they are measured. All ranks take them, in the same order."""
        o = self._options
        for name, op in o.kinds:
            dtype = DTYPES[name]
            counts = [self._kind.count(nbytes, dtype.itemsize, self._comm.size) for nbytes in o.sizes]
            for count in dict.fromkeys(counts):
                yield self._row(name, dtype, op, count)

    def _row(self, name: str, dtype: np.dtype[Any], op: str, count: int) -> Row:
        kind, comm, root = self._kind, self._comm, self._options.root
        given, gotten = kind.lengths(count, comm.rank, comm.size, root)
        apart = self._given[: given * dtype.itemsize].view(dtype), self._gotten[: gotten * dtype.itemsize].view(dtype)
        nbytes = count * dtype.itemsize
        out_of_place, algorithm = self._half(apart, op, count)
        in_place = None
        if kind.in_place:
            larger = self._gotten if gotten >= given else self._given
            whole = larger[: max(given, gotten) * dtype.itemsize].view(dtype)
            in_place, _ = self._half(kind.shared(whole, comm.rank, comm.size, root), op, count)
        shown = count // comm.size if kind.in_parts else count
        return Row(nbytes, shown, name, op, root if kind.rooted else -1, algorithm, out_of_place, in_place)

    def _half(self, buffers: Buffers, op: str, count: int) -> tuple[Half, str]:
        """What was measured with these arrays, and the algorithm."""
        o, comm = self._options, self._comm
        call = self._kind.prepare(comm, buffers, op, o.root, o.algorithm)
        for array in buffers:
            array.fill(0)  # stays 0 with every op, so that nothing overflows, however many calls there are
        for _ in range(o.warmup_iters):
            call(False)
        comm.barrier()
        interrupted = -resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        mine = _blocking(call, o.iters) if o.blocking else _asynchronous(call, o.iters)
        self._interruptions += interrupted + resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        self._measured += mine * o.iters
        seconds = self._agreed(mine)
        p50, p99 = self._percentiles(call) if o.percentiles else (None, None)
        wrong, algorithm = self._checked(buffers, op, count)
        dtype = buffers[0].dtype
        algbw = count * dtype.itemsize / seconds / 1e9 if seconds > 0 else 0.0
        busbw = algbw * bus_factor(self._kind.name, comm.size)
        return Half(seconds * 1e6, p50, p99, algbw, busbw, wrong), algorithm

    def _agreed(self, seconds: float) -> float:
        """Of the times of all ranks the one that counts."""
        o, comm = self._options, self._comm
        times = np.array([seconds])
        if o.average == 0:
            comm.broadcast(times)
        else:
            comm.all_reduce(times, {1: "avg", 2: "min", 3: "max"}[o.average])
        return float(times[0])

    def _percentiles(self, call: Callable[[bool], Any]) -> tuple[float, float]:
        now = time.perf_counter
        times = np.empty(self._options.iters)
        self._comm.barrier()
        for i in range(len(times)):
            begin = now()
            call(False)
            times[i] = now() - begin
        self._comm.all_reduce(times, "max")
        median, late = np.percentile(times * 1e6, (50, 99))
        return float(median), float(late)

    def _checked(self, buffers: Buffers, op: str, count: int) -> tuple[int | None, str]:
        """Of one more call on random values: the wrong elements over all ranks, and the algorithm in use."""
        o, comm, kind = self._options, self._comm, self._kind
        x, out = buffers
        length = max(1, min(count, check.PERIOD if comm.size <= _FEW else _SHORT))
        inputs = []
        if o.check:
            inputs = [check.pattern(x.dtype, op, (count, rank), length) for rank in range(comm.size)]
            out.fill(0)
            check.fill(x, inputs[comm.rank])
        work = kind.prepare(comm, buffers, op, o.root, o.algorithm)(True)
        algorithm = str(getattr(work, "algorithm", ""))
        work.wait()
        if not o.check:
            return None, algorithm
        pieces = check.expected(kind.name, op, inputs, comm.rank, count, o.root)
        wrong = np.array([sum(check.count_wrong(out[piece], *values) for piece, *values in pieces)], np.int64)
        comm.all_reduce(wrong)
        return int(wrong[0]), algorithm


def needed(options: Options, rank: int, ranks: int) -> tuple[int, int]:
    """Bytes of the arrays of a rank: of what it gives, and of what it gets."""
    kind = COLLECTIVES[options.collective]
    given = gotten = 0
    for name in options.types:
        itemsize = DTYPES[name].itemsize
        count = kind.count(max(options.sizes), itemsize, ranks)
        lengths = kind.lengths(count, rank, ranks, options.root)
        given, gotten = max(given, lengths[0] * itemsize), max(gotten, lengths[1] * itemsize)
    return given, gotten


def _blocking(call: Callable[[bool], Any], iters: int) -> float:
    """Seconds of a call, of as many that follow each other."""
    begin = time.perf_counter()
    for _ in itertools.repeat(None, iters):
        call(False)
    return (time.perf_counter() - begin) / iters


def _asynchronous(call: Callable[[bool], Any], iters: int) -> float:
    """Seconds of a call, of as many that are in flight at once. They share their arrays, whose contents are garbage
    then; nobody reads them."""
    begin = time.perf_counter()
    for work in [call(True) for _ in itertools.repeat(None, iters)]:
        work.wait()
    return (time.perf_counter() - begin) / iters
