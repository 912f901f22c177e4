"""The arithmetic of the kernels for GPUs, compiled for the host (tests/cuda/on_host.cc)."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from collectives import _core
from paths import ROOT

MOST = 64  # sources and destinations: kMostDeviceOperands of csrc/core/device.h
COMBINATIONS = ["canonical", "halves", "chain"]
ORDERS = ["one", "two", "four", "eight", "trees", "chain"]
FLAGS = ["-std=c++20", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing"]

Array = np.ndarray[Any, Any]


def nvcc() -> str | None:
    """What CMake takes, too."""
    return os.environ.get("CUDACXX") or shutil.which("nvcc")


def toolkit_headers() -> list[str]:
    """Options for the folders in which nvcc finds the headers of its toolkit."""
    command = [str(nvcc()), "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    found = re.findall(r'^#\$ (?:SYSTEM_)?INCLUDES="?(.*)$', said, re.MULTILINE)
    folders = re.findall(r'"?(?:-I|-isystem )"?([^"\s]+)', " ".join(found))
    assert any((Path(folder) / "cuda_fp16.h").exists() for folder in folders), said
    return [option for folder in folders for option in ("-isystem", folder)]


class Reduction(ctypes.Structure):
    """DeviceReduction of csrc/core/device.h."""

    _fields_ = (
        ("dtype", ctypes.c_uint8),
        ("op", ctypes.c_uint8),
        ("combination", ctypes.c_uint8),
        ("finish", ctypes.c_bool),
        ("first", ctypes.c_int),
        ("source_count", ctypes.c_int),
        ("destination_count", ctypes.c_int),
        ("sources", ctypes.c_void_p * MOST),
        ("destinations", ctypes.c_void_p * MOST),
        ("count", ctypes.c_int64),
        ("operand", ctypes.c_double),
    )


class Kernels:
    """All kernels, run by their threads one after another."""

    def __init__(self, folder: Path) -> None:
        path = folder / "on_host.so"
        sources = ["tests/cuda/on_host.cc", "csrc/cuda/plan.cc"]
        command = [os.environ.get("CXX", "g++"), *FLAGS, "-Icsrc", *toolkit_headers(), *sources, "-o", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr
        self.library = ctypes.CDLL(str(path))
        self.dtypes = _core._dtype_names()
        self.ops = _core._op_names()
        self.order = ""  # of the last reduction
        self.packs = 0

    def has(self, op: str, dtype: str) -> bool:
        return bool(self.library.has_kernel_on_device(self.ops.index(op), self.dtypes.index(dtype)))

    def fill(
        self,
        dtype: str,
        op: str,
        combination: str,
        sources: Sequence[Array],
        destinations: Sequence[Array],
        *,
        first: int = 0,
        finish: bool = True,
        operand: float | None = None,
    ) -> Reduction:
        request = Reduction()
        request.dtype = self.dtypes.index(dtype)
        request.op = self.ops.index(op)
        request.combination = COMBINATIONS.index(combination)
        request.finish = finish
        request.first = first
        request.source_count = len(sources)
        request.destination_count = len(destinations)
        request.sources[: len(sources)] = [a.ctypes.data for a in sources]
        request.destinations[: len(destinations)] = [a.ctypes.data for a in destinations]
        request.count = destinations[0].size
        request.operand = len(sources) if operand is None else operand
        return request

    def run(self, request: Reduction, idle: int = 3) -> int:
        order, packs = ctypes.c_int(), ctypes.c_int64()
        code: int = self.library.reduce_on_host(
            ctypes.byref(request), ctypes.c_int64(idle), ctypes.byref(order), ctypes.byref(packs)
        )
        self.order, self.packs = ORDERS[order.value], packs.value
        return code

    def reduce(self, dtype: str, op: str, combination: str, sources: Sequence[Array], out: Array, **more: Any) -> Array:
        assert self.run(self.fill(dtype, op, combination, sources, [out], **more)) == 0
        return out

    def decode(self, dtype: str, codes: Array) -> Array:
        result = np.empty(codes.size, np.float32)
        arguments = (ctypes.c_void_p(a.ctypes.data) for a in (codes, result))
        self.library.decode_elements(self.dtypes.index(dtype), *arguments, ctypes.c_int64(codes.size))
        return result

    def encode(self, dtype: str, values: Array, codes: Array) -> Array:
        arguments = (ctypes.c_void_p(a.ctypes.data) for a in (values, codes))
        self.library.encode_elements(self.dtypes.index(dtype), *arguments, ctypes.c_int64(codes.size))
        return codes
