"""Vector collectives: each rank gives or gets its own part of an array along axis 0, of any length.

The core needs one list of lengths that is the same on every rank. Lengths that the caller does not pass, the ranks
exchange first, by one small collective, after which the engine goes on by itself (``bindings/calls/negotiated.h``);
only for arrays on devices it comes back here. A list of tensors is one collective: the core gets the pieces by rank,
then by tensor, so nothing is packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .._arrays.adapted import empty, same
from .._arrays.operands import adapt_outputs
from .._arrays.per_rank import PerRank
from ..work import Work
from . import layout
from .arguments import Array, is_plain, plain
from .layout import Counts, Splits
from .options import CallOptions
from .tensors import Tensors

if TYPE_CHECKING:
    from ..communicator import Communicator

Shape: TypeAlias = tuple[int, ...]
Rows: TypeAlias = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Means:
    """How a call on arrays that stand for others, or one that C++ has begun, differs from the caller's own.

    Attributes:
        exchanged: lengths that C++ has exchanged; see ``bindings/calls/layouts.h``.
        empty: makes the arrays of results.
        start: called instead of ``comm._start``, with its arguments.
    """

    exchanged: npt.NDArray[np.int64] | None = None
    empty: Callable[[Shape, np.dtype[Any]], Array] = empty
    start: Callable[..., Any] | None = None

    @property
    def of_host(self) -> bool:
        """Whether the engine may make the results, and start the call."""
        return self.empty is empty and self.start is None


HOST = Means()  # of an ordinary call


def start(
    comm: Communicator,
    collective: str,
    given: Tensors,
    shapes: Sequence[Shape] | None,
    lengths: list[int],
    options: CallOptions,
    means: Means,
    *,
    x_rows: Rows | None,
    out_rows: Rows | None,
    out: Any,
    shapes_from_peers: bool = False,
) -> Any:
    """Starts the collective and returns its result, or its Work.

    Args:
        comm, collective, options, means: what is started, and how.
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
        results = [means.empty(shape, given.dtype) for shape in needed]
    targets = _targets(results)
    sources = [plain(a) for a in layout.separate_inputs(given.arrays, results)]
    begin = comm._start if means.start is None else means.start
    work = begin(
        collective,
        sources if x_rows is None else layout.pieces(sources, x_rows),
        targets if out_rows is None else layout.pieces(targets, out_rows),
        lengths,
        options,
    )
    if out_error is not None:
        work.wait(-1.0)
        raise out_error

    def finish() -> Any:
        _copy_to(results, targets)
        return out if shapes is None or out is not None else _wrapped(given, results)

    pending = Work(work, finish)
    return pending if options.async_op else pending.result()


def _check_early(out: Any, given: Tensors) -> None:
    """Checks of `out` that need no lengths of other ranks."""
    if out is not None:
        shapes = [(None, *a.shape[1:]) for a in given.arrays]
        layout.check_outputs(adapt_outputs(out, "out"), shapes, given.dtype)


def start_negotiated(
    comm: Communicator,
    collective: str,
    given: Tensors,
    out: Any,
    options: CallOptions,
    means: Means,
    *,
    rows: Rows | None = None,
    expected: Rows | None = None,
) -> Any:
    """Starts a collective before which the ranks tell each other what they give; see ``bindings/calls/layouts.h``.

    Nobody waits in between: an asynchronous call returns at once. All ranks take part even where `out` does not fit on
    one of them, which raises the error afterwards; else the others would wait for it.

    Args:
        comm, collective, given, options, means: as of ``start``.
        out: as the caller gave it; None on ranks that get nothing.
        rows: of each tensor, the rows for each rank; None where a tensor is one part.
        expected: of each tensor, the rows that come from each rank, where the caller has said so.
    """
    results = None if out is None else adapt_outputs(out, "out")
    targets, refusal = None, None
    if results is not None:
        try:
            layout.check_writable(results)
            targets = _targets(results)
        except ValueError as error:
            if means.exchanged is None:
                raise
            refusal = error  # the others are in the call already
    sources = [plain(a) for a in layout.separate_inputs(given.arrays, results or [])]
    is_list = given.container is not None
    per_rank = given.per_rank, isinstance(out, PerRank)
    work = comm._start_negotiated(
        collective, sources, rows, expected, targets, is_list, per_rank, means.exchanged, options
    )

    def finish() -> Any:
        made, shapes, came, root_gave_list = work.outcome()
        if refusal is not None:
            raise refusal
        if collective == "scatter" and comm.rank != options.root:
            given.expect(None, list if root_gave_list else None)
        if results is not None and targets is not None:
            if made:  # those of the caller do not fit
                needed = [(n, *shapes[0][1:]) for n in came] if per_rank[1] else [tuple(shape) for shape in shapes]
                layout.check_outputs(results, needed, made[0].dtype)
            _copy_to(results, targets)
            return out
        if collective == "gather" and comm.rank != options.root:
            return None
        if per_rank[0] and collective == "all_to_all":
            made = np.split(made[0], np.cumsum(came)[:-1])
            return PerRank(kind.wrap(part) for kind, part in zip(given.kinds, made, strict=True))
        return _wrapped(given, made)

    pending = Work(work, finish)
    return pending if options.async_op else pending.result()


def _targets(results: Sequence[Array]) -> list[Array]:
    """Memory that the engine can write for each result: its own where that is possible."""
    return [o if is_plain(o) else np.empty(o.shape, o.dtype.newbyteorder("=")) for o in results]


def _copy_to(results: Sequence[Array], targets: Sequence[Array]) -> None:
    for result, target in zip(results, targets, strict=True):
        if result is not target:
            result[...] = target


def _wrapped(given: Tensors, results: Sequence[Array]) -> Any:
    """New arrays as the caller gets them: of the kinds that it gave, one or in a list."""
    wraps = [a.wrap for a in given.kinds[: len(results)]] or [same] * len(results)
    made = [wrap(result) for wrap, result in zip(wraps, results, strict=True)]
    return made[0] if given.container is None else given.container(made)


def _known_rows(comm: Communicator, given: Tensors, counts: Counts) -> list[list[int]]:
    """How many rows of each tensor each rank gives, as the caller says."""
    rows = layout.as_rows(counts, given.container is not None, len(given.arrays), comm.size)
    layout.check_rows(given.arrays, [[r[comm.rank]] for r in rows], "x")
    return rows


def split_rows(comm: Communicator, collective: str, given: Tensors, counts: Counts) -> Any:
    """How many rows of each tensor go to each rank: [tensor, rank]."""
    tensors = given.arrays
    if counts is None:
        rows = layout.even_rows(tensors, comm.size, collective)
    else:
        rows = layout.as_rows(counts, given.container is not None, len(tensors), comm.size)
        layout.check_rows(tensors, rows, "x")
    return np.array(rows, np.int64).reshape(len(tensors), comm.size)


def _exchanged(
    comm: Communicator,
    collective: str,
    given: Tensors,
    options: CallOptions,
    means: Means,
    *,
    rows: Rows | None = None,
    expected: Rows | None = None,
) -> tuple[npt.NDArray[np.int64], bool]:
    """What the ranks give, [rank, tensor, column], of scatter of the root alone; and whether that has given a list.

    For arrays on devices. The arguments are those of ``start_negotiated``.
    """
    table, tensors, is_list = comm._exchange_layouts(
        collective, given.arrays, rows, expected, given.container is not None, means.exchanged, options
    )
    ranks = 1 if collective == "scatter" else comm.size
    return table.reshape(ranks, tensors, -1 if tensors else layout.DESCRIPTION), is_list


def _exchanged_rows(
    comm: Communicator, collective: str, given: Tensors, options: CallOptions, means: Means
) -> list[list[int]]:
    """How many rows of each tensor each rank gives."""
    tables, _ = _exchanged(comm, collective, given, options, means)
    return [[int(n) for n in rows] for rows in tables[:, :, 2].T]


def _joined(
    comm: Communicator,
    collective: str,
    given: Tensors,
    out: Any,
    counts: Counts,
    options: CallOptions,
    means: Means,
    gets: bool,
) -> Any:
    """all_gather and gather. gets: whether this rank gets the result."""
    if counts is None:
        if means.exchanged is None:
            _check_early(out, given)
        if means.of_host:
            return start_negotiated(comm, collective, given, out, options, means)
        rows = _exchanged_rows(comm, collective, given, options, means)
    else:
        rows = _known_rows(comm, given, counts)
    shapes = [(sum(r), *a.shape[1:]) for a, r in zip(given.arrays, rows, strict=True)] if gets else None
    return start(
        comm,
        collective,
        given,
        shapes,
        layout.lengths(rows, given.widths),
        options,
        means,
        x_rows=None,
        out_rows=rows if gets else None,
        out=out,
        shapes_from_peers=counts is None,
    )


def all_gather(comm: Communicator, x: Any, out: Any, counts: Counts, options: CallOptions, means: Means = HOST) -> Any:
    """See ``Communicator.all_gather``."""
    given = Tensors(comm, "all_gather", x, options)
    return _joined(comm, "all_gather", given, out, counts, options, means, True)


def gather(comm: Communicator, x: Any, out: Any, counts: Counts, options: CallOptions, means: Means = HOST) -> Any:
    """See ``Communicator.gather``."""
    given = Tensors(comm, "gather", x, options)
    here = comm.rank == options.root
    return _joined(comm, "gather", given, out if here else None, counts, options, means, here)


def scatter(comm: Communicator, x: Any, out: Any, counts: Counts, options: CallOptions, means: Means = HOST) -> Any:
    """See ``Communicator.scatter``."""
    here = comm.rank == options.root
    if here and x is None:
        raise TypeError(f"x is None on rank {comm.rank}, which is the root; pass the array to scatter")
    given = Tensors(comm, "scatter", x if here else [], options)
    own = split_rows(comm, "scatter", given, counts) if here else None
    early = out is not None and means.exchanged is None  # after the exchange the others wait for this rank
    if early:
        results = adapt_outputs(out, "out")
        layout.check_writable(results)
        if own is not None:
            shapes = [(int(r[comm.rank]), *a.shape[1:]) for a, r in zip(given.arrays, own, strict=True)]
            layout.check_outputs(results, shapes, given.dtype)
    if means.of_host:
        return start_negotiated(comm, "scatter", given, out, options, means, rows=own)
    tables, is_list = _exchanged(comm, "scatter", given, options, means, rows=own)
    table = tables[0]
    rows = [[int(c) for c in row[layout.DESCRIPTION :]] for row in table]
    trailing = [layout.shape_of(row)[1:] for row in table]
    if not here:
        given.expect(layout.dtype_of(table[0]) if len(table) else None, list if is_list else None)
    return start(
        comm,
        "scatter",
        given,
        [(r[comm.rank], *t) for r, t in zip(rows, trailing, strict=True)],
        layout.lengths(rows, [math.prod(t) for t in trailing]),
        options,
        means,
        x_rows=rows if here else None,
        out_rows=None,
        out=out,
        shapes_from_peers=not (here and early),
    )


def reduce_scatter(
    comm: Communicator, x: Any, out: Any, counts: Counts, options: CallOptions, means: Means = HOST
) -> Any:
    """See ``Communicator.reduce_scatter``."""
    given = Tensors(comm, "reduce_scatter", x, options)
    tensors = given.arrays
    rows = split_rows(comm, "reduce_scatter", given, counts)
    return start(
        comm,
        "reduce_scatter",
        given,
        [(int(r[comm.rank]), *a.shape[1:]) for a, r in zip(tensors, rows, strict=True)],
        layout.lengths(rows.tolist(), given.widths),
        options,
        means,
        x_rows=rows,
        out_rows=None,
        out=out,
    )


def all_to_all(
    comm: Communicator, x: Any, out: Any, counts: Counts | Splits, options: CallOptions, means: Means = HOST
) -> Any:
    """See ``Communicator.all_to_all``."""
    given = Tensors(comm, "all_to_all", x, options)
    tensors = given.arrays
    counts, out_counts = counts if isinstance(counts, Splits) else Splits(counts, None)
    if counts is None and out_counts is not None:
        raise ValueError("out_counts is given without counts; pass both, or neither for equal parts")
    own = split_rows(comm, "all_to_all", given, counts)
    if counts is None:
        arriving = own  # a rank with other lengths has another signature
        # The engine finds parts of one length by itself.
        lengths = [] if means.of_host else layout.lengths(np.tile(own, comm.size).tolist(), given.widths)
    else:
        _check_early(out, given)
        expected = None
        if out_counts is not None:
            expected = layout.as_rows(out_counts, given.container is not None, len(tensors), comm.size, "out_counts")
            if out is not None:
                shapes = [(sum(r), *a.shape[1:]) for a, r in zip(tensors, expected, strict=True)]
                layout.check_outputs(adapt_outputs(out, "out"), shapes, given.dtype)
        if means.of_host:
            return start_negotiated(comm, "all_to_all", given, out, options, means, rows=own, expected=expected)
        tables, _ = _exchanged(comm, "all_to_all", given, options, means, rows=own, expected=expected)
        matrices = tables[:, :, layout.DESCRIPTION : layout.DESCRIPTION + comm.size].transpose(1, 0, 2)
        arriving = matrices[:, :, comm.rank]
        lengths = layout.lengths(matrices.reshape(len(tensors), comm.size**2).tolist(), given.widths)
    return start(
        comm,
        "all_to_all",
        given,
        [(int(r.sum()), *a.shape[1:]) for a, r in zip(tensors, arriving, strict=True)],
        lengths,
        options,
        means,
        x_rows=own,
        out_rows=arriving,
        out=out,
        shapes_from_peers=counts is not None,
    )
