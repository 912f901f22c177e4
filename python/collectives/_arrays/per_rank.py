"""An argument that is one array for each rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class PerRank:
    """The parts of an argument as arrays of their own, one for each rank in rank order.

    Nothing is copied to bring them together. As ``x`` of ``scatter`` (on the root), ``reduce_scatter`` and
    ``all_to_all``, array i is what goes to rank i; as ``out`` of ``all_gather``, ``gather`` (on the root) and
    ``all_to_all``, array i gets what comes from rank i. (A plain list is one fused collective of as many tensors.)

    >>> parts = collectives.PerRank([np.full(r + 1, comm.rank) for r in range(comm.size)])
    >>> came = collectives.PerRank([np.empty(comm.rank + 1, int) for r in range(comm.size)])
    >>> comm.all_to_all(parts, out=came)

    Other ranks of the call may pass one array instead. In ``all_to_all`` they then pass ``counts``: the arrays of a
    PerRank say how many rows go and come.

    Args:
        arrays: in host memory, of one dtype, of the same shape but for the length of axis 0, which may be 0.
    """

    def __init__(self, arrays: Iterable[Any]) -> None:
        self._arrays = list(arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._arrays)

    def __getitem__(self, rank: int) -> Any:
        return self._arrays[rank]

    def __repr__(self) -> str:
        return f"PerRank({self._arrays!r})"
