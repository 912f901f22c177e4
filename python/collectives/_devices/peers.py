"""Collectives on device arrays among ranks that can address each other's device memory.

These are threads of one process, and processes of one host whose devices have peer access. The communicator carries
pointers and events; the data go directly between devices (``csrc/device/peers.h``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from .. import _core
from .._calls.options import CallOptions
from .._startup.settings import rules_out_shared_memory
from ..errors import BackendError, MismatchError
from . import staging
from .backend import DeviceCall, Direct, InStream, dtype_of

if TYPE_CHECKING:
    from ..communicator import Communicator

_GRACE = 10.0  # seconds for devices to finish operations that started before a failure

Memory = Sequence["tuple[int, int]"]  # pointers and bytes


@dataclass(frozen=True)
class Call:
    """One collective of one rank.

    Attributes:
        collective, dtype: as the core names them.
        inputs, outputs: pointers and bytes; the same list when in place.
        counts: elements of the parts, as in ``Problem::counts``; empty in a dense collective.
        shapes: of the inputs, where ranks must agree on them.
        count: elements of each rank in a dense collective, of all parts together in a vector collective.
        options: of the caller; the stream is the address of the one that the call goes into.
    """

    collective: str
    inputs: Memory
    outputs: Memory
    counts: Sequence[int]
    dtype: str
    shapes: Sequence[tuple[int, ...]]
    count: int
    options: CallOptions


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
        # What rules out shared memory rules out peer access, too.
        if rules_out_shared_memory(comm._nccl.transport) or len(set(comm._host)) > 1:
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


def run(comm: Communicator, peers: _core._DevicePeers, call: Call) -> bool:
    """Queues the collective in the caller's stream; returns when all ranks have done so.

    Returns:
        False, on every rank, when nothing was done because the memory of some rank cannot be exported to other
        processes: memory of a pool, or of expandable segments.

    Raises:
        MismatchError: the ranks made different calls; on every rank.
        BackendError: the device of some rank refused; on every rank. The communicator is then closed.
    """
    name, timeout = call.options.name, call.options.timeout
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


class Peers(Direct):
    """A call that all ranks queue in their streams, and whose data go directly between devices."""

    def __init__(self, comm: Communicator, peers: _core._DevicePeers) -> None:
        super().__init__()
        self._comm = comm
        self._peers = peers

    def launch(self, call: DeviceCall) -> InStream | None:
        """See ``Direct``. None where ``run`` returns False."""
        arrays = [*call.inputs, *call.outputs]
        with staging.OneStream(self._peers.device, arrays) as one:
            options = call.options._replace(stream=one.stream)
            done = run(self._comm, self._peers, self._call(call, dtype_of(arrays[0]), options))
        return InStream("peers", arrays[0], one.event) if done else None

    def _call(self, call: DeviceCall, dtype: str, options: CallOptions) -> Call:
        if call.lengths is None:
            given, got = ([(a.pointer, a.nbytes) for a in arrays] for arrays in (call.inputs, call.outputs))
            shapes = call.shapes if _core._describe(self._comm)["compare_shapes"] else []
            count = sum(a.nbytes for a in call.inputs) // call.inputs[0].dtype.itemsize
            return Call(call.collective, given, got, [], dtype, shapes, count, options)
        size = self._comm.size**2 if call.collective == "all_to_all" else self._comm.size
        tensors = len(call.lengths) // size
        counts = [sum(call.lengths[i * tensors : (i + 1) * tensors]) for i in range(size)]
        given, got = ([self.stand_ins.find(p) for p in pieces] for pieces in (call.sources, call.targets))
        return Call(call.collective, given, got, counts, dtype, [], sum(counts), options)
