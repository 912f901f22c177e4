"""Bare loops: no library, but collectives reduced to their copies, sums and flags.

    python bench/allreduce.py --vs bare

The limit (memcpy.py) adds up what no collective can do without. Here the same is done, one thing after the other, by
ranks that wait for each other, in functions of `bare.c`, which the system's compiler builds when a run starts. What is
left out is all that a library is for: arguments, types, errors, deadlines, ranks that disagree. So it is no competitor,
but says how much of what ours takes is the library, and what is beyond the reach of these algorithms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from peers import CCall, loops
from peers.launched import abort

if TYPE_CHECKING:
    from cases import Array, Config

__all__ = ["abort"]  # of what is imported

NAME = "bare"
LEVELS = ("c",)
REQUIREMENTS: list[str] = []  # a compiler
_MOST_RANKS = 16  # as in bare.c
_ONE_SHOT_UP_TO = 32 << 10  # bytes
_TWO_SHOT_FROM = 4 << 10
# Chunk sizes of two_shot: a slot of a bounce buffer, or a part of it, so that ranks that share a core have another
# chunk to work on.
_CHUNKS = (512 << 10, 256 << 10, 64 << 10)
# Above, bounce buffers would be read again and again.
_UP_TO = {"all_reduce": 8 << 20, "broadcast": 1 << 20}


def locate(directory: Path | None) -> Path:
    """See `peers.Peer`: the environment that runs this."""
    return loops.locate(NAME, directory)


def unsupported(config: Config) -> str:
    """See `peers.Peer`."""
    if config.collective not in _UP_TO:
        return f"there is no bare {config.collective}"
    if config.dtype != "float32" or (config.collective == "all_reduce" and config.op != "sum"):
        return "the bare loops are those of the sum of float32 only"
    if config.memory != "private" or config.transport == "tcp":
        return "the bare loops are those of private buffers over shared memory only"
    if config.ranks > _MOST_RANKS:
        return f"the bare loops are for {_MOST_RANKS} ranks at most, not for {config.ranks}"
    return ""


def command(environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """See `peers.Peer`."""
    return loops.command(NAME, config, program)


def call(functions: loops.Loops, way: str, x: Array) -> CCall:
    """A collective on `x`, in place: "one_shot", "broadcast", or "two_shot" with the bytes of a chunk behind it."""
    name, *chunk = way.split(" ")
    return CCall(functions.address(name), (functions.state, x.ctypes.data, x.nbytes, *map(int, chunk)), (functions, x))


_opened: list[loops.Loops] = []  # of this process: one, once it has joined


def join() -> tuple[int, int, Callable[[Any], Any]]:
    """See `peers.Peer`."""
    rank, size, share, folder = loops.join()
    library = folder / f"{NAME}.so"
    memory = loops.memory_of_all(rank, loops.shared_bytes(library, size), share)
    _opened.append(loops.Loops.open(library, memory, rank, size))
    return rank, size, share


def ways(collective: str, nbytes: int, ranks: int) -> list[str]:
    """See `peers.Peer`."""
    if nbytes > _UP_TO[collective]:
        return []
    if collective == "broadcast":
        return ["broadcast"]
    # Only chunks that are shorter than the buffer.
    chunks = [chunk for chunk in _CHUNKS if chunk < nbytes or chunk == _CHUNKS[0]]
    ways = [f"two_shot {chunk}" for chunk in chunks if nbytes >= _TWO_SHOT_FROM]
    return [*(["one_shot"] if nbytes <= _ONE_SHOT_UP_TO else []), *ways]


def prepare_c(way: str, collective: str, x: Array, op: str, *out: Array) -> CCall:
    """See `peers.Peer`."""
    (functions,) = _opened
    return call(functions, way, x)


def fetch(x: Array) -> None:
    """See `peers.Peer`."""


if __name__ == "__main__":
    sys.exit(loops.main(NAME))
