"""The arrays on devices of one call, checked before anything is sent."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import BackendError
from . import device_lookup, streams
from .adapted import type_name
from .device import DeviceArray, New
from .per_rank import PerRank


def items(x: Any) -> Sequence[Any]:
    """The arrays of an argument, which is a list, a tuple, one array, or None."""
    if isinstance(x, (list, tuple)):
        return x
    if isinstance(x, PerRank):
        return list(x)
    return [] if x is None else [x]


def any_on_device(*arguments: Any) -> bool:
    """Whether an array of the arguments is in the memory of a device."""
    return any(device_lookup.library_of(item) is not None for argument in arguments for item in items(argument))


def require_devices() -> None:
    """Raises BackendError where devices cannot be used: no CUDA build, no driver, no device."""
    if reason := _why_no_devices():
        raise BackendError(f"an array is in the memory of a CUDA device, and this process cannot use one: {reason}")


@functools.cache
def _why_no_devices() -> str:
    """The reason, empty where devices can be used. It does not change while the process lives."""
    status = _core._device_status()
    return "" if status["available"] else str(status["reason"])


class DeviceOperands:
    """The arguments ``x`` and ``out`` of a collective.

    Attributes:
        inputs: the arrays of ``x``.
        outs: those of ``out``, None where there is none.
    """

    def __init__(self, x: Any, out: Any, stream: Any) -> None:
        """Raises TypeError, ValueError and BackendError for what cannot be used."""
        self.x = x
        self.out = out
        named = _named(x, "x") + _named(out, "out")
        check_all_on_device(named)
        require_devices()
        handle = None if stream is None else streams.handle_of(stream)
        seen = [device_lookup.look(item, what) for item, what in named]
        if handle is not None:
            seen = [a.on(handle) for a in seen]
        _check_one_device(seen)
        for array in seen:
            if not array.dtype.isnative:
                raise TypeError(f"{array.what} has dtype {array.dtype} in the byte order of other machines")
        self.inputs: list[DeviceArray] = seen[: len(items(x))]
        self.outs: list[DeviceArray] | None = None if out is None else seen[len(items(x)) :]

    def targets(self, written: bool) -> list[DeviceArray | New]:
        """The arrays for results of the shapes of the inputs. Without ``written`` this rank gets no result.

        Raises TypeError or ValueError where results cannot be written.
        """
        given = self.inputs if self.outs is None else self.outs
        if written or self.outs is not None:
            check_writable(given, self.outs is not None)
        return [a if a.mutable or not written else a.library.new(a, a.shape, a.dtype) for a in given]


def check_writable(arrays: Sequence[DeviceArray], is_out: bool) -> None:
    """Raises TypeError or ValueError unless the arrays are writable and apart; immutable ones only as inputs."""
    for array in arrays:
        if not array.mutable and is_out:
            raise TypeError(
                f"{array.what} is an array whose values never change; leave out= away and use what the call returns"
            )
        if array.mutable and not array.writable:
            raise ValueError(f"{array.what} is read-only and would be written; pass a writable array, or out=")
    pieces = sorted((a for a in arrays if a.nbytes and a.mutable), key=lambda a: a.pointer)
    for before, after in itertools.pairwise(pieces):
        if before.pointer + before.nbytes > after.pointer:
            raise ValueError(
                f"{before.what} and {after.what} share memory that would be written; pass arrays that do not overlap"
            )


def stand_ins(arrays: Sequence[DeviceArray]) -> list[npt.NDArray[Any]]:
    """Host arrays of the same shapes and dtypes that allocate nothing, for checks."""
    return [_stand_in(a.dtype, a.shape) for a in arrays]


@functools.lru_cache(4096)
def _stand_in(dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.broadcast_to(np.empty((), dtype), shape)


def _named(argument: Any, what: str) -> list[tuple[Any, str]]:
    if isinstance(argument, (list, tuple)):
        return [(item, f"{what}[{i}]") for i, item in enumerate(argument)]
    return [] if argument is None else [(argument, what)]


def check_all_on_device(named: Sequence[tuple[Any, str]]) -> None:
    """Raises TypeError where some of the arrays are on a device and others are not."""
    there = [what for item, what in named if device_lookup.library_of(item) is not None]
    for item, what in named:
        if device_lookup.library_of(item) is None:
            library = next(found for other, _ in named if (found := device_lookup.library_of(other)) is not None)
            raise TypeError(
                f"{what} is a {type_name(item)} that is not on a device, and {there[0]} is on one; one call takes "
                f"arrays of one place: copy {what} to the device, or the others to the host ({library.copy_to_host})"
            )


def _check_one_device(arrays: Sequence[DeviceArray]) -> None:
    known = [a for a in arrays if a.device >= 0]
    for array in known:
        if array.device != known[0].device:
            raise ValueError(
                f"{array.what} is on device {array.device} and {known[0].what} on device {known[0].device}; one call "
                "of a rank takes arrays of one device: pass copies on one, or make a call for each. (Lists with one "
                "array per replica go to collectives.cross_device_ops.)"
            )
