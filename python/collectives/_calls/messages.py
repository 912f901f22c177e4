"""Point-to-point messages: ``send``, ``recv``, ``sendrecv`` and ``probe``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _core
from .._arrays import empty
from .._arrays.operands import Operands, adapt_all, adapt_outputs
from ..errors import DeadlineError
from ..work import Result, Work
from .arguments import Array, check_dtypes, check_options, check_type, is_number, is_plain, plain
from .layout import separate_inputs
from .options import CallOptions

if TYPE_CHECKING:
    from .message_calls import MessageCalls

MAX_TAG = 2**24 - 1


class Received(tuple[Result, int]):
    """What ``recv`` and ``sendrecv`` return where any rank could send: a pair of the array and its source.

    >>> array, source = comm.recv(np.empty(3))
    """

    # No NamedTuple, which can be generic from Python 3.11 on only.
    __slots__ = ()

    def __new__(cls, array: Result, source: int) -> Received[Result]:
        return super().__new__(cls, (array, source))

    def __getnewargs__(self) -> tuple[Result, int]:
        return self[0], self[1]

    def __repr__(self) -> str:
        return f"Received(array={self.array!r}, source={self.source!r})"

    @property
    def array(self) -> Result:
        """What ``recv`` returns for a given rank: the array, or the list of arrays."""
        return self[0]

    @property
    def source(self) -> int:
        """The rank that sent it."""
        return self[1]


class Incoming(NamedTuple):
    """A message that is there and that no receive has taken.

    Attributes:
        source: the rank that sends it.
        tag: its tag.
        dtype: of its elements.
        elements: how many it has in all.
        arrays: of how many arrays; 65535 stands for that many or more.
    """

    source: int
    tag: int
    dtype: np.dtype[Any]
    elements: int
    arrays: int

    @property
    def nbytes(self) -> int:
        """Its length in bytes."""
        return self.elements * self.dtype.itemsize


def check(
    comm: MessageCalls, word: str, peer: object, tag: object, options: CallOptions, tag_word: str = "tag"
) -> tuple[int | None, int]:
    """The other rank and the tag, checked, with the arguments that need no array. A source may be None, for any."""
    check_options(comm._size, options)
    check_type(tag_word, tag, (int, np.integer))
    assert isinstance(tag, (int, np.integer))
    if peer is not None or word != "source":
        check_type(word, peer, (int, np.integer))
        assert isinstance(peer, (int, np.integer))
        if not 0 <= peer < comm._size:
            raise ValueError(f"{word} {peer} is out of range: the group has ranks 0 to {comm._size - 1}")
    if not 0 <= tag <= MAX_TAG:
        raise ValueError(f"{tag_word} {tag} is out of range: 0 to {MAX_TAG}")
    return (None if peer is None else int(peer)), int(tag)


def check_writable(arrays: list[Array], what: str) -> None:
    """Raises ValueError for an array that cannot be written."""
    for i, array in enumerate(arrays):
        if not array.flags.writeable:
            raise ValueError(f"{what}[{i}] is read-only and would be written; pass a writable array")


def send(comm: MessageCalls, x: Any, dest: Any, tag: Any, options: CallOptions) -> Any:
    """See ``Communicator.send``."""
    peer, number = check(comm, "dest", dest, tag, options)
    arrays = [a.array for a in adapt_all(x, "x")]
    check_dtypes(arrays, "send", "sum")
    work = comm._start_message(True, [plain(a) for a in arrays], peer, number, options)
    pending = Work(work, lambda: None)
    return pending if options.async_op else pending.result()


def recv(comm: MessageCalls, x: Any, source: Any, tag: Any, options: CallOptions) -> Any:
    """See ``Communicator.recv``."""
    peer, number = check(comm, "source", source, tag, options)
    operands = Operands(x, None, written=True)
    check_dtypes(operands.inputs, "recv", "sum")
    check_writable(operands.outputs, "x")
    targets = [a if is_plain(a) else empty(a.shape, a.dtype) for a in operands.outputs]
    work = comm._start_message(False, targets, peer, number, options)

    def finish() -> Any:
        _copy_back(operands.outputs, targets)
        return received(operands.result(), work, peer)

    pending = Work(work, finish)
    return pending if options.async_op else pending.result()


def sendrecv(
    comm: MessageCalls, x: Any, dest: Any, source: Any, out: Any, sendtag: Any, recvtag: Any, options: CallOptions
) -> Any:
    """See ``Communicator.sendrecv``."""
    # All is checked before either message is posted: one alone would wait for ever.
    to, send_number = check(comm, "dest", dest, sendtag, options, "sendtag")
    peer, recv_number = check(comm, "source", source, recvtag, options, "recvtag")
    kinds = adapt_all(x, "x")
    inputs = [a.array for a in kinds]
    check_dtypes(inputs, "sendrecv", "sum")
    if out is None:
        outputs = [empty(a.shape, a.dtype) for a in inputs]
    else:
        outputs = adapt_outputs(out, "out")
        check_dtypes(outputs, "sendrecv", "sum")
        check_writable(outputs, "out")
    targets = [a if is_plain(a) else empty(a.shape, a.dtype) for a in outputs]
    sources = separate_inputs([plain(a) for a in inputs], targets)
    both = options._replace(async_op=True)  # so that neither waits for the other to begin
    arriving = comm._start_message(False, targets, peer, recv_number, both)
    sent = comm._start_message(True, sources, to, send_number, both)

    def finish() -> Any:
        _copy_back(outputs, targets)
        if out is not None:
            return out
        made = [a.wrap(output) for a, output in zip(kinds, outputs, strict=True)]
        return type(x)(made) if isinstance(x, (list, tuple)) else made[0]

    result = Work(arriving, finish).result()
    Work(sent, None).wait()
    return received(result, arriving, peer)


def received(array: Any, work: _core.Work, source: int | None) -> Any:
    """What a receive from that rank, or from any, returns when it is over."""
    if source is not None:
        return array
    assert work.peer is not None
    return Received(array, work.peer)


def _copy_back(outputs: list[Array], targets: list[Array]) -> None:
    for output, target in zip(outputs, targets, strict=True):
        if output is not target:
            output[...] = target


def probe(comm: MessageCalls, source: Any, tag: Any, timeout: Any) -> Incoming | None:
    """See ``Communicator.probe``."""
    peer, number = check(comm, "source", source, tag, CallOptions())
    if timeout is not None and not (is_number(timeout) and timeout >= 0):
        raise ValueError(f"timeout is {timeout!r}; seconds, at least 0, or None is accepted")
    patience = float(_core._describe(comm)["timeout"] if timeout is None else timeout)
    found = _core._probe(comm, peer, number, patience)
    if found is not None:
        return Incoming(found[0], number, *found[1:])
    if timeout is not None:
        return None
    sender = "any rank" if peer is None else f"rank {peer}"
    raise DeadlineError(
        f"rank {comm._rank}, probe of {sender}, tag {number} has waited {patience:g} s for a message, as long as "
        "the communicator's timeout; the communicator can still be used. Pass timeout= to get None instead",
        rank=comm._rank,
        peer=peer,
        age=patience,
    )
