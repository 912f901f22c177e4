"""What the peers that are MPIs have in common: they are called through mpi4py."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import PeerMissingError, install

if TYPE_CHECKING:
    from cases import Array, Config

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
    if config.collective in ("all_reduce", "reduce") and config.op not in _OPS:
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


def unless_set(variables: dict[str, str]) -> dict[str, str]:
    """What the caller has set is left alone, so that other settings can be tried."""
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


def prepare(way: str, collective: str, x: Array, op: str, comm: Any = None) -> Callable[[], object]:
    """See `peers.Peer`; `comm`: MPI's communicator, the world by default."""
    from mpi4py import MPI

    comm = comm or MPI.COMM_WORLD
    if collective == "barrier":
        return comm.Barrier
    if collective == "broadcast":
        return functools.partial(comm.Bcast, x)
    # Sum is the default, as it is ours: only what a user has to write is passed.
    keywords = {} if op == "sum" else {"op": getattr(MPI, _OPS[op])}
    if collective == "all_reduce":
        return functools.partial(comm.Allreduce, MPI.IN_PLACE, x, **keywords)
    if comm.rank == 0:
        return functools.partial(comm.Reduce, MPI.IN_PLACE, x, **keywords)
    return functools.partial(comm.Reduce, x, None, **keywords)
