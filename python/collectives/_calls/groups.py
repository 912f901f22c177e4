"""Groups of the ranks of a communicator: ``split``, ``dup`` and ``new_group``.

All ranks of the parent make the call. In a first exchange each rank sends its arguments and proposes a number for the
new communicator; the highest wins. Each rank then reserves that number and memory, and a second exchange tells whether
all could. Two threads that make groups of different parents may choose the same number at the same time: then a rank
cannot reserve it, and all ranks try again. After the second exchange all members can use the new communicator.

A group with ``members_only=True`` is made by the core (csrc/engine/groups/meeting.h).
"""

from __future__ import annotations

import hashlib
import operator
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from .. import _core
from .._startup import at_exit
from ..errors import MismatchError
from .arguments import patience_of

if TYPE_CHECKING:
    from ..communicator import Communicator

_KINDS = ("split", "dup", "new_group")
_LIMIT = 1 << 62  # of colors and keys


def split(parent: Communicator, color: object, key: object) -> Communicator | None:
    """See ``Communicator.split``."""
    chosen = None if color is None else _integer("color", color)
    if chosen is not None and chosen < 0:
        raise ValueError(f"color is {chosen}; integers from 0 on are accepted, and None for no group")
    return _make(parent, "split", chosen, _integer("key", key))


def dup(parent: Communicator) -> Communicator:
    """See ``Communicator.dup``."""
    made = _make(parent, "dup", 0, 0)
    assert made is not None  # every rank is a member
    return made


def new_group(parent: Communicator, ranks: Iterable[object]) -> Communicator | None:
    """See ``Communicator.new_group``."""
    members = _members(parent, ranks)
    digest = hashlib.blake2b(np.array(members, np.int64).tobytes(), digest_size=8).digest()
    inside = parent.rank in members
    return _make(
        parent,
        "new_group",
        0 if inside else None,
        members.index(parent.rank) if inside else 0,
        digest=int.from_bytes(digest, "little") >> 1,
        listed=members,
    )


def new_group_of_members(
    parent: Communicator, ranks: Iterable[object], tag: object, timeout: float | None
) -> Communicator:
    """See ``Communicator.new_group``, with members_only."""
    members = _members(parent, ranks)
    if parent.rank not in members:
        raise ValueError(
            f"ranks is {members}, without this rank, {parent.rank}: with members_only=True only members make the call"
        )
    chosen = tag if tag is None or isinstance(tag, str) else _integer("tag", tag, "an integer or a string")
    patience = patience_of(parent, timeout)
    about = repr((parent._number, members, chosen)).encode()
    high, low = struct.unpack("<QQ", hashlib.blake2b(about, digest_size=16).digest())
    handle, full = _core._meet(parent, members, high, low, patience)
    if full:
        _raise_full(full, len(members))
    return _made(parent, handle)


def _members(parent: Communicator, ranks: Iterable[object]) -> list[int]:
    """The ranks as a list; raises for one that is no list of members."""
    members = [_integer(f"ranks[{i}]", rank) for i, rank in enumerate(ranks)]
    if not members:
        raise ValueError("ranks is empty: a group with no members")
    for i, rank in enumerate(members):
        if not 0 <= rank < parent.size:
            raise ValueError(f"ranks[{i}] is {rank}, which is out of range: the ranks are 0 to {parent.size - 1}")
        if rank in members[:i]:
            raise ValueError(f"rank {rank} is listed twice: in ranks[{members.index(rank)}] and ranks[{i}]")
    return members


def _integer(name: str, value: object, accepted: str = "an integer") -> int:
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} is {value!r} of type {type(value).__name__}; {accepted} is accepted") from None
    if not -_LIMIT < number < _LIMIT:
        raise ValueError(f"{name} is {number}; integers between -2**62 and 2**62 are accepted")
    return number


def _make(
    parent: Communicator, kind: str, color: int | None, key: int, *, digest: int = 0, listed: list[int] | None = None
) -> Communicator | None:
    """A communicator of the ranks of the same color, by key and rank; None without a color."""
    mark = 0 if color is None else color + 1
    while True:
        rows = _gather(parent, kind, [_KINDS.index(kind), digest, mark, key, _core._propose(parent)])
        _check(parent, rows, listed)
        number = int(rows[:, 4].max())
        members = [r for r in range(parent.size) if mark > 0 and rows[r, 2] == mark]
        members.sort(key=lambda r: (int(rows[r, 3]), r))
        reservation = _core._reserve(parent, number, members)
        claimed, room, heap, offset = _gather(parent, kind, reservation.state()).T
        if claimed.all():
            break
        reservation.cancel()
    if not members:
        return None
    if not room[members].all():
        reservation.cancel()
        _raise_full([r for r in members if not room[r]], len(members))
    return _made(parent, reservation.make([(bool(heap[r]), int(offset[r])) for r in members]))


def _made(parent: Communicator, handle: object) -> Communicator:
    made = type(parent)(handle, transport=parent._nccl.transport)
    at_exit.register(made)
    return made


def _raise_full(ranks: list[int], size: int) -> NoReturn:
    raise MemoryError(
        f"the memory of these ranks has no room for another group of {size}: {', '.join(map(str, ranks))}; "
        "close groups that are not needed, or raise COLLECTIVES_SYMMETRIC_HEAP on all ranks"
    )


def _gather(parent: Communicator, kind: str, values: Sequence[int]) -> npt.NDArray[np.int64]:
    """The values of all ranks, a row of the result for each."""
    rows: npt.NDArray[np.int64] = parent.all_gather(np.array([values], np.int64), counts=1, name=kind)
    return rows


def _check(parent: Communicator, rows: npt.NDArray[np.int64], listed: list[int] | None) -> None:
    """Raises MismatchError unless all ranks make the same call."""
    if (rows[:, 0] != rows[0, 0]).any():
        calls = ", ".join(f"rank {r} called {_KINDS[rows[r, 0]]}" for r in range(parent.size))
        raise MismatchError(
            f"rank {parent.rank}: ranks disagree: {calls}; all ranks must issue the same collectives in the same order",
            rank=parent.rank,
            collective=_KINDS[rows[parent.rank, 0]],
        )
    same = rows[:, 1] == rows[parent.rank, 1]
    if not same.all():
        others = ", ".join(str(r) for r in range(parent.size) if not same[r])
        raise MismatchError(
            f"rank {parent.rank}: ranks passed different lists to new_group: this one {listed}, and another list came "
            f"from rank {others}; all ranks must pass the same",
            rank=parent.rank,
            peer=int(np.flatnonzero(~same)[0]),
            collective="new_group",
        )
