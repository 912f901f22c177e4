"""Intel oneCCL, of the `oneccl-cpu` wheels, over the Intel MPI of the `impi-rt` wheel.

It is installed, and then used, by

    python bench/peers/oneccl.py --install [DIRECTORY]
    python bench/allreduce.py --vs oneccl[=DIRECTORY]

oneCCL is a C++ library without a binding for NumPy, so it is measured at C level only, through `oneccl.cc`, which is
compiled when it is first used. Ranks find each other through mpi4py, as in Intel's examples.
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

from peers import CCall, PeerMissingError, install, mpi
from peers.mpi import abort, fetch, ways

if TYPE_CHECKING:
    from cases import Array, Config

__all__ = ["abort", "fetch", "ways"]  # of what is imported

NAME = "oneccl"
LEVELS = ("c",)
# The next version needs a libfabric for which there is no wheel.
REQUIREMENTS = [
    *("mpi4py>=4", "oneccl-cpu>=2022.1,<2022.2", "oneccl-cpu-devel>=2022.1,<2022.2", "impi-rt>=2021.18"),
    "intel-cmplr-lib-rt",  # libccl.so.1 needs its libintlc.so.5 without declaring it
]

_OPS = {"sum": 0, "prod": 1, "min": 2, "max": 3}  # as ccl::reduction
_DTYPES = (  # as ccl::datatype
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16"),
)
_DRIVER = "COLLECTIVES_BENCH_DRIVER"  # where it is
# MPI's own collectives up to here. Beyond, up to twice as slow as oneCCL's, of which those below are the fastest.
_ALL_REDUCE_UP_TO = 4 << 20
_BROADCAST_UP_TO = 1 << 20


def locate(directory: Path | None) -> Path:
    """See `peers.Peer`."""
    environment = mpi.locate(NAME, directory, "mpiexec.hydra")
    if not (environment / "include" / "oneapi" / "ccl.hpp").exists():
        option = f" {directory}" if directory else ""
        raise PeerMissingError(
            f"oneCCL is not in {environment}; get it by: python bench/peers/oneccl.py --install{option}"
        )
    _driver(environment)
    return environment


def _driver(environment: Path) -> Path:
    lib = environment / "lib"
    flags = ["-std=c++17", f"-I{environment / 'include'}", f"-Wl,-rpath,{lib}", "-Wl,--no-as-needed"]
    # libccl.so.1 needs a libccl.so.2, which these wheels lack and of which it uses nothing: the driver replaces it.
    flags += ["-Wl,-soname,libccl.so.2", "-Wl,--allow-shlib-undefined"]
    return install.driver(environment, "oneccl.cc", flags, [lib / "libintlc.so.5", lib / "libccl.so.1"])


def unsupported(config: Config) -> str:
    """See `peers.Peer`."""
    if config.collective == "reduce":
        return "reduce of oneCCL is not measured"
    if config.collective in REDUCING and config.op not in _OPS:
        return f"oneCCL has no {config.op} on CPUs"
    if config.dtype not in _DTYPES:
        return f"oneCCL does not know {config.dtype}"
    return ""


def command(environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """See `peers.Peer`."""
    variables = {
        "CCL_ATL_TRANSPORT": "mpi",
        "CCL_ALLREDUCE": f"direct:0-{_ALL_REDUCE_UP_TO};nreduce:{_ALL_REDUCE_UP_TO + 1}-max",
        "CCL_BCAST": f"direct:0-{_BROADCAST_UP_TO};double_tree:{_BROADCAST_UP_TO + 1}-max",
        # A rank has one core, which a thread of oneCCL's own would have to share.
        "CCL_WORKER_OFFLOAD": "0",
        "CCL_ATL_SYNC_COLL": "1",  # MPI's blocking calls, 15 % faster at 8 bytes
        "CCL_LOG_LEVEL": "error",
    }
    if mpi.crowded(config):
        # Without threads its own algorithms wait many times as long for a core as MPI's do.
        variables |= {
            "CCL_YIELD": "sched_yield",
            "CCL_SPIN_COUNT": "1",
            "CCL_ALLREDUCE": "direct",
            "CCL_BCAST": "direct",
        }
    fabrics = mpi.intel_variables(config)
    command, variables = mpi.under_hydra(environment, config, program, [], variables | fabrics)
    return command, variables | {_DRIVER: str(_driver(environment))}


def join() -> tuple[int, int, Callable[[Any], Any]]:
    """See `peers.Peer`."""
    rank, size, share = mpi.join()
    library = _library()
    address = ctypes.create_string_buffer(library.oneccl_address_size())
    if rank == 0:
        _check(library.oneccl_listen(address))
    address = ctypes.create_string_buffer(share(address.raw), len(address))
    _check(library.oneccl_connect(rank, size, address))
    return rank, size, share


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError("oneCCL failed; what it said stands above")


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ.pop(_DRIVER))


def prepare_c(way: str, collective: str, x: Array, op: str, *out: Array) -> CCall:
    """See `peers.Peer`."""
    arguments: tuple[int, ...] = ()
    if collective != "barrier":
        arguments = (x.ctypes.data, len(x), _DTYPES.index(str(x.dtype)), *(array.ctypes.data for array in out))
    if collective in REDUCING:
        arguments += (_OPS[op],)
    function = _library()[f"oneccl_{collective}"]
    return CCall(ctypes.cast(function, ctypes.c_void_p).value or 0, arguments, (x, out))


if __name__ == "__main__":
    sys.exit(install.main(NAME, REQUIREMENTS))
