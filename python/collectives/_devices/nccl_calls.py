"""Calls on device arrays by NCCL, in the order of the caller's streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._arrays.device import DeviceArray
from . import nccl, staging
from .backend import DeviceCall, Direct, InStream, dtype_of

if TYPE_CHECKING:
    from ..communicator import Communicator


def wanted(comm: Communicator, collective: str, op: str, arrays: Sequence[DeviceArray]) -> bool:
    """Whether the call runs by NCCL, the same on all ranks; see ``nccl.wanted``."""
    # Arrays without a device have no elements, and that holds on all ranks alike.
    if not any(a.device >= 0 for a in arrays) and comm._nccl.rank is None:
        return False
    if not nccl.wanted(comm, _device_of(comm, arrays)):
        return False
    # With transport "nccl", the call itself raises the error about what NCCL lacks.
    return comm._nccl.transport == "nccl" or not nccl.lacks(collective, op, dtype_of(arrays[0]))


class Nccl(Direct):
    """A call that is queued in the stream of its first array, ordered after the streams of all; see ``nccl.run``."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__()
        self._comm = comm

    def launch(self, call: DeviceCall) -> InStream:
        """See ``Direct``."""
        inputs = call.inputs if call.gives else []
        arrays = [*inputs, *call.outputs]
        device = _device_of(self._comm, arrays)
        with staging.OneStream(device, arrays) as one:
            work = nccl.run(
                self._comm,
                call.collective,
                [_operand(a) for a in inputs],
                [_operand(a) for a in call.outputs],
                call.lengths,
                call.options._replace(stream=one.stream),
                device=device,
                shapes=call.shapes,
            )
        return InStream("nccl", arrays[0], one.event, work)


def _device_of(comm: Communicator, arrays: Sequence[DeviceArray]) -> int:
    """The device of the arrays; where all are empty, the one of this rank."""
    known = [a.device for a in arrays if a.device >= 0]
    if known:
        return known[0]
    return 0 if comm._nccl.rank is None else int(comm._nccl.rank.device)


def _operand(array: DeviceArray) -> nccl.Operand:
    elements = array.nbytes // array.dtype.itemsize
    return array.pointer, elements, dtype_of(array)
