"""Receives from any rank: who sent, in which order, and what ends them when no message comes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from pool import TRANSPORTS, Pools
from test_messages import CELL, GROUPS, pattern
from test_messages_flow import AHEAD, until


def from_all(comm: Any, sizes: list[int], rounds: int) -> None:
    """Every rank sends to rank 0, which knows of each message who sent it, and gets those of one rank in order."""
    for tag, size in enumerate(sizes):
        if comm.rank != 0:
            for i in range(rounds):
                comm.send([pattern(size, comm.rank, i), np.array([i], np.uint8)], 0, tag)
            continue
        got = [0] * comm.size
        for _ in range(rounds * (comm.size - 1)):
            x = [np.empty(size, np.uint8), np.empty(1, np.uint8)]
            received = comm.recv(x, tag=tag)
            array, source = received
            assert array is x
            assert received == (x, source)
            assert x[1] == got[source]
            assert (x[0] == pattern(size, source, got[source])).all(), (size, source)
            got[source] += 1
        assert got == [0] + [rounds] * (comm.size - 1)


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_who_sent(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(from_all, [0, 8, CELL + 1, 300_000], 6)


def posted_first(comm: Any, count: int, rounds: int) -> None:
    """Many at once: of two receives, the one posted first has the earlier message of a rank."""
    if comm.rank == 0:
        works = [comm.recv(np.zeros(count), async_op=True) for _ in range(rounds * (comm.size - 1))]
        assert not any(work.done() for work in works)
    comm.barrier()
    if comm.rank != 0:
        for i in range(rounds):
            comm.send(np.full(count, 1000.0 * comm.rank + i), 0)
        return
    got = [0] * comm.size
    for work in works:
        x, source = work.result()
        assert (x == 1000 * source + got[source]).all()
        got[source] += 1
        assert work.algorithm == "message"
    assert got[1:] == [rounds] * (comm.size - 1)


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_posted_before_the_messages(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(posted_first, 3, 50)
    pools.get(n, transport).run(posted_first, 50_000, 5)


def mixed(comm: Any) -> list[Any]:
    """Receives of one tag get the messages of a rank in the order in which both were posted."""
    count = 20_000  # more than goes ahead of a receive
    found: list[Any] = []
    if comm.rank == 0:
        kinds = [None, 1, 1, None, 2, None, None]
        works = [comm.recv(np.zeros(count), source, 3, async_op=True) for source in kinds]
        other = comm.recv(np.zeros(1), 2, 4, async_op=True)
        comm.barrier()
        other.wait()  # of another tag, so it waits for none of these
        for i, (kind, work) in enumerate(zip(kinds, works, strict=True)):
            if i == 3:
                comm.barrier()  # rank 2 begins only now
            x, source = work.result() if kind is None else (work.result(), kind)
            assert (x == x[0]).all()
            found.append((source, int(x[0])))
    else:
        comm.barrier()
        if comm.rank == 2:
            comm.send(np.ones(1), 0, 4)
            comm.barrier()
        sent = [comm.send(np.full(count, float(i)), 0, 3, async_op=True) for i in range({1: 4, 2: 3}.get(comm.rank, 0))]
        if comm.rank != 2:
            comm.barrier()
        for work in sent:
            work.wait()
    return found


@pytest.mark.parametrize(("n", "transport"), [(n, t) for n, t in GROUPS if n > 2])
def test_beside_receives_from_given_ranks(pools: Pools, n: int, transport: str) -> None:
    found = pools.get(n, transport).run(mixed)[0]
    assert found[:3] == [(1, 0), (1, 1), (1, 2)]  # all were posted before, and only rank 1 had sent
    assert sorted(found[3:]) == [(1, 3), (2, 0), (2, 1), (2, 2)]
    assert [n for source, n in found if source == 2] == [0, 1, 2]
    assert found[4][0] == 2


def noticed_in_turn(comm: Any, first: int) -> None:
    """Of messages that are there already the one that this rank noticed first is the first."""
    second = 3 - first
    if comm.rank == 0:
        comm.probe(first)
        comm.barrier()
        comm.probe(second)
        assert [comm.recv(np.zeros(2)).source for _ in range(2)] == [first, second]
    else:
        if comm.rank == first:
            comm.send(np.zeros(2), 0)
        comm.barrier()
        if comm.rank == second:
            comm.send(np.zeros(2), 0)


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_first_is_the_first_noticed(pools: Pools, transport: str, first: int) -> None:
    pools.get(3, transport).run(noticed_in_turn, first)


def tags_and_groups(comm: Any) -> None:
    """Messages of other tags and of other groups are not taken, whichever came first."""
    group = comm.dup()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for sender, tag, value in ((comm, 1, 1.0), (group, 2, 2.0), (comm, 2, 3.0), (group, 1, 4.0)):
        sender.send(np.full(1, value), right, tag)
    comm.barrier()
    for receiver, tag, value in ((group, 1, 4.0), (comm, 2, 3.0), (comm, 1, 1.0), (group, 2, 2.0)):
        x, source = receiver.recv(np.zeros(1), None, tag)
        assert (source, float(x[0])) == (left, value)
    group.close()


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_tags_and_groups(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(tags_and_groups)


def threads(comm: Any, rounds: int) -> None:
    """Several threads of rank 0 receive, beside collectives; together they get all."""
    found: list[tuple[int, int]] = []
    errors: list[BaseException] = []

    def receive() -> None:
        try:
            for _ in range(rounds):
                x, source = comm.recv(np.zeros(1, np.int64))
                found.append((source, int(x[0])))
        except BaseException as error:
            errors.append(error)

    bodies = [threading.Thread(target=receive) for _ in range(comm.size - 1)] if comm.rank == 0 else []
    for body in bodies:
        body.start()
    for i in range(rounds):
        if comm.rank != 0:
            comm.send(np.array([i]), 0)
        assert comm.all_reduce(np.ones(100))[0] == comm.size
    for body in bodies:
        body.join()
    if errors:
        raise errors[0]
    assert sorted(found) == ([(r, i) for r in range(1, comm.size) for i in range(rounds)] if comm.rank == 0 else [])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_threads(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(threads, 30)


def recorded(comm: Any) -> None:
    def last() -> Any:
        return [r for r in comm.recorder() if r["collective"] == "recv"][-1]

    if comm.rank == 0:
        work = comm.recv(np.zeros(3), tag=5, async_op=True, name="from any")
        assert (last()["peer"], last()["tag"], last()["name"]) == (None, 5, "from any")
        comm.barrier()
        assert work.result().source == 1
        assert (last()["peer"], last()["tag"], last()["state"]) == (1, 5, "done")
    else:
        comm.barrier()
        comm.send(np.zeros(3), 0, 5)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_recorder(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(recorded)


def disagree(comm: Any, early: bool) -> list[Any]:
    """Rank 1 sends what a receive from any rank does not expect."""
    others = comm.dup()
    found: list[Any] = []
    x = np.full(5, 3.0)
    try:
        if comm.rank == 0:
            work = None if early else comm.recv(x, tag=2, async_op=True)
            others.barrier()
            if early:
                comm.probe(tag=2)
                comm.recv(x, tag=2)
            else:
                work.wait()
        else:
            others.barrier()
            if comm.rank == 1:
                comm.send(np.ones(6), 0, 2)
            comm.barrier()
    except Exception as error:
        found = [type(error).__name__, str(error)]
    assert (x == 3).all()
    others.barrier()
    others.close()
    return found


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_mismatch(pools: Pools, transport: str, early: bool) -> None:
    for name, text in pools.get(3, transport).run(disagree, early):
        assert name == "MismatchError", text
        assert "message from rank 1 to rank 0, tag 2" in text
        assert "rank 0 has 5" in text
        assert "rank 1 has 6" in text


def one_after_the_other_leaves(comm: Any) -> None:
    """A rank that leaves ends no receive from any rank while another could send; what it sent before still comes."""
    import collectives

    group = comm.dup()
    if comm.rank == 0:
        works = [group.recv(np.zeros(1), async_op=True) for _ in range(3)]
        comm.barrier()
        assert works[0].result().source == 1  # it has left since
        comm.barrier()
        assert works[1].result().source == 2
        with pytest.raises(collectives.PeerError, match="all other ranks have left the group before this message"):
            works[2].wait()
        with pytest.raises(collectives.PeerError):
            group.recv(np.zeros(1))
    else:
        if comm.rank == 1:
            group.send(np.ones(1), 0)
            group.close()
        comm.barrier()
        comm.barrier()
        if comm.rank == 2:
            group.send(np.ones(1), 0)
    group.close()
    comm.barrier()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_that_leave(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(one_after_the_other_leaves)


def nobody_sends(comm: Any) -> list[Any]:
    import collectives

    group = comm.dup()
    found: list[Any] = []
    if comm.rank == 0:
        beside = group.recv(np.zeros(1), 1, 6, async_op=True)  # from a given rank, and before it
        with pytest.raises(collectives.DeadlineError) as info:
            group.recv(np.ones(3), tag=5, timeout=0.3, name="halo")
        found = [str(info.value), info.value.peer, info.value.bytes_done]
        with pytest.raises(collectives.DeadlineError):
            beside.wait()
    comm.barrier()
    with pytest.raises(collectives.DeadlineError, match="halo"):
        group.recv(np.ones(1))
    group.close()
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_deadline(pools: Pools, transport: str) -> None:
    text, peer, done = pools.get(3, transport).run(nobody_sends)[0]
    assert "recv from any rank, tag 5 'halo' has waited 0.3" in text
    assert "for a message of any of them, longer than its timeout of 0.3 s" in text
    assert (peer, done) == (None, 0)


def held_back(comm: Any, count: int) -> None:
    """A sender with as many messages ahead as it may have begins another one only after some of these are received."""
    if comm.rank == 0:
        works = [comm.send(np.array([i]), 1, 5, async_op=True) for i in range(count)]
        until(lambda: sum(work.done() for work in works) >= AHEAD)
        works.append(comm.send(np.array([-1]), 1, 6, async_op=True))
        comm.barrier()
        for work in works:
            work.wait()
    else:
        late = comm.recv(np.zeros(1, np.int64), tag=6, async_op=True)
        comm.barrier()
        assert comm.probe(tag=6, timeout=0) is None
        assert not late.done()
        for i in range(count):
            assert comm.recv(np.zeros(1, np.int64), tag=5) == (i, 0)
        assert late.result() == (-1, 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_sender_that_is_held_back(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(held_back, AHEAD + 10)
