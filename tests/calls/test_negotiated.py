"""Vector collectives whose ranks tell each other first what they give: nobody waits for that but the collective."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pool
import pytest
from deaths import assert_noticed, kill
from pool import Pools
from threaded import on_ranks

COLLECTIVES = ["all_gather", "gather", "scatter", "all_to_all"]
TRANSPORTS = ["local", "shm", "tcp"]
VICTIM = 1


def given(rank: int, rows: int, tensor: int = 0) -> Any:
    return (np.arange(rows * 3) * 7 + 100 * rank + 10 * tensor).astype(np.float32).reshape(rows, 3)


def begin(
    comm: Any, collective: str, table: list[list[int]], tensors: int, as_list: bool, root: int, **more: Any
) -> tuple[Any, list[Any] | None]:
    """Starts one, and says what has to come.

    Args:
        comm, collective, root, more: what is called.
        table: the rows that go from one rank to another.
        tensors, as_list: of the argument; tensor t has t rows more in each part.
    """
    rank, size = comm.rank, comm.size

    def part(source: int, target: int, t: int) -> Any:
        before = sum(n + t for n in table[source][:target])
        return given(source, sum(table[source]) + size * t, t)[before : before + table[source][target] + t]

    everyone = range(size)
    if collective == "scatter":
        xs = [given(root, sum(table[root]) + size * t, t) for t in range(tensors)]
        counts: Any = [[n + t for n in table[root]] for t in range(tensors)]
        wanted = [part(root, rank, t) for t in range(tensors)]
        if rank != root:
            return comm.scatter(None, root, **more), wanted
        more["root"] = root
    elif collective == "all_to_all":
        xs = [given(rank, sum(table[rank]) + size * t, t) for t in range(tensors)]
        counts = [[n + t for n in table[rank]] for t in range(tensors)]
        wanted = [np.concatenate([part(source, rank, t) for source in everyone]) for t in range(tensors)]
    else:
        xs = [given(rank, table[rank][0] + t, t) for t in range(tensors)]
        counts = None
        wanted = [np.concatenate([given(r, table[r][0] + t, t) for r in everyone]) for t in range(tensors)]
        if collective == "gather":
            more["root"] = root
    if counts is not None:
        more["counts"] = counts if as_list else counts[0]
    result = getattr(comm, collective)(xs if as_list else xs[0], **more)
    return result, None if collective == "gather" and rank != root else wanted


def check(result: Any, wanted: list[Any] | None, as_list: bool) -> None:
    if wanted is None:
        assert result is None
        return
    assert isinstance(result, list) == as_list
    for a, b in zip(result if as_list else [result], wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all(), (a, b)


def send_after(comm: Any, collective: str, tensors: int) -> None:
    """Rank 0 starts it and then sends what the others receive before they start it."""
    table = [[(2 * r + c) % 4 for c in range(comm.size)] for r in range(comm.size)]
    note = np.zeros(1)
    as_list = tensors != 1
    if comm.rank == 0:
        work, wanted = begin(comm, collective, table, tensors, as_list, 1, async_op=True)
        later = comm.all_reduce(np.ones(2), async_op=True)
        assert not work.done()
        for other in range(1, comm.size):
            comm.send(note, other)
        check(work.result(), wanted, as_list)
        assert (later.result() == comm.size).all()
        return
    comm.recv(note, 0)
    result, wanted = begin(comm, collective, table, tensors, as_list, 1)
    check(result, wanted, as_list)
    assert (comm.all_reduce(np.ones(2)) == comm.size).all()


@pytest.mark.parametrize("tensors", [1, 3, 0])
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_asynchronous_call_returns_before_the_others_call(
    pools: Pools, transport: str, collective: str, tensors: int
) -> None:
    pools.get(3, transport).run(send_after, collective, tensors)


def random_program(comm: Any, seed: int) -> None:
    """The same collectives on all ranks; each rank waits for each of them at once, or some time later."""
    program, own = random.Random(seed), random.Random(1000 * seed + comm.rank)
    pending: list[Callable[[], None]] = []

    def call() -> None:
        kind = program.choice([*COLLECTIVES, *COLLECTIVES, "all_reduce", "broadcast", "barrier", "even"])
        asynchronous = own.random() < 0.7
        if kind in COLLECTIVES:
            table = [[program.choice([0, 1, 5, 400]) for _ in range(comm.size)] for _ in range(comm.size)]
            tensors, root = program.choice([1, 1, 2]), program.randrange(comm.size)
            as_list = tensors > 1 or program.random() < 0.3
            result, wanted = begin(comm, kind, table, tensors, as_list, root, async_op=asynchronous)
            end = lambda: check(result.result() if asynchronous else result, wanted, as_list)  # noqa: E731
        elif kind == "even":
            n = program.choice([1, 64, 20000])
            x = np.full(n * comm.size, comm.rank, np.int32)
            result = comm.all_to_all(x, async_op=asynchronous)
            want = np.repeat(np.arange(comm.size, dtype=np.int32), n)
            end = lambda: check(result.result() if asynchronous else result, [want], False)  # noqa: E731
        else:
            x = np.full(program.choice([1, 3000, 100_000]), comm.rank + 1.0, np.float32)
            if kind == "barrier":
                result = comm.barrier(async_op=asynchronous)
            else:
                result = getattr(comm, kind)(x, async_op=asynchronous)
            total = comm.size * (comm.size + 1) / 2 if kind == "all_reduce" else 1

            def end() -> None:
                if asynchronous:
                    result.wait()
                assert kind == "barrier" or (x == total).all()

        pending.append(end) if asynchronous else end()

    for _ in range(40):
        call()
        while pending and own.random() < 0.3:
            pending.pop(own.randrange(len(pending)))()
    for end in pending:
        end()


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_random_programs(pools: Pools, transport: str, n: int) -> None:
    group = pools.get(n, transport)
    for seed in range(4):
        group.run(random_program, seed)


def told(comm: Any, who_says: list[int]) -> None:
    table = [[r + 2 * c for c in range(comm.size)] for r in range(comm.size)]
    out_counts = [row[comm.rank] for row in table] if comm.rank in who_says else None
    more: dict[str, Any] = {} if comm.rank % 2 else {"out": np.zeros((sum(row[comm.rank] for row in table), 3), "f4")}
    work, wanted = begin(comm, "all_to_all", table, 1, False, 0, async_op=True, out_counts=out_counts, **more)
    result = work.result()
    assert result is more.get("out", result)
    check(result, wanted, False)
    assert work.algorithm == ("alone" if comm.size == 1 else "one_shot")


@pytest.mark.parametrize("who_says", [[], [0], [0, 1, 2]])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_comes_may_be_said_on_some_ranks(pools: Pools, transport: str, who_says: list[int]) -> None:
    pools.get(3, transport).run(told, who_says)


def contradicted(comm: Any, asynchronous: bool) -> str:
    from collectives import MismatchError

    def call() -> None:
        x = np.zeros(6)
        out_counts = {0: [2, 2, 2], 2: [2, 3, 2]}.get(comm.rank)  # rank 1 says nothing
        work = comm.all_to_all(x, counts=[2, 2, 2], out_counts=out_counts, async_op=asynchronous)
        later = comm.all_reduce(np.ones(3), async_op=True)
        if asynchronous:
            work.wait()
        later.wait()

    with pytest.raises(MismatchError) as caught:
        call()
    # All have found the same, so they can go on.
    assert (comm.all_reduce(np.ones(3)) == comm.size).all()
    return str(caught.value)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ranks_that_contradict_each_other(pools: Pools, asynchronous: bool) -> None:
    if asynchronous:  # what is posted behind it goes on
        texts = pools.get(3, "shm").run(contradicted_behind)
    else:
        texts = pools.get(3, "shm").run(contradicted, asynchronous)
    for text in texts:
        assert "rank 1 gives 2 rows of tensor 0 to rank 2, which expects 3" in text, text


def contradicted_behind(comm: Any) -> str:
    from collectives import MismatchError

    out_counts = {0: [2, 2, 2], 2: [2, 3, 2]}.get(comm.rank)
    work = comm.all_to_all(np.zeros(6), counts=[2, 2, 2], out_counts=out_counts, async_op=True)
    gathered = comm.all_gather(np.full(comm.rank, comm.rank), async_op=True)
    later = comm.all_reduce(np.ones(3), async_op=True)
    with pytest.raises(MismatchError) as caught:
        work.wait()
    assert (later.result() == comm.size).all()
    assert gathered.result().tolist() == [1, 2, 2]
    assert (comm.all_reduce(np.ones(3)) == comm.size).all()
    return str(caught.value)


def shapes_differ(comm: Any, asynchronous: bool) -> tuple[str, str | None]:
    from collectives import MismatchError

    with pytest.raises(MismatchError) as caught:
        result = comm.all_gather(np.zeros((2, 3 + (comm.rank == 2))), async_op=asynchronous)
        result.wait()
    assert (comm.all_reduce(np.ones(3)) == comm.size).all()
    return str(caught.value), caught.value.peer


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_shapes_that_differ(pools: Pools, transport: str, asynchronous: bool) -> None:
    texts = pools.get(3, transport).run(shapes_differ, asynchronous)
    for text, _ in texts:
        assert "rank 0 has shape (2, 3) of float64, rank 2 has shape (2, 4) of float64" in text, text
    assert [peer for _, peer in texts] == [2, 0, 0]


def misfit(comm: Any) -> str:
    """One rank has no room for what comes. The others have what they wanted."""
    x = np.full((comm.rank + 1, 2), comm.rank, np.int16)
    out = np.zeros((7 if comm.rank == 1 else 6, 2), np.int16)
    work = comm.all_gather(x, out=out, async_op=True)
    text = ""
    try:
        work.wait()
    except ValueError as error:
        text = str(error)
    else:
        assert (out[:, 0] == [0, 1, 1, 2, 2, 2]).all()
    return text


def test_an_output_that_does_not_fit(pools: Pools) -> None:
    first, second, third = pools.get(3, "shm").run(misfit)
    assert first == third == ""
    assert "(7, 2)" in second and "(6, 2)" in second


def strided_out(comm: Any) -> None:
    x = np.full((comm.rank + 1, 2), comm.rank, ">i2")[:, ::-1]
    out = np.zeros((12, 2), ">i2")[::2]
    result = comm.all_gather(x, out=out)
    assert result is out and (out[:, 1] == [0, 1, 1, 2, 2, 2]).all()
    many = comm.all_gather([x, x[:1]], out=(out, np.zeros((3, 2), np.int16)))
    assert isinstance(many, tuple) and (many[1][:, 0] == [0, 1, 2]).all()


def test_arrays_that_have_to_be_copied(pools: Pools) -> None:
    pools.get(3, "shm").run(strided_out)


def outlive(comm: Any) -> None:
    """Results keep their memory, and handles that are dropped do no harm."""
    kept = [comm.all_gather(np.full(1000 + comm.rank, i), async_op=True) for i in range(20)]
    for _ in range(20):
        comm.all_gather(np.full(1000 + comm.rank, -1), async_op=True)
    results = [work.result() for work in kept]
    del kept
    comm.barrier()
    assert all((result == i).all() for i, result in enumerate(results))
    results[0][:] = 5  # it is an array like any other
    assert results[0].flags.writeable and results[0].ctypes.data % 64 == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_results_and_dropped_handles(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(outlive)


def call_back(comm: Any) -> None:
    work = comm.all_gather(np.arange(comm.rank + 1), async_op=True)
    assert work.future().result(30).tolist() == [0, 0, 1]


def test_callbacks(pools: Pools) -> None:
    pools.get(2, "shm").run(call_back)


def wait_for_victim(comm: Any, collective: str, behind: int) -> None:
    comm.barrier()
    if comm.rank == VICTIM:
        pool.say("ready")
        pool.hear()
    table = [[1 + r + c for c in range(comm.size)] for r in range(comm.size)]
    works = [begin(comm, collective, table, 2, True, 0, async_op=True)[0] for _ in range(3)]
    works += [comm.all_reduce(np.ones(5), async_op=True) for _ in range(2)]
    pool.say("posted")
    try:
        works[behind].wait()
    finally:
        for work in works:  # all have failed
            with pytest.raises(Exception, match="rank 1"):
                work.wait()


@pytest.mark.parametrize("behind", [0, 1, 4])
@pytest.mark.parametrize("collective", ["all_gather", "all_to_all"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_death(pools: Pools, transport: str, collective: str, behind: int) -> None:
    """In the middle of the exchange, of one of several, and of what has no number yet."""
    group = pools.get(3, transport)
    group.start(wait_for_victim, collective, behind)
    assert group.ranks[VICTIM].event() == "ready"
    assert [group.ranks[r].event() for r in (0, 2)] == ["posted", "posted"]
    since = kill(group, VICTIM)
    assert_noticed(group.collect(20), VICTIM, since)


def late(comm: Any) -> str:
    from collectives import CollectivesError

    comm.barrier()
    try:
        if comm.rank == 0:
            comm.all_gather(np.ones(3), async_op=True, timeout=0.5, name="parts").wait()
        else:
            pool.hear()
            comm.all_gather(np.ones(3))
    except CollectivesError as error:
        if comm.rank == 0:
            pool.say("late")
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_deadline(pools: Pools) -> None:
    group = pools.get(2, "shm")
    group.start(late)
    assert group.ranks[0].event() == "late"
    group.ranks[1].tell("go on")
    own, other = (outcome.value for outcome in group.collect(20))
    assert own.startswith("DeadlineError") and "'parts (lengths)'" in own, own
    assert other.startswith("DeadlineError"), other


def equal_sums(comm: Any) -> None:
    """Parts of two tensors that are equally long together, and not one by one."""
    rows = [[[1 + (source + to + t) % 2 for to in range(comm.size)] for source in range(comm.size)] for t in (0, 1)]
    xs = [np.repeat(np.arange(comm.size) + 10 * comm.rank + 100 * t, rows[t][comm.rank]) for t in (0, 1)]
    results = comm.all_to_all(xs, counts=[rows[t][comm.rank] for t in (0, 1)])
    for t, result in enumerate(results):
        came = [row[comm.rank] for row in rows[t]]
        assert result.tolist() == np.repeat(10 * np.arange(comm.size) + comm.rank + 100 * t, came).tolist()
    assert comm.recorder()[-1]["tensors"] == 2


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_parts_that_are_equally_long_together(pools: Pools, transport: str, n: int) -> None:
    pools.get(n, transport).run(equal_sums)


def exchanged(comm: Any) -> int:
    """Bytes that this rank moves for an all_to_all with nearly no data."""
    own = [int(to == (comm.rank + 1) % comm.size) for to in range(comm.size)]
    came = [int(source == (comm.rank - 1) % comm.size) for source in range(comm.size)]
    before = sum(comm.bytes_by_transport().values())
    result = comm.all_to_all(np.full(1, comm.rank, np.uint8), counts=own, out_counts=came)
    comm.barrier()
    assert result.tolist() == [(comm.rank - 1) % comm.size]
    return sum(comm.bytes_by_transport().values()) - before


def test_what_a_rank_exchanges_grows_with_the_ranks() -> None:
    """And not with their square, as a table of what each gives to each would."""
    few, many = max(on_ranks(4, exchanged)), max(on_ranks(16, exchanged))
    assert few > 0
    assert many < 6 * few, (few, many)  # 5: the others are 15 in place of 3; a table is nine times as long and more
