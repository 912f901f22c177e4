"""Vector collectives on arguments that are one array for each rank, which travel without being packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._arrays.device_operands import any_on_device
from .._arrays.operands import adapt_outputs
from .._arrays.per_rank import PerRank
from . import layout, vector
from .arguments import Array
from .layout import Counts, Splits
from .options import CallOptions
from .tensors import Tensors

if TYPE_CHECKING:
    from ..communicator import Communicator

_SPLIT = ("scatter", "reduce_scatter", "all_to_all")  # their x has a part for each rank
_JOIN = ("all_gather", "gather", "all_to_all")  # their out has one


def run(comm: Communicator, collective: str, x: Any, out: Any, counts: Counts | Splits, options: CallOptions) -> Any:
    """A vector collective with a PerRank as ``x``, as ``out``, or as both.

    Args:
        comm, collective, out, counts, options: as of the functions of ``vector``.
        x: None on ranks that give nothing.
    """
    in_parts, out_parts = isinstance(x, PerRank), isinstance(out, PerRank)
    for is_parts, name, takers in ((in_parts, "x", _SPLIT), (out_parts, "out", _JOIN)):
        if is_parts and collective not in takers:
            raise TypeError(f"{name} of {collective} is one array, which has no parts for ranks; {name} is a PerRank")
    if any_on_device(x, out):
        raise TypeError("a PerRank takes arrays in host memory; pass one array on the device, and counts=")
    counts, out_counts = counts if isinstance(counts, Splits) else Splits(counts, None)
    if in_parts and counts is not None:
        raise ValueError("x is a PerRank, which says how many rows each rank gets; leave counts= away")
    if out_parts and out_counts is not None:
        raise ValueError("out is a PerRank, which says how many rows come from each rank; leave out_counts= away")
    given = Tensors(comm, collective, [] if x is None else x, options)
    if given.container is not None and x is not None:
        raise TypeError("x is a list, which is one collective of many tensors; with a PerRank there is one tensor")
    rows = None
    if in_parts:
        rows = [_lengths(comm, given.arrays, "x")]
    elif collective == "all_to_all":
        rows = vector.split_rows(comm, collective, given, counts).tolist()
    came = _lengths(comm, adapt_outputs(out, "out"), "out") if out_parts else None
    if collective == "reduce_scatter" or (collective in ("all_gather", "gather") and counts is not None):
        known = rows or layout.as_rows(counts, False, 1, comm.size)
        own, trailing = known[0][comm.rank], given.arrays[0].shape[1:]
        if not in_parts:
            layout.check_rows(given.arrays, [[own]], "x")
        shapes = [(own, *trailing)] if in_parts else [(n, *trailing) for n in known[0]]
        return vector.start(
            comm,
            collective,
            given,
            shapes,
            layout.lengths(known, given.widths[:1]),
            options,
            vector.HOST,
            x_rows=None,
            out_rows=None,
            out=out,
        )
    expected = [came] if collective == "all_to_all" and came is not None else None
    if out_counts is not None:
        expected = layout.as_rows(out_counts, False, 1, comm.size, "out_counts")
    return vector.start_negotiated(comm, collective, given, out, options, vector.HOST, rows=rows, expected=expected)


def _lengths(comm: Communicator, arrays: Sequence[Array], what: str) -> list[int]:
    """The rows of each part. Raises ValueError unless there is one for each rank, and all have the same other axes."""
    if len(arrays) != comm.size:
        raise ValueError(
            f"{what} is a PerRank of {len(arrays)} arrays; the group has {comm.size} ranks and each needs one"
        )
    for i, array in enumerate(arrays):
        if array.ndim == 0 or array.shape[1:] != arrays[0].shape[1:]:
            raise ValueError(
                f"{what}[{i}] has shape {array.shape} and {what}[0] has {arrays[0].shape}; in a PerRank only the "
                "length of axis 0 may differ"
            )
    return [array.shape[0] for array in arrays]
