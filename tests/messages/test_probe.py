"""probe: what is said of messages that are there, and when it stops waiting."""

from __future__ import annotations

import signal
import time
from typing import Any

import collectives
import numpy as np
import pool
import pytest
from conformance import DTYPES, numpy_dtype
from pool import TRANSPORTS, Pools
from test_messages import CELL, GROUPS, pattern
from threaded import in_threads


def facts(comm: Any) -> None:
    """Rank, tag, dtype and lengths of what is there; the message stays there for its receive."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for i, dtype in enumerate(DTYPES):
        given = [np.zeros((2, 3), numpy_dtype(dtype)), np.zeros(i, numpy_dtype(dtype))]
        comm.send(given, right, 11)
        for source in (left, None, left):
            found = comm.probe(source, 11)
            assert found == (left, 11, numpy_dtype(dtype), 6 + i, 2)
            assert found.nbytes == sum(a.nbytes for a in given)
        taken, source = comm.recv([np.ones_like(a) for a in given], None, found.tag)
        assert source == left
        assert taken[0].tobytes() == given[0].tobytes()
    comm.send(np.zeros(0), right)
    found = comm.probe()
    assert (found.elements, found.arrays, found.nbytes) == (0, 1, 0)
    comm.recv(np.zeros(found.elements, found.dtype), found.source, found.tag)
    comm.barrier()  # what a rank sends later is not for the probe of any rank above


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_facts(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(facts)


def unknown_lengths(comm: Any) -> None:
    """What a program does that does not know what comes: it asks, makes room and receives."""
    sizes = [0, 1, CELL, CELL + 1, 1_000_003]
    got = [0] * comm.size
    if comm.rank == 0:
        for _ in range(len(sizes) * (comm.size - 1)):
            found = comm.probe(timeout=30)
            x = comm.recv(np.empty(found.elements, found.dtype), found.source, found.tag)
            assert (x == pattern(sizes[got[found.source]], found.source, got[found.source])).all()
            got[found.source] += 1
    else:
        for i, size in enumerate(sizes):
            comm.send(pattern(size, comm.rank, i), 0)
    comm.barrier()


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_unknown_lengths(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(unknown_lengths)


def only_what_is_left(comm: Any) -> None:
    """A message that a posted receive takes, of another tag, of another rank or of another group is not found."""
    group = comm.dup()
    if comm.rank == 0:
        assert comm.probe(timeout=0) is None
        began = time.monotonic()
        assert comm.probe(1, timeout=0.2) is None
        assert 0.2 <= time.monotonic() - began < 10
        taken = comm.recv(np.zeros(1), 1, 1, async_op=True)
        from_any = comm.recv(np.zeros(1), None, 2, async_op=True)
        comm.barrier()
        taken.wait()
        from_any.wait()
        assert comm.probe(1, 3).elements == 5
        assert comm.probe(2, 3, timeout=0) is None
        assert comm.probe(0, 3, timeout=0) is None
        for tag in (0, 1, 2):
            assert comm.probe(None, tag, timeout=0) is None
            assert group.probe(None, tag, timeout=0) is None
        assert group.probe(None, 4).elements == 6
        comm.recv(np.zeros(5), 1, 3)
        assert comm.probe(None, 3, timeout=0) is None
        group.recv(np.zeros(6), 1, 4)
    else:
        comm.barrier()
        if comm.rank == 1:
            for tag, n in ((1, 1), (2, 1), (3, 5)):
                comm.send(np.zeros(n), 0, tag)
            group.send(np.zeros(6), 0, 4)
    comm.barrier()
    group.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_only_what_no_receive_takes(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(only_what_is_left)


def waits(comm: Any, source: int | None) -> None:
    """It begins before the message is sent."""
    for i in range(5):
        if comm.rank == 0:
            comm.barrier()
            assert comm.probe(source, i).source == 1
            comm.recv(np.zeros(2), 1, i)
        else:
            comm.barrier()
            if comm.rank == 1:
                comm.send(np.zeros(2), 0, i)


@pytest.mark.parametrize("source", [None, 1])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_waits(pools: Pools, transport: str, source: int | None) -> None:
    pools.get(3, transport).run(waits, source)


def leave(comm: Any) -> None:
    """What a rank sent before it left is found; then no message can come, and the communicator goes on."""
    group = comm.dup()
    if comm.rank == 1:
        group.send(np.zeros(7), 0)
        group.close()
    comm.barrier()
    if comm.rank == 0:
        assert group.probe(1).elements == 7
        group.recv(np.zeros(7), 1)
        with pytest.raises(collectives.PeerError, match=r"rank 1.* has left the group, so no message can come") as info:
            group.probe(1)
        assert info.value.peer == 1
        assert group.probe(timeout=0) is None  # rank 2 could send
        comm.barrier()
        assert group.recv(np.zeros(3)).source == 2
        comm.barrier()
        with pytest.raises(collectives.PeerError, match="all other ranks have left the group"):
            group.probe()
    else:
        comm.barrier()
        if comm.rank == 2:
            group.send(np.zeros(3), 0)
        group.close()
        comm.barrier()
    group.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_that_left(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(leave)


def test_the_timeout_of_the_communicator() -> None:
    """It is an error then, after which all goes on."""
    comms: list[Any] = collectives.local_group(2, timeout=0.2)
    with pytest.raises(collectives.DeadlineError, match=r"rank 0, probe of rank 1, tag 3 has waited 0\.2 s") as info:
        comms[0].probe(1, 3)
    assert (info.value.rank, info.value.peer) == (0, 1)
    with pytest.raises(collectives.DeadlineError, match="probe of any rank"):
        comms[0].probe()
    in_threads([lambda comm=comm: comm.barrier(timeout=30) for comm in comms])
    comms[0].close()
    with pytest.raises(collectives.ClosedError):
        comms[0].probe(timeout=0)
    comms[1].close()


def test_wrong_calls() -> None:
    comms: list[Any] = collectives.local_group(2)
    for source in (-1, 2):
        with pytest.raises(ValueError, match=f"source {source} is out of range: the group has ranks 0 to 1"):
            comms[0].probe(source)
    for tag in (-1, 1 << 24):
        with pytest.raises(ValueError, match=f"tag {tag} is out of range"):
            comms[0].probe(1, tag)
    for wrong in ("1", 1.0, True):
        with pytest.raises(TypeError, match="source is"):
            comms[0].probe(wrong)
        with pytest.raises(TypeError, match="tag is"):
            comms[0].probe(1, wrong)
    for timeout in (-1, "1", float("nan"), True):
        with pytest.raises(ValueError, match="timeout is"):
            comms[0].probe(timeout=timeout)
    for comm in comms:
        comm.close()


def probe_for_ever(comm: Any) -> None:
    pool.say("ready")
    if comm.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            comm.probe()
    comm.barrier()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ctrl_c(pools: Pools, transport: str) -> None:
    """It leaves nothing behind, so the communicator goes on."""
    group = pools.get(2, transport)
    group.start(probe_for_ever)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[0].signal(signal.SIGINT)
    for outcome in group.collect(20):
        assert outcome.error is None, outcome
        assert outcome.usable


def probe_and_die(comm: Any) -> None:
    pool.say("ready")
    if comm.rank == 1:
        pool.hear()
    comm.probe()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_death(pools: Pools, transport: str) -> None:
    group = pools.get(3, transport)
    group.start(probe_and_die)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[2].await_sleep()
    group.ranks[1].signal(signal.SIGKILL)
    outcomes = group.collect(20)
    for survivor in (0, 2):
        assert isinstance(outcomes[survivor].error, collectives.PeerError), outcomes[survivor]
        assert outcomes[survivor].error.peer == 1
