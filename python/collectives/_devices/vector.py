"""Vector collectives on device arrays, by NCCL or directly between devices.

``_calls.vector`` computes shapes and cuts host arrays into the pieces of each rank. Here it gets stand-ins: host arrays
of the same shapes that are never read or written. The address of a piece of a stand-in gives that of the piece on the
device.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .. import _core
from .._arrays.device import DeviceArray, New
from .._arrays.device_operands import DeviceOperands
from .._calls import vector
from .._calls.arguments import Array
from .._calls.spans import Span, overlaps
from . import staging

if TYPE_CHECKING:
    from .._calls.layout import Counts
    from ..communicator import Communicator


T = TypeVar("T")


class _StandIns:
    """Host arrays that stand for arrays on a device."""

    def __init__(self) -> None:
        self._known: list[tuple[int, int, int]] = []  # host addresses (begin, end) and the pointer on the device

    def add(self, array: DeviceArray) -> Array:
        made: Array = np.empty(array.shape, array.dtype)
        if array.nbytes:
            begin = made.ctypes.data
            bisect.insort(self._known, (begin, begin + array.nbytes, array.pointer))
        return made

    def find(self, piece: Array) -> tuple[int, int]:
        """The device pointer and the bytes of a piece."""
        begin = piece.ctypes.data
        at = bisect.bisect_right(self._known, begin, key=lambda known: known[0])
        if not piece.nbytes or at == 0 or begin >= self._known[at - 1][1]:
            return 0, 0
        low, _, pointer = self._known[at - 1]
        return pointer + begin - low, piece.nbytes


class _Started:
    """What ``_calls.vector`` gets instead of the engine's work: the call is queued in the streams of all ranks."""

    def wait(self, timeout: float) -> bool:
        return True


class NotDoneError(Exception):
    """The call cannot run this way; raised on every rank, before anything was done."""


@dataclass(frozen=True)
class VectorCall:
    """One vector collective of one rank.

    Attributes:
        collective, op, root, timeout, name, factor: as the engine takes them.
        lengths: see ``_calls.layout.lengths``.
        inputs, outputs: the arrays.
        given, got: pointers and bytes of their pieces, in the order of the parts.
    """

    collective: str
    op: str
    root: int
    timeout: float | None
    name: str | None
    factor: float | None
    lengths: list[int]
    inputs: list[DeviceArray]
    outputs: list[DeviceArray]
    given: list[tuple[int, int]]
    got: list[tuple[int, int]]


def run(
    comm: Communicator,
    collective: Callable[..., Any],
    x: Any,
    out: Any,
    operands: DeviceOperands,
    counts: Counts,
    options: vector.Options,
    in_container: Callable[[Any, list[Any]], Any],
    launch: Callable[[VectorCall], T | None],
) -> tuple[Any, T, list[DeviceArray]]:
    """One collective of ``_calls.vector``.

    Args:
        collective: of ``_calls.vector``.
        x, out: as the caller gave them, None where they do not count.
        operands: their arrays.
        in_container: puts arrays into a container like that of the first argument.
        launch: queues the call in the streams of the arrays; returns None on all ranks where it cannot.

    Returns:
        the result, what ``launch`` returned, and the arrays that were written.

    Raises:
        NotDoneError: ``launch`` returned None.
    """
    stand_ins = _StandIns()
    inputs = [stand_ins.add(a) for a in operands.inputs]
    # An output that overlaps an input gets new memory: other ranks may still read the input when it is written.
    outs = operands.outs or []
    shared = {i for i, _ in overlaps(_spans(outs), _spans(operands.inputs))}
    apart = [a.library.new(a, a.shape, a.dtype).array if i in shared else a for i, a in enumerate(outs)]
    targets = [stand_ins.add(a) for a in apart]
    made: list[New] = []
    launched: list[T] = []

    def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        like = operands.inputs[len(made) % len(operands.inputs)]
        made.append(like.library.new(like, shape, dtype))
        return stand_ins.add(made[-1].array)

    def start(name: str, sources: Sequence[Array], results: Sequence[Array], *rest: Any) -> _Started:
        op, root, _, _, timeout, label, _, lengths, factor = rest
        outputs = apart if operands.outs is not None else [m.array for m in made]
        given, got = ([stand_ins.find(piece) for piece in pieces] for pieces in (sources, results))
        what = VectorCall(name, op, root, timeout, label, factor, lengths, operands.inputs, outputs, given, got)
        done = launch(what)
        if done is None:
            raise NotDoneError
        launched.append(done)
        return _Started()

    returned = collective(
        comm,
        None if x is None else in_container(x, inputs),
        None if out is None else in_container(out, targets),
        counts,
        replace(options, empty=empty, start=start, async_op=False),
    )
    moved = [(to, source) for to, source in zip(outs, apart, strict=True) if to is not source and to.nbytes]
    for to, source in moved:
        with staging.OneStream(to.device, [to, source]) as one:
            _core._device_copy(to.pointer, source.pointer, to.nbytes, one.stream, to.device)
    if out is not None:
        return out, launched[0], outs
    return (
        (None if returned is None else in_container(x, [m.finish() for m in made])),
        launched[0],
        [m.array for m in made],
    )


def _spans(arrays: Sequence[DeviceArray]) -> list[Span]:
    return [(a.pointer, a.pointer + a.nbytes) for a in arrays]
