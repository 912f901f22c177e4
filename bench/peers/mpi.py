"""Shared by the peers that are MPIs: they are called through mpi4py."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cases import REDUCING

from . import CCall, PeerMissingError, install

if TYPE_CHECKING:
    from cases import Array, Config

LEVELS = ("python", "c")

_OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}


def locate(name: str, directory: Path | None, *programs: str) -> Path:
    """See `peers.Peer`; `programs` are what it needs in its folder bin."""
    environment = directory or install.default_directory(name)
    files = [environment / "bin" / program for program in ("python", *programs)]
    if all(f.exists() for f in files) and any(environment.glob("lib/python*/site-packages/mpi4py")):
        return environment
    option = f" {directory}" if directory else ""
    raise PeerMissingError(f"{name} is not in {environment}; get it by: python bench/peers/{name}.py --install{option}")


def unsupported(config: Config) -> str:
    """See `peers.Peer`."""
    if config.collective in REDUCING and config.op not in _OPS:
        return f"MPI has no {config.op}"
    if config.dtype in ("bfloat16", "float16", "bool"):
        return f"mpi4py does not reduce {config.dtype}"
    return ""


def under_hydra(
    environment: Path, config: Config, program: list[str], arguments: list[str], variables: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """What `peers.Peer.command` returns, for an MPI whose launcher is Hydra, with these arguments and variables."""
    command = [str(environment / "bin" / "mpiexec.hydra"), "-n", str(config.ranks), *arguments]
    return [*command, str(environment / "bin" / "python"), *program], unless_set(variables)


def intel_variables(config: Config) -> dict[str, str]:
    """Intel MPI's best settings for a run."""
    variables = {"I_MPI_PIN": "0" if crowded(config) else "1", "I_MPI_FABRICS": "shm"}
    if crowded(config):
        variables["I_MPI_THREAD_YIELD"] = "2"
    if config.transport == "tcp":
        variables |= {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}
        variables["I_MPI_COLL_INTRANODE"] = "pt2pt"  # otherwise collectives use shared memory
    return variables


def unless_set(variables: dict[str, str]) -> dict[str, str]:
    """Does not change what the caller has set, so that other settings can be tried."""
    return {name: value for name, value in variables.items() if name not in os.environ}


def crowded(config: Config) -> bool:
    """Whether there are more ranks than cores."""
    return config.ranks > len(os.sched_getaffinity(0))


def join() -> tuple[int, int, Callable[[Any], Any]]:
    """See `peers.Peer`."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return world.rank, world.size, world.bcast


def abort() -> None:
    """See `peers.Peer`."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(1)


def ways(collective: str, nbytes: int, ranks: int) -> list[str]:
    """See `peers.Peer`."""
    return ["default"]


def prepare(way: str, collective: str, x: Array, op: str, *out: Array, comm: Any = None) -> Callable[[], object]:
    """See `peers.Peer`; `comm`: MPI's communicator, the world by default."""
    from mpi4py import MPI

    comm = comm or MPI.COMM_WORLD
    if collective == "barrier":
        return comm.Barrier
    if collective == "broadcast":
        return functools.partial(comm.Bcast, x)
    if collective in ("all_gather", "all_to_all"):
        return functools.partial(comm.Allgather if collective == "all_gather" else comm.Alltoall, x, *out)
    if collective == "gather":
        return functools.partial(comm.Gather, x, out[0] if comm.rank == 0 else None)
    if collective == "scatter":
        return functools.partial(comm.Scatter, x if comm.rank == 0 else None, *out)
    # Sum is the default, as in ours: pass only arguments that a user must write.
    keywords = {} if op == "sum" else {"op": getattr(MPI, _OPS[op])}
    if collective == "reduce_scatter":
        return functools.partial(comm.Reduce_scatter_block, x, *out, **keywords)
    if collective == "all_reduce":
        return functools.partial(comm.Allreduce, MPI.IN_PLACE, x, **keywords)
    if comm.rank == 0:
        return functools.partial(comm.Reduce, MPI.IN_PLACE, x, **keywords)
    return functools.partial(comm.Reduce, x, None, **keywords)


def fetch(x: Array) -> None:
    """See `peers.Peer`."""


def prepare_c(way: str, collective: str, x: Array, op: str, *out: Array, comm: Any = None) -> CCall:
    """See `peers.Peer`; `comm`: MPI's communicator, the world by default.

    The functions are those of the library that mpi4py has loaded, and the handles those that mpi4py uses: nothing has
    to be compiled for each MPI.
    """
    from mpi4py import MPI

    comm = comm or MPI.COMM_WORLD
    world = MPI._handleof(comm)
    if collective == "barrier":
        return CCall(_address("MPI_Barrier"), (world,))
    buffer = x.ctypes.data
    in_place = int(MPI.IN_PLACE) % (1 << 64)
    datatype = MPI._handleof(MPI.BYTE if collective == "broadcast" else MPI._typedict[x.dtype.char])
    if collective == "broadcast":
        return CCall(_address("MPI_Bcast"), (buffer, x.nbytes, datatype, 0, world), x)
    if collective in ("all_gather", "all_to_all"):
        part = len(x) if collective == "all_gather" else len(x) // comm.size
        name = "MPI_Allgather" if collective == "all_gather" else "MPI_Alltoall"
        return CCall(_address(name), (buffer, part, datatype, out[0].ctypes.data, part, datatype, world), (x, out))
    function = MPI._handleof(getattr(MPI, _OPS[op]))
    if collective == "reduce_scatter":
        arguments = (buffer, out[0].ctypes.data, len(out[0]), datatype, function, world)
        return CCall(_address("MPI_Reduce_scatter_block"), arguments, (x, out))
    if collective == "all_reduce":
        return CCall(_address("MPI_Allreduce"), (in_place, buffer, len(x), datatype, function, world), x)
    from_and_to = (in_place, buffer) if comm.rank == 0 else (buffer, 0)
    return CCall(_address("MPI_Reduce"), (*from_and_to, len(x), datatype, function, 0, world), x)


@functools.cache
def _address(name: str) -> int:
    """The address of a function of the loaded MPI."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    files = dict.fromkeys(line.split(maxsplit=5)[-1] for line in maps.splitlines())
    libraries = [file for file in files if Path(file).name.startswith("libmpi.so")]
    for library in libraries:
        function = getattr(ctypes.CDLL(library), name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise PeerMissingError(f"{name} is in no library of this process; those of MPI are: {libraries}")
