"""Arguments with an array for each rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pool import Pools

TRANSPORTS = ["local", "shm", "tcp"]


def part(source: int, target: int, rows: int) -> Any:
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) + 100 * source + 1000 * target


def rows_of(source: int, target: int, scale: int) -> int:
    return scale * ((source + 2 * target) % 4)


def each(comm: Any, scale: int, asynchronous: bool) -> None:
    import collectives
    from collectives import PerRank

    rank, everyone = comm.rank, range(comm.size)

    def run(collective: str, *args: Any, **more: Any) -> Any:
        result = getattr(comm, collective)(*args, async_op=asynchronous, **more)
        return result.result() if asynchronous else result

    def same(result: Any, wanted: list[Any]) -> None:
        assert len(result) == len(wanted)
        for a, b in zip(result, wanted, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype and (a == b).all(), (a, b)

    given = [part(rank, to, rows_of(rank, to, scale)) for to in everyone]
    came = [part(source, rank, rows_of(source, rank, scale)) for source in everyone]
    empty = [np.full_like(a, -1) for a in came]
    out = PerRank(empty)
    assert run("all_to_all", PerRank(given), out=out) is out
    same(empty, came)
    made = run("all_to_all", PerRank(given))
    assert isinstance(made, collectives.PerRank)
    same(made, came)
    # One rank has parts, another one array.
    if rank == 0:
        result = run("all_to_all", np.concatenate(given), counts=[len(a) for a in given])
    else:
        result = run("all_to_all", PerRank(given), out=np.empty_like(np.concatenate(came)))
    same([result], [np.concatenate(came)])

    own = part(rank, 0, rows_of(rank, 0, scale))
    joined = [part(source, 0, rows_of(source, 0, scale)) for source in everyone]
    for counts in (None, [len(a) for a in joined]):
        empty = [np.full_like(a, -1) for a in joined]
        run("all_gather", own, counts=counts, **({} if rank == 1 else {"out": PerRank(empty)}))
        if rank != 1:
            same(empty, joined)
        empty = [np.full_like(a, -1) for a in joined]
        result = run("gather", own, 1, counts=counts, out=PerRank(empty) if rank == 1 else None)
        assert (result is None) == (rank != 1)
        if rank == 1:
            same(empty, joined)

    whole = [part(1, to, rows_of(1, to, scale)) for to in everyone]
    same([run("scatter", PerRank(whole) if rank == 1 else None, 1)], [whole[rank]])
    target = np.full_like(whole[rank], -1)
    assert run("scatter", PerRank(whole) if rank == 1 else None, 1, out=target) is target
    same([target], [whole[rank]])

    summed = [part(0, to, rows_of(0, to, scale)) * comm.size for to in everyone]
    same([run("reduce_scatter", PerRank([part(0, to, rows_of(0, to, scale)) for to in everyone]))], [summed[rank]])
    counts = [len(a) for a in summed]
    if rank == 0:  # a strided part
        parts = [np.repeat(a / comm.size, 2, axis=1)[:, ::2] for a in summed]
        result = run("reduce_scatter", PerRank(parts))
    else:
        result = run("reduce_scatter", np.concatenate(summed) / comm.size, counts=counts)
    same([result], [summed[rank]])


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("scale", [1, 700, 90_000])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_each_collective(pools: Pools, transport: str, scale: int, asynchronous: bool) -> None:
    pools.get(3, transport).run(each, scale, asynchronous)


def refused(comm: Any) -> list[str]:
    from collectives import PerRank

    a = np.zeros((2, 3))
    texts = []
    for call in (
        lambda: comm.all_gather(PerRank([a, a])),
        lambda: comm.scatter(PerRank([a, a]) if comm.rank == 0 else None, out=PerRank([a, a])),
        lambda: comm.reduce_scatter(PerRank([a])),
        lambda: comm.reduce_scatter(PerRank([a, np.zeros((2, 4))])),
        lambda: comm.reduce_scatter(PerRank([a, np.array(1.0)])),
        lambda: comm.reduce_scatter(PerRank([a, a.astype("f4")])),
        lambda: comm.all_to_all(PerRank([a, a]), counts=[2, 2]),
        lambda: comm.all_to_all(PerRank([a, a]), out=PerRank([a, a.copy()]), out_counts=[2, 2]),
        lambda: comm.all_to_all([a], out=PerRank([a.copy(), a.copy()])),
        lambda: comm.all_to_all(PerRank([a, a]), out=PerRank([a.copy()])),
        lambda: comm.all_to_all(PerRank([a, a]), out_counts=[2]),
        lambda: comm.all_gather(a, out=PerRank([a.copy(), a.copy()]), counts=[3, 2]),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        texts.append(str(caught.value))
    assert (comm.all_reduce(np.ones(3)) == comm.size).all()  # nothing was sent
    return texts


def test_what_is_refused(pools: Pools) -> None:
    texts, others = pools.get(2, "shm").run(refused)
    assert len(texts) == len(others) == 12
    for text, words in zip(
        texts,
        [
            "x of all_gather is one array",
            "out of scatter is one array",
            "x is a PerRank of 1 arrays; the group has 2 ranks",
            "x[1] has shape (2, 4) and x[0] has (2, 3)",
            "x[1] has shape (1,)",
            "dtype",
            "leave counts= away",
            "leave out_counts= away",
            "x is a list",
            "out is a PerRank of 1 arrays",
            "out_counts has 1 entries",
            "counts say 3",
        ],
        strict=True,
    ):
        assert words in text, (words, text)


def misfit(comm: Any) -> tuple[str, str]:
    """Parts of a rank do not fit what comes, or what it says contradicts it."""
    from collectives import MismatchError, PerRank

    x = np.full((comm.rank + 1, 2), comm.rank, np.int16)
    out = PerRank([np.zeros((r + 1 + (comm.rank == 1), 2), np.int16) for r in range(comm.size)])
    text = ""
    try:
        comm.all_gather(x, out=out)
    except ValueError as error:
        text = str(error)
    else:
        assert [int(a[0, 0]) for a in out] == [0, 1, 2]
    with pytest.raises(MismatchError) as caught:
        comm.all_to_all(PerRank([x] * 3), out=PerRank([np.zeros((2, 2), np.int16) for _ in range(3)]))
    return text, str(caught.value)


def test_what_does_not_fit(pools: Pools) -> None:
    (first, _), (second, _), (third, text) = pools.get(3, "shm").run(misfit)
    assert first == third == ""
    assert "out[0] has shape (2, 2)" in second and "(1, 2)" in second, second
    assert "rank 0 gives 1 rows of tensor 0 to rank 0, which expects 2" in text, text
