"""Messages of a rank to itself."""

from __future__ import annotations

import threading
from typing import Any

import collectives
import numpy as np
import pytest
from pool import TRANSPORTS, Pools
from test_messages import CELL, LISTS, pattern

PIECE = 1 << 20  # bytes that are copied at a time
SIZES = [0, 1, CELL + 1, PIECE - 1, PIECE, 3 * PIECE + 5]


def own(comm: Any) -> None:
    """A posted receive, or an asynchronous send, comes first; the other one may block then."""
    me = comm.rank
    for size in SIZES:
        x, y = pattern(size, me), np.full(size, 0x5A, np.uint8)
        work = comm.recv(y, me, 3, async_op=True)
        assert not work.done()
        assert comm.send(x, me, 3) is None
        assert work.result() is y
        assert (y == x).all()
        y[:] = 0x5A
        sent = comm.send(x, me, 3, async_op=True)
        assert comm.recv(y, me, 3) is y
        assert (y == x).all()
        sent.wait()
        assert work.done()
        assert sent.done()
    for lengths in LISTS:
        given = [pattern(length, i) for i, length in enumerate(lengths)]
        work = comm.send(given, me, async_op=True)
        taken = comm.recv([np.empty(length, np.uint8) for length in lengths], me)
        assert all((a == b).all() for a, b in zip(given, taken, strict=True))
        work.wait()


def order(comm: Any) -> None:
    """The k-th send of a tag meets its k-th receive, whatever the size, beside other ranks' messages of that tag."""
    me, right, left = comm.rank, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sizes = [2 * PIECE, 10, PIECE + 1]
    sent = [comm.send(pattern(n, i, tag), me, tag, async_op=True) for i, n in enumerate(sizes) for tag in (1, 2)]
    if comm.size > 1:
        sent.append(comm.send(pattern(10, me), right, 1, async_op=True))
        assert (comm.recv(np.empty(10, np.uint8), left, 1) == pattern(10, left)).all()
    for tag in (2, 1):
        for i, n in enumerate(sizes):
            assert (comm.recv(np.empty(n, np.uint8), me, tag) == pattern(n, i, tag)).all()
    for work in sent:
        work.wait()


def from_any(comm: Any) -> None:
    """A receive from any rank takes them, too, and allows a blocking send."""
    me = comm.rank
    first = comm.recv(np.zeros(4), tag=9, async_op=True)
    second = comm.recv(np.zeros(4), me, tag=9, async_op=True)
    comm.send(np.full(4, 1.0), me, 9)
    comm.send(np.full(4, 2.0), me, 9)
    assert first.result().source == me
    assert first.result().array[3] == 1
    assert second.result()[3] == 2
    work = comm.send(np.full(4, 3.0), me, 9, async_op=True)
    found = comm.probe(tag=9, timeout=0)
    assert (found.source, found.elements) == (me, 4)
    assert comm.recv(np.zeros(4), tag=9).source == me
    work.wait()
    comm.barrier()
    # Messages of others do not take the receive for which a blocking send is allowed.
    for i in range(20):
        sent = [comm.send(np.full(1, 7.0), r, 8, async_op=True) for r in range(comm.size) if r != me]
        receives = [comm.recv(np.zeros(1), tag=8, async_op=True) for _ in range(comm.size)]
        comm.send(np.full(1, float(i)), me, 8)  # the others take all but one, or fewer so far
        assert sorted(w.result().source for w in receives) == list(range(comm.size))
        for w in sent:
            w.wait()
        comm.barrier()


def refused(comm: Any) -> None:
    """A blocking send that would wait for itself consumes nothing."""
    me = comm.rank
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"rank {me} would wait for itself.*tag 4, and no receive.*async_op=True"):
            comm.send(np.ones(1), me, 4)
    other = comm.recv(np.zeros(1), me, 5, async_op=True)
    with pytest.raises(ValueError, match="would wait for itself"):
        comm.send(np.ones(1), me, 4)  # a receive of another tag does not help
    comm.send(np.ones(1), me, 5)
    other.wait()
    work = comm.recv(np.zeros(1), me, 4, async_op=True)
    early = comm.send(np.full(1, 1.0), me, 4, async_op=True)
    with pytest.raises(ValueError, match="would wait for itself"):
        comm.send(np.full(1, 2.0), me, 4)  # the receive is taken
    assert work.result()[0] == 1
    early.wait()


def other_thread(comm: Any) -> None:
    """A blocking receive waits for what another thread of the rank sends."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(comm.recv(np.zeros(3), comm.rank, 6)[0]))
    thread.start()
    work = comm.send(np.full(3, 5.0), comm.rank, 6, async_op=True)
    work.wait()
    thread.join()
    assert found == [5.0]


def all_of_it(comm: Any) -> None:
    for part in (own, order, from_any, refused, other_thread):
        part(comm)


@pytest.mark.parametrize(("n", "transport"), [(n, t) for t in TRANSPORTS for n in (1, 2, 3)])
def test_own(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(all_of_it)


def disagree(comm: Any) -> None:
    group = comm.dup()
    y = np.full(2, 3.0)
    if comm.rank == 0:
        work = group.recv(y, 0, 4, async_op=True)
        sent = group.send(np.ones(2, np.float32), 0, 4, async_op=True)
        for w in (work, sent):
            with pytest.raises(
                collectives.MismatchError, match=r"message from rank 0 to rank 0, tag 4: dtype: .*float(32|64).*float"
            ):
                w.wait()
        assert (y == 3).all()
    comm.barrier()
    with pytest.raises(collectives.MismatchError, match="tag 4"):
        group.barrier()
    group.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_mismatch(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(disagree)


def test_deadline() -> None:
    (comm,) = collectives.local_group(1, timeout=0.1)
    with pytest.raises(collectives.DeadlineError, match="recv from rank 0, tag 0 has waited"):
        comm.recv(np.zeros(1), 0)
    comm.close()
    (comm,) = collectives.local_group(1, timeout=0.1)
    with pytest.raises(collectives.DeadlineError, match="recv from any rank"):
        comm.recv(np.zeros(1))
    comm.close()
