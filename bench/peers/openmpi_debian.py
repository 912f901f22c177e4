"""The OpenMPI that Debian and Ubuntu have (4.1 or newer), through mpi4py.

It is installed, and then used, by

    apt-get install openmpi-bin
    python bench/peers/openmpi_debian.py --install [DIRECTORY]
    python bench/allreduce.py --vs openmpi_debian[=DIRECTORY]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from peers import PeerMissingError, install, mpi, openmpi
from peers.openmpi import LEVELS, abort, fetch, join, prepare, prepare_c, unsupported, ways

if TYPE_CHECKING:
    from cases import Config

__all__ = ["LEVELS", "abort", "fetch", "join", "prepare", "prepare_c", "unsupported", "ways"]  # as they are

NAME = "openmpi_debian"
REQUIREMENTS = ["mpi4py>=4"]

# By Debian's name: another MPI may be first in PATH, or be what `mpirun` means.
_MPIRUN = Path("/usr/bin/mpirun.openmpi")
_MISSING = f"there is no {_MPIRUN}; get it by: apt-get install openmpi-bin"


def locate(directory: Path | None) -> Path:
    """See `peers.Peer`."""
    if not _MPIRUN.exists():
        raise PeerMissingError(_MISSING)
    return mpi.locate(NAME, directory)


def command(environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """See `peers.Peer`."""
    # 4.1 calls it vader, and newer ones know it by that name too.
    arguments, variables = openmpi.under_mpirun(_MPIRUN, "vader", environment, config, program)
    return arguments, variables | mpi.unless_set({"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": "libmpi.so.40"})


def main() -> int:
    """Installs what can be installed without being root."""
    status = install.main(NAME, REQUIREMENTS)
    if status == 0 and not _MPIRUN.exists():
        print(f"bench/peers/openmpi_debian.py: error: {_MISSING}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
