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

# Debian's own name, since `mpirun` in PATH may be of another MPI.
_MPIRUN = Path("/usr/bin/mpirun.openmpi")
# For MPI_Allreduce (number 2) of two ranks: recursive doubling from 3000 bytes up to 6000, where 4.1 would take an
# algorithm that is up to 1.4 times slower; 0 leaves the choice to it.
_RULES = "1\n2\n1\n2\n3\n0 0 0 0\n3000 3 0 0\n6000 0 0 0\n"
_MISSING = f"there is no {_MPIRUN}; get it by: apt-get install openmpi-bin"


def locate(directory: Path | None) -> Path:
    """See `peers.Peer`."""
    if not _MPIRUN.exists():
        raise PeerMissingError(_MISSING)
    return mpi.locate(NAME, directory)


def command(environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """See `peers.Peer`."""
    # 4.1 calls it vader; newer ones accept that name, too.
    arguments, variables = openmpi.under_mpirun(_MPIRUN, "vader", environment, config, program)
    more = {"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": "libmpi.so.40"}
    if config.ranks == 2 and config.transport != "tcp":
        rules = Path(program[-1]) / "rules"  # in the folder of the run
        rules.write_text(_RULES, encoding="utf-8")
        more["OMPI_MCA_coll_tuned_use_dynamic_rules"] = "1"
        more["OMPI_MCA_coll_tuned_dynamic_rules_filename"] = str(rules)
    return arguments, variables | mpi.unless_set(more)


def main() -> int:
    """Installs the parts that need no root."""
    status = install.main(NAME, REQUIREMENTS)
    if status == 0 and not _MPIRUN.exists():
        print(f"bench/peers/openmpi_debian.py: error: {_MISSING}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
