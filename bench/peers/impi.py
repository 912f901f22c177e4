"""Intel MPI, of the `impi-rt` wheel, through mpi4py.

It is installed, and then used, by

    python bench/peers/impi.py --install [DIRECTORY]
    python bench/allreduce.py --vs impi[=DIRECTORY]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from peers import install, mpi
from peers.mpi import LEVELS, abort, fetch, join, prepare, prepare_c, unsupported, ways

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

NAME = "impi"
REQUIREMENTS = ["mpi4py>=4", "impi-rt>=2021.14"]


def locate(directory: Path | None) -> Path:
    """See `peers.Peer`."""
    return mpi.locate(NAME, directory, "mpiexec.hydra", "impi_info")


def command(environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """See `peers.Peer`."""
    return mpi.under_hydra(environment, config, program, [], mpi.intel_variables(config))


if __name__ == "__main__":
    sys.exit(install.main(NAME, REQUIREMENTS))
