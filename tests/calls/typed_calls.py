"""Calls and the types of their results. mypy checks the types (pyproject.toml), test_types.py runs the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from collectives import Communicator, PerRank, Received, Work, wait_all

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: Any, _: Any) -> Any:
        return value


Floats: TypeAlias = npt.NDArray[np.float32]
Doubles: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.int64]
Array: TypeAlias = npt.NDArray[Any]


def dense(comm: Communicator, x: Floats, out: Doubles) -> list[tuple[object, object]]:
    """Pairs of a result, and what it is or is like."""
    y, rows = out.astype(np.float32), out.astype(np.int64)
    return [
        (assert_type(comm.all_reduce(x), Floats), x),
        (assert_type(comm.all_reduce(x, out=y), Floats), y),
        (assert_type(comm.all_reduce([x]), list[Floats]), [x]),
        (assert_type(comm.all_reduce((x, y)), tuple[Floats, Floats]), (x, y)),
        (assert_type(comm.all_reduce(x, async_op=True), Work[Floats]).result(), x),
        (assert_type(comm.broadcast(x, async_op=True).result(), Floats), x),
        (assert_type(comm.reduce([x], async_op=True).result(), list[Floats]), [x]),
        (assert_type(comm.barrier(async_op=True), Work[None]).result(), None),
        (assert_type(comm.scan(x), Floats), x),
        (assert_type(comm.scan([x], out=[y], async_op=True), Work[list[Floats]]).result(), [y]),
        (assert_type(comm.exscan(x), Floats | None), None),
        (assert_type(comm.exscan([x], async_op=True), Work[list[Floats] | None]).result(), None),
        (assert_type(comm.all_reduce_sparse(rows, x), tuple[Rows, Floats]), (rows, x)),
        (assert_type(comm.all_reduce_sparse(rows, x, async_op=True), Work[tuple[Rows, Floats]]).result(), (rows, x)),
    ]


def parts(comm: Communicator, x: Floats, out: Doubles) -> list[tuple[object, object]]:
    """The same for vector collectives."""
    y, given = out.astype(np.float32), None if comm.rank else x
    return [
        (assert_type(comm.all_gather(x), Floats), x),
        (assert_type(comm.all_gather(x, out=y, counts=3), Floats), y),
        (assert_type(comm.all_gather([x], algorithm="auto"), list[Floats]), [x]),
        (assert_type(comm.all_gather((x, y), timeout=60), tuple[Floats, Floats]), (x, y)),
        (assert_type(comm.all_gather(x, async_op=True), Work[Floats]).result(), x),
        (assert_type(comm.all_gather([x], out=[y], async_op=True), Work[list[Floats]]).result(), [y]),
        (assert_type(comm.gather(x, 0), Floats | None), x),
        (assert_type(comm.gather([x], 0, out=[y]), list[Floats] | None), [y]),
        (assert_type(comm.gather(x, async_op=True).result(), Floats | None), x),
        (assert_type(comm.scatter(x), Floats), x),
        (assert_type(comm.scatter(given), Floats | Any), x),
        (assert_type(comm.scatter(given, out=y), Floats), y),
        (assert_type(comm.scatter([x], async_op=True), Work[list[Floats]]).result(), [x]),
        (assert_type(comm.scatter(x, out=y, async_op=True), Work[Floats]).result(), y),
        (assert_type(comm.reduce_scatter(x, "max"), Floats), x),
        (assert_type(comm.reduce_scatter([x], deterministic=True), list[Floats]), [x]),
        (assert_type(comm.reduce_scatter(x, out=y, async_op=True), Work[Floats]).result(), y),
        (assert_type(comm.all_to_all(x), Floats), x),
        (assert_type(comm.all_to_all((x,)), tuple[Floats]), (x,)),
        (assert_type(comm.all_to_all(x, counts=[3], async_op=True), Work[Floats]).result(), x),
        (assert_type(comm.all_to_all(x, counts=[3], out_counts=[3]), Floats), x),
        (assert_type(comm.all_to_all(PerRank([x])), PerRank)[0], x),
        (assert_type(comm.all_to_all(x, counts=[3], out=PerRank([y])), PerRank)[0], y),
        (assert_type(comm.scatter(PerRank([x])), Array), x),
        (assert_type(comm.reduce_scatter(PerRank([x]), out=y), Floats), y),
        (assert_type(comm.reduce_scatter(PerRank([x]), async_op=True), Work[Array]).result(), x),
    ]


def messages(comm: Communicator, x: Floats, out: Doubles) -> list[tuple[object, object]]:
    """The same for messages of a rank to itself."""
    y = out.astype(np.float32)
    coming = assert_type(comm.recv(y, 0, async_op=True), Work[Floats])
    assert_type(comm.send(x, 0), None)
    from_any = assert_type(comm.recv([y], async_op=True), Work[Received[list[Floats]]])
    sent = assert_type(comm.send([x], 0, async_op=True), Work[None])
    came, source = from_any.result()
    assert_type(came, list[Floats])
    assert_type(source, int)
    comm.send(x, 0, async_op=True)
    received = assert_type(comm.recv(y), Received[Floats])
    comm.send([x], 0, async_op=True)
    return [
        (coming.result(), y),
        (sent.result(), None),
        (came, [y]),
        (source, 0),
        (received, (y, 0)),
        (assert_type(received.array, Floats), y),
        (assert_type(comm.recv([y], 0), list[Floats]), [y]),
        (assert_type(comm.sendrecv(x, 0, 0), Floats), x),
        (assert_type(comm.sendrecv(x, 0, 0, out=y), Floats), y),
        (assert_type(comm.sendrecv([x], 0), Received[list[Floats]]), ([x], 0)),
        (assert_type(comm.sendrecv(x, 0, out=out.view(np.float32)[:3], recvtag=0), Received[Floats]), (x, 0)),
    ]


def handles(comm: Communicator, x: Floats, _: Doubles) -> list[tuple[object, object]]:
    """The same for what is done with a ``Work``."""
    work = comm.all_gather(x, async_op=True)
    return [
        (assert_type(work.future().result(60), Floats), x),
        (assert_type(wait_all([comm.all_reduce(x, async_op=True)]), list[Any]), [x]),
    ]
