"""The measuring loop of every rank: all cases, block by block in turn, directed by rank 0.

A block takes about 6 ms and lies between two placement probes. From 8 KiB on, each rank rewrites its buffer before each
collective (data that no core has written costs nothing to share), a barrier follows, and the slowest rank counts;
below, calls are timed in batches, since one is as short as the clock. The ranks tell each other what to do, and how
long they took, by the library itself, outside of the timed parts.
"""

from __future__ import annotations

import resource
import time
from typing import Any

import collectives
import numpy as np
import progress
import results
import timed
from cases import PARTS, Array, BadRequestError, Case, Config, counts, given_and_gotten
from collectives import _core
from collectives.bench import check
from collectives.bench.memory import on_huge_pages
from peers import Peer
from placement import Probe

BLOCK = 6e-3  # seconds
BATCH = 50  # calls timed together below BATCH_BELOW
BATCH_BELOW = 8 << 10  # bytes
LEAST_BLOCKS = 3  # per case, however long they take
MOST_ITERATIONS = 2000
CHECK_ALWAYS_BELOW = 1 << 20  # bytes; above, only every eighth block is checked, or checks would take most of the time

_STOP, _CHECK, _BLOCK = range(3)
_TRANSPORTS = tuple(_core.transports())


def run(comm: collectives.Communicator, config: Config, peer: Peer | None = None) -> dict[str, Any] | None:
    """Measures on this rank; rank 0 returns rows and notes, as `results.Collected.report` has them."""
    rank = _Rank(comm, config, peer)
    try:
        if comm.rank == 0:
            return rank.lead()
        rank.follow()
        return None
    finally:
        rank.close()


class _Rank:
    def __init__(self, comm: collectives.Communicator, config: Config, peer: Peer | None) -> None:
        self.comm = comm
        self.config = config
        self.peer = peer
        self.left_out: dict[str, str] = {}  # algorithm or peer: why
        self.cases = self._cases()
        self.probe = Probe(comm, config.timeout)
        most = max(case.count for case in self.cases)
        self.ours = self.theirs = on_huge_pages(most, config.element)
        if config.memory == "symmetric":
            self.ours = comm.empty(most, config.element)  # a peer would read symmetric memory slowly
        self.results = on_huge_pages(most if config.collective in PARTS else 0, config.element)
        for buffer in (self.ours, self.theirs, self.results):
            buffer.fill(0)  # first touch
        self.command = np.zeros(4, np.int64)

    def close(self) -> None:
        self.probe.close()

    def _cases(self) -> list[Case]:
        """The cases, the same on every rank: by size, so that those that are compared are measured in turn."""
        c = self.config
        about = _core._describe(self.comm)
        if c.memory == "symmetric" and len(set(about["host"])) > 1:
            raise BadRequestError("--memory symmetric needs ranks that share memory, and these do not")
        algorithms = []
        for name in c.algorithms:
            reason = self._unsupported(name, about["host"])
            if not reason:
                algorithms.append(name)
            elif c.every_algorithm:
                self.left_out[name] = reason
            else:
                raise BadRequestError(f"algorithm {name} cannot be used here: {reason}")
        cases = []
        for count in counts(c):
            nbytes = count * c.element.itemsize
            for level in c.levels:
                # Ours and theirs in turn: what is compared is measured within milliseconds of each other.
                cases += [Case(name, count, nbytes, level=level) for name in algorithms]
                if 1 < c.tensors <= count:
                    cases += [Case(name, count, nbytes, level=level, tensors=c.tensors) for name in algorithms]
                if self.peer is not None:
                    ways = self.peer.ways(c.collective, nbytes, c.ranks)
                    cases += [Case(way, count, nbytes, self.peer.NAME, level) for way in ways]
        return cases

    def _unsupported(self, algorithm: str, hosts: list[int]) -> str:
        if algorithm == "auto" or self.comm.size == 1:
            return ""
        c = self.config
        # For any count: whether an algorithm is supported depends on ranks and hosts only.
        return str(
            _core._unsupported(
                c.collective, algorithm, c.ranks, dtype=c.dtype, memory=c.memory, hosts=hosts, count=max(counts(c))
            )
        )

    # The part of rank 0.

    def lead(self) -> dict[str, Any]:
        c = self.config
        collected = results.Collected(c, self.cases, self.left_out, _core._describe(self.comm)["host"])
        bar = progress.make(c.show)
        try:
            seed = c.seed
            for i, data in enumerate(collected.data):
                seed += 1
                self._do(_CHECK, i, seed, 0, data)
                self._do(_BLOCK, i, 2, 0, data)
            for data in collected.data:
                data.forget_samples()  # of the warm-up
            waiting = list(range(len(self.cases)))
            while waiting:
                for i in waiting:
                    data = collected.data[i]
                    iterations = min(MOST_ITERATIONS, max(1, round(BLOCK / max(data.iteration, 1e-9))))
                    often = self.cases[i].nbytes <= CHECK_ALWAYS_BELOW or data.blocks % 8 == 0
                    self._do(_BLOCK, i, iterations, int(often), data)
                    bar.update(sum(min(1.0, d.spent / c.duration) for d in collected.data) / len(self.cases))
                waiting = [
                    i
                    for i in waiting
                    if collected.data[i].spent < c.duration or collected.data[i].blocks < LEAST_BLOCKS
                ]
            for i, data in enumerate(collected.data):
                seed += 1
                self._do(_CHECK, i, seed, 1, data)
            self._do(_STOP, 0, 0, 0, None)
        finally:
            bar.close()
        return collected.report()

    def _do(self, kind: int, case: int, number: int, flag: int, data: results.CaseData | None) -> None:
        self.command[:] = kind, case, number, flag
        self.comm.broadcast(self.command)
        self._execute(data)

    def follow(self) -> None:
        while True:
            self.comm.broadcast(self.command)
            if self.command[0] == _STOP:
                return
            self._execute(None)

    def _execute(self, data: results.CaseData | None) -> None:
        kind, index, number, flag = (int(v) for v in self.command)
        if kind == _CHECK:
            self._check(self.cases[index], number, bool(flag), data)
        elif kind == _BLOCK:
            self._block(self.cases[index], number, bool(flag), data)

    # The part of every rank.

    def _timed(self, case: Case) -> timed.Timed:
        x = self._buffer(case)
        out = None
        if self.config.collective in PARTS:
            given, gotten = given_and_gotten(self.config.collective, case.count, self.comm.size)
            x, out = x[:given], self.results[:gotten]
        if case.peer is None:
            return timed.ours(self.comm, self.config, case, x, out)
        assert self.peer is not None
        return timed.theirs(self.comm, self.config, case, x, self.peer, out)

    def _buffer(self, case: Case) -> Array:
        return (self.ours if case.peer is None else self.theirs)[: case.count]

    def _block(self, case: Case, iterations: int, verify: bool, data: results.CaseData | None) -> None:
        batch = BATCH if case.nbytes < BATCH_BELOW else 1
        call = self._timed(case)
        before = self.probe()
        interrupted = -resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        begin = time.perf_counter()
        times = call.rounds(max(1, iterations // batch), batch)
        wall = time.perf_counter() - begin
        interrupted += resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        after = self.probe()
        wrong = self._verify_constant(case, call) if verify and self._checked(case) else 0
        self.comm.all_reduce(times, "max")
        if data is not None:
            data.add(times / (1e3 * batch), before, after, wall, wall / (len(times) * batch))
            data.wrong += wrong
            data.disturbed += interrupted > 0

    def _checked(self, case: Case) -> bool:
        return self.config.check and self.config.rewrites and case.has_results

    def _verify_constant(self, case: Case, call: timed.Timed) -> int:
        """Wrong elements, over all ranks, of one more call on another constant per rank; cheap, so after blocks."""
        x = self._buffer(case)
        length = min(len(x), check.PERIOD)
        inputs = [np.full(length, 1 + rank % 3, x.dtype) for rank in range(self.comm.size)]
        x.fill(inputs[self.comm.rank][0])
        self._run(call, x)
        return self._total(self._count_wrong(x, inputs))

    def _check(self, case: Case, seed: int, asynchronous: bool, data: results.CaseData | None) -> None:
        """One call on random data: wrong elements, bytes moved, and (of an asynchronous call) the algorithm in use."""
        comm, c = self.comm, self.config
        x = self._buffer(case)
        length = max(1, min(case.count, check.PERIOD))
        inputs = []
        if self._checked(case):
            inputs = [check.pattern(x.dtype, c.op, (seed, rank), length) for rank in range(comm.size)]
            check.fill(x, inputs[comm.rank])
        moved = comm.bytes_by_transport()
        call = self._timed(case)
        if asynchronous and case.peer is None and case.level == "python":
            work = self._run(call, x, async_op=True)
            if data is not None:
                data.chosen = work.algorithm
        else:
            self._run(call, x)
        # The bytes so far, before the calls below move more.
        moved = {name: total - moved.get(name, 0) for name, total in comm.bytes_by_transport().items()}
        wrong = 0
        if inputs:
            wrong = self._total(self._count_wrong(x, inputs))
            if case.peer is None and c.collective in ("all_reduce", "broadcast", "all_gather"):
                wrong += self._differing(x)
        together = np.array([moved.get(name, 0) for name in _TRANSPORTS], np.int64)
        comm.all_reduce(together)
        if data is not None:
            data.wrong += wrong
            if case.peer is None:
                data.moved = {name: int(n) for name, n in zip(_TRANSPORTS, together, strict=True) if n}

    @staticmethod
    def _run(call: timed.Timed, x: Array, **keywords: bool) -> Any:
        """One call on the values of `x`, whose result is in `x` afterwards."""
        call.put(x)
        result = call.call(**keywords)
        if keywords:
            result.wait()
        call.fetch(x)
        return result

    def _count_wrong(self, x: Array, inputs: list[Array]) -> int:
        c = self.config
        pieces = check.expected(c.collective, c.op, inputs, self.comm.rank, len(x))
        return sum(check.count_wrong(x[piece], *values) for piece, *values in pieces)

    def _total(self, number: int) -> int:
        total = np.array([number], np.int64)
        self.comm.all_reduce(total)
        return int(total[0])

    def _differing(self, x: Array) -> int:
        """Elements that do not have the bits of rank 0's, over all ranks. Bits are compared by hash first."""
        mine = check.digest(x)
        extremes = np.array([mine, -mine], np.int64)
        self.comm.all_reduce(extremes, "max")
        if extremes[0] == -extremes[1]:
            return 0
        reference = x.copy()
        self.comm.broadcast(reference)
        raw = (a.view(np.uint8).reshape(-1, x.dtype.itemsize) for a in (x, reference))
        return max(1, self._total(int(np.count_nonzero(np.any(np.not_equal(*raw), axis=1)))))
