"""Groups that their members make without the other ranks: who has to call, and what happens if one does not."""

from __future__ import annotations

import contextlib
import functools
import itertools
import signal
import time
from typing import Any

import numpy as np
import pool
import pytest
from collectives import _core
from pool import LIMIT, NOTICED, TRANSPORTS, Pools
from test_groups import check
from threaded import in_threads

PROCESSES = ["shm", "tcp"]


def kinds(comm: Any) -> None:
    """Groups of 4 ranks; the members of each make it, in the middle of whatever the others do."""
    me = comm.rank
    if me in (1, 3):
        with comm.new_group([3, 1], members_only=True) as pair:
            check(pair, [3, 1], me)
            assert pair.new_group([pair.rank], members_only=True).size == 1
            inner = pair.new_group([1, 0], members_only=True, tag="inner")
            check(inner, [1, 3], me)
        check(inner, [1, 3], me)  # of its own, whatever becomes of what it was made of
        copy = inner.dup()
        check(copy.shrink(), [1, 3], me)
        inner.close()
    else:
        assert comm.new_group(iter([np.int64(me)]), members_only=True).all_reduce(np.ones(3)).sum() == 3
    most = [2, 0, 3]
    for tag in (None, 5, "5", None, 5):
        if me in most:
            group = comm.new_group(most, tag, members_only=True)
            check(group, most, me)
            halves = group.split(group.rank % 2)
            assert halves.size == (2 if group.rank != 1 else 1)
            group.close()
    numbers = comm.all_gather_object(_core._describe(group)["id"] if me in most else 0)
    assert len({numbers[r] for r in most}) == 1
    check(comm, list(range(comm.size)), me)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_members_make_it(pools: Pools, transport: str) -> None:
    pools.get(4, transport).run(kinds)


def wrong(comm: Any) -> None:
    me, other = comm.rank, 1 - comm.rank
    for ranks, text in (
        ([], "ranks is empty"),
        ([me, 2], r"ranks\[1\] is 2, which is out of range"),
        ([other, me, me], r"rank . is listed twice"),
        ([other], f"without this rank, {me}: .*only members make the call"),
    ):
        with pytest.raises(ValueError, match=text):
            comm.new_group(ranks, members_only=True)
    for bad in (0, -1.0, float("nan"), "1"):
        with pytest.raises(ValueError, match="timeout is"):
            comm.new_group([me], members_only=True, timeout=bad)
    for bad in (1.5, True, b"tag"):
        with pytest.raises(TypeError, match=r"tag is .*; an integer or a string is accepted"):
            comm.new_group([me], bad, members_only=True)
    with pytest.raises(ValueError, match="tag is 3, which is for members_only"):
        comm.new_group([0, 1], 3)
    with pytest.raises(ValueError, match=r"timeout is 1, which is for members_only"):
        comm.new_group([0, 1], timeout=1)
    comm.barrier()


def test_wrong_calls(pools: Pools) -> None:
    pools.get(2, "local").run(wrong)


def missing(comm: Any) -> None:
    """Rank 1 does not come until rank 0 has given up, then it is rank 0 that does not."""
    import collectives

    for late in (1, 0):
        early = 1 - late
        if comm.rank == early:
            began = time.monotonic()
            with pytest.raises(collectives.DeadlineError, match=rf"rank {late} .*did not come within 0\.") as caught:
                comm.new_group([0, 1], members_only=True, timeout=0.1)
            assert 0.1 <= time.monotonic() - began < NOTICED
            assert caught.value.peer == late
            assert caught.value.collective == "new_group"
            comm.send(np.arange(10), late)  # also to say that it is over
        elif comm.rank == late:
            x = np.zeros(10, np.int64)
            comm.recv(x, early)
            assert x[9] == 9
        # Neither call counts: the next ones meet.
        if comm.rank < 2:
            check(comm.new_group([0, 1], members_only=True), [0, 1], comm.rank)
        check(comm, [0, 1, 2], comm.rank)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_does_not_come(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(missing)


def impatient(comm: Any, rounds: int) -> int:
    """Both give up after a moment and try again, until the groups are there: they are on both or on none."""
    import collectives

    gave_up = 0
    for i in range(rounds):
        patience = 1e-4 * (1 + comm.rank + i % 3)
        while True:
            try:
                group = comm.new_group([1, 0], members_only=True, timeout=patience)
                break
            except collectives.DeadlineError:
                gave_up += 1
                patience *= 1.2  # where the machine is busy, a moment is too short for any two to meet
        assert group.all_reduce(np.full(10, comm.rank))[0] == 1
        group.close()
    return gave_up


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_giving_up_leaves_no_rank_behind(pools: Pools, transport: str) -> None:
    """Whoever makes a group can use it: no member made it alone, however its patience ends."""
    pools.get(2, transport).run(impatient, 30)


def many(comm: Any, count: int) -> tuple[Any, Any]:
    """What the process holds after the first group, and after all."""
    for i in range(count + 1):
        with comm.new_group([1, 0], members_only=True) as group:
            assert group.all_reduce(np.full(3, i))[0] == 2 * i
        if i == 0:
            before = undisturbed_census(comm)
    return before, undisturbed_census(comm)


def undisturbed_census(comm: Any) -> Any:
    """The census of rank 0: a rank in another thread of the process would count the descriptor that it reads with."""
    comm.barrier()
    census = pool.census() if comm.rank == 0 else None
    comm.barrier()
    return census


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_thousand_groups(pools: Pools, transport: str) -> None:
    for before, after in pools.get(2, transport).run(many, 1000):
        assert after == before


def two_threads(comm: Any, rounds: int) -> None:
    """One thread makes all pairs in order, the other in the opposite order, and they use them at once."""
    pairs = list(itertools.combinations(range(comm.size), 2))

    def make(tag: str, order: list[tuple[int, int]]) -> None:
        for i in range(rounds):
            groups = []
            for pair in order:
                if comm.rank in pair:
                    group = comm.new_group(pair, tag, members_only=True)
                    assert group.all_reduce(np.full(100, comm.rank + i))[0] == sum(pair) + 2 * i
                    groups.append((pair, group))
            for pair, group in groups:
                assert group.all_reduce(np.full(1000, comm.rank))[0] == sum(pair)
                group.close()

    in_threads([functools.partial(make, "up", pairs), functools.partial(make, "down", pairs[::-1])])
    comm.barrier()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_overlapping_groups_in_two_threads(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(two_threads, 5)


def same_tag(comm: Any) -> None:
    """Two threads cannot make the same group: one of them is told so while the other one waits."""
    import collectives

    def make() -> Any:
        try:
            return comm.new_group([0, 1], "one", members_only=True)
        except collectives.CollectivesError:
            comm.send(np.ones(1), 1)
            raise

    if comm.rank == 0:
        results = in_threads([make, make], (collectives.CollectivesError,))
        group, error = sorted(results, key=lambda result: isinstance(result, Exception))
        assert "another thread of this rank makes a group of the same ranks" in str(error)
    else:
        comm.recv(np.ones(1), 0)
        group = comm.new_group([0, 1], "one", members_only=True)
    check(group, [0, 1], comm.rank)


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_same_group_in_two_threads(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(same_tag)


def with_the_dead(comm: Any) -> float:
    """Rank 2 dies while rank 0 waits for it; ranks 0 and 1 go on in a group that was there before."""
    import collectives

    spare = comm.new_group([0, 1], members_only=True) if comm.rank < 2 else None
    pool.say("ready")
    if comm.rank == 2:
        pool.hear()
    if comm.rank == 0:
        with pytest.raises(collectives.PeerError, match=r"new_group: .*rank 2 .*is gone") as caught:
            comm.new_group([2, 0], members_only=True)
        assert caught.value.peer == 2
    ended = time.monotonic()
    assert spare is not None
    check(spare, [0, 1], comm.rank)
    # Its parent has failed with the rank that died; what is left of it makes groups again.
    left = comm.shrink(LIMIT / 4)
    check(left.new_group([1, 0], members_only=True), [1, 0], comm.rank)
    return ended


@pytest.mark.parametrize("transport", PROCESSES)
def test_one_dies(pools: Pools, transport: str) -> None:
    group = pools.get(3, transport)
    group.start(with_the_dead)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    since = time.monotonic()
    group.ranks[2].signal(signal.SIGKILL)
    outcomes = group.collect(LIMIT)
    for survivor in (0, 1):
        assert outcomes[survivor].error is None, outcomes[survivor].text
    assert outcomes[0].value - since < NOTICED


def until_one_dies(comm: Any) -> str:
    """Groups of the three, one after the other, with a collective each, until a rank dies anywhere in that."""
    import collectives

    with pytest.raises(collectives.PeerError) as caught:
        for i in itertools.count():
            with comm.new_group([2, 0, 1], members_only=True) as group:
                group.all_reduce(np.ones(10))
            if i == 20:
                pool.say("busy")
    return str(caught.value)


@pytest.mark.parametrize("transport", PROCESSES)
def test_one_dies_in_between(pools: Pools, transport: str) -> None:
    group = pools.get(3, transport)
    group.start(until_one_dies)
    for rank in group.ranks:
        assert rank.event() == "busy"
    group.ranks[1].signal(signal.SIGKILL)
    outcomes = group.collect(30)
    for survivor in (0, 2):
        assert outcomes[survivor].error is None, outcomes[survivor].text
        assert "is gone" in outcomes[survivor].value


def parent_ends(comm: Any, how: str) -> Any:
    """Rank 1 fails or closes the communicator that rank 0 waits in for it."""
    import collectives

    parent = comm.dup()
    pool.say("ready")
    if comm.rank == 1:
        pool.hear()
        if how == "closed":
            parent.close()
        else:
            with pytest.raises(collectives.CollectivesError):
                parent.recv(np.ones(3), 0, timeout=0.01)
        return None
    error = collectives.PeerError if how == "closed" else collectives.DeadlineError
    text = "has closed the communicator" if how == "closed" else "the communicator has failed: recv"
    with pytest.raises(error, match=text):
        parent.new_group([0, 1], members_only=True)
    return None


@pytest.mark.parametrize("how", ["closed", "failed"])
@pytest.mark.parametrize("transport", PROCESSES)
def test_parent_ends(pools: Pools, transport: str, how: str) -> None:
    group = pools.get(2, transport)
    group.start(parent_ends, how)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[1].tell("go on")
    for outcome in group.collect():
        assert outcome.error is None, outcome.text
        assert outcome.usable


def interrupted(comm: Any) -> None:
    """Ctrl-C while rank 0 waits is an error of the call alone."""
    pool.say("ready")
    if comm.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            comm.new_group([0, 1], members_only=True)
        pool.say("over")
    else:
        pool.hear()
    check(comm.new_group([0, 1], members_only=True), [0, 1], comm.rank)
    check(comm, [0, 1], comm.rank)


@pytest.mark.parametrize("transport", PROCESSES)
def test_ctrl_c(pools: Pools, transport: str) -> None:
    group = pools.get(2, transport)
    group.start(interrupted)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[0].signal(signal.SIGINT)
    assert group.ranks[0].event() == "over"
    group.ranks[1].tell("go on")
    for outcome in group.collect():
        assert outcome.error is None, outcome.text


def no_room(comm: Any) -> None:
    first = comm.new_group([0, 1, 2], members_only=True)
    with pytest.raises(MemoryError, match=r"no room for another group of 3: .*COLLECTIVES_SYMMETRIC_HEAP"):
        comm.new_group([0, 1, 2], members_only=True)
    first.close()
    del first
    comm.barrier()  # all have dropped theirs
    check(comm.new_group([0, 1, 2], members_only=True), [0, 1, 2], comm.rank)


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_no_room_for_another_group(transport: str) -> None:
    """An arena for a segment of three ranks without a heap, and a little more."""
    segment = _core.segment_bytes(3, {"heap_bytes": 0, "arena_bytes": 0})
    group = pool.make_group(3, transport, limits={"heap_bytes": 0, "arena_bytes": segment + (64 << 10)})
    with contextlib.closing(group):
        group.run(no_room)
