"""JAX, whose collectives between processes on CPUs are those of Gloo: TCP, on one host too.

It is installed, and then used, by

    python bench/peers/jax.py --install [DIRECTORY]
    python bench/allreduce.py --vs jax[=DIRECTORY]

Timed is a compiled collective under `shard_map` over one device per process, until its result is there. JAX reads the
array of the bench as it is, without a copy, by DLPack: the global array is made before, once. The result is a new
array. A broadcast is, as in `jax.experimental.multihost_utils`, a sum to which the others give zeros: XLA has no other
on CPUs.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from peers import install, launched
from peers.launched import abort

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
    "unsupported",
    "ways",
]

NAME = "jax"
LEVELS = ("python",)
REQUIREMENTS = ["jax>=0.10"]

_OPS = {"sum": "psum", "avg": "pmean", "min": "pmin", "max": "pmax"}
_SHARED = 1024  # bytes that hold what rank 0 shares

_last: dict[str, Any] = {}  # the result of the last call


def locate(directory: Path | None) -> Path:
    """See `peers.Peer`."""
    return launched.locate(NAME, directory)


def unsupported(config: Config) -> str:
    """See `peers.Peer`."""
    if config.collective not in ("all_reduce", "broadcast"):
        return f"{config.collective} of JAX is not measured"
    if config.collective == "all_reduce" and config.op not in _OPS:
        return f"JAX has no all_reduce with {config.op}"
    if config.dtype == "bool" and (config.collective == "broadcast" or config.op == "sum"):
        return "JAX adds bools as integers"
    return ""


def command(environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """See `peers.Peer`."""
    # Threads of XLA: as many as there are cores for a rank, or those of different ranks take turns.
    variables = {"JAX_PLATFORMS": "cpu", "NPROC": str(launched.cores_each(config.ranks))}
    return launched.command(environment, config, program, variables)


def join() -> tuple[int, int, Callable[[Any], Any]]:
    """See `peers.Peer`."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    rank, size, ports = launched.place()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_x64", True)  # else JAX narrows float64 and int64
    jax.distributed.initialize(f"127.0.0.1:{ports[0]}", num_processes=size, process_id=rank)

    def share(value: Any) -> Any:
        words = np.frombuffer(json.dumps(value).encode().ljust(_SHARED), np.uint8)
        return json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(words))))

    return rank, size, share


def ways(collective: str, nbytes: int, ranks: int) -> list[str]:
    """See `peers.Peer`."""
    return ["default"]


def prepare(way: str, collective: str, x: Array, op: str, *out: Array) -> Callable[[], object]:
    """See `peers.Peer`."""
    import jax
    import numpy as np

    function, sharding = _compiled("sum" if collective == "broadcast" else op, x.dtype.name)
    raw = x.view(np.uint16) if x.dtype.name == "bfloat16" else x  # NumPy does not export bfloat16 by DLPack
    if collective == "broadcast" and jax.process_index() != 0:
        mine = jax.numpy.zeros_like(raw)
    else:
        mine = jax.dlpack.from_dlpack(raw)
    everything = jax.make_array_from_single_device_arrays((x.size * jax.process_count(),), sharding, [mine])

    def call() -> None:
        _last["result"] = function(everything).block_until_ready()

    return call


@functools.cache
def _compiled(op: str, dtype: str) -> tuple[Any, Any]:
    """The function, which JAX compiles once for each shape, and the sharding of its argument."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.process_count(),), ("ranks",))
    split, whole = PartitionSpec("ranks"), PartitionSpec()
    collective = getattr(jax.lax, _OPS[op])

    def reduce(part: Any) -> Any:
        if dtype == "bfloat16":
            part = jax.lax.bitcast_convert_type(part, jax.numpy.bfloat16)
        return collective(part, "ranks")

    function = jax.jit(jax.shard_map(reduce, mesh=mesh, in_specs=split, out_specs=whole))
    return function, NamedSharding(mesh, split)


def fetch(x: Array) -> None:
    """See `peers.Peer`."""
    import numpy as np

    np.copyto(x, np.asarray(_last["result"].addressable_data(0)))


if __name__ == "__main__":
    sys.exit(install.main(NAME, REQUIREMENTS))
