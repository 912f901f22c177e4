"""Reductions and copies of device arrays of one process, for ``cross_device_ops``.

The host waits for no device: inputs are read and results written in the order of the streams of their libraries. The
exception is the mean of integers, for which there is no kernel: the host computes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core
from .._arrays import device_lookup, device_operands
from .._arrays.device import DeviceArray, New
from .._arrays.device_operands import stand_ins
from .._calls.arguments import DTYPES
from .._calls.replicas import OPS, check_alike, check_reducible
from . import staging

_ALGORITHMS = {"chain": "ring", "halves": "hierarchical_copy", "canonical": "reduce_to_one"}
_PATIENCE = 600.0  # seconds that the mean of integers waits for its inputs


def seen(values: Sequence[Any], where: str, what: str = "value {}") -> list[DeviceArray]:
    """The arrays of all replicas, checked to be on devices. Raises TypeError, ValueError and BackendError."""
    named = [(value, f"{where}{what.format(i)}") for i, value in enumerate(values)]
    device_operands.check_all_on_device(named)
    device_operands.require_devices()
    return [device_lookup.look(value, name) for value, name in named]


def reduce(
    name: str,
    order: tuple[str, int],
    lists: Sequence[Sequence[Any]],
    owners: Sequence[Sequence[int]],
    where: Sequence[str],
) -> list[list[Any]]:
    """Reduces each list of arrays, one per replica, into a new array for each of its owners.

    Args:
        name: the op, as ``CrossDeviceOps`` has it.
        order: how values are combined, and the number of packs.
        lists: the arrays of each tensor.
        owners: the replicas that get the result of each tensor.
        where: names each tensor in errors.
    """
    tensors = [seen(values, w) for values, w in zip(lists, where, strict=True)]
    for arrays, w in zip(tensors, where, strict=True):
        stands = stand_ins(arrays)
        check_reducible(stands, w)
        check_alike(stands, name, len(tensors[0]), w)
    replicas = [_place([arrays[r] for arrays in tensors]) for r in range(len(tensors[0]))]
    results: list[list[New]] = []
    requests = []
    for arrays, wanted in zip(tensors, owners, strict=True):
        first = arrays[0]
        if name == "mean" and first.dtype.kind in "iu":
            results.append(_mean(arrays, wanted))
            continue
        made = [arrays[r].library.new(arrays[r], first.shape, first.dtype) for r in wanted]
        results.append(made)
        if first.nbytes:
            pointers = [m.array.pointer for m in made]
            dtype = DTYPES[_core._dtype_of(stand_ins([first])[0])]
            elements = first.nbytes // first.dtype.itemsize
            requests.append((OPS[name], dtype, elements, [a.pointer for a in arrays], pointers, list(wanted)))
    if requests:
        everything = [a for arrays in tensors for a in arrays] + [m.array for made in results for m in made]
        with _InOrder(everything, replicas):
            _core._reduce_device_replicas(
                order[0], order[1], _ALGORITHMS[order[0]], requests, [d for d, _ in replicas], [s for _, s in replicas]
            )
    return [[m.finish() for m in made] for made in results]


def broadcast(value: Any, count: int) -> list[Any]:
    """New copies of an array, on its device."""
    (array,) = seen([value], "", "value")
    made = [array.library.new(array, array.shape, array.dtype) for _ in range(count)]
    for target in made if array.nbytes else []:
        _core._device_copy(target.array.pointer, array.pointer, array.nbytes, array.stream, array.device)
    return [m.finish() for m in made]


def gather(arrays: Sequence[DeviceArray], axis: int, owners: Sequence[int]) -> list[Any]:
    """The arrays, whose shapes are checked already, joined along the axis, on the devices of the owners."""
    first = arrays[0]
    shape = tuple(sum(a.shape[axis] for a in arrays) if d == axis else n for d, n in enumerate(first.shape))
    made = [arrays[r].library.new(arrays[r], shape, first.dtype) for r in owners]
    rows = math.prod(shape[:axis])
    for target in [m.array for m in made if m.array.nbytes]:
        with _InOrder([*arrays, target], [(target.device, target.stream)]):
            begin = target.pointer
            for row in range(rows):
                for array in arrays:
                    nbytes = array.nbytes // rows
                    if nbytes:
                        source = array.pointer + row * nbytes
                        _core._device_copy(begin, source, nbytes, target.stream, target.device)
                    begin += nbytes
    return [m.finish() for m in made]


class _InOrder:
    """Orders work in the streams of some places after and before that in the streams of the arrays that it uses.

    A place is a device and a stream.
    """

    def __init__(self, arrays: Sequence[DeviceArray], places: Sequence[tuple[int, int]]) -> None:
        self._places = list(dict.fromkeys(places))
        used = dict.fromkeys((a.device, a.stream) for a in arrays if a.nbytes)
        self._others = [place for place in used if place not in self._places]
        # Kept alive until the work is done: libraries that do not know these streams could reuse the memory too early.
        elsewhere = bool(self._others) or not all(a.mutable for a in arrays)
        self._owners = [a.owner for a in arrays] if elsewhere else []

    def __enter__(self) -> None:
        self._wait(self._others, self._places)

    def __exit__(self, *_: object) -> None:
        self._wait(self._places, self._others)
        for number, stream in self._places if self._owners else []:
            if not _core._device_capturing(stream, number):
                staging.hold(_core._DeviceEvent(stream, number), (stream, number), self._owners)

    @staticmethod
    def _wait(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> None:
        for number, stream in before if after else []:
            event = _core._DeviceEvent(stream, number)
            for other, waiting in after:
                event.stream_wait(waiting, other)


def _place(arrays: Sequence[DeviceArray]) -> tuple[int, int]:
    """The device and the stream of a replica, whose arrays these are."""
    known = [a for a in arrays if a.device >= 0]
    for array in known:
        if array.device != known[0].device:
            raise ValueError(
                f"{array.what} is on device {array.device} and {known[0].what} on device {known[0].device}; all arrays "
                "of a replica are on one device"
            )
    return (known[0].device, known[0].stream) if known else (0, arrays[0].stream)


def _mean(arrays: Sequence[DeviceArray], owners: Sequence[int]) -> list[New]:
    """The mean of integers, whose sum wraps, as ``CrossDeviceOps`` has it."""
    hosts = staging.copy_to_host(arrays, _PATIENCE)
    dtype = np.dtype(np.float64 if hosts[0].dtype.itemsize >= 4 else np.float32)
    mean = staging.empty(hosts[0].shape, dtype)
    np.true_divide(np.add.reduce(hosts, 0, dtype=hosts[0].dtype), len(hosts), out=mean, dtype=dtype)
    made = [arrays[r].library.new(arrays[r], mean.shape, dtype) for r in owners]
    staging.copy_to_device([mean] * len(made), [m.array for m in made])
    return made
