"""Arrays on fake devices, for the tests of calls on them. For processes that have loaded the fake (fake_devices.py)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from collectives import _core
from collectives._devices import peers, staging
from fake_devices import Fake

Array = np.ndarray[Any, Any]
POISON = 0xA5


@functools.cache
def fake() -> Fake:
    return Fake()


@functools.cache
def _stream(number: int, device: int) -> int:
    return fake().stream(device)


def stream(number: int, device: int = 0) -> int:
    """A stream of the test, the same for the same number."""
    return _stream(number, device)


class OnDevice:
    """An array of a library without a name: it shows itself by ``__cuda_array_interface__``.

    Its values are computed in its stream, late.
    """

    def __init__(self, values: Array, device: int = 0, on: int = 0, mode: int | None = None) -> None:
        """``on``: the number of its stream; ``mode``: a default stream instead."""
        values = np.asarray(values)
        self.shape, self.dtype, self.device = values.shape, values.dtype, device
        self.stream = stream(on, device) if mode is None else mode
        self.pointer = int(fake().library.fake_allocate(device, max(values.nbytes, 1)))
        self.changes: dict[str, Any] = {}  # of what it shows
        self.set(values)

    def __del__(self) -> None:
        fake().library.fake_release(self.pointer)

    def set(self, values: Array) -> None:
        """The caller's own work in the stream: writes the values."""
        values = np.ascontiguousarray(values)
        if values.nbytes:
            fake().library.fake_produce(self.pointer, values.ctypes.data, values.nbytes, self.stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "stream": self.stream,
            **self.changes,
        }


class ByDlpack:
    """The same, shown by DLPack: the stream of the consumer is made to wait."""

    def __init__(self, values: Array, device: int = 0) -> None:
        self.base = OnDevice(values, device, on=8)
        self.kind = 2

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.base.device

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object:
        from collectives._arrays.device_interface import dlpack_dtype

        base = self.base
        _core._DeviceEvent(base.stream, base.device).stream_wait(stream or 1, base.device)
        kind = dlpack_dtype(base.dtype)
        return _core._to_dlpack(base, base.pointer, self.kind, base.device, base.shape, *kind)


def make(values: Array, rank: int = 0, device: int = 0) -> Any:
    """An array of the kind that can show its dtype."""
    extended = values.dtype.name == "bfloat16" or "float8" in values.dtype.name
    return ByDlpack(values, device) if extended else OnDevice(values, device, on=rank)


def read(x: Any) -> Array:
    """The values of an array on a device, read by work of the caller in its stream."""
    seen = x.base if isinstance(x, ByDlpack) else x
    result = (
        np.full(seen.shape, POISON, np.uint8).astype(seen.dtype) if seen.dtype != bool else np.zeros(seen.shape, bool)
    )
    if result.nbytes:
        device, reader = seen.device, seen.stream
        # Default streams are those of a device; results by DLPack come in one.
        before = [seen.stream, 1] if isinstance(x, ByDlpack) else [seen.stream] if seen.stream <= 2 else []
        for other in before:
            reader = stream(6, device)
            _core._DeviceEvent(other, device).stream_wait(reader, device)
        fake().library.fake_consume(result.ctypes.data, seen.pointer, result.nbytes, reader)
        fake().finish()
    return result


def copied() -> int:
    """How many copies were put into streams so far."""
    return fake().calls("copy")


@contextlib.contextmanager
def staged() -> Iterator[None]:
    """Ranks do not find that they reach each other's memory."""
    kept = peers.find
    peers.find = lambda comm, device: None
    try:
        yield
    finally:
        peers.find = kept


@contextlib.contextmanager
def never_staged() -> Iterator[None]:
    """Nothing goes through the memory of the host."""
    kept = staging.copy_to_host

    def bring(*_: Any) -> Any:
        raise AssertionError("staged")

    staging.copy_to_host = bring
    try:
        yield
    finally:
        staging.copy_to_host = kept


def run_case(comm: Any, case: Callable[..., None], *arguments: Any) -> None:
    """On a rank process of the pool: the case, and whether anything was not ordered."""
    fake().errors()
    case(*arguments)
    fake().finish()
    fake().check()


def on_this_rank(comm: Any, case: Callable[..., None], *arguments: Any) -> None:
    """The same for cases of all ranks."""
    run_case(comm, functools.partial(case, comm), *arguments)
