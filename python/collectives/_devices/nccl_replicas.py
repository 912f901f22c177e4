"""NCCL between the devices of one process: one NCCL rank for each device, all called by one thread.

One process makes all calls, so nothing is compared between ranks. Operations in flight are monitored as between
processes.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core
from .._arrays.device import DeviceArray
from .._arrays.device_lookup import library_of
from .._arrays.device_lookup import look as look_at
from .._calls.options import CallOptions
from .._calls.replicas import OPS, as_sequence, count_destinations, integer
from ..errors import BackendError
from . import nccl, staging

TIMEOUT = 600.0  # seconds, as for collectives between processes

_lock = threading.Lock()
_groups: dict[tuple[int, ...], list[_core.Nccl]] = {}  # by device


def reduce(
    op: str, pairs: Sequence[tuple[Sequence[Any], Sequence[int] | None]], where: Sequence[str], packs: int
) -> list[list[Any]]:
    """See ``CrossDeviceOps.batch_reduce``; `where` names each pair in errors."""
    tensors = [_alike(op, values, w) for (values, _), w in zip(pairs, where, strict=True)]
    devices = [a.device for a in tensors[0]]
    for arrays, w in zip(tensors, where, strict=True):
        if [a.device for a in arrays] != devices:
            raise ValueError(f"{w}the values are on devices {[a.device for a in arrays]}, those of pair 0 on {devices}")
    check_devices(devices, where[0])
    wanted = [
        list(range(len(devices))) if to is None else list(to)
        for (_, to), w in zip(pairs, where, strict=True)
        if to is None or count_destinations(to, len(devices), w)
    ]
    made = [[a.library.new(a, a.shape, a.dtype) for a in arrays] for arrays in tensors]
    # One NCCL group call for each pack and dtype: a list with the call of each replica.
    calls = []
    for begin, end in _packs(len(tensors), packs):
        for dtype in dict.fromkeys(arrays[0].dtype for arrays in tensors[begin:end]):
            chosen = [t for t in range(begin, end) if tensors[t][0].dtype == dtype]
            calls.append(
                [
                    call(
                        "all_reduce",
                        [tensors[t][r] for t in chosen],
                        [made[t][r].array for t in chosen],
                        op=OPS[op],
                        stream=tensors[0][r].stream,
                    )
                    for r in range(len(devices))
                ]
            )
    start(devices, calls, [[*(a[r] for a in tensors), *(m[r].array for m in made)] for r in range(len(devices))])
    finished = [[new.finish() for new in news] for news in made]
    return [[results[r] for r in to] for results, to in zip(finished, wanted, strict=True)]


def broadcast(value: Any, destinations: Sequence[int]) -> list[Any]:
    """See ``CrossDeviceOps.broadcast``."""
    count_destinations(destinations, None, "")
    (source,) = look([value], "", "value")
    devices = list(dict.fromkeys([source.device, *(int(d) for d in destinations)]))
    made = {}
    for device in devices:
        stream = source.stream if device == source.device else source.library.current_stream(device) or 0
        like = dataclasses.replace(source, device=device, stream=stream)
        made[device] = like.library.new(like, source.shape, source.dtype)
    calls = [call("broadcast", [source] if device == source.device else [], [made[device].array]) for device in devices]
    start(devices, [calls], [[*([source] if d == source.device else []), made[d].array] for d in devices])
    finished = {device: new.finish() for device, new in made.items()}
    return [finished[int(d)] for d in destinations]


def gather(values: Sequence[Any], axis: int, destinations: Sequence[int] | None) -> list[Any]:
    """See ``CrossDeviceOps.gather``."""
    arrays = look(as_sequence(values, ""), "")
    first = arrays[0]
    if integer(axis, "axis") not in (0, -len(first.shape)) or not first.shape:
        raise ValueError(f"axis is {axis} and value 0 has shape {first.shape}; NCCL joins along axis 0 only")
    for i, array in enumerate(arrays):
        if array.dtype != first.dtype or array.shape[1:] != first.shape[1:] or not array.shape:
            raise ValueError(
                f"value {i} has shape {array.shape} and dtype {array.dtype}, value 0 has {first.shape} and "
                f"{first.dtype}; they may differ in the length of axis 0 only"
            )
    check_devices([a.device for a in arrays], "")
    chosen = list(range(len(arrays))) if destinations is None else list(destinations)
    count_destinations(chosen, len(arrays), "")
    shape = (sum(a.shape[0] for a in arrays), *first.shape[1:])
    made = [a.library.new(a, shape, a.dtype) for a in arrays]
    lengths = [int(np.prod(a.shape, dtype=np.int64)) for a in arrays]
    calls = [call("all_gather", [a], [new.array], lengths=lengths) for a, new in zip(arrays, made, strict=True)]
    start([a.device for a in arrays], [calls], [[a, new.array] for a, new in zip(arrays, made, strict=True)])
    finished = [new.finish() for new in made]
    return [finished[int(d)] for d in chosen]


def _alike(op: str, values: Sequence[Any], where: str) -> list[DeviceArray]:
    """The arrays of one tensor, of one shape and dtype that `op` can reduce."""
    arrays = look(as_sequence(values, where), where)
    first = arrays[0]
    for i, array in enumerate(arrays):
        if array.shape != first.shape or array.dtype != first.dtype:
            raise (TypeError if array.dtype != first.dtype else ValueError)(
                f"{where}value {i} has shape {array.shape} and dtype {array.dtype}, value 0 has {first.shape} and "
                f"{first.dtype}; they must be the same"
            )
    if (op == "mean" and first.dtype.kind in "iub") or (op == "sum" and first.dtype.kind == "b"):
        raise TypeError(f"{where}{op} of {first.dtype} has no meaning for NCCL; cast to a floating-point dtype first")
    return arrays


def _packs(tensors: int, packs: int) -> list[tuple[int, int]]:
    """Begin and end of each pack; the remainder goes to the last."""
    size = max(tensors // packs, 1)
    count = min(packs, tensors)
    return [(p * size, tensors if p == count - 1 else (p + 1) * size) for p in range(count)]


def look(values: Sequence[Any], where: str, what: str = "value {}") -> list[DeviceArray]:
    """The memory of arrays on devices.

    Raises:
        TypeError: one of them is in the memory of the host.
    """
    found = []
    for i, value in enumerate(values):
        name = f"{where}{what.format(i)}"
        if library_of(value) is None:
            raise TypeError(
                f"{name} is a {type(value).__name__} in the memory of the host; NcclAllReduce is for arrays on GPUs: "
                "use RingAllReduce, HierarchicalCopyAllReduce or ReductionToOneDevice"
            )
        found.append(look_at(value, name))
    return found


def check_devices(devices: Sequence[int], where: str) -> None:
    """Raises BackendError where a device is listed twice."""
    for i, device in enumerate(devices):
        first = list(devices).index(device)
        if first != i:
            bus, version = _core._device_bus_id(device), nccl.status()["version"]
            raise BackendError(where + nccl.one_device_twice(f"values {first} and {i}", bus, version or "2"))


def start(
    devices: Sequence[int], calls: Sequence[Sequence[tuple[Any, ...]]], arrays: Sequence[Sequence[DeviceArray]]
) -> None:
    """Queues calls in the streams of the devices.

    Args:
        devices: one for each rank.
        calls: a list for each NCCL group call, with the call of each rank as ``_core.Nccl.run`` takes it.
        arrays: of each rank; its calls go into the stream of the first.
    """
    with _lock, contextlib.ExitStack() as stack:
        for device, own in zip(devices, arrays, strict=True):
            stack.enter_context(staging.OneStream(device, own))
        ranks = _connect(tuple(devices))
        for group in calls:
            _core._nccl_run_group(ranks, group)


def call(
    collective: str,
    inputs: Sequence[DeviceArray],
    outputs: Sequence[DeviceArray],
    *,
    op: str = "sum",
    root: int = 0,
    lengths: Sequence[int] | None = None,
    stream: int | None = None,
) -> tuple[Any, ...]:
    """The call of one rank, in the given stream or that of its first array."""
    first = (*inputs, *outputs)[0]
    counts = [int(np.prod(a.shape, dtype=np.int64)) for a in inputs or outputs] if lengths is None else list(lengths)
    given, got = ([a.pointer for a in arrays] for arrays in (inputs, outputs))
    where = first.stream if stream is None else stream
    options = CallOptions(timeout=TIMEOUT, stream=where, op=op, root=root)
    return nccl.call_of(collective, given, got, counts, first.dtype.name, options)


def _connect(devices: tuple[int, ...]) -> list[_core.Nccl]:
    ranks = _groups.get(devices)
    if ranks is None or any(rank.failed for rank in ranks):
        ranks = _groups[devices] = _core._nccl_connect_devices(nccl.candidates(), list(devices), TIMEOUT)
    return ranks


@atexit.register
def _close() -> None:
    # At exit, while the driver is still loaded.
    for ranks in _groups.values():
        _core._nccl_close(ranks)
    _groups.clear()
