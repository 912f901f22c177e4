"""Shared by peers that are no libraries, but loops over shared memory in a C file of this folder.

The C files have loops.h in common.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import PeerMissingError, launched

if TYPE_CHECKING:
    from cases import Config

# Without the last two options gcc turns copy loops into calls of memcpy, which bypasses the caches for large copies,
# and gcc 12 replaces a loop that it knows to be short by a longer one that looks the same.
_FLAGS = (
    *("-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared"),
    *("-fno-tree-loop-distribute-patterns", "-fno-ipa-icf"),
)
_FOLDER = "COLLECTIVES_BENCH_LOOPS"  # of the run


def locate(name: str, directory: Path | None) -> Path:
    """See `peers.Peer`: the environment that runs this."""
    if directory is not None:
        raise PeerMissingError(f"{name} is no library with a place of its own; write --vs {name}, without ={directory}")
    if _compiler() is None:
        raise PeerMissingError(f"{name} needs a C compiler, and there is no cc in PATH; on Debian: apt install gcc")
    return Path(sys.prefix)


def _compiler() -> str | None:
    return shutil.which("cc")


def build(name: str, folder: Path) -> Path:
    """The C file of the peer as a library in `folder`, for this very processor. Raises PeerMissingError."""
    library = folder / f"{name}.so"
    compiler = _compiler() or "cc"
    words = [compiler, *_FLAGS, "-o", str(library), str(Path(__file__).with_name(f"{name}.c"))]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PeerMissingError(f"{name} needs a C compiler: {compiler}: {error.strerror}") from None
    if done.returncode != 0:
        raise PeerMissingError(f"{' '.join(words)} failed with exit code {done.returncode}:\n{done.stderr.strip()}")
    return library


def command(name: str, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """What `peers.Peer.command` returns. Leaves what the ranks need in the folder of the run."""
    folder = Path(program[-1])
    build(name, folder)
    for rank in range(1, config.ranks):
        os.mkfifo(_pipe(folder, rank))
    launcher = [sys.executable, "-m", "collectives", "run", "-n", str(config.ranks)]
    return [*launcher, sys.executable, *program], {_FOLDER: str(folder)}


def _pipe(folder: Path, rank: int) -> Path:
    return folder / f"to-rank-{rank}.fifo"


def join() -> tuple[int, int, Callable[[Any], Any], Path]:
    """What `peers.Peer.join` returns, and the folder of the run."""
    folder = Path(os.environ[_FOLDER])
    rank, size = launched.rank_and_size()
    # Opening waits for the other rank.
    others = [_pipe(folder, r).open("w", encoding="utf-8") for r in range(1, size)] if rank == 0 else []
    pipe = _pipe(folder, rank).open("r", encoding="utf-8") if rank else None

    def share(value: Any) -> Any:
        if pipe is not None:
            return json.loads(pipe.readline())
        for other in others:
            other.write(json.dumps(value) + "\n")
            other.flush()
        return value

    return rank, size, share, folder


@dataclasses.dataclass(frozen=True)
class Loops:
    """The functions of a C file, on one rank.

    Attributes:
        state: what each of them takes first.
        keep: what the state uses.
    """

    functions: ctypes.CDLL
    state: int
    keep: object = None

    @staticmethod
    def open(library: Path, memory: int, *arguments: int, keep: object = None) -> Loops:
        """Over the shared memory `memory`, a file, and what else open_state() takes, in its order. Raises OSError."""
        loaded = ctypes.CDLL(str(library), use_errno=True)
        loaded.open_state.restype = ctypes.c_void_p
        # As wide as the widest: a function with a narrower argument uses its low part.
        state = loaded.open_state(*map(ctypes.c_size_t, (memory, *arguments)))
        if not state:
            raise OSError(ctypes.get_errno(), f"the memory of {library.name} cannot be mapped")
        return Loops(loaded, state, keep)

    def address(self, name: str) -> int:
        """The address of a function."""
        return ctypes.cast(getattr(self.functions, name), ctypes.c_void_p).value or 0

    def close(self) -> None:
        """Frees the memory. Do not use any call afterwards."""
        self.functions.close_state.restype = None
        self.functions.close_state.argtypes = [ctypes.c_void_p]
        self.functions.close_state(self.state)


def shared_bytes(library: Path, size: int) -> int:
    """The bytes of shared memory that are needed, by shared_bytes() of the C file."""
    functions = ctypes.CDLL(str(library))
    functions.shared_bytes.restype = ctypes.c_size_t
    return int(functions.shared_bytes(ctypes.c_size_t(size)))


def memory_of_all(rank: int, nbytes: int, share: Callable[[Any], Any]) -> int:
    """A file descriptor of memory that all ranks have, `nbytes` long as rank 0 says."""
    if rank > 0:
        process, file = share(None)
        return os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
    file = shared_memory(nbytes)
    share((os.getpid(), file))
    return file


def shared_memory(nbytes: int) -> int:
    """A file descriptor of memory that processes can share."""
    file = os.memfd_create("collectives-bench")
    os.ftruncate(file, nbytes)
    return file


def main(name: str) -> int:
    """The command line of such a peer file: there is nothing to install."""
    parser = argparse.ArgumentParser(prog=f"bench/peers/{name}.py", description="Says what the loops need.")
    parser.add_argument("--install", nargs="?", const="", required=True, metavar="DIRECTORY", help="installs nothing")
    parser.parse_args()
    try:
        locate(name, None)
    except PeerMissingError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    print(f"nothing to install. Now run: python bench/allreduce.py --vs {name}")
    return 0
