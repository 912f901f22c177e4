"""The library of fake devices (fake_device/), seen from a process that has loaded it, and how such a process is made.

The library is loaded once per process, so whatever uses devices runs in a process of its own: `in_child`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import built
import numpy as np
from collectives import _core
from collectives._calls.options import CallOptions
from paths import ROOT, SUPPORT, python_path

LIMIT = 280  # seconds


def build() -> Path:
    """The fake, compiled; it takes the kernels of the engine that is installed."""
    return built.once("fake_device", _compile) / "libfake_device.so"


def _compile(folder: Path) -> None:
    engine = (Path(_core.__file__).parent / "libcollectives_core.so").resolve()
    library = folder / "libfake_device.so"
    sources = [str(path) for path in sorted((SUPPORT / "fake_device").glob("*.cc"))]
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{ROOT / 'csrc'}"]
    link = [str(engine), f"-Wl,-rpath,{engine.parent}"]
    done = subprocess.run(
        ["g++", *flags, *sources, *link, "-o", str(library)], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr


def in_child(library: Path | str, code: str, **variables: str) -> str:
    """Runs Python code in a process whose devices are fakes; returns what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FAKE_")}
    environment.update(variables, COLLECTIVES_CUDA_LIB=str(library), PYTHONPATH=python_path())
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Fake:
    """The functions of the fake in this process."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["COLLECTIVES_CUDA_LIB"])
        for name, result, arguments in (
            ("fake_allocate", ctypes.c_void_p, [ctypes.c_int, ctypes.c_int64]),
            ("fake_release", None, [ctypes.c_void_p]),
            ("fake_stream", ctypes.c_void_p, [ctypes.c_int]),
            ("fake_produce", None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]),
            ("fake_consume", None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]),
            ("fake_finish", None, []),
            ("fake_capture", None, [ctypes.c_void_p, ctypes.c_int]),
            ("fake_seed", None, [ctypes.c_uint]),
            ("fake_fail", None, [ctypes.c_char_p, ctypes.c_int64, ctypes.c_int]),
            ("fake_calls", ctypes.c_int64, [ctypes.c_char_p]),
            ("fake_live", ctypes.c_int64, [ctypes.c_char_p]),
            ("fake_pending", ctypes.c_int64, []),
            ("fake_errors", ctypes.c_char_p, []),
        ):
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments
        _core._device_status()

    def stream(self, device: int) -> int:
        return int(self.library.fake_stream(device))

    def finish(self) -> None:
        self.library.fake_finish()

    def seed(self, seed: int) -> None:
        self.library.fake_seed(seed)

    def capture(self, stream: int, yes: bool) -> None:
        self.library.fake_capture(stream, yes)

    def fail(self, k: int, code: int = 700, function: str = "") -> None:
        """The k-th call from now returns `code`; 0: none does."""
        self.library.fake_fail(function.encode(), k, code)

    def calls(self, function: str = "") -> int:
        return int(self.library.fake_calls(function.encode()))

    def pending(self) -> int:
        return int(self.library.fake_pending())

    def live(self) -> dict[str, int]:
        return {kind: int(self.library.fake_live(kind.encode())) for kind in ("memory", "pinned", "streams", "events")}

    def errors(self) -> str:
        return str(self.library.fake_errors().decode())

    def check(self) -> None:
        assert not (found := self.errors()), found


class DeviceArray:
    """Memory of a fake device, freed with the object."""

    def __init__(self, fake: Fake, device: int, nbytes: int) -> None:
        self.fake = fake
        self.device = device
        self.nbytes = nbytes
        self.pointer = int(fake.library.fake_allocate(device, nbytes))

    def __del__(self) -> None:
        self.fake.library.fake_release(self.pointer)

    def produce(self, values: np.ndarray[Any, Any], stream: int) -> None:
        """The caller's own work in a stream, which writes the array late."""
        values = np.ascontiguousarray(values)
        assert values.nbytes == self.nbytes
        self.fake.library.fake_produce(self.pointer, values.ctypes.data, values.nbytes, stream)

    def consume(self, like: np.ndarray[Any, Any], stream: int) -> np.ndarray[Any, Any]:
        """The caller's own work in a stream, which reads the array: the values are there after `finish`."""
        result = np.empty_like(like)
        assert result.nbytes == self.nbytes
        self.fake.library.fake_consume(result.ctypes.data, self.pointer, result.nbytes, stream)
        return result


def bitwise_equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def collective(
    name: str,
    algorithm: str,
    op: str,
    root: int,
    count: int,
    counts: Sequence[int],
    dtype: str,
    ranks: Sequence[tuple[int, int, list[DeviceArray], list[DeviceArray]]],
    chunk_bytes: int = 4 << 20,
) -> None:
    """Runs one collective with (device, stream, inputs, outputs) of each rank."""
    arguments = [
        (device, stream, [(a.pointer, a.nbytes) for a in inputs], [(a.pointer, a.nbytes) for a in outputs])
        for device, stream, inputs, outputs in ranks
    ]
    options = CallOptions(algorithm=algorithm, op=op, root=root)
    _core._device_collective(name, arguments, list(counts), dtype, count, options, chunk_bytes)
