"""Ranks whose threads differ in how they round and in what they flush to zero get the same bits all the same."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
from typing import Any

import numpy as np
import pytest
from pool import Pools

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="sets the MXCSR register of x86-64")

FLUSHES = 0x8040  # results and inputs, as torch.set_flush_denormal and libraries built with -ffast-math have it
UPWARD = 0x4000  # rounds towards plus infinity
CONTROL = 0xFFC0  # what a program sets, besides the flags of exceptions that have been


def set_control(flags: int) -> int:
    """Sets the bits in the register of the calling thread; the register as it was."""
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    environment = (ctypes.c_uint32 * 8)()  # fenv_t of x86-64; the last word is MXCSR
    assert libm.fegetenv(environment) == 0
    before = int(environment[7])
    environment[7] = (before & ~(FLUSHES | UPWARD)) | flags
    assert libm.fesetenv(environment) == 0
    return before


def sums(comm: Any, flags: int, at: int) -> tuple[list[bytes], int]:
    """Sums of tiny and of ordinary numbers, in all ways in which a thread reduces; one rank has the flags."""
    values = []
    for count in (3, 1000, 300_000):
        x = np.full(count, 3e-39, np.float32)
        x[1:] = np.linspace(0.1, 1, count - 1, dtype=np.float32) * (comm.rank + 0.7)
        values.append(x)
    if comm.rank == at:
        set_control(flags)
    results = []
    try:
        for x in values:
            for algorithm in ("auto", "ring"):
                results += [comm.all_reduce(x.copy(), algorithm=algorithm) for _ in range(3)]
            works = [(y := x.copy(), comm.all_reduce(y, async_op=True)) for _ in range(5)]
            for y, work in works:
                work.wait()
                results.append(y)
            results.append(comm.all_reduce(x.copy(), op="prod"))
    finally:
        left = set_control(0)
    return [np.asarray(r).tobytes() for r in results], left & CONTROL


@pytest.mark.parametrize("flags", [FLUSHES, UPWARD], ids=["flush", "upward"])
@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_bits_do_not_depend_on_the_threads(pools: Pools, transport: str, flags: int) -> None:
    usual = pools.get(3, transport).run(sums, 0, 0)
    for at in range(3):
        for rank, ((expected, _), (found, left)) in enumerate(
            zip(usual, pools.get(3, transport).run(sums, flags, at), strict=True)
        ):
            wrong = [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]
            assert not wrong, f"rank {at} has the flags {flags:#x}: rank {rank} has other bits in its results {wrong}"
            assert (left & (FLUSHES | UPWARD) == flags) == (rank == at), "the settings are not given back"
