"""Vector collectives: each rank gives or gets its own part of an array along axis 0, of any length.

The core needs one list of lengths that is the same on every rank. Lengths that the caller does not pass, the ranks
exchange first, by one small collective. A list of tensors is one collective: the core gets the pieces by rank, then by
tensor, so nothing is packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import _core
from .._arrays.adapted import Adapted, empty, same
from .._arrays.operands import adapt_all, adapt_outputs
from ..work import Work
from . import layout
from .arguments import Array, check_dtypes, check_factor, check_options, is_plain, plain
from .layout import Counts

if TYPE_CHECKING:
    from ..communicator import Communicator

Shape: TypeAlias = tuple[int, ...]
Rows: TypeAlias = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Options:
    """The arguments that do not depend on the collective; see ``Communicator``."""

    algorithm: str = "auto"
    async_op: bool = False
    timeout: float | None = None
    name: str | None = None
    op: str = "sum"
    deterministic: bool = False
    factor: float | None = None
    root: int = 0
    exchanged: npt.NDArray[np.int64] | None = None  # lengths that C++ has exchanged; see bindings/calls/layouts.h
    empty: Callable[[Shape, np.dtype[Any]], Array] = empty  # makes the arrays of results
    start: Callable[..., Any] | None = None  # called instead of ``comm._start``, with its arguments


class Tensors:
    """The tensors of an argument, checked; a tensor of no dimensions counts as one row.

    Attributes:
        arrays: the caller's memory.
        kinds: the arrays as adapted, to make results of the same kinds.
        container: list or tuple, None for one tensor.
    """

    def __init__(self, comm: Communicator, collective: str, x: Any, options: Options) -> None:
        check_options(comm.size, options.op, options.root, options.algorithm, options.timeout, options.name)
        check_factor(options.op, options.factor)
        # Before the ranks exchange anything: an error here must not leave the others waiting.
        if options.algorithm != "auto":
            names = [a["name"] for a in _core._algorithms(collective)]
            if options.algorithm not in names:
                there = ", ".join(["auto", *names])
                raise ValueError(f"{collective} has no algorithm {options.algorithm!r}; there are {there}")
        self.kinds: list[Adapted] = adapt_all(x, "x")
        self.arrays: list[Array] = [a.array.reshape(1) if a.array.ndim == 0 else a.array for a in self.kinds]
        self.container: Any = type(x) if isinstance(x, (list, tuple)) else None
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


def _start(
    comm: Communicator,
    collective: str,
    given: Tensors,
    shapes: Sequence[Shape] | None,
    lengths: list[int],
    options: Options,
    *,
    x_rows: Rows | None,
    out_rows: Rows | None,
    out: Any,
    shapes_from_peers: bool = False,
) -> Any:
    """Starts the collective and returns its result, or its Work.

    Args:
        comm, collective, options: what is started.
        given: the tensors that this rank gives; empty where it gives nothing.
        shapes: of the tensors that it gets, None where it gets nothing.
        lengths: see ``layout.lengths``.
        x_rows, out_rows: of each tensor, the rows of each part; None where a tensor is one part.
        out: as the caller gave it.
        shapes_from_peers: the ranks have exchanged shapes, so the others are in the collective already. This rank takes
            part even when `out` does not fit, and raises the error afterwards; else the others would wait for it.
    """
    out_error: Exception | None = None
    needed = [] if shapes is None else shapes
    results = None
    if out is not None:
        try:
            results = adapt_outputs(out, "out")
            layout.check_outputs(results, needed, given.dtype)
        except (TypeError, ValueError) as error:
            if not shapes_from_peers:
                raise
            out_error, results = error, None
    if results is None:
        results = [options.empty(shape, given.dtype) for shape in needed]
    targets = [o if is_plain(o) else np.empty(o.shape, o.dtype.newbyteorder("=")) for o in results]
    sources = [plain(a) for a in layout.separate_inputs(given.arrays, results)]
    begin = comm._start if options.start is None else options.start
    work = begin(
        collective,
        sources if x_rows is None else layout.pieces(sources, x_rows),
        targets if out_rows is None else layout.pieces(targets, out_rows),
        options.op,
        int(options.root),
        options.algorithm,
        bool(options.deterministic),
        options.timeout,
        options.name,
        bool(options.async_op),
        lengths,
        options.factor,
    )
    if out_error is not None:
        work.wait(-1.0)
        raise out_error

    def finish() -> Any:
        for target, source in zip(results, targets, strict=True):
            if target is not source:
                target[...] = source
        if shapes is None or out is not None:
            return out
        wraps = [a.wrap for a in given.kinds] or [same] * len(results)
        made = [wrap(result) for wrap, result in zip(wraps, results, strict=True)]
        return made[0] if given.container is None else given.container(made)

    pending = Work(work, finish)
    return pending if options.async_op else pending.result()


def _check_early(out: Any, given: Tensors) -> None:
    """Checks of `out` that need no lengths of other ranks."""
    if out is not None:
        shapes = [(None, *a.shape[1:]) for a in given.arrays]
        layout.check_outputs(adapt_outputs(out, "out"), shapes, given.dtype)


def _joined_rows(
    comm: Communicator, collective: str, given: Tensors, out: Any, counts: Counts, options: Options
) -> list[list[int]]:
    """How many rows of each tensor each rank gives."""
    tensors = given.arrays
    if counts is not None:
        rows = layout.as_rows(counts, given.container is not None, len(tensors), comm.size)
        layout.check_rows(tensors, [[r[comm.rank]] for r in rows], "x")
        return rows
    if options.exchanged is None:
        _check_early(out, given)
        tables = layout.exchange(comm, layout.describe(tensors), options.name, options.timeout)
    else:
        tables = options.exchanged.reshape(comm.size, 1, layout.DESCRIPTION)
    layout.check_alike(comm, tables, collective)
    return [[int(table[t, 2]) for table in tables] for t in range(len(tensors))]


def _split_rows(comm: Communicator, collective: str, given: Tensors, counts: Counts) -> Any:
    """How many rows of each tensor go to each rank: [tensor, rank]."""
    tensors = given.arrays
    if counts is None:
        rows = layout.even_rows(tensors, comm.size, collective)
    else:
        rows = layout.as_rows(counts, given.container is not None, len(tensors), comm.size)
        layout.check_rows(tensors, rows, "x")
    return np.array(rows, np.int64).reshape(len(tensors), comm.size)


def all_gather(comm: Communicator, x: Any, out: Any, counts: Counts, options: Options) -> Any:
    """See ``Communicator.all_gather``."""
    given = Tensors(comm, "all_gather", x, options)
    tensors = given.arrays
    rows = _joined_rows(comm, "all_gather", given, out, counts, options)
    shapes = [(sum(r), *a.shape[1:]) for a, r in zip(tensors, rows, strict=True)]
    return _start(
        comm,
        "all_gather",
        given,
        shapes,
        layout.lengths(rows, given.widths),
        options,
        x_rows=None,
        out_rows=rows,
        out=out,
        shapes_from_peers=counts is None,
    )


def gather(comm: Communicator, x: Any, out: Any, counts: Counts, options: Options) -> Any:
    """See ``Communicator.gather``."""
    given = Tensors(comm, "gather", x, options)
    tensors = given.arrays
    here = comm.rank == options.root
    out = out if here else None
    rows = _joined_rows(comm, "gather", given, out, counts, options)
    shapes = [(sum(r), *a.shape[1:]) for a, r in zip(tensors, rows, strict=True)] if here else None
    return _start(
        comm,
        "gather",
        given,
        shapes,
        layout.lengths(rows, given.widths),
        options,
        x_rows=None,
        out_rows=rows if here else None,
        out=out,
        shapes_from_peers=counts is None,
    )


def _broadcast_table(
    comm: Communicator, table: npt.NDArray[np.int64] | None, is_list: bool, options: Options
) -> tuple[Any, bool]:
    """Sends the table of the root to all ranks, and whether its tensors are a list.

    The first message has the number of tensors, whether they are a list, and the first row of the table.
    csrc/bindings/calls/layouts.cc does the same for one array: change both files together.
    """
    columns = layout.DESCRIPTION + comm.size
    name = None if options.name is None else f"{options.name} (lengths)"
    exchanged = options.exchanged
    if exchanged is None:
        exchanged = np.zeros(2 + columns, np.int64)
        if table is not None:
            exchanged[:2] = len(table), is_list
            exchanged[2:] = table[0] if len(table) else 0
        comm.broadcast(exchanged, options.root, timeout=options.timeout, name=name)
    tensors = int(exchanged[0])
    if table is None:
        table = np.empty((tensors, columns), np.int64)
        table[:1] = exchanged[2:]
    if tensors > 1:
        comm.broadcast(table[1:], options.root, timeout=options.timeout, name=name)
    return table, bool(exchanged[1])


def scatter(comm: Communicator, x: Any, out: Any, counts: Counts, options: Options) -> Any:
    """See ``Communicator.scatter``."""
    here = comm.rank == options.root
    if here and x is None:
        raise TypeError(f"x is None on rank {comm.rank}, which is the root; pass the array to scatter")
    given = Tensors(comm, "scatter", x if here else [], options)
    tensors = given.arrays
    table = None
    early = out is not None and options.exchanged is None  # after the exchange the others wait for this rank
    if early:
        layout.check_writable(adapt_outputs(out, "out"))
    if here:
        own = _split_rows(comm, "scatter", given, counts)
        table = np.hstack([layout.describe(tensors), own])
        if early:
            shapes = [(int(r[comm.rank]), *a.shape[1:]) for a, r in zip(tensors, own, strict=True)]
            layout.check_outputs(adapt_outputs(out, "out"), shapes, given.dtype)
    table, is_list = _broadcast_table(comm, table, given.container is not None, options)
    rows = [[int(c) for c in row[layout.DESCRIPTION :]] for row in table]
    trailing = [layout.shape_of(row)[1:] for row in table]
    if not here:
        given.expect(layout.dtype_of(table[0]) if len(table) else None, list if is_list else None)
    return _start(
        comm,
        "scatter",
        given,
        [(r[comm.rank], *t) for r, t in zip(rows, trailing, strict=True)],
        layout.lengths(rows, [math.prod(t) for t in trailing]),
        options,
        x_rows=rows if here else None,
        out_rows=None,
        out=out,
        shapes_from_peers=not (here and early),
    )


def reduce_scatter(comm: Communicator, x: Any, out: Any, counts: Counts, options: Options) -> Any:
    """See ``Communicator.reduce_scatter``."""
    given = Tensors(comm, "reduce_scatter", x, options)
    tensors = given.arrays
    rows = _split_rows(comm, "reduce_scatter", given, counts)
    return _start(
        comm,
        "reduce_scatter",
        given,
        [(int(r[comm.rank]), *a.shape[1:]) for a, r in zip(tensors, rows, strict=True)],
        layout.lengths(rows.tolist(), given.widths),
        options,
        x_rows=rows,
        out_rows=None,
        out=out,
    )


def all_to_all(comm: Communicator, x: Any, out: Any, counts: Counts, options: Options) -> Any:
    """See ``Communicator.all_to_all``."""
    given = Tensors(comm, "all_to_all", x, options)
    tensors = given.arrays
    own = _split_rows(comm, "all_to_all", given, counts)
    if counts is None:
        tables = np.stack([own] * comm.size)  # a rank with other lengths has another signature
    else:
        _check_early(out, given)
        tables = layout.exchange(comm, np.hstack([layout.describe(tensors), own]), options.name, options.timeout)
        layout.check_alike(comm, tables[:, :, : layout.DESCRIPTION], "all_to_all")
        tables = tables[:, :, layout.DESCRIPTION :]
    matrices = tables.transpose(1, 0, 2)  # [tensor][from][to]
    arriving = matrices[:, :, comm.rank]
    return _start(
        comm,
        "all_to_all",
        given,
        [(int(r.sum()), *a.shape[1:]) for a, r in zip(tensors, arriving, strict=True)],
        layout.lengths(matrices.reshape(len(tensors), comm.size**2).tolist(), given.widths),
        options,
        x_rows=own,
        out_rows=arriving,
        out=out,
        shapes_from_peers=counts is not None,
    )
