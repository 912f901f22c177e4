"""The arrays of one call: what the engine reads and writes, and what the caller gets back."""

from __future__ import annotations

from typing import Any

from . import Adapted, adapt, empty
from .adapted import Array
from .per_rank import PerRank


class Operands:
    """The arguments ``x`` and ``out`` of a collective.

    Attributes:
        inputs: views of the caller's memory.
        outputs: where results go: ``inputs`` itself (the same list) when the call is in place; otherwise the memory of
            ``out``, or, for immutable kinds, new arrays.
    """

    def __init__(self, x: Any, out: Any, written: bool) -> None:
        """``written``: whether this rank gets a result. Raises TypeError for what cannot be used."""
        self._x = x
        self._out = out
        self._items = list(x) if isinstance(x, (list, tuple)) else [x]
        self._given = adapt_all(x, "x")
        self.inputs: list[Array] = [a.array for a in self._given]
        self.outputs = self.inputs
        if out is not None:
            self.outputs = adapt_outputs(out, "out")
        elif written and not all(a.mutable for a in self._given):
            self.outputs = [a.array if a.mutable else empty(a.array.shape, a.array.dtype) for a in self._given]

    def result(self) -> Any:
        """What the call returns. To be called only when it is over, since new arrays then belong to the caller."""
        if self._out is not None:
            return self._out
        if self.outputs is self.inputs:
            return self._x
        if not isinstance(self._x, (list, tuple)):
            return self._given[0].wrap(self.outputs[0])
        made = [
            item if adapted.mutable else adapted.wrap(output)
            for item, adapted, output in zip(self._items, self._given, self.outputs, strict=True)
        ]
        return made if isinstance(self._x, list) else tuple(made)


def adapt_all(x: Any, what: str) -> list[Adapted]:
    """An array, or a list of arrays, of the caller. Raises TypeError for what cannot be used."""
    if isinstance(x, (list, tuple, PerRank)):
        return [adapt(item, f"{what}[{i}]") for i, item in enumerate(x)]
    return [adapt(x, what)]


def adapt_outputs(out: Any, what: str) -> list[Array]:
    """The memory of arrays that are to be written. Raises TypeError for immutable arrays."""
    targets = adapt_all(out, what)
    for i, target in enumerate(targets):
        if not target.mutable:
            which = f"{what}[{i}]" if isinstance(out, (list, tuple, PerRank)) else what
            raise TypeError(
                f"{which} is an array whose values never change; leave out= away and use what the call returns"
            )
    return [a.array for a in targets]
