"""The NCCL communicator of a communicator, made at the first call on device arrays if all ranks can use NCCL.

The core (``csrc/nccl``) finds and calls NCCL. This module decides whether a communicator uses it, and connects the
ranks: they exchange what they have of NCCL, rank 0 makes the unique id, and the id is sent over the communicator's own
authenticated connections.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import ml_dtypes
import numpy as np

from .. import _core
from .._calls.options import CallOptions
from ..errors import BackendError

if TYPE_CHECKING:
    from ..communicator import Communicator

Operand: TypeAlias = tuple[int, int, str]  # address, elements, dtype

_MULTI_RANK = 23003  # the first NCCL that can have several ranks on a device
_MESSAGES = ("send", "recv")
_INSTEAD = 'start the job with transport="auto"'


class State:
    """The NCCL part of a communicator.

    Attributes:
        transport: the argument of ``init``: "nccl" requires NCCL for device arrays, "auto" uses it where it is there.
        rank: NCCL's handle of this rank; ``None`` before the first call, or where NCCL cannot be used.
        why: why NCCL cannot be used; ``None`` while the ranks have not found out.
        timeout: seconds that a call without a timeout of its own may take.
    """

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self.rank: _core.Nccl | None = None
        self.why: str | None = None
        self.timeout = 0.0

    def close(self) -> None:
        """Waits for operations in flight on the device, and closes NCCL's handle."""
        if self.rank is not None:
            _core._nccl_close([self.rank])


def candidates() -> list[str]:
    """The paths at which the Python packages nvidia-nccl-cu13 and -cu12 install the library."""
    paths = [Path(entry or ".") / "nvidia" / "nccl" / "lib" / "libnccl.so.2" for entry in sys.path]
    return [str(path) for path in paths if path.is_file()]


def status() -> dict[str, Any]:
    """Which NCCL was found.

    Returns:
        ``usable``; ``version``, ``path``, and ``where`` it was found; ``why`` it cannot be used, and what to do.
    """
    return dict(_core._nccl_status(candidates()))


def wanted(comm: Communicator, device: int) -> bool:
    """Whether collectives on arrays of `device` run by NCCL. The same answer on all ranks.

    The first call on a communicator is collective: all ranks make it before their first collective on device arrays.
    With transport "auto" the answer is yes where there are several ranks, each has a device of its own, and all have
    the same version of NCCL. With transport "shm" or "tcp" it is no.

    Args:
        comm: the communicator.
        device: the number of the device of this rank.

    Raises:
        BackendError: transport "nccl" was asked for and NCCL cannot be used; the text says why, and what to do.
        ValueError: this rank's earlier calls were on another device.
    """
    state = comm._nccl
    if state.transport not in ("auto", "nccl") or (comm.size == 1 and state.transport == "auto"):
        return False
    if state.rank is None and state.why is None:
        _connect(comm, state, device)
    if state.rank is None:
        if state.transport == "nccl":
            raise BackendError(f"rank {comm.rank}: {state.why}", rank=comm.rank)
        return False
    if state.rank.device != device:
        raise ValueError(
            f"the arrays are on device {device}, and rank {comm.rank} has used device {state.rank.device} in this "
            "communicator before; NCCL has one device for each rank"
        )
    return True


def lacks(collective: str, op: str, dtype: str) -> str:
    """Why NCCL lacks such a reduction, empty where it has it. The same on all ranks of a communicator that uses it."""
    return "" if collective in _MESSAGES else _core._nccl_lacks(candidates(), collective, op, dtype)


def run(
    comm: Communicator,
    collective: str,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    lengths: Sequence[int] | None,
    options: CallOptions,
    *,
    device: int,
    shapes: Sequence[tuple[int, ...]] = (),
    peer: int = -1,
) -> _core.NcclWork:
    """Queues an NCCL collective or message on device memory in a stream. Call it only where `wanted` returned True.

    First the ranks compare their calls over the communicator's own connections: when this returns, all of them have
    made the same call. The data move in stream order, and later work in the stream sees the result. The memory must
    live until then.

    Args:
        comm: the communicator.
        collective: "all_reduce", "broadcast", "reduce", "barrier", "all_gather", "reduce_scatter", "all_to_all",
            "gather", "scatter", "send" or "recv".
        inputs, outputs: (address, elements, name of dtype) of each tensor, contiguous and all of one dtype. A list is
            one fused call. Equal inputs and outputs mean in place. `inputs` is empty where this rank gives nothing
            (recv; scatter and broadcast except on the root), `outputs` where it gets nothing (send; gather and reduce
            except on the root).
        lengths: of vector collectives, the elements of the parts of all ranks, by part, then by tensor, the same list
            on all ranks, as from ``_calls.layout.lengths``; for all_to_all the part from i to j is at i * size + j.
        options: of the call. ``stream`` is the address of a CUDA stream of this device, ``timeout`` the seconds until
            the call must be done on the device; see `lacks` about ``op``.
        device: of all tensors.
        shapes: of the tensors, compared between ranks.
        peer: the other rank of a message. NCCL has no tags: messages between two ranks arrive in call order.

    Returns:
        the work: ``wait(timeout)`` waits until the device has finished and raises its error; ``done()`` does not wait.
        Later calls on the communicator raise that error, too.

    Raises:
        BackendError: NCCL has failed, or lacks the reduction; in the latter case the communicator can still be used.
        MismatchError, PeerError, DeadlineError: as for arrays in host memory. Nothing was queued in the stream.
        ValueError: the tensors do not have as many elements as `lengths` says.
    """
    state = comm._nccl
    if state.rank is None:
        raise BackendError(
            f"rank {comm.rank}: the ranks have not connected by NCCL yet, and only a collective call connects them: "
            f"make a collective on device arrays before the first {collective}",
            rank=comm.rank,
            collective=collective,
        )
    assert state.rank.device == device, "wanted() was called with another device"
    if not state.timeout:
        state.timeout = _core._describe(comm)["timeout"]
    given = inputs or outputs
    dtype = given[0][2] if given else "uint8"
    counts = [count for _, count, _ in given] if lengths is None else list(lengths)
    _check_elements(collective, comm.rank, comm.size, options.root, counts, inputs, outputs)
    given_at, got_at = ([address for address, _, _ in operands] for operands in (inputs, outputs))
    if options.timeout is None:
        options = options._replace(timeout=state.timeout)
    return state.rank.run(call_of(collective, given_at, got_at, counts, dtype, options, shapes=shapes, peer=peer))


def call_of(
    collective: str,
    inputs: Sequence[int],
    outputs: Sequence[int],
    lengths: Sequence[int],
    dtype: str,
    options: CallOptions,
    *,
    shapes: Sequence[tuple[int, ...]] = (),
    peer: int = -1,
) -> tuple[Any, ...]:
    """A call as the core takes it: see ``run``. ``inputs`` and ``outputs`` are addresses; the timeout is given."""
    scalar = b"" if options.factor is None else _scalar(options.factor, dtype)
    return (collective, inputs, outputs, lengths, dtype, shapes, peer, scalar, options)


def _scalar(factor: float, name: str) -> bytes:
    """A factor as NCCL expects it: in the dtype, or for complex numbers in that of their parts, which NCCL adds."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    return np.array(factor, {"c8": np.float32, "c16": np.float64}.get(dtype.str[1:], dtype)).tobytes()


def _check_elements(
    collective: str,
    rank: int,
    size: int,
    root: int,
    lengths: Sequence[int],
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
) -> None:
    """Raises ValueError unless every tensor has as many elements as its parts."""
    dense = collective not in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    tensors = len(lengths) // (1 if dense else size * size if collective == "all_to_all" else size)

    def part(index: int, tensor: int) -> int:
        return lengths[index * tensors + tensor]

    for what, operands, joined in (
        ("input", inputs, collective in ("reduce_scatter", "scatter")),
        ("output", outputs, collective in ("all_gather", "gather")),
    ):
        for t, (_, count, _) in enumerate(operands):
            if t >= tensors:
                raise ValueError(f"{len(operands)} {what}s were given, and lengths of {tensors} tensors")
            if dense:
                needed = lengths[t]
            elif collective == "all_to_all":
                needed = sum(part(rank * size + r if what == "input" else r * size + rank, t) for r in range(size))
            else:
                needed = sum(part(r, t) for r in range(size)) if joined else part(rank, t)
            if count != needed:
                raise ValueError(f"{what} {t} of {collective} has {count} elements; its lengths say {needed}")


def _connect(comm: Communicator, state: State, device: int) -> None:
    """Makes the NCCL communicator; where some rank cannot use NCCL, all ranks learn why."""
    why = _why_not(_exchange(comm, _describe(device)))
    if why:
        state.why = why
        return
    made = np.zeros(129, np.uint8)  # whether there is an id, and the id
    reason = "rank 0 could not make an id for NCCL; see its error"
    if comm.rank == 0:
        try:
            made[:] = np.frombuffer(b"\1" + _core._nccl_unique_id(candidates()), np.uint8)
        except BackendError as error:
            reason = str(error)
    comm.broadcast(made, 0, name="nccl")
    if not made[0]:
        state.why = reason
        return
    state.timeout = _core._describe(comm)["timeout"]
    state.rank = _core._nccl_connect(comm, candidates(), made[1:].tobytes(), device, state.timeout)


def _describe(device: int) -> dict[str, Any]:
    """What the other ranks have to know about NCCL on this rank."""
    found = status()
    return {
        "why": found["why"],
        "code": found["code"],
        "version": found["version"],
        "host": _host_of_nccl(),
        "device": _core._device_bus_id(device),
        "shares": os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1",
    }


def _host_of_nccl() -> str:
    """A text that is equal for two ranks exactly where NCCL considers them to be on the same host."""
    chosen = os.environ.get("NCCL_HOSTID")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return hashlib.blake2b((chosen or socket.gethostname() + boot).encode(), digest_size=8).hexdigest()


def _exchange(comm: Communicator, own: dict[str, Any]) -> list[dict[str, Any]]:
    """The descriptions of all ranks, by rank."""
    text = np.frombuffer(json.dumps(own).encode(), np.uint8)
    lengths = comm.all_gather(np.array([text.size], np.int64), counts=1, name="nccl")
    joined = comm.all_gather(text, counts=lengths.tolist(), name="nccl").tobytes()
    ends = np.cumsum(lengths).tolist()
    return [json.loads(joined[end - n : end]) for n, end in zip(lengths.tolist(), ends, strict=True)]


def _why_not(ranks: Sequence[dict[str, Any]]) -> str:
    """Why the ranks with these descriptions cannot use NCCL together, and what to do; empty where they can."""
    for number, rank in enumerate(ranks):
        if rank["why"]:
            return f"rank {number} cannot use NCCL: {rank['why']}"
    for number, rank in enumerate(ranks):
        if rank["code"] != ranks[0]["code"]:
            return (
                f"rank 0 has NCCL {ranks[0]['version']} and rank {number} has {rank['version']}; install the same on "
                "all hosts, or set COLLECTIVES_NCCL_LIB"
            )
    if ranks[0]["code"] >= _MULTI_RANK and all(rank["shares"] for rank in ranks):
        return ""
    first: dict[tuple[str, str], int] = {}
    for number, rank in enumerate(ranks):
        other = first.setdefault((rank["host"], rank["device"]), number)
        if other != number:
            return one_device_twice(f"ranks {other} and {number}", rank["device"], rank["version"])
    return ""


def one_device_twice(who: str, device: str, version: str) -> str:
    """The error for several ranks of NCCL on one device."""
    return (
        f"{who} are on the same device, {device}, and NCCL {version} needs a device of its own for each. Give each its "
        "own (for example the one with the number comm.local_rank), or " + _INSTEAD + ". For experiments on one "
        "device, set a different NCCL_HOSTID in each process, or use NCCL 2.30.3 or later with "
        "NCCL_MULTI_RANK_GPU_ENABLE=1"
    )
