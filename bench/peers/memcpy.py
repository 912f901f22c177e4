"""The limit: not a library, but the primitives that every library needs, measured in the same run as ours.

    python bench/allreduce.py --vs memcpy

Each way is one primitive, a function of memcpy.c, which the system's compiler builds when a run starts. `limit.py`
makes the limit of a collective out of their times; alone they are no collectives, and have no results to check.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import limit

from peers import CCall, loops
from peers.launched import abort

if TYPE_CHECKING:
    from cases import Array, Config

__all__ = ["abort"]  # of what is imported

NAME = "memcpy"
LEVELS = ("c",)
REQUIREMENTS: list[str] = []  # a compiler
_SETTINGS = "COLLECTIVES_BENCH_MEMCPY"
_LEAST_BUFFER = 2 << 20  # bytes, the size of a huge page; room for a batch of small calls as well
# The function that prepares a primitive.
_BEFORE = {
    "empty": "empty",
    "flag": "empty",
    "meet": "before_meet",
    "reduce_half": "before_pieces",
    "reduce_all": "before_boxes",
    "copy_back": "before_pieces",
    "push": "before_buffer",
    "receive": "before_receive",
}


def locate(directory: Path | None) -> Path:
    """See `peers.Peer`: the environment that runs this."""
    return loops.locate(NAME, directory)


def unsupported(config: Config) -> str:
    """See `peers.Peer`."""
    if config.collective not in ("all_reduce", "broadcast"):
        return f"the limit of {config.collective} is not known"
    if config.dtype != "float32" or (config.collective == "all_reduce" and config.op != "sum"):
        return "the limit is known for the sum of float32 only"
    if config.ranks != 2:
        return f"the limit is known for 2 ranks, not for {config.ranks}"
    if len(os.sched_getaffinity(0)) < config.ranks:
        return "the limit is that of ranks with a core each"
    return ""


def command(environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """See `peers.Peer`."""
    words, variables = loops.command(NAME, config, program)
    largest = max(max(config.sizes), _LEAST_BUFFER)
    settings = {
        "memory": config.memory,
        "transport": config.transport,
        "capacity": -(-largest // _LEAST_BUFFER) * _LEAST_BUFFER,
    }
    return words, variables | {_SETTINGS: json.dumps(settings)}


def call(functions: loops.Loops, way: str, x: Array, parts: int) -> CCall:
    """A primitive on `x`."""
    before = _BEFORE.get(way)
    arguments = (functions.state, x.ctypes.data, x.nbytes, parts)
    return CCall(functions.address(way), arguments, (functions, x), functions.address(before) if before else 0)


@dataclasses.dataclass(frozen=True)
class _Session:
    functions: loops.Loops
    memory: str
    transport: str


_sessions: list[_Session] = []  # of this process: one, once it has joined


def join() -> tuple[int, int, Callable[[Any], Any]]:
    """See `peers.Peer`."""
    settings = json.loads(os.environ.pop(_SETTINGS))
    rank, size, share, folder = loops.join()
    library, capacity = folder / f"{NAME}.so", settings["capacity"]
    memory = loops.memory_of_all(rank, loops.shared_bytes(library, capacity), share)
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            share(listener.getsockname()[1])
            connection, _ = listener.accept()
    else:
        connection = socket.create_connection(("127.0.0.1", share(None)))
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # as ours: no pacing
    functions = loops.Loops.open(library, memory, connection.fileno(), rank, capacity, keep=connection)
    _sessions.append(_Session(functions, settings["memory"], settings["transport"]))
    return rank, size, share


def ways(collective: str, nbytes: int, ranks: int) -> list[str]:
    """See `peers.Peer`: the primitives that `limit.limit_us` needs at this size."""
    (session,) = _sessions
    return limit.primitives(collective, session.memory, session.transport, nbytes, ranks)


def prepare_c(way: str, collective: str, x: Array, op: str, *out: Array) -> CCall:
    """See `peers.Peer`."""
    import measure

    (session,) = _sessions
    return call(session.functions, way, x, measure.BATCH if x.nbytes < measure.BATCH_BELOW else 1)


def fetch(x: Array) -> None:
    """See `peers.Peer`."""


if __name__ == "__main__":
    sys.exit(loops.main(NAME))
