"""send and recv: what arrives, in which order, and what is refused."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
from conformance import DTYPES, numpy_dtype, values
from pool import TRANSPORTS, Pools

GROUPS = [(n, transport) for transport in TRANSPORTS for n in (2, 3, 5)]
CELL = 64 << 10  # bytes: a cell of the mail fifos, and what a sender gives away before it is asked, on all transports
WINDOW = 4 << 20  # bytes in flight of one stream over TCP
SIZES = [0, 1, 7, *(k + d for k in (CELL, 2 * CELL, WINDOW) for d in (-1, 0, 1)), 5_000_003]


def pattern(size: int, *seed: int) -> Any:
    return np.frombuffer(np.random.default_rng([size, *seed]).bytes(size), np.uint8)


def every_pair(comm: Any) -> None:
    """One message at a time from each rank to each other, blocking; the others only look on."""
    for size in SIZES:
        for source in range(comm.size):
            # Long ones only to the next rank, which keeps the test short.
            for dest in range(comm.size) if size <= 2 * CELL else [(source + 1) % comm.size]:
                x = pattern(size, source, dest)
                if comm.rank == source != dest:
                    assert comm.send(x, dest) is None
                elif comm.rank == dest != source:
                    y = np.full(size, 0x5A, np.uint8)
                    assert comm.recv(y, source) is y
                    assert (y == x).all(), (size, source, dest)


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_sizes(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(every_pair)


def ring(comm: Any, sizes: list[int]) -> None:
    """Each rank receives before it sends, so a rank that waited for its own send would hang."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    targets = [np.empty(size, np.uint8) for size in sizes]
    works = [comm.recv(y, left, async_op=True) for y in targets]
    works += [comm.send(pattern(size, comm.rank), right, async_op=True) for size in sizes]
    for work in reversed(works):
        work.wait()
        assert work.done()
    assert [w.result() is y for w, y in zip(works, targets, strict=False)] == [True] * len(sizes)
    assert works[-1].result() is None
    for size, y in zip(sizes, targets, strict=True):
        assert (y == pattern(size, left)).all(), size


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_ring(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(ring, SIZES)


def all_dtypes(comm: Any) -> None:
    other = 1 - comm.rank
    for dtype in DTYPES:
        for count in (1, 1001, 70_001):
            work = comm.send(values(dtype, False, count, comm.rank), other, async_op=True)
            y = np.zeros(count, numpy_dtype(dtype))
            comm.recv(y, other)
            assert y.tobytes() == values(dtype, False, count, other).tobytes(), dtype
            work.wait()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_dtypes(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(all_dtypes)


LISTS = [[], [0], [0, 0], [3, 0, 70_000, 1], [0, 5], [5, 0], [1] * 300, [9000, 1, 0, 123_457] * 10, [CELL, CELL]]


def lists(comm: Any) -> None:
    """Lists with empty arrays at either end and between, and more of them than one system call takes."""
    other = 1 - comm.rank
    for lengths in LISTS:
        x = [pattern(length, i, comm.rank) for i, length in enumerate(lengths)]
        y = [np.empty(length, np.uint8) for length in lengths]
        work = comm.recv(y, other, async_op=True)
        comm.send(x, other, timeout=20, name="a list")
        assert work.result() is y
        assert work.algorithm == "message"
        for i, got in enumerate(y):
            assert (got == pattern(len(got), i, other)).all(), lengths


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_lists(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(lists)


def arrays(rows: int) -> list[Any]:
    """Arrays of one shape that are not contiguous, not aligned or in the other byte order."""
    shape = (rows, 7, 5)
    return [
        np.zeros(shape),
        np.zeros(shape, order="F"),
        np.zeros((rows, 7, 10))[..., ::2],
        np.zeros(shape, ">f8"),
        np.zeros((2 * rows, 7, 5), ">f8")[::-2],
        np.zeros(rows * 7 * 5 * 8 + 1, np.uint8)[1:].view(np.float64).reshape(shape),
    ]


def layouts(comm: Any) -> None:
    other = 1 - comm.rank
    for rows in (1, 300):
        for x in arrays(rows):
            for target in arrays(rows):
                base = np.arange(target.size, dtype=np.float64).reshape(target.shape)
                x[...] = base + comm.rank
                work = comm.recv(target, other, async_op=True)
                comm.send(x, other)
                assert work.result() is target
                assert (target == base + other).all()
                assert (x == base + comm.rank).all()
                if target.base is not None and target.base.size == 2 * target.size:
                    assert target.base.sum() == target.sum()  # nothing is written between
    scalar = np.array(1.5 + comm.rank)
    work = comm.send(scalar, other, async_op=True)
    assert comm.recv(np.zeros(()), other) == 1.5 + other
    work.wait()
    # What is sent is what the array held when the call was made, where the call had to copy it.
    x = np.zeros(200_000)[::2]
    work = comm.send(x, other, async_op=True)
    x[...] = 7
    assert (comm.recv(np.ones(100_000), other) == 0).all()
    work.wait()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_layouts(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(layouts)


def out_of_order(comm: Any, sizes: list[int], seed: int) -> None:
    """Each tag has an order of its own; the receiver asks for the tags in any order."""
    tags = [0, 1, 5, 77, 1 << 16, (1 << 24) - 1]
    per_tag = 12
    order = random.Random(seed)
    sequence = [tag for tag in tags for _ in range(per_tag)]
    if comm.rank == 0:
        order.shuffle(sequence)
        sent = dict.fromkeys(tags, 0)
        works = []
        for tag in sequence:
            size = sizes[sent[tag] % len(sizes)]
            works.append(comm.send(pattern(size, tag, sent[tag]), comm.size - 1, tag, async_op=True))
            sent[tag] += 1
        order.shuffle(works)
        for work in works:
            work.wait()
    elif comm.rank == comm.size - 1:
        random.Random(seed + 1).shuffle(sequence)
        got = dict.fromkeys(tags, 0)
        for tag in sequence:
            y = np.empty(sizes[got[tag] % len(sizes)], np.uint8)
            comm.recv(y, 0, np.int64(tag))
            assert (y == pattern(len(y), tag, got[tag])).all(), (tag, got[tag])
            got[tag] += 1


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_tags_out_of_order(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(out_of_order, [8], 1)
    pools.get(n, transport).run(out_of_order, [0, 100, CELL, CELL + 1, 300_000], 2)


def dropped(comm: Any) -> float:
    """Handles that are not kept: the arrays stay until the message is over."""
    other = 1 - comm.rank
    for i in range(30):
        comm.send(np.full(100_000, float(i)), other, async_op=True) if comm.rank == 0 else None
        if comm.rank == 1:
            comm.recv(np.empty(100_000), other, async_op=True)
    return float(comm.all_reduce(np.ones(3))[0])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_dropped_handles(pools: Pools, transport: str) -> None:
    assert pools.get(2, transport).run(dropped) == [2.0, 2.0]


def dropped_before_received(comm: Any, count: int) -> list[float]:
    """All ranks send first and keep no handle: that waits for none, though the message is too long to go ahead."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    found = []
    for i in range(5):
        comm.send(np.full(count, 10.0 * i + comm.rank), right, async_op=True)
        x = np.full(1, comm.rank, np.float32)
        comm.all_reduce(x, async_op=True)
        received = comm.recv(np.empty(count), left)
        assert (received == 10.0 * i + left).all()
        found.append(float(comm.all_reduce(np.ones(1))[0] + comm.size * (x[0] - comm.size * (comm.size - 1) / 2)))
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_dropped_handle_waits_for_nobody(pools: Pools, transport: str) -> None:
    assert pools.get(3, transport).run(dropped_before_received, 300_000, limit=30) == [[3.0] * 5] * 3


def close_after(comm: Any, count: int) -> float:
    """Sends and receives, drops all handles, and closes a group: what was begun is brought to its end."""
    with comm.dup() as group:
        received = np.zeros(count)
        group.recv(received, (comm.rank - 1) % comm.size, async_op=True)
        group.send(np.full(count, float(comm.rank)), (comm.rank + 1) % comm.size, async_op=True)
    return float(received[-1])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_closing_ends_what_was_dropped(pools: Pools, transport: str) -> None:
    assert pools.get(3, transport).run(close_after, 300_000, limit=30) == [2.0, 0.0, 1.0]


def close_with_what_never_comes(comm: Any) -> float:
    """Both ranks close with receives to which there is no send, and with one whose message comes."""
    began = time.monotonic()
    with comm.dup() as group:
        group.recv(np.zeros(300_000), 1 - comm.rank, tag=1, async_op=True)
        group.recv(np.zeros(1), tag=3, async_op=True)
        group.recv(np.zeros(1), 1 - comm.rank, tag=3, async_op=True)  # behind the one from any rank
        group.recv(received := np.zeros(300_000), 1 - comm.rank, tag=2, async_op=True)
        group.send(np.full(300_000, 5.0), 1 - comm.rank, tag=2, async_op=True)
    assert (received == 5).all()
    return time.monotonic() - began


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_closing_does_not_wait_for_what_never_comes(pools: Pools, transport: str) -> None:
    took = pools.get(2, transport).run(close_with_what_never_comes)
    assert max(took) < 30, took  # not for the timeout, which is ten minutes


def wrong_calls(comm: Any) -> None:
    """Each is refused before anything is sent, so the communicator goes on."""
    x, other = np.zeros(3), 1 - comm.rank
    for call, word in ((comm.send, "dest"), (comm.recv, "source")):
        for peer in (2, -1):
            with pytest.raises(ValueError, match=f"{word} {peer} .*0 to 1"):
                call(x, peer)
        for peer in (1.0, "0", True, *([None] if call == comm.send else [])):
            with pytest.raises(TypeError, match=f"{word} is"):
                call(x, peer)
        for tag in (-1, 1 << 24, 1 << 40, -(1 << 70)):
            with pytest.raises(ValueError, match=f"tag {tag} .*0 to 16777215"):
                call(x, other, tag)
        for tag in (1.5, "a", None, False):
            with pytest.raises(TypeError, match="tag is"):
                call(x, other, tag)
        for bad in ([1.0, 2.0], 1.0, None, "text", [[x]]):
            with pytest.raises(TypeError, match=r"a numpy\.ndarray, .* or a list of these"):
                call(bad, other)
        for dtype in (object, "U3", "M8[s]", np.longdouble, [("a", "f4")]):
            with pytest.raises(TypeError, match="cannot take part"):
                call(np.zeros(3, dtype), other)
        with pytest.raises(TypeError, match="one call takes one dtype"):
            call([x, np.zeros(3, np.float32)], other)
        for timeout in (0, -1, "1", float("nan")):
            with pytest.raises(ValueError, match="timeout is"):
                call(x, other, timeout=timeout)
        with pytest.raises(TypeError, match="name is"):
            call(x, other, name=3)
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match=r"x\[1\] is read-only"):
        comm.recv([x, fixed], other)
    with pytest.raises(ValueError, match="tensor 0 and tensor 1 share memory"):
        comm.recv([x, x[:2]], other)
    y = np.zeros(3)
    work = comm.send([fixed, fixed], other, async_op=True)  # may be read twice, and need not be writable
    comm.recv([x, y], other)
    work.wait()
    with comm.split(comm.rank) as alone, pytest.raises(ValueError, match="would wait for itself"):
        alone.send(x, 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_wrong_calls(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(wrong_calls)
