"""Sums of rows that lie at a few indices of a longer array, as the gradients of embeddings do.

A rank adds up its own rows of one index first, so that they travel once. All ranks then gather the rows of all, and add
them up from rank 0 upwards: each does the same additions, element by element, so all have the same bits. The gather is
one vector collective over bytes, whatever the dtypes of indices and values are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays import adapt, empty
from ..errors import MismatchError
from ..work import Work
from . import layout
from .arguments import Array, check_dtypes, check_options, plain
from .options import CallOptions

if TYPE_CHECKING:
    from ..communicator import Communicator

OPS = ("sum", "avg")


def all_reduce(
    comm: Communicator, indices: Any, values: Any, op: str, async_op: bool, timeout: float | None, name: str | None
) -> Any:
    """See ``Communicator.all_reduce_sparse``."""
    check_options(comm.size, CallOptions(timeout=timeout, name=name, op=op))
    kinds = adapt(indices, "indices"), adapt(values, "values")
    rows, data = (plain(kind.array) for kind in kinds)
    _check(rows, data, op)
    rows, data = _merged(rows, data)
    counts = _counts(comm, rows, data, op, timeout, name)
    pieces = [_as_bytes(rows), _as_bytes(data)]
    gathered = comm.all_gather(pieces, counts=[counts, counts], async_op=True, timeout=timeout, name=name)

    def finish() -> Any:
        every_row, every_data = gathered.result()
        every_row = every_row.reshape(-1).view(rows.dtype)
        every_data = every_data.reshape(-1).view(data.dtype).reshape(len(every_row), *data.shape[1:])
        found = np.unique(every_row)
        total = np.zeros((len(found), *data.shape[1:]), _wide(data.dtype))
        begin = 0
        for count in counts:
            part = slice(begin, begin := begin + count)
            total[np.searchsorted(found, every_row[part])] += every_data[part]  # no index occurs twice in a part
        if op == "avg":
            total /= comm.size
        results = []
        for kind, result, dtype in zip(kinds, (found, total), (rows.dtype, data.dtype), strict=True):
            made = empty(result.shape, dtype)
            made[...] = result.astype(dtype, copy=False)
            results.append(kind.wrap(made))
        return tuple(results)

    pending = Work(gathered._work, finish)
    return pending if async_op else pending.result()


def _check(rows: Array, data: Array, op: str) -> None:
    """Raises TypeError or ValueError for what this rank cannot give."""
    if rows.dtype not in (np.int32, np.int64):
        raise TypeError(f"indices have dtype {rows.dtype}; int32 and int64 are accepted")
    if rows.ndim != 1 or data.ndim == 0 or len(data) != len(rows):
        raise ValueError(
            f"indices have shape {rows.shape} and values {data.shape}; (n,) and (n, ...) are accepted, with one index "
            "for each row"
        )
    if len(rows) and rows.min() < 0:
        raise ValueError(f"indices have {rows.min()}; numbers of rows, which are at least 0, are accepted")
    if op not in OPS:
        raise ValueError(f"op is {op!r}; of sparse arrays there are 'sum' and 'avg', since missing rows are zeros")
    check_dtypes([data], "all_reduce", op)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What sums of this type are computed in: float32 for floats that are narrower, else the type."""
    narrow = dtype.itemsize < 4 and dtype.kind not in "iub"
    return np.dtype(np.float32) if narrow else dtype


def _merged(rows: Array, data: Array) -> tuple[Array, Array]:
    """The same sum with one row for each index, in rising order."""
    if (np.diff(rows) > 0).all():
        return rows, data
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    starts = np.flatnonzero(np.concatenate(([True], np.diff(ordered) > 0)))
    sums = np.add.reduceat(data[order], starts, axis=0, dtype=_wide(data.dtype))
    return ordered[starts], sums.astype(data.dtype, copy=False)


def _counts(
    comm: Communicator, rows: Array, data: Array, op: str, timeout: float | None, name: str | None
) -> list[int]:
    """How many rows each rank has. Raises MismatchError where ranks differ in anything else."""
    about = layout.describe([rows, data])
    tables = comm.all_gather(
        np.append(about, OPS.index(op))[None],
        counts=1,
        timeout=timeout,
        name=None if name is None else f"{name} (lengths)",
    )
    for rank, other in enumerate(tables[:, -1]):
        if other != tables[0, -1]:
            raise MismatchError(
                f"all_reduce_sparse: rank 0 has op {OPS[tables[0, -1]]!r}, rank {rank} has {OPS[other]!r}",
                rank=comm.rank,
                peer=rank if comm.rank == 0 else 0,
                collective="all_reduce_sparse",
            )
    abouts = tables[:, :-1].reshape(comm.size, *about.shape)
    layout.check_alike(comm, abouts, "all_reduce_sparse")
    return [int(count) for count in abouts[:, 0, 2]]


def _as_bytes(array: Array) -> Array:
    """The memory of the array, one row for each of its rows."""
    return array.reshape(-1).view(np.uint8).reshape(len(array), layout.width(array) * array.itemsize)
