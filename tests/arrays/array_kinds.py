"""What the tests of arrays of other libraries share: every way to call a collective with a kind of array."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from conformance import Array, numpy_dtype, reduced, values, wrong

SHAPES = [(), (0,), (1,), (3, 0, 2), (7,), (4, 5), (97, 129)]


class Kind(NamedTuple):
    """A kind of array.

    Attributes:
        make: a new object with the values of an array.
        read: its values, as a copy.
        type: of what is made.
        mutable: whether results go into the object itself.
        dtypes: those to try.
        shapes: those that the kind has.
    """

    make: Callable[[Array], Any]
    read: Callable[[Any], Array]
    type: type
    mutable: bool
    dtypes: list[str]
    shapes: list[tuple[int, ...]] = SHAPES


def exercise(comm: Any, kind: Kind) -> list[str]:
    """In place, out=, asynchronous, fused, rooted: what was wrong."""
    failures: list[str] = []
    for dtype in kind.dtypes:
        for index, shape in enumerate(kind.shapes):
            root = index % comm.size
            failures += [f"{dtype} {shape}, {text}" for text in _exercise(comm, kind, dtype, shape, root)]
    return [f"rank {comm.rank}: {text}" for text in failures]


def sources(comm: Any, dtype: str, shape: tuple[int, ...], seed: int = 0) -> list[Array]:
    """The values of every rank."""
    return [values(dtype, False, math.prod(shape), rank, seed).reshape(shape) for rank in range(comm.size)]


def _exercise(comm: Any, kind: Kind, dtype: str, shape: tuple[int, ...], root: int) -> list[str]:
    every = sources(comm, dtype, shape)
    mine = every[comm.rank]
    failures = []

    def judge(
        label: str, x: Any, result: Any, exact: Array, loose: Array, out: Any = None, before: Array = mine
    ) -> None:
        found = [wrong(kind.read(result), exact, loose)]
        if kind.read(result).dtype != numpy_dtype(dtype):
            found.append(f"has dtype {kind.read(result).dtype}")
        if type(result) is not kind.type:
            found.append(f"is of type {type(result).__name__}")
        if out is None and (result is x) != kind.mutable:
            found.append("is another object" if kind.mutable else "is the argument")
        if out is not None and result is not out:
            found.append("is not out")
        if (out is not None or not kind.mutable) and wrong(kind.read(x), before, np.zeros(0)):
            found.append("the argument was changed")
        failures.extend(f"{label}: {text}" for text in found if text)

    for op in ("sum", "max") if "complex" not in dtype else ("sum",):
        exact, loose, _ = reduced(every, op)
        x = kind.make(mine)
        judge(f"all_reduce {op}", x, comm.all_reduce(x, op), exact, loose)
        x = kind.make(mine)
        work = comm.all_reduce(x, op, async_op=True)
        judge(f"asynchronous {op}", x, work.result(), exact, loose)
        if work.result() is not work.result():
            failures.append("a work gives another result each time")
    exact, loose, _ = reduced(every, "sum")
    if kind.mutable:
        x, out = kind.make(mine), kind.make(np.ones_like(mine))
        judge("all_reduce into out", x, comm.all_reduce(x, out=out), exact, loose, out)
    x, array = kind.make(mine), np.ones_like(mine)
    if comm.all_reduce(x, out=array) is not array:
        failures.append("out= of NumPy is not returned")
    if text := wrong(array, exact, loose) or wrong(kind.read(x), mine, np.zeros(0)):
        failures.append(f"all_reduce into an array of NumPy: {text}")

    x = kind.make(mine)
    judge("broadcast", x, comm.broadcast(x, root), every[root], np.zeros(0))
    x = kind.make(mine)
    result = comm.reduce(x, "sum", root)
    if comm.rank == root:
        judge("reduce", x, result, exact, loose)
    elif result is not x or wrong(kind.read(x), mine, np.zeros(0)):
        failures.append("reduce: a rank that is not the root has another array, or it was written")

    others = sources(comm, dtype, kind.shapes[-1], 1)
    exact_other, loose_other, _ = reduced(others, "sum")
    for sequence in (list, tuple):
        first, array, second = kind.make(mine), others[comm.rank].copy(), kind.make(others[comm.rank])
        given = sequence([first, array, second])
        results = comm.all_reduce(given)
        if (results is given) != kind.mutable or type(results) is not sequence or results[1] is not array:
            failures.append("a list: the sequence that comes back is wrong")
        judge("first of a list", first, results[0], exact, loose)
        judge("last of a list", second, results[2], exact_other, loose_other, None, others[comm.rank])
        if text := wrong(array, exact_other, loose_other):
            failures.append(f"the array of NumPy in a list: {text}")
    return failures


class Refused(NamedTuple):
    """A call that must raise, and words of its text."""

    call: Callable[[Any], Any]
    error: type[Exception]
    words: list[str]


def judge_refused(comm: Any, refused: Refused) -> None:
    """Makes the call on a group of one; the group stays usable."""
    try:
        result = refused.call(comm)
    except refused.error as error:
        text = str(error)
    else:
        raise AssertionError(f"accepted: {result!r}")
    for word in refused.words:
        assert word in text, f"{word!r} is not in: {text}"
    assert comm.all_reduce(np.ones(2))[0] == 1


class Interface:
    """Memory by ``__array_interface__``."""

    def __init__(self, a: Array) -> None:
        self._store = a.copy()
        self.__array_interface__ = self._store.__array_interface__


class DLPack:
    """Memory by DLPack, of the version that tells whether it may be written, or of the one before."""

    device = (1, 0)
    old = False

    def __init__(self, a: Array) -> None:
        self._store = a.copy()

    def __dlpack__(self, **options: Any) -> Any:
        return self._store.__dlpack__() if self.old else self._store.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OldDLPack(DLPack):
    old = True


class ForeignDLPack(DLPack):
    device = (2, 3)
