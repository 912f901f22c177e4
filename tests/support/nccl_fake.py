"""The fake NCCL of tests/support/fake_nccl: how it is built, and how a rank talks to it."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import built
import ml_dtypes
import numpy as np
from paths import ROOT, SUPPORT

SOURCES = SUPPORT / "fake_nccl"
CSRC = ROOT / "csrc"
NAME = "libnccl.so.2"


def build(folder: Path, *defines: str) -> Path:
    """The library, with its real name, in a folder of its own. It is a table of devices as well."""
    folder.mkdir(parents=True, exist_ok=True)
    made = built.once("-".join(["fake_nccl", *defines]), lambda where: _compile(where, defines))
    return Path(shutil.copy(made / NAME, folder / NAME))


def _compile(folder: Path, defines: Sequence[str]) -> None:
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    sources = [str(source) for source in sorted(SOURCES.glob("*.cc"))]
    names = [f"-D{name}" for name in defines]
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, *flags, *names, f"-I{CSRC}", f"-Wl,-soname,{NAME}", "-o", str(folder / NAME), *sources]
    subprocess.run(command, check=True, timeout=240)


def variables(library: Path, folder: Path, settings: str = "") -> dict[str, str]:
    """The environment of ranks that use it. Their ranks meet in `folder`."""
    both = dict.fromkeys(("COLLECTIVES_NCCL_LIB", "COLLECTIVES_CUDA_LIB"), str(library))
    return {**both, "FAKE_NCCL_DIR": str(folder), "FAKE_NCCL": settings}


# --- in the process of a rank ----------------------------------------------------------------------------------------


@functools.cache
def library() -> ctypes.CDLL:
    fake = ctypes.CDLL(os.environ["COLLECTIVES_NCCL_LIB"])
    fake.fake_last_stream.restype = ctypes.c_size_t
    return fake


def count(function: str) -> int:
    return int(library().fake_count(function.encode()))


def await_aborts(number: int) -> None:
    """Checks that so many communicators are aborted, which the watchdog does a moment after it has said why."""
    deadline = time.monotonic() + 5
    while count("ncclCommAbort") < number and time.monotonic() < deadline:
        time.sleep(0.001)  # a poll: there is nothing to wait for
    assert count("ncclCommAbort") == number


def set_to(name: str, value: int) -> None:
    library().fake_set(name.encode(), value)


def fail(function: str, number: int, code: int, text: str = "") -> None:
    library().fake_fail(function.encode(), number, code, text.encode())


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def operands(arrays: list[Any]) -> list[tuple[int, int, str]]:
    return [(array.ctypes.data, array.size, array.dtype.name) for array in arrays]


def start(
    comm: Any, collective: str, inputs: list[Any], outputs: list[Any], device: int | None = None, **more: Any
) -> Any:
    """The call, as the package makes it for arrays on a device: here the memory of the host stands for it."""
    from collectives._calls.options import CallOptions
    from collectives._devices import nccl

    place = comm.rank if device is None else device
    if collective not in ("send", "recv"):
        assert nccl.wanted(comm, place)
    lengths = more.pop("counts", None)
    said = {field: more.pop(field) for field in CallOptions._fields if field in more}
    options = CallOptions(**{"stream": 0, **said})
    return nccl.run(comm, collective, operands(inputs), operands(outputs), lengths, options, device=place, **more)


def call(comm: Any, collective: str, inputs: list[Any], outputs: list[Any], **more: Any) -> None:
    assert start(comm, collective, inputs, outputs, **more).wait(30)
