"""CrossDeviceOps in NumPy: the same additions in the same order, for comparisons bit by bit."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from collectives.cross_device_ops import ReductionToOneDevice, RingAllReduce
from conformance import Array

UFUNCS = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}


class Model:
    """What a class computes, step by step in NumPy, over arrays of one dimension."""

    def __init__(self, kind: type[Any], op: str, dtype: np.dtype[Any]) -> None:
        self.kind, self.op, self.dtype = kind, op, dtype
        narrow = dtype.itemsize < 4 and dtype.kind in "fV"
        self.wide = np.dtype(np.float32) if narrow else dtype

    def __call__(self, xs: list[Array], packs: int = 1) -> Array:
        if self.op == "mean" and self.dtype.kind in "iu":
            total = Model(self.kind, "sum", self.dtype)(xs, packs)
            wide = np.float64 if self.dtype.itemsize >= 4 else np.float32
            return total.astype(wide) / wide(len(xs))
        if self.kind is RingAllReduce:
            return self.ring(xs, packs)
        if self.kind is ReductionToOneDevice or len(xs) == 1:
            return self.finish(self.tree(xs), len(xs))
        half = math.ceil(len(xs) / 2)
        first, second = (self.tree(part).astype(self.dtype) for part in (xs[:half], xs[half:]))
        return self.finish(self.combine(second, first), len(xs))

    def combine(self, a: Array, b: Array) -> Array:
        with np.errstate(over="ignore"):
            return UFUNCS[self.op](a.astype(self.wide), b.astype(self.wide))

    def tree(self, xs: list[Array]) -> Array:
        if len(xs) == 1:
            return xs[0].astype(self.wide)
        middle = (len(xs) + 1) // 2
        return self.combine(self.tree(xs[:middle]), self.tree(xs[middle:]))

    def finish(self, x: Array, n: int) -> Array:
        if self.op != "mean":
            return x.astype(self.dtype)
        parts_of_complex = self.wide.kind == "c"  # each is divided, which NumPy's division by a complex n is not
        real = x.view(x.real.dtype) if parts_of_complex else x
        return (real / real.dtype.type(n)).view(self.wide).astype(self.dtype)

    def ring(self, xs: list[Array], packs: int) -> Array:
        n, total = len(xs), len(xs[0])
        result = np.empty_like(xs[0])
        for pack in range(packs):
            begin = total // packs * pack
            end = total if pack == packs - 1 else begin + total // packs
            for part, (low, high) in enumerate(parts(end - begin, self.dtype.itemsize, n)):
                piece = slice(begin + low, begin + high)
                value = xs[part][piece].astype(self.wide)
                for step in range(1, n):
                    value = self.combine(value.astype(self.dtype), xs[(part + step) % n][piece])
                result[piece] = self.finish(value, n)
        return result


def parts(count: int, itemsize: int, n: int) -> list[tuple[int, int]]:
    """Borders of the parts of a ring: at cache lines where there are enough."""
    unit = 64 if count * itemsize >= 64 * n else itemsize
    units = count * itemsize // unit
    borders = [units * i // n * unit // itemsize for i in range(n)] + [count]
    return list(itertools.pairwise(borders))
