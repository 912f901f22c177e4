"""Point-to-point messages: ``send`` and ``recv``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays import empty
from .._arrays.operands import Operands, adapt_all
from ..work import Work
from .arguments import check_dtypes, check_options, check_type, is_plain, plain

if TYPE_CHECKING:
    from ..communicator import Communicator

MAX_TAG = 2**24 - 1


def check(comm: Communicator, word: str, peer: object, tag: object, timeout: object, name: object) -> tuple[int, int]:
    """The other rank and the tag, checked, with the arguments that need no array."""
    check_options(comm.size, "sum", 0, "auto", timeout, name)
    check_type(word, peer, (int, np.integer))
    check_type("tag", tag, (int, np.integer))
    assert isinstance(peer, (int, np.integer))
    assert isinstance(tag, (int, np.integer))
    if not 0 <= peer < comm.size:
        raise ValueError(f"{word} {peer} is out of range: the group has ranks 0 to {comm.size - 1}")
    if peer == comm.rank:
        raise ValueError(f"{word} {peer} is this rank itself; a rank sends nothing to itself")
    if not 0 <= tag <= MAX_TAG:
        raise ValueError(f"tag {tag} is out of range: 0 to {MAX_TAG}")
    return int(peer), int(tag)


def send(comm: Communicator, x: Any, dest: Any, tag: Any, async_op: bool, timeout: Any, name: Any) -> Any:
    """See ``Communicator.send``."""
    peer, number = check(comm, "dest", dest, tag, timeout, name)
    arrays = [a.array for a in adapt_all(x, "x")]
    check_dtypes(arrays, "send", "sum")
    work = comm._start_message(peer, number, True, [plain(a) for a in arrays], timeout, name, bool(async_op))
    pending = Work(work, lambda: None)
    return pending if async_op else pending.result()


def recv(comm: Communicator, x: Any, source: Any, tag: Any, async_op: bool, timeout: Any, name: Any) -> Any:
    """See ``Communicator.recv``."""
    peer, number = check(comm, "source", source, tag, timeout, name)
    operands = Operands(x, None, written=True)
    check_dtypes(operands.inputs, "recv", "sum")
    for i, array in enumerate(operands.outputs):
        if not array.flags.writeable:
            raise ValueError(f"x[{i}] is read-only and would be written; pass a writable array")
    targets = [a if is_plain(a) else empty(a.shape, a.dtype) for a in operands.outputs]
    work = comm._start_message(peer, number, False, targets, timeout, name, bool(async_op))

    def finish() -> Any:
        for array, target in zip(operands.outputs, targets, strict=True):
            if array is not target:
                array[...] = target
        return operands.result()

    pending = Work(work, finish)
    return pending if async_op else pending.result()
