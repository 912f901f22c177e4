"""The collectives that can be measured: how many elements a rank gives and gets, and the call itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core
from .._calls.arguments import Array
from ..work import wait_all

if TYPE_CHECKING:
    from ..communicator import Communicator

# What a call is made on: what this rank gives, and where what it gets goes. Where they share memory, the call is in
# place. What other arrays a rank has is no part of the call (those of a gather, on ranks that are not the root).
Buffers = tuple[Array, Array]
Call = Callable[..., Any]


@dataclass(frozen=True)
class Collective:
    """What is measured under one name.

    Attributes:
        reduces, rooted: whether it has an operation, and a root.
        gives, gets: whether a rank's array there is the whole one, or one of n parts.
        in_place: whether there is a call in place.
    """

    name: str
    reduces: bool = False
    rooted: bool = False
    gives: str = "whole"
    gets: str = "whole"
    in_place: bool = True

    @property
    def in_parts(self) -> bool:
        """Whether the array consists of a part for each rank."""
        return "part" in (self.gives, self.gets) or self.name == "all_to_all"

    def algorithms(self) -> list[str]:
        """The names that ``algorithm=`` accepts besides "auto"."""
        if self.name == "sendrecv":
            return []  # messages have none
        return [str(known["name"]) for known in _core._algorithms(self.name)]

    def count(self, nbytes: int, itemsize: int, ranks: int) -> int:
        """Elements of the whole array, for a size that is rounded down."""
        parts = ranks if self.in_parts else 1
        return nbytes // itemsize // parts * parts

    def lengths(self, count: int, rank: int, ranks: int, root: int) -> tuple[int, int]:
        """Elements that a rank gives and gets, of a whole array of `count`."""
        given = count // ranks if self.gives == "part" else count
        gotten = count // ranks if self.gets == "part" else count
        if rank != root and self.name == "gather":
            gotten = 0
        if rank != root and self.name == "scatter":
            given = 0
        return given, gotten

    def shared(self, whole: Array, rank: int, ranks: int, root: int) -> Buffers:
        """Given and gotten in one array, for a call in place.

        Args:
            whole: an array with the elements of the larger of both.
            rank, ranks, root: this rank, how many there are, and the root.
        """
        if rank != root and self.name == "gather":
            return whole, whole[:0]
        if rank != root and self.name == "scatter":
            return whole[:0], whole
        part = len(whole) // ranks
        own = whole[rank * part : (rank + 1) * part]
        return own if self.gives == "part" else whole, own if self.gets == "part" else whole

    def prepare(
        self, comm: Communicator, buffers: Buffers, op: str, root: int, algorithm: str
    ) -> Callable[[bool], Any]:
        """The call as a function: what a user would write, and no more. Its argument is ``async_op``."""
        x, out = buffers
        if self.name == "sendrecv":
            return _exchange(comm, x, out)
        keywords: dict[str, Any] = {} if algorithm == "auto" else {"algorithm": algorithm}
        if self.rooted:
            keywords["root"] = root
        if self.reduces:
            keywords["op"] = op
        if self.name in ("all_gather", "gather"):
            keywords["counts"] = len(x)  # else the ranks tell each other first
        if x is not out and (self.name != "gather" or comm.rank == root):
            keywords["out"] = out
        given = None if self.name == "scatter" and comm.rank != root else x
        method = getattr(comm, self.name)

        def call(async_op: bool) -> Any:
            return method(given, async_op=async_op, **keywords)

        return call


def _exchange(comm: Communicator, x: Array, out: Array) -> Callable[[bool], Any]:
    """Each rank sends to the next one, as in nccl-tests."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def call(async_op: bool) -> Any:
        if not async_op:
            return comm.sendrecv(x, after, before, out=out)
        return _Both(comm.recv(out, before, async_op=True), comm.send(x, after, async_op=True))

    return call


class _Both:
    """The handle of a message to another rank and one from another."""

    def __init__(self, *works: Any) -> None:
        self._works = works

    def wait(self) -> None:
        wait_all(self._works)


COLLECTIVES = {
    kind.name: kind
    for kind in (
        Collective("all_reduce", reduces=True),
        Collective("all_gather", gives="part"),
        Collective("broadcast", rooted=True),
        Collective("reduce", reduces=True, rooted=True),
        Collective("reduce_scatter", reduces=True, gets="part"),
        Collective("all_to_all", in_place=False),
        Collective("gather", rooted=True, gives="part"),
        Collective("scatter", rooted=True, gets="part"),
        Collective("sendrecv", in_place=False),
    )
}
