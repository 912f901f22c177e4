"""Collectives on device arrays among ranks that can address each other's device memory.

Threads of one process, and processes of one host whose devices reach each other: pointers and events travel over the
communicator, data from device to device (``csrc/device/peers.h``).
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
    from .parts import Parts

_GRACE = 10.0  # seconds for devices to end what was begun before a failure

Memory = Sequence["tuple[int, int]"]  # pointers and bytes


@dataclass(frozen=True)
class Call:
    """One collective of one rank.

    Attributes:
        collective, op, dtype: as the core names them.
        root: 0 where there is none.
        count: elements, of each rank where all have the same, else of all parts together.
        counts: elements of the parts, as ``Problem::counts`` has them; empty where there are no parts.
        factor: what ``premul_sum`` multiplies the values of this rank by.
        inputs, outputs: pointers and bytes; the same list when in place.
        stream: of the caller.
        shapes: of the inputs, where ranks have to agree about them.
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
    """How this rank addresses the memory of all others, or None where one of them cannot.

    The first call of a communicator is a collective one; the answer is the same on every rank and is kept.

    Args:
        comm: the communicator.
        device: the number of the device of this rank; -1 when its arrays, being empty, do not say.

    Raises:
        ValueError: this rank's earlier calls were on another device.
    """
    known = comm._device_peers
    if not known:
        # Who asks for TCP wants TCP.
        if comm._nccl.transport == "tcp" or len(set(comm._host)) > 1:
            known[device] = None
        elif (found := _connect(comm, device)) == "unknown":
            return None  # the next call may say
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
    """What ``find`` returns, or that the arrays of one of the ranks do not say on which device they are."""
    peers: _core._DevicePeers | None = None
    card = bytes(_core._device_endpoint_bytes())
    try:
        if device >= 0:
            peers = _core._DevicePeers(comm.rank, comm.size, device)
            card = peers.endpoint()
    except BackendError:
        peers = None  # all must hear of it before this rank goes another way
    cards = comm.all_gather(np.frombuffer(card, np.uint8), name="device cards")
    able = peers is not None and not peers.connect(cards.tobytes())
    all_able, all_known = comm.all_reduce(np.array([able, device >= 0], np.int32), op="min", name="device peers")
    if not all_known:
        return "unknown"
    return peers if all_able else None


def leave(comm: Communicator) -> None:
    """Waits until what ranks do with each other's memory is done: a process that ends takes its share along.

    As long as a collective may take, or a moment after a failure.
    """
    about = _core._describe(comm)
    if about["closed"] or os.getpid() != comm._pid:
        return
    for peers in comm._device_peers.values():
        if peers is not None:
            with contextlib.suppress(BackendError):  # of a device that has failed; calls have said so
                peers.wait(_GRACE if about["failed"] else float(about["timeout"]))


def run(comm: Communicator, peers: _core._DevicePeers, call: Call, timeout: float | None, name: str | None) -> bool:
    """Puts the collective into the caller's stream; returns when all ranks have.

    Returns:
        False, on every rank, when nothing was done since memory of one of them cannot be shown to other processes:
        that of a pool or of expandable segments.

    Raises:
        MismatchError: the ranks called different things; on every rank.
        BackendError: a device refused, on this rank or on another; on every rank. The communicator is closed then.
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
    except MismatchError as error:  # on every rank: all have seen the same heads
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
    except Exception as error:  # all must hear of it
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
    """Which tensor has another shape on another rank than on rank 0, empty where none has. A collective call."""
    first, *others = comm.all_gather_object([tuple(shape) for shape in call.shapes])
    for rank, shapes in enumerate(others, 1):
        for i, (ours, theirs) in enumerate(zip(first, shapes, strict=False)):
            if ours != theirs:
                return f"; tensor {i}: rank 0 has shape {ours}, rank {rank} has shape {theirs}"
    return ""


def whole(
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
    """all_reduce, reduce or broadcast, in the order of the streams of the arrays; None where ``run`` says False.

    Args:
        inputs: the arrays of this rank, of one dtype.
        outputs: where the results go, which may be the inputs; none where this rank gets none.
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


def parts(comm: Communicator, peers: _core._DevicePeers, what: Parts) -> staging.OneStream | None:
    """A collective of parts, in the order of the streams of the arrays; None where ``run`` says False."""
    size = comm.size**2 if what.collective == "all_to_all" else comm.size
    tensors = len(what.lengths) // size
    counts = [sum(what.lengths[i * tensors : (i + 1) * tensors]) for i in range(size)]
    arrays = [*what.inputs, *what.outputs]
    factor = 1.0 if what.factor is None else what.factor
    with staging.OneStream(peers.device, arrays) as one:
        call = Call(
            what.collective, what.op, dtype_of(arrays[0]), what.root, sum(counts), counts, factor,
            what.given, what.got, one.stream,
        )  # fmt: skip
        done = run(comm, peers, call, what.timeout, what.name)
    return one if done else None


def dtype_of(array: DeviceArray) -> str:
    """As the core names it."""
    return DTYPES[_core._dtype_of(stand_ins([array])[0])]


class PeersWork(Work):
    """A call that all ranks have put into their streams. The results are there in the order of these."""

    def __init__(self, one: staging.OneStream, arrays: Sequence[DeviceArray], result: Any, stream: Any) -> None:
        """``stream``: as the caller gave it; without one the present stream goes on behind the call."""
        self._one = one
        self._arrays = arrays
        self._given = stream
        self._result = result

    def wait(self, timeout: float | None = None) -> None:
        """Lets the present stream wait; the host does not."""
        for array in self._arrays[:1] if self._given is None else []:
            current = array.library.current_stream(array.device)
            if current not in (None, array.stream):
                self._one.event.stream_wait(current, array.device)

    def done(self) -> bool:
        """True when the device is through with it."""
        return self._one.event.done()

    @property
    def algorithm(self) -> str:
        """The way in which ranks reduce straight from each other's memory."""
        return "peers"
