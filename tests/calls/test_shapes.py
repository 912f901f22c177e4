"""Ranks that pass as many elements in other shapes: all_reduce, reduce and broadcast refuse it unless told not to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import collectives
import numpy as np
import pytest
from collectives import MismatchError
from collectives._startup.environment import read_compare_shapes, read_environment
from joining import job
from pool import TRANSPORTS, Pools
from threaded import in_threads, on_ranks

Shape = tuple[int, ...]

# What ranks have, but for the last, and what that one has.
PAIRS: dict[str, tuple[Shape, Shape]] = {
    "transposed": ((2, 3), (3, 2)),
    "a column": ((6,), (6, 1)),
    "a row": ((1, 6), (6,)),
    "a scalar": ((), (1,)),
    "nothing": ((0, 3), (3, 0)),
    "other dimensions": ((2, 2, 3), (4, 3)),
    "large": ((600, 512), (512, 600)),
}


def of_a_list(comm: Any, x: Any) -> Any:
    return comm.all_reduce([np.ones(4, x.dtype), x, np.ones((2, 2), x.dtype)])


def of_a_list_of_one(comm: Any, x: Any) -> Any:
    return comm.all_reduce([x])


def not_contiguous(comm: Any, x: Any) -> Any:
    return comm.all_reduce(np.repeat(x[..., np.newaxis], 2, axis=-1)[..., 0])


def of_a_group(comm: Any, x: Any) -> Any:
    return comm.split(0).all_reduce(x)


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "all_reduce": lambda comm, x: comm.all_reduce(x),
    "out": lambda comm, x: comm.all_reduce(x, out=np.empty_like(x)),
    "reduce": lambda comm, x: comm.reduce(x, root=1),
    "broadcast": lambda comm, x: comm.broadcast(x, 1),
    "scan": lambda comm, x: comm.scan(x),
    "exscan": lambda comm, x: comm.exscan(x, async_op=True).wait(),
    "named": lambda comm, x: comm.all_reduce(x, name="gradient"),
    "deterministic": lambda comm, x: comm.all_reduce(x, deterministic=True),
    "premul_sum": lambda comm, x: comm.all_reduce(x, "premul_sum", factor=1.0),
    "asynchronous": lambda comm, x: comm.all_reduce(x, async_op=True).wait(),
    "asynchronous broadcast": lambda comm, x: comm.broadcast(x, async_op=True).wait(),
    "a list": of_a_list,
    "a list of one": of_a_list_of_one,
    "not contiguous": not_contiguous,
    "a group": of_a_group,
}


def differ(comm: Any, call: str, pair: str) -> str:
    shape = PAIRS[pair][comm.rank == comm.size - 1]
    return refused(lambda: CALLS[call](comm, np.ones(shape)))


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(MismatchError) as caught:
        call()
    return str(caught.value)


def judge(texts: list[str], pair: str, tensor: int = 0) -> None:
    usual, other = PAIRS[pair]
    for text in texts:
        wanted = f"tensor {tensor}: rank 0 has shape {usual}, rank {len(texts) - 1} has shape {other}"
        # Of three ranks the one in the middle may be the first that the last one finds.
        assert wanted in text or wanted.replace("rank 0", f"rank {len(texts) - 2}") in text, texts


@pytest.mark.pairwise
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_shapes_are_compared(pools: Pools, transport: str, call: str, pair: str) -> None:
    judge(pools.get(3, transport).run(differ, call, pair, limit=30), pair, int(call == "a list"))


def shrink(comm: Any) -> str:
    smaller = comm.shrink()
    return refused(lambda: smaller.all_reduce(np.ones(PAIRS["transposed"][comm.rank])))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_after_a_shrink(groups: Any, transport: str) -> None:
    judge(groups(2, transport).run(shrink), "transposed")


def change(comm: Any, symmetric: bool) -> str:
    x = comm.empty(6) if symmetric else np.empty(6, np.float32)
    x[:] = comm.rank
    a, b = x.reshape(2, 3), x.reshape(3, 2)
    for shaped in (a, a, b, b, x, a, b, x, x):
        comm.all_reduce(shaped)
    for _ in range(3):
        comm.all_reduce(a)
    assert (x == 0).all() if comm.size == 1 else (x > 0).all()
    return refused(lambda: comm.all_reduce(b if comm.rank == comm.size - 1 else a))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_last_call_again_in_another_shape(pools: Pools, transport: str, symmetric: bool) -> None:
    """The same memory and length: all that was worked out for the call before would fit."""
    judge(pools.get(2, transport).run(change, symmetric, limit=30), "transposed")


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_arrays_of_other_libraries(library: str) -> None:
    module = pytest.importorskip(library)

    def work(comm: Any) -> list[str]:
        comm.all_reduce(module.ones((2, 3)))
        return refused(lambda: comm.all_reduce(module.ones(PAIRS["transposed"][comm.rank])))

    judge(on_ranks(2, work), "transposed")


def exempt(comm: Any) -> None:
    odd = comm.rank % 2
    x = np.arange(6.0).reshape((3, 2) if odd else (2, 3))
    if comm.rank == 0:
        comm.send(x, 1)
    elif comm.rank == 1:
        comm.recv(x, 0)
    rows = np.ones((2 * comm.size, 3, 1) if odd else (2 * comm.size, 3))
    assert comm.reduce_scatter(rows).shape == ((2, 3, 1) if odd else (2, 3))
    assert comm.all_gather(np.ones((1 + odd, 2))).shape[0] == comm.size + comm.size // 2


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_and_collectives_of_parts_are_exempt(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(exempt)


def agree_all_the_same(comm: Any) -> None:
    for call in CALLS:
        for pair in PAIRS.values():
            x = np.full(pair[comm.rank == comm.size - 1], 1.0)
            CALLS[call](comm, x)
    x = np.ones(PAIRS["transposed"][comm.rank == comm.size - 1])
    comm.shrink().all_reduce(x)
    assert (x == comm.size).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_means_it_can_say_so(groups: Any, transport: str) -> None:
    more: dict[str, Any] = {"variables": {"COLLECTIVES_COMPARE_SHAPES": "0"}}
    if transport == "local":
        more = {"limits": {"compare_shapes": False}}
    groups(2, transport, **more).run(agree_all_the_same)


def test_arguments_of_init_and_local_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(comm: Any) -> float:
        return float(comm.all_reduce(np.ones(PAIRS["transposed"][comm.rank]))[0, 0])

    def results(comms: list[Any]) -> list[Any]:
        try:
            return in_threads([functools.partial(add, comm) for comm in comms], (MismatchError,))
        finally:
            for comm in comms:
                comm.close()

    monkeypatch.setenv("COLLECTIVES_COMPARE_SHAPES", "1")
    assert results(collectives.init(replicas=2, compare_shapes=False)) == [2, 2]
    assert results(collectives.local_group(2, compare_shapes=False)) == [2, 2]
    monkeypatch.setenv("COLLECTIVES_COMPARE_SHAPES", "0")
    assert results(collectives.local_group(2)) == [2, 2]
    assert all(isinstance(r, MismatchError) for r in results(collectives.local_group(2, compare_shapes=True)))
    with pytest.raises(TypeError, match=r"^compare_shapes= is 0 of type int; True or False is accepted$"):
        collectives.init(compare_shapes=0)  # type: ignore[call-overload]


def test_the_argument_wins_over_the_variable() -> None:
    name = "COLLECTIVES_COMPARE_SHAPES"
    assert read_environment(environ={}).compare_shapes is True
    assert read_environment(environ={name: "0"}).compare_shapes is False
    assert read_environment(environ={name: "0"}, compare_shapes=True).compare_shapes is True
    assert read_compare_shapes(False, {name: "1"}) is False
    with pytest.raises(ValueError, match=f"^{name} is 'no'; an integer from 0 to 1 is accepted$"):
        read_compare_shapes(environ={name: "no"})


def test_ranks_must_be_started_alike() -> None:
    with job(2, transport="auto", compare_shapes=["1", "0"]) as ranks:
        for report in [rank.hear() for rank in ranks]:
            assert report["error"] == "MismatchError"
            assert "rank 0 was started with compare_shapes True and rank 1 with False" in report["text"]
            assert "COLLECTIVES_COMPARE_SHAPES or compare_shapes=" in report["text"]
