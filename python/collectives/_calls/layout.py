"""How many rows of each tensor each rank has, and how ranks exchange that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .. import _core
from .spans import first_overlap, overlaps, span_of

if TYPE_CHECKING:
    from ..communicator import Communicator

Array: TypeAlias = npt.NDArray[Any]
Counts: TypeAlias = "int | Sequence[int] | Sequence[Sequence[int]] | None"

DESCRIPTION = 10  # columns: element type, number of dimensions, eight dimensions; see bindings/calls/layouts.h


class Splits(NamedTuple):
    """The rows of an all_to_all as its caller gives them: those that go to each rank, and those that come from each."""

    counts: Counts
    out_counts: Counts


def lengths(rows: Sequence[Sequence[int]], widths: Sequence[int]) -> list[int]:
    """Numbers of elements by part, then by tensor, as the core expects them.

    Args:
        rows: of each tensor, the rows of each part.
        widths: of each tensor, the elements of a row.
    """
    parts = len(rows[0]) if len(rows) else 0
    return [r[p] * w for p in range(parts) for r, w in zip(rows, widths, strict=True)]


def pieces(arrays: Sequence[Array], rows: Sequence[Sequence[int]]) -> list[Array]:
    """The parts of the arrays along axis 0, by part, then by array; a single array is not cut."""
    if len(arrays) == 1:
        return list(arrays)
    borders = [np.concatenate(([0], np.cumsum(r))) for r in rows]
    parts = len(rows[0]) if len(rows) else 0
    return [a[b[p] : b[p + 1]] for p in range(parts) for a, b in zip(arrays, borders, strict=True)]


def describe(arrays: Sequence[Array]) -> npt.NDArray[np.int64]:
    """Element types and shapes, one row for each array, as ranks exchange them."""
    return np.asarray(_core._describe_arrays(list(arrays))).reshape(len(arrays), DESCRIPTION)


def shape_of(row: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """The shape in a row of `describe`."""
    return tuple(int(d) for d in row[2 : 2 + int(row[1])])


def dtype_of(row: npt.NDArray[np.int64]) -> np.dtype[Any]:
    """The element type in a row of `describe`."""
    name = _core._dtype_name(int(row[0]))
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name, name))
    return dtype


def check_alike(comm: Communicator, tables: npt.NDArray[np.int64], collective: str) -> None:
    """Raises MismatchError unless all ranks have the same element types and dimensions, except for the first.

    Args:
        comm, collective: for the error.
        tables: what ``describe`` has returned on each rank, [rank, array, column].
    """
    _core._check_alike(comm, np.ascontiguousarray(tables).reshape(-1), tables.shape[1], collective)


def _is_length(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_rows(counts: Counts, as_list: bool, tensors: int, parts: int, what: str = "counts") -> list[list[int]]:
    """The argument `counts`, or `out_counts`, as a list of lengths for each tensor.

    Args:
        counts: as the caller gave it.
        as_list: the tensors came as a list, so `counts` has an entry for each, or is one number for all.
        tensors, parts: how many there are.
        what: the name of the argument.
    """
    if not _is_length(counts) and not isinstance(counts, Iterable):
        raise TypeError(f"{what} is {counts!r}; a number of rows, or one for each rank, is accepted")
    entries: list[Any] = list(counts) if as_list and isinstance(counts, Iterable) else [counts] * tensors
    if len(entries) != tensors:
        raise ValueError(f"{what} has {len(entries)} entries; x is a list of {tensors} tensors and each needs one")
    result = []
    for entry in entries:
        row = list(entry) if isinstance(entry, Iterable) else [entry] * parts
        for count in row:
            if not _is_length(count):
                raise TypeError(f"{what} has {count!r} of type {type(count).__name__}; numbers of rows are accepted")
            if count < 0:
                raise ValueError(f"{what} has {count}; a number of rows is at least 0")
        if len(row) != parts:
            raise ValueError(f"{what} has {len(row)} entries; the group has {parts} ranks and each needs one")
        result.append([int(c) for c in row])
    return result


def even_rows(arrays: Sequence[Array], parts: int, collective: str) -> list[list[int]]:
    """The rows of equal parts of each array. Raises ValueError where there are none."""
    for i, array in enumerate(arrays):
        if array.shape[0] % parts != 0:
            raise ValueError(
                f"{collective}: the {array.shape[0]} rows of tensor {i} cannot be split evenly over {parts} ranks; "
                "pass counts= with the rows of each rank"
            )
    return [[array.shape[0] // parts] * parts for array in arrays]


def check_rows(arrays: Sequence[Array], rows: Sequence[Sequence[int]], what: str) -> None:
    """Raises ValueError unless the rows add up to those of the arrays."""
    for i, (array, row) in enumerate(zip(arrays, rows, strict=True)):
        if sum(row) != array.shape[0]:
            raise ValueError(f"{what}[{i}] has {array.shape[0]} rows, but counts say {sum(row)}")


def width(array: Array) -> int:
    """Elements of a row."""
    return math.prod(array.shape[1:])


def check_outputs(out: Sequence[Array], shapes: Sequence[tuple[int | None, ...]], dtype: np.dtype[Any] | None) -> None:
    """Raises ValueError unless results of these shapes fit into the arrays; None is a length not known yet."""
    if len(out) != len(shapes):
        raise ValueError(f"out has {len(out)} tensors; {len(shapes)} are needed")
    for i, (array, shape) in enumerate(zip(out, shapes, strict=True)):
        fits = array.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
        if not fits or (dtype is not None and array.dtype.newbyteorder("=") != dtype.newbyteorder("=")):
            needed = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ("," * (len(shape) == 1)) + ")"
            raise ValueError(
                f"out[{i}] has shape {array.shape} and dtype {array.dtype}; shape {needed} and dtype {dtype} are needed"
            )
    check_writable(out)


def check_writable(out: Sequence[Array]) -> None:
    """Raises ValueError unless the arrays are writable and do not overlap."""
    for i, array in enumerate(out):
        if not array.flags.writeable:
            raise ValueError(f"out[{i}] is read-only and would be written")
    if (pair := first_overlap(out)) is not None:
        raise ValueError(f"out[{pair[0]}] and out[{pair[1]}] share memory; pass arrays that do not overlap")


def separate_inputs(inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
    """The inputs, with copies of those that share memory with an output, which is written before all are read."""
    pairs = overlaps([span_of(a) for a in inputs], [span_of(o) for o in outputs])
    shared = {i for i, j in pairs if np.shares_memory(inputs[i], outputs[j])}
    return [a.copy() if i in shared else a for i, a in enumerate(inputs)]
