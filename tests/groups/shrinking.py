"""What ranks do in the tests of `shrink`: they work until something fails, and go on with those that are left."""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any

import numpy as np
import pool


def check(comm: Any) -> None:
    """That the communicator works: sums of several sizes, symmetric memory, a group out of it."""
    total = comm.size * (comm.size + 1) // 2
    for count in (1, 3000, 300_000):
        x = np.full(count, comm.rank + 1, np.float32)
        comm.all_reduce(x)
        assert (x == total).all(), x
    symmetric = comm.empty(5000, np.float32)
    symmetric[:] = comm.rank + 1
    comm.all_reduce(symmetric)
    assert (symmetric == total).all()
    assert comm.all_gather_object(comm.rank) == list(range(comm.size))


def turn(comm: Any, rng: random.Random) -> None:
    """One collective, the same on all ranks, whose result is checked."""
    total = comm.size * (comm.size + 1) // 2
    x = np.full(rng.choice([1, 10, 3000, 100_000, 700_000]), comm.rank + 1, np.float32)
    kind = rng.choice(["all_reduce", "list", "broadcast", "async"])
    if kind == "all_reduce":
        comm.all_reduce(x)
    elif kind == "list":
        y = np.full(17, comm.rank + 1, np.float32)
        comm.all_reduce([y, x])
        assert y[0] == y[-1] == total
    elif kind == "async":
        works = [comm.all_reduce(array, async_op=True) for array in (x, np.ones(100))]
        for work in works:
            work.wait()
    else:
        comm.broadcast(x, comm.size - 1)
        total = comm.size
    assert x[0] == x[-1] == total, (kind, x[0], x[-1], total)


def survive(world: Any, seed: int, left: int, patience: float, within: bool = False) -> list[int]:
    """Works, and shrinks whenever something fails, until `left` ranks are left; their numbers in the world.

    With `within` the work is done in a group of all ranks in reverse order.
    """
    errors: Any = __import__("collectives").CollectivesError
    comm = world.split(0, -world.rank) if within else world
    ranks = list(range(world.size))[:: -1 if within else 1]
    pool.say("working")
    rng = random.Random(seed)
    while comm.size > left:
        try:
            while True:
                turn(comm, rng)
        except errors:
            began = time.monotonic()
            comm = comm.shrink(patience)
            # Ranks that have died are not waited for.
            assert time.monotonic() - began < patience / 2, time.monotonic() - began
            rng = random.Random(seed + comm.size)
            try:
                # Who is left, as the ranks themselves say.
                now: list[int] = comm.all_gather_object(world.rank)
            except errors:
                continue
            assert now == [r for r in ranks if r in now], (now, ranks)
            ranks = now
    check(comm)
    comm.barrier()
    return ranks


def one_shrink(comm: Any, how: str, patience: float) -> Any:
    """Something goes wrong, or nothing; the new communicator is checked. The outcome of a rank is what it sees."""
    library: Any = __import__("collectives")
    comm.barrier()
    if how in ("absent", "stopped"):
        pool.say("ready")
    if how == "mismatch":
        with contextlib.suppress(library.MismatchError):
            comm.all_reduce(np.ones(3 if comm.rank else 4))
    elif how == "closed" and comm.rank == 1:
        comm.close()
        return "closed"
    elif how == "absent" and comm.rank == 1:
        pool.hear()
        comm.all_reduce(np.ones(3))  # raises
    elif how == "stopped":
        try:
            while True:
                comm.all_reduce(np.ones(100_000), timeout=3)
        except library.CollectivesError:
            pass
    new = comm.shrink(patience)
    check(new)
    if how == "nothing":
        check(comm)  # goes on
        comm.barrier()
    return new.size


def assert_survived(outcomes: list[pool.Outcome], left: list[int], order: int = 1) -> None:
    for rank in left:
        assert outcomes[rank].error is None, f"rank {rank}: {outcomes[rank].text}"
        assert outcomes[rank].value == left[::order], f"rank {rank}: {outcomes[rank].value}"
