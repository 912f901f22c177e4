"""The fake devices as a library of arrays, for the checks of bench/gpu_checks.py in processes that have loaded them."""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import numpy as np
from bench_runs import BENCH
from device_arrays import Array, ByDlpack, OnDevice, fake, make, read, stream


class FakeLibrary:
    """Each replica has a stream of its own, unless a check asks for one."""

    name = "fake"
    mutable = True

    def __init__(self, devices: int = 1) -> None:
        self._devices = devices
        self._made = 0

    def array(self, values: Array) -> Any:
        self._made += 1
        return make(np.asarray(values), self._made % 3, self._made % self._devices)

    def read(self, x: Any) -> Array:
        return read(x)

    def pointer(self, x: Any) -> int:
        return x.base.pointer if isinstance(x, ByDlpack) else int(x.pointer)

    def stream(self) -> Any:
        return stream(9)

    def using(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def delay(self, seconds: float) -> None:
        pass  # all that it does is late

    def set(self, x: Any, value: float) -> None:
        x.set(np.full(x.shape, value, x.dtype))

    def busy(self, stream: Any) -> bool:
        return fake().pending() > 0


def run_check(name: str, devices: int, *arguments: Any) -> None:
    """One of the checks."""
    assert getattr(_checks(), name)(FakeLibrary(devices), *arguments)


def _checks() -> Any:
    if str(BENCH) not in sys.path:
        sys.path.insert(0, str(BENCH))
    return importlib.import_module("gpu_checks")


class TorchLike(OnDevice):
    """An array with what the backend of torch.distributed asks of a tensor before it passes it on."""

    is_sparse = False

    def is_contiguous(self) -> bool:
        return True


def torch_backend(ranks: int) -> None:
    """dist.all_reduce as PyTorch calls the backend, which cannot tell these arrays from tensors on a device."""
    from torch import distributed as dist

    backend = importlib.import_module("collectives.torch._backend")
    options = dist.AllreduceOptions()
    options.asyncOp = False
    timeout, members = timedelta(seconds=60), list(range(ranks))

    def work(comm: Any) -> None:
        if backend.IS_BACKEND:
            group = backend.Backend(comm, timeout, members, "fake")
        else:
            group = backend.ProcessGroup(dist.HashStore(), comm, timeout, members)
        for i in range(20):
            x = TorchLike(np.arange(300 + i, dtype=np.float32) + comm.rank, on=comm.rank)
            group.allreduce([x], options).wait()
            expected = ranks * np.arange(300 + i, dtype=np.float32) + sum(members)
            assert np.array_equal(read(x), expected), f"rank {comm.rank}, call {i}: {read(x)[:4]}"

    _checks().on_threads(ranks, work)


def wrong_streams() -> None:
    """Without the order of the streams of all replicas, the reduction reads too early: the fake sees it."""
    from collectives._devices import replicas

    kept = replicas._place
    first: list[Any] = []

    def one_stream(arrays: Any) -> tuple[int, int]:
        first.append(kept(arrays))
        return first[0]

    replicas._place = one_stream
    in_order = replicas._InOrder._wait
    replicas._InOrder._wait = staticmethod(lambda *_: None)  # type: ignore[assignment]
    try:
        run_check("reductions", 1, (7,), 2)
    except AssertionError:
        pass
    finally:
        replicas._place = kept
        replicas._InOrder._wait = in_order  # type: ignore[method-assign]
    fake().finish()
    assert "not ordered" in fake().errors()
