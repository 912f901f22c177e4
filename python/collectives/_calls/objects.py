"""Python objects between ranks: pickled, with their arrays sent beside the pickle instead of inside it.

Pickle protocol 5 keeps the buffers of an object out of the stream (PEP 574). An object is sent as a list of parts: the
pickle stream, then its buffers. A receiver allocates memory for each part and unpickles the object over it.

A rank whose object cannot be pickled must not leave the others waiting, so the first message says whether it could.
"""

from __future__ import annotations

import io
import itertools
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import CollectivesError
from .arguments import check_options
from .options import CallOptions

if TYPE_CHECKING:
    from ..communicator import Communicator

Bytes: TypeAlias = npt.NDArray[np.uint8]
Parts: TypeAlias = "list[Bytes]"

_PROTOCOL = 5
_BLOCK = 4096  # bytes of the first broadcast, which is the only one when the object fits
_HEADER = 16  # of them: the state, and the number of parts or, for _FAILED, the bytes of the text
_INLINE, _SEPARATE, _FAILED = range(3)
_SIZE = 8  # bytes of a number in the list of sizes
_ALIGNMENT = 16  # that of NumPy's own memory: enough for every element type
_MOST_TEXT = 2000  # bytes of an error text that other ranks get


def broadcast_object(comm: Communicator, obj: Any, root: int) -> Any:
    """See ``Communicator.broadcast_object``."""
    call = "broadcast_object"
    block = np.zeros(_BLOCK, np.uint8)
    header, rest = block[:_HEADER].view(np.int64), block[_HEADER:]
    if comm.rank != root:
        comm.broadcast(block, root, name=call)
        return _receive(comm, int(header[0]), int(header[1]), rest, root, call)
    try:
        parts = _pickle(obj)
    except Exception as error:
        text = _describe(error)
        header[:] = _FAILED, text.size
        rest[: text.size] = text
        comm.broadcast(block, root, name=call)
        raise
    sizes = np.array([part.size for part in parts], np.int64).view(np.uint8)
    inline = _packed_size(parts) <= rest.size
    header[:] = _INLINE if inline else _SEPARATE, len(parts)
    if inline:
        _pack(parts, rest)
    elif sizes.size <= rest.size:
        rest[: sizes.size] = sizes
    comm.broadcast(block, root, name=call)
    if not inline:
        if sizes.size > rest.size:
            comm.broadcast(sizes, root, name=call)
        comm.broadcast(_writable(parts), root, name=call)
    return obj


def _receive(comm: Communicator, state: int, count: int, rest: Bytes, root: int, call: str) -> Any:
    """The object of the root, whose first broadcast had this state and count in its header and `rest` behind it."""
    if state == _FAILED:
        raise _failure(comm, call, root, rest[:count])
    if state == _INLINE:
        # Copies: an array in the object would keep the whole block alive.
        return _unpickle([part.copy() for part in _unpack(rest, count)])
    sizes = rest[: count * _SIZE]
    if count * _SIZE > rest.size:
        sizes = comm.broadcast(np.empty(count * _SIZE, np.uint8), root, name=call)
    parts = [np.empty(int(size), np.uint8) for size in sizes.view(np.int64)]
    comm.broadcast(parts, root, name=call)
    return _unpickle(parts)


def all_gather_object(comm: Communicator, obj: Any) -> list[Any]:
    """See ``Communicator.all_gather_object``. All that arrives is in one buffer, which any array of it keeps alive."""
    parts, table = _exchange(comm, obj, "all_gather_object")
    gathered = comm.all_gather(_packed(parts), counts=table[:, 2].tolist(), name="all_gather_object")
    return _objects(comm, obj, gathered, table[:, 1], table[:, 2])


def gather_object(comm: Communicator, obj: Any, root: int) -> list[Any] | None:
    """See ``Communicator.gather_object``."""
    check_options(comm.size, CallOptions(root=root))  # before anything is sent
    parts, table = _exchange(comm, obj, "gather_object")
    # The object of the root is not sent.
    sizes = np.array([0 if rank == root else row[2] for rank, row in enumerate(table)])
    mine = np.empty(0, np.uint8) if comm.rank == root else _packed(parts)
    gathered = comm.gather(mine, root, counts=sizes.tolist(), name="gather_object")
    return None if gathered is None else _objects(comm, obj, gathered, table[:, 1], sizes)


def scatter_object(comm: Communicator, objs: Sequence[Any] | None, root: int) -> Any:
    """See ``Communicator.scatter_object``."""
    call = "scatter_object"
    # By rank: whether it failed (then only the first row counts), number of parts, bytes.
    table = np.zeros((comm.size, 3), np.int64)
    packed = np.empty(0, np.uint8)
    text = np.empty(0, np.uint8)
    failure: Exception | None = None
    if comm.rank == root:
        try:
            each = [_pickle(obj) for obj in _one_for_each_rank(comm, objs)]
        except Exception as error:
            failure, text = error, _describe(error)
            table[0] = 1, 0, text.size
        else:
            # The root's own object is pickled only to see whether that works.
            sent = [[] if rank == root else parts for rank, parts in enumerate(each)]
            table[:] = [(0, len(parts), _packed_size(parts)) for parts in sent]
            packed = np.zeros(table[:, 2].sum(), np.uint8)
            for parts, end in zip(sent, np.cumsum(table[:, 2]), strict=True):
                _pack(parts, packed[end - _packed_size(parts) : end])
    comm.broadcast(table, root, name=call)
    if table[0, 0]:
        if comm.rank != root:
            text = np.empty(table[0, 2], np.uint8)
        comm.broadcast(text, root, name=call)
        raise failure if failure is not None else _failure(comm, call, root, text)
    out = np.empty(table[comm.rank, 2], np.uint8)
    comm.scatter(packed if comm.rank == root else None, root, out=out, counts=table[:, 2].tolist(), name=call)
    if comm.rank == root:
        assert objs is not None
        return objs[root]
    return _unpickle(_unpack(out, int(table[comm.rank, 1])))


def _exchange(comm: Communicator, obj: Any, call: str) -> tuple[Parts, npt.NDArray[np.int64]]:
    """Pickles the object of this rank; returns its parts, and for each rank (0, number of parts, bytes when packed).

    Raises on every rank when a rank could not pickle its object: its error there, CollectivesError on the others.
    """
    failure: Exception | None = None
    parts: Parts = []
    text = np.empty(0, np.uint8)
    try:
        parts = _pickle(obj)
        row = (0, len(parts), _packed_size(parts))
    except Exception as error:
        failure, text = error, _describe(error)
        row = (1, 0, text.size)
    table: npt.NDArray[np.int64] = comm.all_gather(np.array([row], np.int64), counts=1, name=call)
    failed = table[:, 0] != 0
    if not failed.any():
        return parts, table
    texts = comm.all_gather(text, counts=np.where(failed, table[:, 2], 0).tolist(), name=call)
    if failure is not None:
        raise failure
    first = int(np.argmax(failed))
    raise _failure(comm, call, first, texts[: table[first, 2]])


def _objects(
    comm: Communicator, own: Any, gathered: Bytes, counts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> list[Any]:
    """The objects of all ranks from their packed parts, in rank order."""
    pieces = np.split(gathered, np.cumsum(sizes)[:-1])
    return [
        own if rank == comm.rank else _unpickle(_unpack(piece, int(count)))
        for rank, (piece, count) in enumerate(zip(pieces, counts, strict=True))
    ]


def _one_for_each_rank(comm: Communicator, objs: Sequence[Any] | None) -> Sequence[Any]:
    if not isinstance(objs, Sequence) or isinstance(objs, (str, bytes)):
        raise TypeError(f"objs is of type {type(objs).__name__}; on the root a list of {comm.size} objects is accepted")
    if len(objs) != comm.size:
        raise ValueError(f"objs has {len(objs)} objects; the group has {comm.size} ranks, and each gets one")
    return objs


def _pickle(obj: Any) -> Parts:
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickle.Pickler(stream, _PROTOCOL, buffer_callback=buffers.append).dump(obj)
    # getbuffer() and raw() copy nothing; raw() raises BufferError for a buffer that is not contiguous.
    return [np.asarray(stream.getbuffer()), *(np.asarray(buffer.raw()) for buffer in buffers)]


def _unpickle(parts: Parts) -> Any:
    return pickle.loads(parts[0].data, buffers=parts[1:])  # noqa: S301 (the docstrings say what that means)


def _writable(parts: Parts) -> Parts:
    """The parts for a collective, with copies of those that are read-only or overlap another part."""
    result = list(parts)
    end = 0  # of the parts so far
    for i in sorted(range(len(parts)), key=lambda i: parts[i].ctypes.data):
        address, size = parts[i].ctypes.data, parts[i].size
        if not parts[i].flags.writeable or (size > 0 and address < end):
            result[i] = parts[i].copy()
        else:
            end = max(end, address + size)
    return result


def _offsets(sizes: Sequence[int]) -> list[int]:
    """The offset of each part when packed behind the list of sizes, and the end of the last; all aligned."""
    aligned = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in (len(sizes) * _SIZE, *sizes)]
    return list(itertools.accumulate(aligned))


def _packed_size(parts: Parts) -> int:
    return _offsets([part.size for part in parts])[-1]


def _pack(parts: Parts, into: Bytes) -> None:
    """Writes the list of sizes and the parts."""
    sizes = [part.size for part in parts]
    into[: len(sizes) * _SIZE] = np.array(sizes, np.int64).view(np.uint8)
    for offset, part in zip(_offsets(sizes), parts, strict=False):  # the last offset is the end
        into[offset : offset + part.size] = part


def _packed(parts: Parts) -> Bytes:
    result = np.zeros(_packed_size(parts), np.uint8)  # zeros, since the gaps are sent, too
    _pack(parts, result)
    return result


def _unpack(packed: Bytes, count: int) -> Parts:
    """The inverse of ``_pack`` for `count` parts: views of `packed`."""
    sizes = np.frombuffer(packed[: count * _SIZE].tobytes(), np.int64).tolist()
    return [packed[offset : offset + size] for offset, size in zip(_offsets(sizes), sizes, strict=False)]


def _describe(error: Exception) -> Bytes:
    """The text of an error for other ranks, as UTF-8."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # its __str__ fails; the others wait for a text all the same
        text = type(error).__name__
    encoded: Bytes = np.frombuffer(bytearray(text.encode(errors="replace")[:_MOST_TEXT]), np.uint8)  # writable
    return encoded


def _failure(comm: Communicator, call: str, peer: int, text: Bytes) -> CollectivesError:
    reason = text.tobytes().decode(errors="ignore")  # the end of a long text may be cut inside a character
    return CollectivesError(
        f"rank {comm.rank}: {call} has no result, because rank {peer} could not pickle its object: {reason}. The "
        "communicator can still be used",
        rank=comm.rank,
        peer=peer,
        collective=call,
    )
