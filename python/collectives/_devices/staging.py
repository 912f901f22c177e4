"""Copies between device arrays and pinned memory of the host, in the order of the caller's streams.

Devices copy from and to pinned memory by themselves. These functions queue copies in streams and return; only
``copy_to_host`` waits, for its own copies, because the host reads them next.
"""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from .._arrays.device import DeviceArray
from ..errors import BackendError, DeadlineError

_ALIGNMENT = 64  # bytes
_SLICE = 0.1  # seconds of one wait; Ctrl-C is handled in between

_lock = threading.Lock()
# For each (stream, device), in its order: (event, objects to keep alive until it is done).
_held: dict[tuple[int, int], collections.deque[tuple[_core._DeviceEvent, object]]] = {}
_lost: list[object] = []  # objects to keep alive for ever


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A new array in pinned memory, which is reused when the last view of it is gone and its copies are done."""
    return _all_empty([(shape, dtype)])[0]


def empty_like(arrays: Sequence[DeviceArray]) -> list[npt.NDArray[Any]]:
    """New arrays in one block of pinned memory."""
    return _all_empty([(a.shape, a.dtype) for a in arrays])


def _all_empty(wanted: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[npt.NDArray[Any]]:
    places = []
    end = 0
    for shape, dtype in wanted:
        nbytes = math.prod(shape) * dtype.itemsize
        places.append((end, end + nbytes))
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    buffer: Any = _core._PinnedBuffer(end) if end else bytearray()
    memory = np.frombuffer(buffer, np.uint8)
    return [
        memory[begin:stop].view(dtype).reshape(shape)
        for (begin, stop), (shape, dtype) in zip(places, wanted, strict=True)
    ]


def _buffer_of(host: npt.NDArray[Any]) -> tuple[_core._PinnedBuffer, int]:
    """The pinned memory of an array from ``empty``, or of a view of one, and the offset of the array in it."""
    memory: Any = host
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    buffer = memory.base.obj
    assert isinstance(buffer, _core._PinnedBuffer)
    return buffer, int(host.ctypes.data - memory.ctypes.data)


def refuse_graphs(arrays: Sequence[DeviceArray]) -> None:
    """Raises BackendError when one of the streams is being recorded into a CUDA graph."""
    for array in {(a.device, a.stream): a for a in arrays if a.nbytes}.values():
        if _core._device_capturing(array.stream, array.device):
            raise BackendError(
                f"the stream of {array.what} is being recorded into a CUDA graph, and this call needs the host, which "
                "takes no part in a graph; make the call outside of the graph"
            )


def copy_to_host(arrays: Sequence[DeviceArray], timeout: float) -> list[npt.NDArray[Any]]:
    """Copies the arrays into pinned memory and waits for the copies.

    Args:
        arrays: each is copied in the order of its stream.
        timeout: seconds that earlier work in the streams may take.

    Raises:
        DeadlineError: it took longer.
        BackendError: the device refused, or a stream is being recorded into a CUDA graph.
    """
    full = [a for a in arrays if a.nbytes]
    refuse_graphs(full)
    hosts = empty_like(arrays)
    for array, host in zip(arrays, hosts, strict=True):
        if array.nbytes:
            buffer, offset = _buffer_of(host)
            buffer.copy_in(offset, array.pointer, array.nbytes, array.stream, array.device)
    if full:
        _wait(_buffer_of(next(h for h in hosts if h.nbytes))[0], full[0].device, timeout)
    return hosts


def copy_to_device(hosts: Sequence[npt.NDArray[Any]], arrays: Sequence[DeviceArray]) -> None:
    """Queues copies from pinned memory in the streams of the arrays, and returns at once."""
    for host, array in zip(hosts, arrays, strict=True):
        if array.nbytes:
            buffer, offset = _buffer_of(host)
            buffer.copy_out(offset, array.pointer, array.nbytes, array.stream, array.device)


def record_events(arrays: Sequence[DeviceArray]) -> list[tuple[DeviceArray, _core._DeviceEvent]]:
    """Records an event in each stream of the arrays; returns each with an array of its stream."""
    first = {(a.device, a.stream): a for a in reversed(arrays) if a.nbytes}
    return [(a, _core._DeviceEvent(a.stream, a.device)) for a in first.values()]


class OneStream:
    """A context manager that runs a call on arrays of several streams in one: the stream of the first array.

    On entry that stream waits for the others. On exit the others wait for it, and the arrays are kept alive until the
    device has finished the call.

    Attributes:
        stream: as a number.
        event: recorded behind the call, on exit.
    """

    event: _core._DeviceEvent

    def __init__(self, device: int, arrays: Sequence[DeviceArray]) -> None:
        self.stream = arrays[0].stream
        self._device = device
        self._arrays = arrays
        self._others = [s for s in dict.fromkeys(a.stream for a in arrays) if s != self.stream]

    def __enter__(self) -> OneStream:
        for other in self._others:
            _core._DeviceEvent(other, self._device).stream_wait(self.stream, self._device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # Other ranks may still access these arrays, at a time that this rank cannot know: keep them for ever.
            with _lock:
                _lost.append([a.owner for a in self._arrays])
            return
        self.event = _core._DeviceEvent(self.stream, self._device)
        for other in self._others:
            self.event.stream_wait(other, self._device)
        if not _core._device_capturing(self.stream, self._device):  # the owner of a graph keeps its memory
            hold(self.event, (self.stream, self._device), [a.owner for a in self._arrays])


def hold(event: _core._DeviceEvent, place: tuple[int, int], things: object) -> None:
    """Keeps objects alive until the device reaches the event, and releases those of earlier events that are done.

    Args:
        event: recorded in a stream.
        place: the stream and its device. Events of a place are done in their order, so only the oldest of each is
            queried: a query takes a microsecond, and thousands may be pending.
        things: the objects.
    """
    over: list[object] = []
    with _lock:
        _held.setdefault(place, collections.deque()).append((event, things))
        for other, queue in list(_held.items()):
            while queue and _is_over(queue[0][0]):
                over.append(queue.popleft())
            if not queue:
                del _held[other]
    del over  # outside of the lock: freeing objects may run other code


def _is_over(event: _core._DeviceEvent) -> bool:
    """Whether the event is done. False where the device has failed, since it may still access the memory."""
    try:
        return event.done()
    except BackendError:
        return False


def _wait(buffer: _core._PinnedBuffer, device: int, timeout: float) -> None:
    end = time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        try:
            buffer.wait(min(_SLICE, max(left, 0.0)))
        except DeadlineError:
            if left <= _SLICE:
                raise DeadlineError(
                    f"the work that was put into the stream of device {device} before this call was not done after "
                    f"{timeout} s; nothing was sent. Look for a kernel that does not end, or allow more time by "
                    "timeout="
                ) from None
        else:
            return
