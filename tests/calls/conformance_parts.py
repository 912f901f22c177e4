"""What ranks do in the conformance tests of the vector collectives: run cases against NumPy and say what went wrong.

Every array that a case gives or gets lies in a larger store of known bytes. After the call the outputs are put back to
what they were, and the stores must then be as before: inputs unchanged and nothing written outside the outputs.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from conformance import (
    FLOAT8,
    POISON,
    Array,
    assert_transport,
    canonical,
    expected,
    forget,
    inputs,
    numpy_dtype,
    wrong,
)
from pool import LIMIT

PARTS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
ROOTED = ("gather", "scatter")
GATHERING = ("all_gather", "gather")
LAYOUTS = ("plain", "fortran", "strided", "backwards", "unaligned", "big-endian")
GUARD = 64  # bytes before and after each array
Shape = tuple[int, ...]


class Case(NamedTuple):
    """One call.

    Attributes:
        rows: of each tensor, the rows of each part; for all_to_all [from * n + to].
        trailing: of each tensor, the shape of a row.
        form: where the result goes: "new" array, "out", or "in place" where the collective has such a form.
        counted: counts= is given.
        layout, out_layout: how the arrays lie in memory.
        as_list: tensors are given as a list, also when there is but one.
        scalar: a tensor of one row is given without dimensions (gathering collectives).
    """

    collective: str
    algorithm: str
    dtype: str
    rows: tuple[tuple[int, ...], ...]
    trailing: tuple[Shape, ...] = ((),)
    op: str = "sum"
    root: int = 0
    form: str = "new"
    counted: bool = True
    layout: str = "plain"
    out_layout: str = "plain"
    as_list: bool = False
    scalar: bool = False
    deterministic: bool = False


def guarded(shape: Shape, dtype: str, layout: str) -> tuple[Array, Array]:
    """A store of poisoned bytes, and an array in the midst of it."""
    kind, count = numpy_dtype(dtype), math.prod(shape)
    # The types of ml_dtypes have no byte order.
    layout = "strided" if layout == "big-endian" and dtype in ("bfloat16", *FLOAT8) else layout
    spread = 2 if layout == "strided" else 1
    begin = GUARD + (layout == "unaligned")
    store = np.full(begin + spread * count * kind.itemsize + GUARD, 1 if dtype == "bool" else POISON, np.uint8)
    body = store[begin : begin + spread * count * kind.itemsize].view(kind)
    if layout == "fortran":
        array = body.reshape(shape[::-1]).T
    elif layout == "strided":
        array = body[::2].reshape(shape)
    elif layout == "backwards":
        array = body[::-1].reshape(shape)
    elif layout == "big-endian":
        array = body.view(kind.newbyteorder(">")).reshape(shape)
    else:
        array = body.reshape(shape)
    assert count == 0 or np.shares_memory(store, array)
    return store, array


def part_of(rows: Sequence[int], index: int) -> slice:
    return slice(sum(rows[:index]), sum(rows[: index + 1]))


def given_rows(case: Case, n: int, rank: int) -> list[int]:
    """How many rows of each tensor a rank gives."""
    if case.collective in GATHERING:
        return [r[rank] for r in case.rows]
    if case.collective == "all_to_all":
        return [sum(r[rank * n : (rank + 1) * n]) for r in case.rows]
    return [sum(r) for r in case.rows]


def given(case: Case, n: int, rank: int, most: int) -> list[Array]:
    """The tensors that a rank gives: successive pieces of its input of `most` elements."""
    prod = case.collective == "reduce_scatter" and case.op == "prod"
    whole, begin, found = inputs(case.dtype, prod, most, n)[rank], 0, []
    for rows, trailing in zip(given_rows(case, n, rank), case.trailing, strict=True):
        end = begin + rows * math.prod(trailing)
        assert end <= most, "the case needs longer inputs"
        found.append(whole[begin:end].reshape(rows, *trailing))
        begin = end
    return found


def wanted(case: Case, n: int, rank: int, most: int) -> list[tuple[Array, Array]] | None:
    """What a rank must get, and the tolerance; None where it gets nothing."""
    if case.collective == "reduce_scatter":
        exact, loose, tight = expected(case.dtype, case.op, most, n)
        exactly = case.deterministic or case.algorithm in canonical("reduce_scatter")
        tolerance, begin, found = tight if exactly else loose, 0, []
        for rows, trailing in zip(case.rows, case.trailing, strict=True):
            end, piece = begin + sum(rows) * math.prod(trailing), part_of(rows, rank)
            shape = (sum(rows), *trailing)
            found.append((exact[begin:end].reshape(shape)[piece], tolerance[begin:end].reshape(shape)[piece]))
            begin = end
        return found
    if case.collective == "gather" and rank != case.root:
        return None
    if case.collective == "scatter":
        whole = given(case, n, case.root, most)
        results = [a[part_of(r, rank)] for a, r in zip(whole, case.rows, strict=True)]
    else:
        everyone = [given(case, n, r, most) for r in range(n)]
        if case.collective == "all_to_all":
            everyone = [
                [a[part_of(c[r * n : (r + 1) * n], rank)] for a, c in zip(everyone[r], case.rows, strict=True)]
                for r in range(n)
            ]
        results = [np.concatenate([one[t] for one in everyone]) for t in range(len(case.rows))]
    return [(a, np.zeros(0)) for a in results]


def counts_of(case: Case, n: int, rank: int) -> Any:
    """The argument counts= of a rank."""
    if not case.counted or (case.collective == "scatter" and rank != case.root):
        return None
    entries: list[Any] = []
    for rows in case.rows:
        own = rows[rank * n : (rank + 1) * n] if case.collective == "all_to_all" else rows
        # One number stands for equal ones. Both forms occur.
        entries.append(own[0] if len(set(own)) == 1 and own[0] % 2 else list(own))
    return entries if case.as_list else entries[0]


class Call:
    """A case on one rank: the arrays, the call, and what is wrong afterwards."""

    def __init__(self, comm: Any, case: Case, most: int) -> None:
        n, rank = comm.size, comm.rank
        self.comm, self.case = comm, case
        self.label = f"rank {rank} of {n}, {case}: "
        self.wanted = wanted(case, n, rank, most)
        self.stores: list[Array] = []
        self.x: list[Array] | None = None
        self.out: list[Array] | None = None
        gives = case.collective != "scatter" or rank == case.root
        sources = given(case, n, rank, most) if gives else []
        place = [part_of(r, rank) for r in case.rows]
        in_place = case.form == "in place" and case.collective != "all_to_all"
        if case.collective in GATHERING and in_place and self.wanted is not None:
            self.out = [self._array(w.shape, case.out_layout) for w, _ in self.wanted]
            self.x = [o[p] for o, p in zip(self.out, place, strict=True)]
        elif gives:
            self.x = [self._array(a.shape, case.layout) for a in sources]
            if in_place and case.collective not in GATHERING:
                self.out = [a[p] for a, p in zip(self.x, place, strict=True)]
        for a, source in zip(self.x or [], sources, strict=True):
            a[...] = source
        if self.out is None and case.form != "new":
            # A rank that gets nothing may pass what it likes; it is left alone.
            shapes = [(1,)] if self.wanted is None else [w.shape for w, _ in self.wanted]
            self.out = [self._array(shape, case.out_layout) for shape in shapes]
        if case.scalar and self.x is not None:
            self.x = [a.reshape(()) if a.shape == (1,) else a for a in self.x]
        self.before = [s.copy() for s in self.stores]
        self.blank = [o.copy() for o in self.out or []]

    def _array(self, shape: Shape, layout: str) -> Array:
        store, array = guarded(shape, self.case.dtype, layout)
        self.stores.append(store)
        return array

    def start(self, **more: Any) -> Any:
        """Makes the call, and returns what it returns."""
        case = self.case
        form: Any = (lambda arrays: arrays) if case.as_list else (lambda arrays: arrays[0])
        self.passed = None if self.out is None else form(self.out)
        if self.passed is not None:
            more["out"] = self.passed
        counts = counts_of(case, self.comm.size, self.comm.rank)
        if counts is not None:
            more["counts"] = counts
        if case.deterministic:
            more["deterministic"] = True
        if case.collective == "reduce_scatter":
            more["op"] = case.op
        if case.collective in ROOTED:
            more["root"] = case.root
        x = None if self.x is None else form(self.x)
        return getattr(self.comm, case.collective)(x, algorithm=case.algorithm, **more)

    def faults(self, result: Any) -> list[str]:
        """What is wrong with the result and with the memory."""
        found = []
        if self.wanted is None:
            if result is not None:
                found.append(f"returns {type(result).__name__} where there is nothing to return")
        elif self.passed is not None and result is not self.passed:
            found.append("does not return out")
        elif isinstance(result, list) != self.case.as_list:
            found.append(f"returns a {type(result).__name__}")
        else:
            found += self._compare(result if self.case.as_list else [result])
        for target, blank in zip(self.out or [], self.blank, strict=True):
            target[...] = blank
        for number, (store, before) in enumerate(zip(self.stores, self.before, strict=True)):
            if store.tobytes() != before.tobytes():
                at = int(np.flatnonzero(store != before)[0]) - GUARD
                found.append(f"array {number}: byte {at} was written and should not have been")
        return [self.label + text for text in found]

    def _compare(self, results: list[Array]) -> Iterator[str]:
        assert self.wanted is not None
        if len(results) != len(self.wanted):
            yield f"{len(results)} tensors instead of {len(self.wanted)}"
            return
        for t, (array, (exact, tolerance)) in enumerate(zip(results, self.wanted, strict=True)):
            native = array.astype(array.dtype.newbyteorder("="))
            if self.passed is None and array.dtype != numpy_dtype(self.case.dtype):
                yield f"tensor {t} is of {array.dtype}"
            if self.case.collective != "reduce_scatter" and native.tobytes() == exact.tobytes():
                tolerance = np.zeros(0)
            if text := wrong(native, exact, tolerance):
                yield f"tensor {t}: {text}"


def check(comm: Any, cases: list[Case], most: int) -> dict[str, Any]:
    """Runs the cases one after the other: what was wrong, and the bytes moved."""
    failures: list[str] = []
    before = comm.bytes_by_transport()
    for case in cases:
        call = Call(comm, case, most)
        failures += call.faults(call.start())
    after = comm.bytes_by_transport()
    forget(most)
    return {"failures": failures, "bytes": {name: after[name] - before.get(name, 0) for name in after}}


def check_in_flight(comm: Any, cases: list[Case], most: int, at_a_time: int) -> dict[str, Any]:
    """The same with several in flight, which each rank waits for in an order of its own."""
    own = random.Random(comm.rank)
    failures: list[str] = []
    before = comm.bytes_by_transport()
    for begin in range(0, len(cases), at_a_time):
        flying = []
        for case in cases[begin : begin + at_a_time]:
            call = Call(comm, case, most)
            flying.append((call, call.start(async_op=True)))
        own.shuffle(flying)
        for call, work in flying:
            result = work.result()
            if not work.done():
                failures.append(call.label + "is not done after its wait")
            failures += call.faults(result)
    after = comm.bytes_by_transport()
    forget(most)
    return {"failures": failures, "bytes": {name: after[name] - before.get(name, 0) for name in after}}


def judge(group: Any, cases: list[Case], most: int, at_a_time: int = 0, limit: float = 2 * LIMIT) -> None:
    """Runs the cases on a group and asserts that all was right and went by the transport asked for."""
    assert cases
    if at_a_time:
        reports = group.run(check_in_flight, cases, most, at_a_time, limit=limit)
    else:
        reports = group.run(check, cases, most, limit=limit)
    failures = [text for report in reports for text in report["failures"]]
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:20])
    moved = any(sum(r) * math.prod(t) for c in cases for r, t in zip(c.rows, c.trailing, strict=True))
    assert_transport(group, [report["bytes"] for report in reports], moved)


def usable_algorithms(comm: Any) -> list[tuple[str, str]]:
    """(collective, algorithm) of the registry that this group can use, and auto for each collective."""
    from collectives import _core

    found = []
    for collective in PARTS:
        found.append((collective, "auto"))
        for name in (a["name"] for a in _core._algorithms(collective)):
            case = Case(collective, name, "float32", (parts(collective, comm.size, [1]),))
            try:
                Call(comm, case, 64).start()  # every rank comes to the same answer, and a refused call does not count
            except ValueError as error:
                if "cannot be used here" not in str(error):
                    raise
                continue
            found.append((collective, name))
    return found


def parts(collective: str, n: int, pattern: Sequence[int]) -> tuple[int, ...]:
    """The pattern repeated for all parts of a collective."""
    return tuple(itertools.islice(itertools.cycle(pattern), n * n if collective == "all_to_all" else n))
