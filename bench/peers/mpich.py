"""MPICH, of the `mpich` wheel, through mpi4py.

It is installed, and then used, by

    python bench/peers/mpich.py --install [DIRECTORY]
    python bench/allreduce.py --vs mpich[=DIRECTORY]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from peers import install, mpi
from peers.mpi import LEVELS, abort, fetch, join, prepare, prepare_c, ways

if TYPE_CHECKING:
    from cases import Config

__all__ = [
    "LEVELS",
    "NAME",
    "abort",
    "command",
    "fetch",
    "join",
    "locate",
    "prepare",
    "prepare_c",
    "unsupported",
    "ways",
]

NAME = "mpich"
REQUIREMENTS = ["mpi4py>=4", "mpich>=5"]


def locate(directory: Path | None) -> Path:
    """See `peers.Peer`."""
    return mpi.locate(NAME, directory, "mpiexec.hydra", "mpichversion")


def unsupported(config: Config) -> str:
    """See `peers.Peer`."""
    if mpi.crowded(config):
        return "MPICH never yields: with more ranks than cores a call takes milliseconds, or the rest of a time slice"
    return mpi.unsupported(config)


def command(environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """See `peers.Peer`."""
    arguments = ["-bind-to", "none" if mpi.crowded(config) else "core"]
    variables = {}
    if config.transport == "tcp":
        variables = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}  # otherwise it uses shared memory
    return mpi.under_hydra(environment, config, program, arguments, variables)


if __name__ == "__main__":
    sys.exit(install.main(NAME, REQUIREMENTS))
