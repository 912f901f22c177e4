"""The argument of a vector collective: an array, or a list of arrays of one dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from .._arrays.adapted import Adapted
from .._arrays.operands import adapt_all
from .._arrays.per_rank import PerRank
from . import layout
from .arguments import Array, check_dtypes, check_options
from .options import CallOptions

if TYPE_CHECKING:
    from ..communicator import Communicator


class Tensors:
    """The tensors of an argument, checked; a tensor of no dimensions counts as one row.

    Attributes:
        arrays: the caller's memory.
        kinds: the arrays as adapted, to make results of the same kinds.
        container: list or tuple, None for one tensor.
        per_rank: there is one tensor, and the arrays are its parts.
    """

    def __init__(self, comm: Communicator, collective: str, x: Any, options: CallOptions) -> None:
        check_options(comm.size, options)
        # Before the ranks exchange anything: an error here must not leave the others waiting.
        if options.algorithm != "auto":
            names = [a["name"] for a in _core._algorithms(collective)]
            if options.algorithm not in names:
                there = ", ".join(["auto", *names])
                raise ValueError(f"{collective} has no algorithm {options.algorithm!r}; there are {there}")
        self.kinds: list[Adapted] = adapt_all(x, "x")
        self.arrays: list[Array] = [a.array.reshape(1) if a.array.ndim == 0 else a.array for a in self.kinds]
        self.container: Any = type(x) if isinstance(x, (list, tuple)) else None
        self.per_rank = isinstance(x, PerRank)
        check_dtypes(self.arrays, collective, options.op)
        self.dtype: np.dtype[Any] = self.arrays[0].dtype if self.arrays else np.dtype(np.uint8)

    def expect(self, dtype: np.dtype[Any] | None, container: Any) -> None:
        """Sets dtype and container on a rank that gives no tensors."""
        self.dtype = self.dtype if dtype is None else dtype
        self.container = container

    @property
    def widths(self) -> list[int]:
        """Elements of a row of each tensor."""
        return [layout.width(a) for a in self.arrays]
