"""Gloo, which torch.distributed uses on CPUs. It knows TCP only, on one host too.

It is installed, and then used, by

    python bench/peers/gloo.py --install [DIRECTORY]
    python bench/allreduce.py --vs gloo[=DIRECTORY]
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

from peers import CCall, PeerMissingError, install

if TYPE_CHECKING:
    from cases import Array, Config

NAME = "gloo"
LEVELS = ("python",)
REQUIREMENTS = ["torch>=2.4"]

_OPS = {"sum": "SUM", "avg": "AVG", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}
_MEETING = "COLLECTIVES_BENCH_MEETING"  # the file by which the ranks find each other


def locate(directory: Path | None) -> Path:
    """See `peers.Peer`."""
    environment = directory or install.default_directory(NAME)
    if (environment / "bin" / "collectives").exists() and any(environment.glob("lib/python*/site-packages/torch")):
        return environment
    option = f" {directory}" if directory else ""
    raise PeerMissingError(f"torch is not in {environment}; get it by: python bench/peers/gloo.py --install{option}")


def unsupported(config: Config) -> str:
    """See `peers.Peer`."""
    if config.collective in ("all_reduce", "reduce") and (config.op not in _OPS or config.op == "avg"):
        return f"gloo has no {config.op}"
    if config.dtype in ("bfloat16", "bool") or config.dtype.startswith(("uint16", "uint32", "uint64", "int16")):
        return f"torch.distributed over gloo does not reduce {config.dtype} of NumPy"
    return ""


def command(environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """See `peers.Peer`."""
    arguments = [str(environment / "bin" / "collectives"), "run", "-n", str(config.ranks)]
    return [*arguments, *program], {_MEETING: str(Path(program[-1]) / "gloo"), "GLOO_SOCKET_IFNAME": "lo"}


def join() -> tuple[int, int, Callable[[Any], Any]]:
    """See `peers.Peer`."""
    import torch.distributed as dist

    # Of the launcher of this package, which started the ranks.
    rank, size = int(os.environ["COLLECTIVES_RANK"]), int(os.environ["COLLECTIVES_SIZE"])
    for name in [name for name in os.environ if name.startswith("COLLECTIVES_")]:
        if name != _MEETING:
            del os.environ[name]  # the bench connects the ranks by itself
    dist.init_process_group("gloo", init_method=f"file://{os.environ.pop(_MEETING)}", rank=rank, world_size=size)

    def share(value: Any) -> Any:
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    return rank, size, share


def abort() -> None:
    """See `peers.Peer`."""
    os._exit(1)  # the launcher ends the others


def ways(collective: str, nbytes: int, ranks: int) -> list[str]:
    """See `peers.Peer`."""
    return ["default"]


def prepare(way: str, collective: str, x: Array, op: str) -> Callable[[], object]:
    """See `peers.Peer`."""
    import torch
    import torch.distributed as dist

    if collective == "barrier":
        return dist.barrier
    tensor = torch.from_numpy(x)
    if collective == "broadcast":
        return functools.partial(dist.broadcast, tensor, 0)
    # Sum is the default, as it is ours: only what a user has to write is passed.
    keywords = {} if op == "sum" else {"op": getattr(dist.ReduceOp, _OPS[op])}
    if collective == "all_reduce":
        return functools.partial(dist.all_reduce, tensor, **keywords)
    return functools.partial(dist.reduce, tensor, 0, **keywords)


def prepare_c(way: str, collective: str, x: Array, op: str) -> CCall:
    """See `peers.Peer`; not in LEVELS."""
    raise NotImplementedError


def fetch(x: Array) -> None:
    """See `peers.Peer`."""


if __name__ == "__main__":
    sys.exit(install.main(NAME, REQUIREMENTS))
