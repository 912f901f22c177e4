"""Calls on device arrays by NCCL: passes the arrays to ``nccl`` in the order of the caller's streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core
from .._arrays.device import DeviceArray
from .._arrays.device_operands import stand_ins
from .._calls.arguments import DTYPES
from ..work import Work
from . import nccl, staging

if TYPE_CHECKING:
    from ..communicator import Communicator
    from .vector import VectorCall


@dataclass(frozen=True)
class Call:
    """A call that is queued in a stream.

    Attributes:
        work: from ``nccl.run``.
        arrays: its inputs and outputs.
        event: recorded in the stream behind the call.
    """

    work: Any
    arrays: Sequence[DeviceArray]
    event: Any


def wanted(comm: Communicator, collective: str, op: str, arrays: Sequence[DeviceArray]) -> bool:
    """Whether the call runs by NCCL, the same on all ranks; see ``nccl.wanted``."""
    # Arrays without a device have no elements, and that holds on all ranks alike.
    if not any(a.device >= 0 for a in arrays) and comm._nccl.rank is None:
        return False
    if not nccl.wanted(comm, _device_of(comm, arrays)):
        return False
    # With transport "nccl", the call itself raises the error about what NCCL lacks.
    return comm._nccl.transport == "nccl" or not nccl.lacks(collective, op, _name(arrays[0]))


def run(
    comm: Communicator,
    collective: str,
    inputs: Sequence[DeviceArray],
    outputs: Sequence[DeviceArray],
    options: dict[str, Any],
) -> Call:
    """Queues the call in the stream of the first array, ordered after the streams of all; see ``nccl.run``."""
    arrays = [*inputs, *outputs]
    device = _device_of(comm, arrays)
    with staging.OneStream(device, arrays) as one:
        work = nccl.run(
            comm,
            collective,
            [_operand(a) for a in inputs],
            [_operand(a) for a in outputs],
            stream=one.stream,
            device=device,
            **options,
        )
    return Call(work, arrays, one.event)


def vector(comm: Communicator, call: VectorCall) -> Call:
    """A vector collective; see ``run``."""
    options = {
        "op": call.op, "root": call.root, "counts": call.lengths, "timeout": call.timeout, "name": call.name,
        "factor": call.factor,
    }  # fmt: skip
    return run(comm, call.collective, call.inputs, call.outputs, options)


class NcclWork(Work):
    """An NCCL call in flight. Its results are ready in stream order; the host does not wait for the streams."""

    def __init__(self, call: Call, result: Any, stream: Any) -> None:
        super().__init__(call.work, lambda: result)
        self._call = call
        self._stream = stream
        self._result = result

    def wait(self, timeout: float | None = None) -> None:
        """Makes the current stream wait for the call. Raises its error where it has failed by now."""
        if self._work.done():
            self._work.wait(0.0)
        for array in self._call.arrays[:1] if self._stream is None else []:
            current = array.library.current_stream(array.device)
            if current not in (None, array.stream):
                self._call.event.stream_wait(current, array.device)

    @property
    def algorithm(self) -> str:
        """NCCL chooses for itself."""
        return "nccl"


def _device_of(comm: Communicator, arrays: Sequence[DeviceArray]) -> int:
    """The device of the arrays; where all are empty, the one of this rank."""
    known = [a.device for a in arrays if a.device >= 0]
    if known:
        return known[0]
    return 0 if comm._nccl.rank is None else int(comm._nccl.rank.device)


def _name(array: DeviceArray) -> str:
    return DTYPES[_core._dtype_of(stand_ins([array])[0])]


def _operand(array: DeviceArray) -> nccl.Operand:
    elements = array.nbytes // array.dtype.itemsize
    return array.pointer, elements, _name(array)
