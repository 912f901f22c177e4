"""sendrecv: both halves at once, in place and apart, and what is refused before either is posted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pool import TRANSPORTS, Pools
from test_messages import CELL, GROUPS, WINDOW, arrays, pattern


def ring(comm: Any) -> None:
    """All ranks at once, also with messages that are far too long to go ahead; a group of one sends to itself."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in (0, 1, CELL, CELL + 1, WINDOW + 1, 5_000_003):
        x = pattern(size, comm.rank).copy()  # writable
        y = comm.sendrecv(x, right, left)
        assert (y == pattern(size, left)).all(), size
        assert (x == pattern(size, comm.rank)).all()
        assert y is not x
        out = np.empty(size, np.uint8)
        assert comm.sendrecv(x, right, left, out=out, sendtag=3, recvtag=3, name="ring") is out
        assert (out == y).all()
        assert comm.sendrecv(x, right, left, out=x) is x  # in place
        assert (x == y).all()


@pytest.mark.parametrize(("n", "transport"), [*GROUPS, (1, "local"), (1, "tcp")])
def test_ring(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(ring)


def kinds(comm: Any) -> None:
    """Messages that differ in length and dtype, lists, layouts, and memory that both share."""
    other = 1 - comm.rank
    mine, theirs = (np.float32, np.int64) if comm.rank == 0 else (np.int64, np.float32)
    out = np.zeros(10 + other, theirs)
    assert comm.sendrecv(np.arange(10 + comm.rank, dtype=mine), other, other, out=out) is out
    assert (out == np.arange(10 + other)).all()
    x = [np.full((2, 3), comm.rank, np.int16), np.full((), comm.rank, np.int16), np.empty(0, np.int16)]
    y = comm.sendrecv(x, other, other)
    assert type(y) is list
    assert [a.shape for a in y] == [(2, 3), (), (0,)]
    assert all((a == other).all() for a in y)
    assert type(comm.sendrecv(tuple(x), other, other)) is tuple
    assert comm.sendrecv([], other, other) == []
    for given in arrays(30):
        for taken in arrays(30):
            given[...] = np.arange(given.size).reshape(given.shape) + comm.rank
            assert comm.sendrecv(given, other, other, out=taken) is taken
            assert (taken == given - comm.rank + other).all()
    shared = np.arange(100_001.0) + comm.rank
    comm.sendrecv(shared[:-1], other, other, out=shared[1:])
    assert (shared[1:] == np.arange(100_000.0) + other).all()
    assert shared[0] == comm.rank


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_kinds(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(kinds)


def others(comm: Any) -> None:
    """The other sides may be plain sends and receives, any rank, and two different ranks with different tags."""
    if comm.rank == 0:
        y, source = comm.sendrecv(np.full(3, 7.0), 1, sendtag=1, recvtag=2)
        assert source == 2
        assert (y == 9).all()
    elif comm.rank == 1:
        assert (comm.recv(np.zeros(3), 0, 1) == 7).all()
    elif comm.rank == 2:
        comm.send(np.full(3, 9.0), 0, 2)
    y, source = comm.sendrecv(np.full(1, comm.rank), (comm.rank + 1) % comm.size)
    assert source == int(y[0]) == (comm.rank - 1) % comm.size


@pytest.mark.parametrize(("n", "transport"), [(n, t) for n, t in GROUPS if n > 2])
def test_with_others(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(others)


def wrong_calls(comm: Any) -> None:
    """Each is refused before anything is posted, so the k-th message still meets the k-th receive."""
    x, other = np.zeros(3), 1 - comm.rank
    for peer in (-1, 2):
        with pytest.raises(ValueError, match=f"dest {peer} is out of range: the group has ranks 0 to 1"):
            comm.sendrecv(x, peer, other)
        with pytest.raises(ValueError, match=f"source {peer} is out of range"):
            comm.sendrecv(x, other, peer)
    for tag in (-1, 1 << 24):
        with pytest.raises(ValueError, match=f"sendtag {tag} is out of range"):
            comm.sendrecv(x, other, other, sendtag=tag)
        with pytest.raises(ValueError, match=f"recvtag {tag} is out of range"):
            comm.sendrecv(x, other, other, recvtag=tag)
    with pytest.raises(TypeError, match="dest is None"):
        comm.sendrecv(x, None, other)
    with pytest.raises(TypeError, match="source is"):
        comm.sendrecv(x, other, 1.0)
    with pytest.raises(TypeError, match="recvtag is"):
        comm.sendrecv(x, other, other, recvtag="a")
    with pytest.raises(TypeError, match="x is of type"):
        comm.sendrecv(None, other, other)
    with pytest.raises(TypeError, match="cannot take part"):
        comm.sendrecv(x, other, other, out=np.zeros(3, object))
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match=r"out\[0\] is read-only"):
        comm.sendrecv(x, other, other, out=fixed)
    with pytest.raises(ValueError, match="tensor 0 and tensor 1 share memory"):
        comm.sendrecv([x, x], other, other, out=[x, x[:2]])
    with pytest.raises(ValueError, match="timeout is -1"):
        comm.sendrecv(x, other, other, timeout=-1)
    with pytest.raises(TypeError, match="stream= is for arrays"):
        comm.sendrecv(x, other, other, stream=1)
    assert comm.sendrecv(np.full(3, comm.rank), other, other)[0] == other


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_wrong_calls(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(wrong_calls)


def one_half_fails(comm: Any) -> list[Any]:
    """The message that does not fit ends both halves."""
    group = comm.dup()
    found = []
    try:
        group.sendrecv(np.zeros(4 + comm.rank), 1 - comm.rank, 1 - comm.rank, out=np.zeros(4))
    except Exception as error:
        found = [type(error).__name__, str(error)]
    group.close()
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_mismatch(pools: Pools, transport: str) -> None:
    first, second = pools.get(2, transport).run(one_half_fails)
    assert first[0] == "MismatchError"
    assert "message from rank 1 to rank 0" in first[1]
    assert second[:1] in ([], ["MismatchError"])  # its short message had gone, and what it received fitted
