"""A rank of bench/hosts.py: does what it is told, and says how long that took.

    python bench/host_rank.py FOLDER ours RANK       # this library, and Gloo where the options say so
    python bench/host_rank.py FOLDER openmpi         # under mpirun

FOLDER has `options.json` and the socket `control`, over which lines of JSON come and go.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import collectives
import numpy as np
import peers
from cases import Array
from collectives import _core
from collectives._calls.options import CallOptions
from collectives.bench import calls, check
from collectives.bench.memory import on_huge_pages
from hosts_cells import DTYPE

_LINE = 8  # numbers of 8 bytes: what a rank writes lies in a cache line of its own
_LOOKS = 1000  # at the others before the clock is read


class Call(NamedTuple):
    """A call that is ready: ``run`` makes it on `given`, and its result is in `gotten`."""

    run: Callable[[], object]
    given: Array
    gotten: Array


class Meeting:
    """Where the ranks of a machine meet before each call: memory that they share.

    A barrier of one of the libraries would let the others start from what its packets leave behind, and Open MPI, whose
    ranks are other processes, has no part in ours. Each rank counts its meetings, and looks at the counts of all.

    Args:
        file: with room for all ranks.
        meanwhile: called at each look.
    """

    def __init__(self, file: Path, rank: int, size: int, timeout: float, meanwhile: Callable[[], object]) -> None:
        with file.open("r+b") as opened:
            memory = mmap.mmap(opened.fileno(), 8 * _LINE * size)
        self._counts = np.frombuffer(memory, np.int64)[::_LINE]
        self._rank, self._timeout, self._meanwhile = rank, timeout, meanwhile

    def __call__(self) -> None:
        """Returns when all ranks are here. Raises TimeoutError."""
        counts = self._counts
        counts[self._rank] += 1
        now = counts[self._rank]
        end = time.monotonic() + self._timeout
        while True:
            for _ in range(_LOOKS):
                if counts.min() >= now:
                    return
                self._meanwhile()
                os.sched_yield()  # the others are on the same cores
            if time.monotonic() > end:
                raise TimeoutError(f"some ranks have not come to a meeting within {self._timeout:g} s")


def make_meeting(file: Path, size: int) -> None:
    """What ``Meeting`` needs, for so many ranks."""
    file.write_bytes(bytes(8 * _LINE * size))


class Rank:
    """What this process holds. `self.rank` and `self.size` are known once the libraries are connected."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self._folder, self._options = folder, options
        self.comm: Any = None
        self._peers: dict[str, peers.Peer] = {}
        self._whole = [on_huge_pages(0, DTYPE)] * 2

    def connect(self, rank: int) -> None:
        """Joins with Gloo if wanted; with this library as soon as it is told how, see ``join``."""
        o = self._options
        self._meet(rank, lambda: None)
        if o["gloo"]:
            import torch
            import torch.distributed as dist

            torch.set_num_threads(1)  # the ranks share the cores
            meeting = f"file://{self._folder / 'gloo'}"
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=o["size"])
            self._peers["gloo"] = peers.load("gloo")

    def join(self, order: dict[str, Any]) -> dict[str, Any]:
        """Joins with this library, anew if it had: what it takes the network to be is fixed then."""
        o = self._options
        if self.comm is not None:
            self.comm.close()
        for name, value in order["variables"].items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        self.comm = collectives.init(
            rank=self.rank, size=self.size, rendezvous=order["rendezvous"], token=o["token"], timeout=o["timeout"]
        )
        hosts = _core._describe(self.comm)["host"]
        expected = [other // o["ranks"] for other in range(o["size"])]
        if hosts != expected:
            raise RuntimeError(f"the library takes the ranks to be on hosts {hosts}, where they are on {expected}")
        return {}

    def connect_mpi(self, name: str) -> None:
        """Joins with the MPI of this name, which has started this process."""
        peer = peers.load(name)
        rank, size, _ = peer.join()
        if size != self._options["size"]:
            raise RuntimeError(f"{name} has started {size} ranks in place of {self._options['size']}")
        self._peers[name] = peer
        from mpi4py import MPI

        # MPI may have bytes of a call that is over to send, and does so in its calls only.
        self._meet(rank, MPI.COMM_WORLD.Iprobe)

    def _meet(self, rank: int, meanwhile: Callable[[], object]) -> None:
        o = self._options
        self.rank, self.size = rank, int(o["size"])
        self._meeting = Meeting(self._folder / "meeting", rank, self.size, o["timeout"], meanwhile)

    def check(self, order: dict[str, Any]) -> dict[str, Any]:
        """One call on random values: the elements that are wrong here, and, of "auto", what it has chosen."""
        collective, count = order["collective"], order["count"]
        call = self._prepare(order)
        length = max(1, min(count, check.PERIOD))
        inputs = [check.pattern(DTYPE, "sum", (order["seed"], rank), length) for rank in range(self.size)]
        if count:
            check.fill(call.given, inputs[self.rank])
        call.run()
        wrong = 0
        if count:
            for piece, *values in check.expected(collective, "sum", inputs, self.rank, count):
                wrong += check.count_wrong(call.gotten[piece], *values)
        if order["peer"] is not None:
            return {"wrong": wrong}
        chosen = self._chosen(order) if order["algorithm"] == "auto" else order["algorithm"]
        return {"wrong": wrong, "chosen": chosen, **expected(self.comm, order, chosen)}

    def block(self, order: dict[str, Any]) -> dict[str, Any]:
        """When so many calls began and ended, in nanoseconds of the clock that all ranks of the machine have."""
        call = self._prepare(order)
        now, times = time.perf_counter_ns, []
        for _ in range(order["calls"]):
            call.given.fill(0)  # stays 0, so that nothing overflows
            if order["rest"]:
                time.sleep(order["rest"])  # the ports fill up what they may let through at once
            self._meeting()
            begin = now()
            call.run()
            times.append((begin, now()))
        return {"times": times}

    def _prepare(self, order: dict[str, Any]) -> Call:
        collective, count, peer = order["collective"], order["count"], order["peer"]
        x, out = self._buffers(collective, count)
        if peer is not None:
            more = () if x is out else (out,)
            return Call(self._peers[peer].prepare(order["algorithm"], collective, x, "sum", *more), x, out)
        # One call without a meeting before it. The methods of a communicator are as fast for "auto", but where an
        # algorithm is named, most go another way through Python, and "auto" would be compared with that.
        arrays = [] if collective == "barrier" else [x]
        options = CallOptions(algorithm=order["algorithm"])
        result = None if x is out else out
        call = functools.partial(_core._time_collective, self.comm, arrays, 0, 1, collective, result, options)
        return Call(call, x, out)

    def _chosen(self, order: dict[str, Any]) -> str:
        """The algorithm of one more call, as a user makes it."""
        collective = order["collective"]
        if collective == "barrier":
            work = self.comm.barrier(async_op=True)
        else:
            buffers = self._buffers(collective, order["count"])
            work = calls.COLLECTIVES[collective].prepare(self.comm, buffers, "sum", 0, "auto")(True)
        work.wait()
        return str(work.algorithm)

    def _buffers(self, collective: str, count: int) -> tuple[Array, Array]:
        if len(self._whole[0]) < count:
            self._whole = [on_huge_pages(count, DTYPE) for _ in range(2)]
            for buffer in self._whole:
                buffer.fill(0)  # first touch
        if collective == "barrier":
            return self._whole[0][:0], self._whole[0][:0]
        kind = calls.COLLECTIVES[collective]
        given, gotten = kind.lengths(count, self.rank, self.size, 0)
        x = self._whole[0][:given]
        return x, self._whole[1][:gotten] if kind.in_parts else x


def expected(comm: Any, order: dict[str, Any], algorithm: str) -> dict[str, float | None]:
    """What the library expects this call to take by an algorithm: microseconds by its model, and the least that it can
    take by what its busiest port, thread and machine have to do. None where it has no model of the call."""
    found = _core._predictions(comm, order["collective"], order["count"] * DTYPE.itemsize, 0)
    of_it = next(candidate for candidate in found["candidates"] if candidate["algorithm"] == algorithm)
    return {"predicted_us": of_it["us"], "least_us": None if of_it["formula"] else of_it["least_us"]}


def serve(rank: Rank, connection: socket.socket) -> None:
    """Does what the lines say until the other side closes."""
    doers = {"join": rank.join, "check": rank.check, "block": rank.block}
    with connection.makefile("rw", encoding="utf-8") as lines:
        print(json.dumps({"rank": rank.rank}), file=lines, flush=True)
        for line in lines:
            order = json.loads(line)
            try:
                answer = doers[order["do"]](order)
            except Exception:
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), file=lines, flush=True)


def main() -> int:
    """The main function of a rank."""
    folder, library, *numbers = sys.argv[1:]
    rank = Rank(Path(folder), json.loads((Path(folder) / "options.json").read_text(encoding="utf-8")))
    if library == "ours":
        rank.connect(int(numbers[0]))
    else:
        rank.connect_mpi(library)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(Path(folder) / "control"))  # a path works from every network namespace
        serve(rank, connection)
    return 0


if __name__ == "__main__":
    sys.exit(main())
