"""NCCL's side of communicators: made at the first call on device arrays, once all ranks know that it can be.

NCCL is found and called by the core (``csrc/nccl``). Here is who may use it, and how the ranks of a communicator of the
host come to one of NCCL's: they tell each other what they have, rank 0 makes an id, and the id travels over the
connections that there are, which are authenticated.
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
from ..errors import BackendError

if TYPE_CHECKING:
    from ..communicator import Communicator

Operand: TypeAlias = tuple[int, int, str]  # address, elements, dtype

_MULTI_RANK = 23003  # the first NCCL that can have several ranks on a device
_MESSAGES = ("send", "recv")
_INSTEAD = 'start the job with transport="auto"'


class Side:
    """What a communicator has of NCCL.

    Attributes:
        transport: as ``init`` was told: "nccl" needs it for device arrays, "auto" takes it where it can be had.
        rank: NCCL's side of this rank; ``None`` before the first call, or where NCCL cannot be used.
        why: NCCL cannot be used; ``None`` while the ranks have not found out.
        timeout: seconds that a call may take which does not say.
    """

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self.rank: _core.Nccl | None = None
        self.why: str | None = None
        self.timeout = 0.0

    def close(self) -> None:
        """Waits for what is in flight on the device, and leaves."""
        if self.rank is not None:
            _core._nccl_close([self.rank])


def candidates() -> list[str]:
    """Where the Python packages nvidia-nccl-cu13 and -cu12 put the library."""
    paths = [Path(entry or ".") / "nvidia" / "nccl" / "lib" / "libnccl.so.2" for entry in sys.path]
    return [str(path) for path in paths if path.is_file()]


def status() -> dict[str, Any]:
    """What was found of NCCL.

    Returns:
        ``usable``; ``version``, ``path`` and ``where`` it was found; ``why`` it cannot be used, and what to do.
    """
    return dict(_core._nccl_status(candidates()))


def wanted(comm: Communicator, device: int) -> bool:
    """Whether arrays in the memory of `device` travel by NCCL. The same answer on all ranks.

    A collective call when it is the first of this communicator: all ranks make it before their first collective on
    device arrays. With transport "auto" the answer is yes where there are several ranks, each has a device of its own,
    and all have the same version of NCCL. With transport "shm" or "tcp" it is no.

    Args:
        comm: the communicator.
        device: the number of the device of this rank.

    Raises:
        BackendError: transport "nccl" was asked for and NCCL cannot be used; the text says why, and what to do.
        ValueError: this rank's earlier calls were on another device.
    """
    side = comm._nccl
    if side.transport not in ("auto", "nccl") or (comm.size == 1 and side.transport == "auto"):
        return False
    if side.rank is None and side.why is None:
        _connect(comm, side, device)
    if side.rank is None:
        if side.transport == "nccl":
            raise BackendError(f"rank {comm.rank}: {side.why}", rank=comm.rank)
        return False
    if side.rank.device != device:
        raise ValueError(
            f"the arrays are on device {device}, and rank {comm.rank} has used device {side.rank.device} in this "
            "communicator before; NCCL has one device for each rank"
        )
    return True


def lacks(collective: str, op: str, dtype: str) -> str:
    """Why NCCL cannot do such a reduction, empty where it can. The same on all ranks of a communicator that uses it."""
    return "" if collective in _MESSAGES else _core._nccl_lacks(candidates(), collective, op, dtype)


def run(
    comm: Communicator,
    collective: str,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    *,
    op: str = "sum",
    root: int = 0,
    peer: int = -1,
    counts: Sequence[int] | None = None,
    stream: int = 0,
    device: int,
    timeout: float | None = None,
    name: str | None = None,
    factor: float | None = None,
    shapes: Sequence[tuple[int, ...]] = (),
) -> _core.NcclWork:
    """Puts a collective, or a message, on device memory into a stream, by NCCL. `wanted` has said that it can be.

    First the ranks agree about the call, over the connections of the host: when this returns, all of them have made it
    and mean the same. The data move when the stream comes to it, and what comes behind it in the stream sees the
    result. The memory must live until then.

    Args:
        comm: the communicator.
        collective: "all_reduce", "broadcast", "reduce", "barrier", "all_gather", "reduce_scatter", "all_to_all",
            "gather", "scatter", "send" or "recv".
        inputs, outputs: (address, elements, dtype by name) of each tensor, contiguous and all of one dtype. A list is
            one fused call. In place is where they are the same. Empty where this rank gives nothing (recv; scatter and
            broadcast but on the root) or gets nothing (send; gather and reduce but on the root).
        op: a reduction; see `lacks`.
        root: of those collectives that have one.
        peer: of a message. NCCL has no tags: messages between two ranks arrive in the order of their calls.
        counts: collectives of parts: elements of the parts of all ranks, by part, then by tensor, the same list on all
            ranks, as ``_layout.lengths`` gives it; for all_to_all the part from i to j at i * size + j.
        stream: the address of a CUDA stream of this device.
        device: of all tensors.
        timeout: seconds until the call must be done on the device; that of the communicator by default.
        name: for errors.
        factor: of "premul_sum".
        shapes: of the tensors, about which ranks have to agree.

    Returns:
        the work: ``wait(timeout)`` waits until the device has done it and raises its error, ``done()`` asks. A later
        call of the communicator raises that error, too.

    Raises:
        BackendError: NCCL has failed, or lacks the reduction; in the latter case the communicator can be used on.
        MismatchError, PeerError, DeadlineError: as for arrays in host memory. Nothing was put into the stream.
        ValueError: the tensors do not have as many elements as `counts` say.
    """
    side = comm._nccl
    if side.rank is None:
        raise BackendError(
            f"rank {comm.rank}: the ranks have not connected by NCCL yet, which takes all of them: make a collective "
            f"on device arrays before the first {collective}",
            rank=comm.rank,
            collective=collective,
        )
    assert side.rank.device == device, "wanted() was asked about another device"
    if not side.timeout:
        side.timeout = _core._describe(comm)["timeout"]
    given = inputs or outputs
    dtype = given[0][2] if given else "uint8"
    lengths = [count for _, count, _ in given] if counts is None else list(counts)
    _check_elements(collective, comm.rank, comm.size, root, lengths, inputs, outputs)
    call = (
        collective,
        [address for address, _, _ in inputs],
        [address for address, _, _ in outputs],
        lengths,
        dtype,
        op,
        root,
        peer,
        b"" if factor is None else _scalar(factor, dtype),
        stream,
        side.timeout if timeout is None else timeout,
        name or "",
        shapes,
    )
    return side.rank.run(call)


def _scalar(factor: float, name: str) -> bytes:
    """A factor as NCCL wants it, in the dtype; NCCL adds up real and imaginary parts by themselves."""
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
    """Raises ValueError unless every tensor has the elements that its parts need."""
    whole = collective not in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    tensors = len(lengths) // (1 if whole else size * size if collective == "all_to_all" else size)

    def part(index: int, tensor: int) -> int:
        return lengths[index * tensors + tensor]

    for what, operands, joined in (
        ("input", inputs, collective in ("reduce_scatter", "scatter")),
        ("output", outputs, collective in ("all_gather", "gather")),
    ):
        for t, (_, count, _) in enumerate(operands):
            if t >= tensors:
                raise ValueError(f"{len(operands)} {what}s were given, and lengths of {tensors} tensors")
            if whole:
                needed = lengths[t]
            elif collective == "all_to_all":
                needed = sum(part(rank * size + r if what == "input" else r * size + rank, t) for r in range(size))
            else:
                needed = sum(part(r, t) for r in range(size)) if joined else part(rank, t)
            if count != needed:
                raise ValueError(f"{what} {t} of {collective} has {count} elements; its lengths say {needed}")


def _connect(comm: Communicator, side: Side, device: int) -> None:
    """Makes NCCL's side of the communicator, or finds out together why there can be none."""
    people = _tell(comm, _own(device))
    why = _why_not(people)
    if why:
        side.why = why
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
        side.why = reason
        return
    side.timeout = _core._describe(comm)["timeout"]
    side.rank = _core._nccl_connect(comm, candidates(), made[1:].tobytes(), device, side.timeout)


def _own(device: int) -> dict[str, Any]:
    """What the others have to know of this rank."""
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
    """Two ranks with the same host, in NCCL's opinion, have the same text here."""
    chosen = os.environ.get("NCCL_HOSTID")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return hashlib.blake2b((chosen or socket.gethostname() + boot).encode(), digest_size=8).hexdigest()


def _tell(comm: Communicator, own: dict[str, Any]) -> list[dict[str, Any]]:
    """What all ranks say of themselves."""
    text = np.frombuffer(json.dumps(own).encode(), np.uint8)
    lengths = comm.all_gather(np.array([text.size], np.int64), counts=1, name="nccl")
    joined = comm.all_gather(text, counts=lengths.tolist(), name="nccl").tobytes()
    ends = np.cumsum(lengths).tolist()
    return [json.loads(joined[end - n : end]) for n, end in zip(lengths.tolist(), ends, strict=True)]


def _why_not(people: Sequence[dict[str, Any]]) -> str:
    """Why these ranks cannot use NCCL together, and what to do; empty where they can."""
    for rank, person in enumerate(people):
        if person["why"]:
            return f"rank {rank} cannot use NCCL: {person['why']}"
    for rank, person in enumerate(people):
        if person["code"] != people[0]["code"]:
            return (
                f"rank 0 has NCCL {people[0]['version']} and rank {rank} has {person['version']}; install the same on "
                "all hosts, or set COLLECTIVES_NCCL_LIB"
            )
    if people[0]["code"] >= _MULTI_RANK and all(person["shares"] for person in people):
        return ""
    first: dict[tuple[str, str], int] = {}
    for rank, person in enumerate(people):
        other = first.setdefault((person["host"], person["device"]), rank)
        if other != rank:
            return one_device_twice(f"ranks {other} and {rank}", person["device"], person["version"])
    return ""


def one_device_twice(who: str, device: str, version: str) -> str:
    """The error for several ranks of NCCL on one device."""
    return (
        f"{who} are on the same device, {device}, and NCCL {version} wants a device of its own for each. Give each a "
        "device (for example the one with the number comm.local_rank), or " + _INSTEAD + ". To try things out on one "
        "device, set another NCCL_HOSTID for each process, or use NCCL 2.30.3 or later with "
        "NCCL_MULTI_RANK_GPU_ENABLE=1"
    )
