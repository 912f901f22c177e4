"""Collectives on device arrays among ranks that can address each other's device memory.

These are threads of one process, and processes of one host whose devices have peer access. The communicator carries
pointers and events; the data go directly between devices (``csrc/device/peers.h``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .. import _core
from .._arrays.device import DeviceArray
from .._arrays.device_operands import stand_ins
from .._calls.arguments import DTYPES
from ..errors import BackendError, MismatchError
from ..work import Work
from . import staging

if TYPE_CHECKING:
    from ..communicator import Communicator
    from .vector import VectorCall

_GRACE = 10.0  # seconds for devices to finish operations that started before a failure

Memory = Sequence["tuple[int, int]"]  # pointers and bytes


@dataclass(frozen=True)
class Call:
    """One collective of one rank.

    Attributes:
        collective, op, dtype: as the core names them.
        root: 0 where there is none.
        count: elements of each rank in a dense collective, of all parts together in a vector collective.
        counts: elements of the parts, as in ``Problem::counts``; empty in a dense collective.
        factor: by which ``premul_sum`` multiplies the values of this rank.
        inputs, outputs: pointers and bytes; the same list when in place.
        stream: of the caller.
        shapes: of the inputs, where ranks must agree on them.
    """

    collective: str
    op: str
    dtype: str
    root: int
    count: int
    counts: Sequence[int]
    factor: float
    inputs: Memory
    outputs: Memory
    stream: int
    shapes: Sequence[tuple[int, ...]] = ()


def find(comm: Communicator, device: int) -> _core._DevicePeers | None:
    """The peer access of this rank to the memory of all others, or None where a rank has none.

    The first call on a communicator is collective; the answer is the same on every rank and is kept.

    Args:
        comm: the communicator.
        device: the number of the device of this rank; -1 when its arrays are empty and do not say.

    Raises:
        ValueError: this rank's earlier calls were on another device.
    """
    known = comm._device_peers
    if not known:
        # Transport "tcp" rules out peer access, too.
        if comm._nccl.transport == "tcp" or len(set(comm._host)) > 1:
            known[device] = None
        elif (found := _connect(comm, device)) == "unknown":
            return None  # the arrays of a later call may tell the device
        else:
            known[device] = found
    (used,) = known
    if device not in (used, -1) and known[used] is not None:
        raise ValueError(
            f"the arrays are on device {device}, and rank {comm.rank} has used device {used} in this communicator "
            "before; a rank keeps to one device (comm.dup() makes another communicator)"
        )
    return known[used]


def _connect(comm: Communicator, device: int) -> _core._DevicePeers | Literal["unknown"] | None:
    """What ``find`` returns; "unknown" when the arrays of some rank do not tell their device."""
    peers: _core._DevicePeers | None = None
    endpoint = bytes(_core._device_endpoint_bytes())
    try:
        if device >= 0:
            peers = _core._DevicePeers(comm.rank, comm.size, device)
            endpoint = peers.endpoint()
    except BackendError:
        peers = None  # the all_reduce below tells all ranks
    endpoints = comm.all_gather(np.frombuffer(endpoint, np.uint8), name="device endpoints")
    able = peers is not None and not peers.connect(endpoints.tobytes())
    all_able, all_known = comm.all_reduce(np.array([able, device >= 0], np.int32), op="min", name="device peers")
    if not all_known:
        return "unknown"
    return peers if all_able else None


def leave(comm: Communicator) -> None:
    """Waits for operations in flight on peer memory, since a process that ends frees the memory that others access.

    It waits as long as a collective may take, but only a few seconds after a failure.
    """
    about = _core._describe(comm)
    if about["closed"] or os.getpid() != comm._pid:
        return
    for peers in comm._device_peers.values():
        if peers is not None:
            with contextlib.suppress(BackendError):  # the device has failed; the calls have raised that
                peers.wait(_GRACE if about["failed"] else float(about["timeout"]))


def run(comm: Communicator, peers: _core._DevicePeers, call: Call, timeout: float | None, name: str | None) -> bool:
    """Queues the collective in the caller's stream; returns when all ranks have done so.

    Returns:
        False, on every rank, when nothing was done because the memory of some rank cannot be exported to other
        processes: memory of a pool, or of expandable segments.

    Raises:
        MismatchError: the ranks made different calls; on every rank.
        BackendError: the device of some rank refused; on every rank. The communicator is then closed.
    """
    label = name or f"{call.collective} on devices"
    try:
        head = np.frombuffer(peers.header(**vars(call)), np.uint8)
    except Exception:
        comm.close()  # the others wait for this rank
        raise
    heads = comm.all_gather(head, counts=head.size, timeout=timeout, name=label)
    try:
        rests = peers.check(heads.tobytes())
    except MismatchError as error:  # on every rank: all compare the same heads
        error.args = (f"{error}{_shape_difference(comm, call)}",)
        comm.close()
        raise
    if not rests:
        return False
    rest = b""
    if any(rests):
        own = np.frombuffer(peers.rest(), np.uint8)
        rest = comm.all_gather(own, counts=rests, timeout=timeout, name=label).tobytes()
    refused: Exception | None = None
    try:
        peers.run(rest)
    except Exception as error:  # raised below, when all ranks know of it
        refused = error
    failed = comm.all_reduce(np.array([comm.rank + 1 if refused else 0]), op="max", timeout=timeout, name=label)
    if failed[0]:
        comm.close()
        peer = int(failed[0]) - 1
        raise refused or BackendError(
            f"{call.collective} on devices: the device of rank {peer} refused; see the error there",
            rank=comm.rank,
            peer=peer,
            collective=call.collective,
            name=name,
        )
    try:
        peers.finish()
    except Exception:
        comm.close()
        raise
    return True


def _shape_difference(comm: Communicator, call: Call) -> str:
    """Names the first tensor whose shape differs from that of rank 0; empty where none does. A collective call."""
    first, *others = comm.all_gather_object([tuple(shape) for shape in call.shapes])
    for rank, shapes in enumerate(others, 1):
        for i, (ours, theirs) in enumerate(zip(first, shapes, strict=False)):
            if ours != theirs:
                return f"; tensor {i}: rank 0 has shape {ours}, rank {rank} has shape {theirs}"
    return ""


def dense(
    comm: Communicator,
    peers: _core._DevicePeers,
    collective: str,
    inputs: Sequence[DeviceArray],
    outputs: Sequence[DeviceArray],
    *,
    op: str,
    root: int,
    factor: float | None,
    timeout: float | None,
    name: str | None,
) -> staging.OneStream | None:
    """all_reduce, reduce or broadcast, in the order of the streams of the arrays; None where ``run`` returns False.

    Args:
        inputs: the arrays of this rank, of one dtype.
        outputs: the arrays for the results, which may be the inputs; empty where this rank gets no result.
    """
    arrays = [*inputs, *outputs]
    count = sum(a.nbytes for a in inputs) // inputs[0].dtype.itemsize
    dtype = dtype_of(inputs[0])
    given, got = ([(a.pointer, a.nbytes) for a in some] for some in (inputs, outputs))
    with staging.OneStream(peers.device, arrays) as one:
        call = Call(
            collective, op, dtype, root, count, [], 1.0 if factor is None else factor, given, got, one.stream,
            [a.shape for a in inputs] if _core._describe(comm)["compare_shapes"] else [],
        )  # fmt: skip
        done = run(comm, peers, call, timeout, name)
    return one if done else None


def vector(comm: Communicator, peers: _core._DevicePeers, vector_call: VectorCall) -> staging.OneStream | None:
    """A vector collective, in the order of the streams of the arrays; None where ``run`` returns False."""
    size = comm.size**2 if vector_call.collective == "all_to_all" else comm.size
    tensors = len(vector_call.lengths) // size
    counts = [sum(vector_call.lengths[i * tensors : (i + 1) * tensors]) for i in range(size)]
    arrays = [*vector_call.inputs, *vector_call.outputs]
    factor = 1.0 if vector_call.factor is None else vector_call.factor
    with staging.OneStream(peers.device, arrays) as one:
        call = Call(
            vector_call.collective, vector_call.op, dtype_of(arrays[0]), vector_call.root, sum(counts), counts, factor,
            vector_call.given, vector_call.got, one.stream,
        )  # fmt: skip
        done = run(comm, peers, call, vector_call.timeout, vector_call.name)
    return one if done else None


def dtype_of(array: DeviceArray) -> str:
    """The core's name of the dtype."""
    return DTYPES[_core._dtype_of(stand_ins([array])[0])]


class PeersWork(Work):
    """A call that all ranks have queued in their streams. Its results are ready in stream order."""

    def __init__(self, one: staging.OneStream, arrays: Sequence[DeviceArray], result: Any, stream: Any) -> None:
        """``stream`` is as the caller gave it; without one, ``wait`` makes the current stream wait for the call."""
        self._one = one
        self._arrays = arrays
        self._stream = stream
        self._result = result

    def wait(self, timeout: float | None = None) -> None:
        """Makes the current stream wait, not the host."""
        for array in self._arrays[:1] if self._stream is None else []:
            current = array.library.current_stream(array.device)
            if current not in (None, array.stream):
                self._one.event.stream_wait(current, array.device)

    def done(self) -> bool:
        """True when the device has finished the call."""
        return self._one.event.done()

    @property
    def algorithm(self) -> str:
        """ "peers": ranks reduce directly from each other's memory."""
        return "peers"
