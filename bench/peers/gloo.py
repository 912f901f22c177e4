"""Gloo, which torch.distributed uses on CPUs. It supports TCP only, also on one host.

It is installed, and then used, by

    python bench/peers/gloo.py --install [DIRECTORY]
    python bench/allreduce.py --vs gloo[=DIRECTORY]
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cases import REDUCING

from peers import CCall, PeerMissingError, install

if TYPE_CHECKING:
    from cases import Array, Config

NAME = "gloo"
LEVELS = ("python", "c")
REQUIREMENTS = ["torch>=2.7"]  # the first that C++ code of current compilers can call

# In the order of c10d::ReduceOp.
_OPS = {"sum": "SUM", "avg": "AVG", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}
# In the order of at::ScalarType.
_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_MEETING = "COLLECTIVES_BENCH_MEETING"  # the file by which the ranks find each other
_DRIVER = "COLLECTIVES_BENCH_DRIVER"  # where `gloo.cc` is, compiled


def locate(directory: Path | None) -> Path:
    """See `peers.Peer`."""
    environment = directory or install.default_directory(NAME)
    if (environment / "bin" / "collectives").exists() and any(environment.glob("lib/python*/site-packages/torch")):
        return environment
    option = f" {directory}" if directory else ""
    raise PeerMissingError(f"torch is not in {environment}; get it by: python bench/peers/gloo.py --install{option}")


def unsupported(config: Config) -> str:
    """See `peers.Peer`."""
    if config.collective in REDUCING and (config.op not in _OPS or config.op == "avg"):
        return f"gloo has no {config.op}"
    if config.dtype in ("bfloat16", "bool") or config.dtype.startswith(("uint16", "uint32", "uint64", "int16")):
        return f"torch.distributed over gloo does not reduce {config.dtype} of NumPy"
    return ""


def command(environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """See `peers.Peer`."""
    arguments = [str(environment / "bin" / "collectives"), "run", "-n", str(config.ranks)]
    variables = {_MEETING: str(Path(program[-1]) / "gloo"), "GLOO_SOCKET_IFNAME": "lo"}
    if "c" in config.levels:
        torch = next(environment.glob("lib/python*/site-packages/torch"))
        flags = ["-std=c++20", f"-I{torch / 'include'}", f"-Wl,-rpath,{torch / 'lib'}"]
        libraries = [torch / "lib" / "libtorch_cpu.so", torch / "lib" / "libc10.so"]
        variables[_DRIVER] = str(install.driver(environment, "gloo.cc", flags, libraries))
    return [*arguments, *program], variables


def join() -> tuple[int, int, Callable[[Any], Any]]:
    """See `peers.Peer`."""
    import torch.distributed as dist

    # Of the launcher of this package, which started the ranks.
    rank, size = int(os.environ["COLLECTIVES_RANK"]), int(os.environ["COLLECTIVES_SIZE"])
    for name in [name for name in os.environ if name.startswith("COLLECTIVES_")]:
        if name not in (_MEETING, _DRIVER):
            del os.environ[name]  # the bench connects the ranks by itself
    dist.init_process_group("gloo", init_method=f"file://{os.environ.pop(_MEETING)}", rank=rank, world_size=size)
    if _DRIVER in os.environ:
        _library()

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


def prepare(way: str, collective: str, x: Array, op: str, *out: Array) -> Callable[[], object]:
    """See `peers.Peer`."""
    import torch
    import torch.distributed as dist

    if collective == "barrier":
        return dist.barrier
    tensor = torch.from_numpy(x)
    if collective == "broadcast":
        return functools.partial(dist.broadcast, tensor, 0)
    result = [torch.from_numpy(array) for array in out]
    if collective == "all_gather":
        return functools.partial(dist.all_gather_into_tensor, *result, tensor)
    if collective == "all_to_all":
        return functools.partial(dist.all_to_all_single, *result, tensor)
    ranks, at_root = dist.get_world_size(), dist.get_rank() == 0
    if collective == "gather":
        return functools.partial(dist.gather, tensor, list(result[0].chunk(ranks)) if at_root else None)
    if collective == "scatter":
        return functools.partial(dist.scatter, *result, list(tensor.chunk(ranks)) if at_root else None)
    # Sum is the default, as in ours: pass only arguments that a user must write.
    keywords = {} if op == "sum" else {"op": getattr(dist.ReduceOp, _OPS[op])}
    if collective == "reduce_scatter":
        return functools.partial(dist.reduce_scatter_tensor, *result, tensor, **keywords)
    if collective == "all_reduce":
        return functools.partial(dist.all_reduce, tensor, **keywords)
    return functools.partial(dist.reduce, tensor, 0, **keywords)


def prepare_c(way: str, collective: str, x: Array, op: str, *out: Array) -> CCall:
    """See `peers.Peer`."""
    arguments: tuple[int, ...] = ()
    if collective != "barrier":
        arguments = tuple(_tensors(a.ctypes.data, len(a), str(a.dtype)) for a in (x, *out))
    if collective in REDUCING:
        arguments += (list(_OPS).index(op),)
    function = _library()[f"gloo_{collective}"]
    return CCall(ctypes.cast(function, ctypes.c_void_p).value or 0, arguments, (x, out))


@functools.cache
def _library() -> ctypes.CDLL:
    import torch.distributed as dist

    library = ctypes.CDLL(os.environ.pop(_DRIVER))
    library.gloo_tensors.restype = ctypes.c_void_p
    if library.gloo_connect(dist.group.WORLD.group_name.encode()) != 0:
        raise RuntimeError("the process group of torch was not found from C++; what torch said stands above")
    return library


@functools.cache  # one for each buffer, however often it is measured
def _tensors(address: int, count: int, dtype: str) -> int:
    made = _library().gloo_tensors(ctypes.c_void_p(address), ctypes.c_int64(count), _DTYPES.index(dtype))
    if made is None:
        raise RuntimeError("torch made no tensor; what it said stands above")
    return int(made)


def fetch(x: Array) -> None:
    """See `peers.Peer`."""


if __name__ == "__main__":
    sys.exit(install.main(NAME, REQUIREMENTS))
