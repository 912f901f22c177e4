"""Vector collectives on one plain array in equal parts: the short way through the library, and where it ends."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pool import Pools
from short_ways import no_general_way

GROUPS = [(1, "local"), (2, "local"), (3, "local"), (2, "shm"), (3, "shm"), (2, "tcp")]
DTYPES = [
    *(
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
    ),
    *("complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
]
ROOT = 1  # where there is such a rank
GUARD = 3  # elements before and after an array, of which it begins and ends no cache line


@pytest.fixture(params=GROUPS, ids=lambda g: f"{g[1]}-{g[0]}")
def group(request: pytest.FixtureRequest, pools: Pools) -> Any:
    return pools.get(*request.param)


def values(rank: int, rows: int, width: int, dtype: str) -> Any:
    return ((np.arange(rows * width) * 7 + 5 * rank) % 11).astype(dtype).reshape(rows, width)


def by_numpy(collective: str, rank: int, size: int, rows: int, width: int, dtype: str) -> Any:
    """The result of a rank whose array has so many rows, as those of all ranks have."""
    given = [values(r, rows, width, dtype) for r in range(size)]
    if collective == "all_gather":
        return np.concatenate(given)
    if collective == "gather":
        return np.concatenate(given) if rank == ROOT % size else None
    if collective == "scatter":
        return np.split(given[ROOT % size], size)[rank]
    if collective == "reduce_scatter":
        return np.split(np.add.reduce(given, dtype=given[0].dtype), size)[rank]
    return np.concatenate([np.split(x, size)[rank] for x in given])


def same(result: Any, want: Any) -> bool:
    if want is None or result is None:
        return result is want
    return bool(np.array_equal(result, want) and result.dtype == want.dtype)


COLLECTIVES = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")


def even(comm: Any, rows: int, width: int, dtype: str, short: bool) -> list[str]:
    """The wrong ones of all the forms of a call. short: none of them may take the general path."""
    wrong = []
    undo = no_general_way() if short else lambda: None
    try:
        for collective in COLLECTIVES:
            want = by_numpy(collective, comm.rank, comm.size, rows, width, dtype)
            x = values(comm.rank, rows, width, dtype)
            given = x if collective != "scatter" or comm.rank == ROOT % comm.size else None
            out = None if want is None else np.zeros_like(want)
            more = {"root": ROOT % comm.size} if collective in ("gather", "scatter") else {}
            forms: list[tuple[str, Callable[[], Any]]] = [
                ("new", lambda c=collective, x=given, more=more: getattr(comm, c)(x, **more)),
                ("out", lambda c=collective, x=given, out=out, more=more: getattr(comm, c)(x, out=out, **more)),
            ]
            if collective == "all_gather":
                part = out[comm.rank * rows : (comm.rank + 1) * rows]

                def in_place(part: Any = part, out: Any = out, x: Any = x) -> Any:
                    out[:] = 0
                    part[:] = x
                    return comm.all_gather(part, out=out, counts=rows)

                forms += [
                    ("told", lambda x=x: comm.all_gather(x, counts=rows)),
                    ("in place", in_place),
                ]
            if collective == "reduce_scatter":
                forms.append(("told", lambda x=x: comm.reduce_scatter(x, "sum", counts=rows // comm.size)))
            if collective == "gather":
                forms.append(("told", lambda x=x, more=more: comm.gather(x, counts=rows, **more)))
            if collective == "scatter":
                forms.append(
                    ("told", lambda x=given, more=more: comm.scatter(x, counts=rows // comm.size, **more)),
                )
            for form, call in forms:
                for _ in range(2):  # the second one finds what the first one left
                    result = call()
                    unchanged = form == "in place" or np.array_equal(x, values(comm.rank, rows, width, dtype))
                    if not same(result, want) or not unchanged or (form == "out" and result is not out):
                        wrong.append(f"{collective} {form}")
    finally:
        undo()
    return wrong


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
@pytest.mark.parametrize("width", [1, 5, 3000])
def test_equal_parts_go_the_short_way(group: Any, width: int, dtype: str) -> None:
    # What one of several threads replaces, the others miss.
    assert group.run(even, 6, width, dtype, group.transport != "local") == [[]] * group.size


def gather_unlike(comm: Any, out: bool) -> Any:
    """Rank 0 of 3 has rows that would fit equal parts of the result, and a layout that only the general path knows."""
    rows = [3, 2, 4]
    x = values(comm.rank, rows[comm.rank], 4, "float32")
    given = np.asfortranarray(x) if comm.rank == 1 else x
    target = np.zeros((sum(rows), 4), np.float32) if out else None
    comm.barrier()
    before = comm.recorder()[-1]["sequence"]  # not their number: no more than a thousand calls are kept
    result = comm.all_gather(given, out=target)
    want = np.concatenate([values(r, n, 4, "float32") for r, n in enumerate(rows)])
    calls = comm.recorder()[-1]["sequence"] - before
    return np.array_equal(result, want) and (target is None or result is target), calls


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("transport", ["local", "shm"])
def test_ranks_that_have_different_lengths_or_layouts_meet(pools: Pools, transport: str, out: bool) -> None:
    # Each of them tells its length once, and gives its rows once.
    assert pools.get(3, transport).run(gather_unlike, out) == [(True, 2)] * 3


def unlike(comm: Any) -> list[bool]:
    """What one rank does the short way, and another, or the same one later, the general way."""
    rank, size = comm.rank, comm.size
    root = 1
    here = rank == root
    rows = [3, 2, 4]
    x = values(rank, rows[rank], 4, "float32")
    joined = np.concatenate([values(r, n, 4, "float32") for r, n in enumerate(rows)])
    whole = values(root, 2 * size, 4, "int16")
    own = np.split(whole, size)[rank]
    uneven = whole[sum(rows[:rank]) - 3 * (rank > 0) : sum(rows[: rank + 1]) - 3]
    ok = [
        # Lengths differ; one layout is none for the short way; results have no place, or one.
        same(comm.gather(np.asfortranarray(x) if rank == 2 else x, root), joined if here else None),
        same(comm.gather(x, root, out=np.zeros((9, 4), np.float32)), joined if here else None),
        # The root goes the general way, the others cannot know; then the others do.
        same(comm.scatter(np.asfortranarray(whole) if here else None, root), own),
        same(comm.scatter(whole if here else None, root, out=None if here else np.zeros((2, 8), "i2")[:, ::2]), own),
        same(comm.scatter(whole if here else None, root, timeout=None if here else 60), own),
        same(comm.scatter(whole if here else None, root, counts=[0, 2, 4] if here else None), uneven),
    ]
    lists = comm.scatter([whole] if here else None, root)
    two = comm.scatter([whole, whole[::2].copy()] if here else None, root)
    none = comm.scatter([] if here else None, root)
    ok += [isinstance(lists, list) and same(lists[0], own), none == []]
    ok += [same(a, b) for a, b in zip(two, [own, np.split(whole[::2], size)[rank]], strict=True)]
    return ok


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_gather_and_scatter_where_ranks_go_different_ways(pools: Pools, transport: str) -> None:
    assert pools.get(3, transport).run(unlike) == [[True] * 10] * 3


def scatter_misfit(comm: Any) -> tuple[str, bool]:
    """An output that does not fit what the root has: an error on that rank, and no other rank waits for it."""
    whole = np.arange(6.0) if comm.rank == 0 else None
    text = ""
    try:
        comm.scatter(whole, out=np.zeros(2 if comm.rank < 2 else 5))
    except ValueError as error:
        text = str(error)
    return text, same(comm.scatter(whole), np.arange(6.0)[2 * comm.rank :][:2])


def test_an_output_that_does_not_fit_what_is_scattered(pools: Pools) -> None:
    (first, second, third) = pools.get(3, "shm").run(scatter_misfit)
    assert first == second == ("", True)
    assert "(5,)" in third[0] and "(2,)" in third[0] and third[1]


def gather_much_of_one(comm: Any) -> int:
    """The root has nearly all there is, and room for that, not for as much of each rank."""
    x = np.ones(64 << 20 if comm.rank == 0 else 1, np.uint8)
    room = 64 << 20
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as status:
        used = int(status.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + len(x) + room, before[1]))
    try:
        result = comm.gather(x)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return 0 if result is None else int(result.sum())


def test_what_a_root_has_is_not_taken_for_what_all_have(pools: Pools) -> None:
    assert pools.get(4, "shm").run(gather_much_of_one) == [(64 << 20) + 3, 0, 0, 0]


def scatter_every_type(comm: Any) -> list[str]:
    """Ranks that show no array learn the element type; the wrong ones."""
    undo = no_general_way()
    wrong = []
    try:
        for name in DTYPES:
            whole = np.ones((2 * comm.size, 0, 3), name) if comm.rank == 0 else None
            empty = comm.scatter(whole)
            result = comm.scatter(np.arange(2 * comm.size).astype(name) if comm.rank == 0 else None)
            want = np.arange(2 * comm.size).astype(name)[2 * comm.rank :][:2]
            if not same(result, want) or empty.shape != (2, 0, 3) or result.ctypes.data % 64 != 0:
                wrong.append(name)
    finally:
        undo()
    return wrong


def test_scatter_of_every_element_type(pools: Pools) -> None:
    assert pools.get(2, "shm").run(scatter_every_type) == [[], []]


def out_of_one_rank(comm: Any) -> Any:
    """Of rank 0 the output fits equal parts, of rank 1 too, but those are others."""
    rows = [2, 4, 3][comm.rank]
    x = values(comm.rank, rows, 1, "float32")
    return comm.all_gather(x, out=np.zeros((9, 1), np.float32)).ravel().tolist()


def test_an_output_that_fits_one_rank_only(pools: Pools) -> None:
    # Rank 2 alone could take its output for that of equal parts.
    want = np.concatenate([values(r, n, 1, "float32") for r, n in enumerate([2, 4, 3])]).ravel().tolist()
    assert pools.get(3, "shm").run(out_of_one_rank) == [want] * 3


def large(comm: Any, shift: int) -> list[str]:
    """Results that are larger than caches and begin anywhere: nothing beside them may be written."""
    wrong = []
    part = (9 << 20) // 4 + 5
    for collective in ("all_gather", "all_to_all", "broadcast", "all_reduce"):
        rows = part if collective == "all_gather" else comm.size * part
        x = values(comm.rank, rows, 1, "float32")
        store = np.full(comm.size * part + 2 * GUARD + shift, -1, np.float32)
        out = store[GUARD + shift : -GUARD].reshape(-1, 1)
        if collective in ("all_gather", "all_to_all"):
            want = by_numpy(collective, comm.rank, comm.size, rows, 1, "float32")
            getattr(comm, collective)(x, out=out)
        else:
            want = values(0, rows, 1, "float32")
            if collective == "all_reduce":
                want = np.add.reduce([values(r, rows, 1, "float32") for r in range(comm.size)])
            getattr(comm, collective)(x, out=out)
        around = np.concatenate([store[: GUARD + shift], store[-GUARD:]])
        if not np.array_equal(out, want) or not np.all(around == -1):
            wrong.append(collective)
    return wrong


@pytest.mark.parametrize(("n", "transport"), [(2, "shm"), (3, "shm"), (2, "local")])
@pytest.mark.parametrize("shift", [0, 1, 13])
def test_results_larger_than_caches(pools: Pools, n: int, transport: str, shift: int) -> None:
    assert pools.get(n, transport).run(large, shift) == [[]] * n


def large_elsewhere(comm: Any) -> list[bool]:
    """In place, and in a list of which every tensor is one of several pieces of memory."""
    rows = (9 << 20) // 4 + 5
    whole = np.zeros((comm.size * rows, 1), np.float32)
    part = whole[comm.rank * rows : (comm.rank + 1) * rows]
    part[:] = values(comm.rank, rows, 1, "float32")
    comm.all_gather(part, out=whole, counts=rows)
    want = by_numpy("all_gather", comm.rank, comm.size, rows, 1, "float32")
    in_list = comm.all_gather([values(comm.rank, rows, 1, "float32"), part[:3].copy()], counts=[rows, 3])
    small = by_numpy("all_gather", comm.rank, comm.size, rows, 1, "float32").reshape(comm.size, rows, 1)[:, :3]
    return [np.array_equal(whole, want), np.array_equal(in_list[0], want), np.array_equal(in_list[1], np.vstack(small))]


def test_large_results_in_place_and_in_lists(pools: Pools) -> None:
    assert pools.get(2, "shm").run(large_elsewhere) == [[True] * 3] * 2


def gather_in_a_handler(comm: Any) -> Any:
    """Rank 0 waits in a call while a signal handler makes another one, in another group of more ranks."""
    groups = [comm.dup(), comm.split(0 if comm.rank < 2 else None)]
    large_group, small = groups
    results = []

    def another(*_: Any) -> None:
        results.append(large_group.all_gather(np.full(3, comm.rank, np.int64)).tolist())

    if comm.rank == 0:
        before = signal.signal(signal.SIGALRM, another)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            results.append(small.all_gather(np.full(2, comm.rank, np.int32)).tolist())
        finally:
            signal.signal(signal.SIGALRM, before)
    else:
        another()  # returns when rank 0 is in its handler, and so in the other call
        if small is not None:
            results.append(small.all_gather(np.full(2, comm.rank, np.int32)).tolist())
    for group in groups:
        if group is not None:
            group.close()
    return results


def test_a_call_inside_a_call(pools: Pools) -> None:
    every, first_two = [0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 1, 1]
    assert pools.get(3, "shm").run(gather_in_a_handler) == [[every, first_two], [every, first_two], [every]]
