"""scan and exscan: every algorithm, element type and operation against NumPy; the order; every form of a call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import tiers
from collectives import DeadlineError, MismatchError, _core
from conformance import MEANINGFUL, canonical, inputs, numpy_dtype, reduced, wrong
from pool import NOTICED, Pools

KINDS = [(d, o) for d, o in MEANINGFUL if o != "avg"]
GROUPS = [(1, "local"), (2, "shm"), (3, "local"), (5, "shm"), (2, "tcp"), (6, "tcp")]
INLINE, STAGE, SEGMENT = 40, 128 << 10, 512 << 10  # bytes: where the algorithms change their ways


class Case(NamedTuple):
    collective: str
    algorithm: str
    kind: tuple[str, str]
    size: int  # bytes


def usable(comm: Any) -> list[tuple[str, str]]:
    found = []
    for collective in ("scan", "exscan"):
        for name in ["auto", *(a["name"] for a in _core._algorithms(collective))]:
            try:
                getattr(comm, collective)(np.zeros(3), algorithm=name)
            except ValueError as error:
                assert "mapped" in str(error)
                continue
            found.append((collective, name))
    return found


def contributing(comm: Any, collective: str) -> int:
    return int(comm.rank) + (collective == "scan")


def check(comm: Any, cases: list[Case], most: int) -> list[str]:
    """Out of place and in place: what was wrong."""
    failures = []
    for case in cases:
        dtype, op = case.kind
        count = case.size // numpy_dtype(dtype).itemsize
        # Of the longest length of the type, which is kept.
        arrays = [a[:count] for a in inputs(dtype, op == "prod", most // numpy_dtype(dtype).itemsize + 1, comm.size)]
        given, out = arrays[comm.rank].copy(), np.ones_like(arrays[0])
        poisoned, end = out.copy(), contributing(comm, case.collective)
        call = getattr(comm, case.collective)
        found = []
        result = call(given, op, out=out, algorithm=case.algorithm)
        if given.tobytes() != arrays[comm.rank].tobytes():
            found.append("the input was changed out of place")
        if end == 0:
            found.append("" if result is None else "returns something where nothing comes before")
            found.append("" if out.tobytes() == poisoned.tobytes() else "out was written on rank 0")
            found.append("" if call(given, op, algorithm=case.algorithm) is None else "returns x on rank 0")
            found.append("" if given.tobytes() == arrays[0].tobytes() else "x was written on rank 0")
        else:
            exact, loose, _ = reduced(arrays[:end], op)
            found.append("" if result is out else "does not return out")
            found.append(wrong(out, exact, loose))
            found.append("" if call(given, op, algorithm=case.algorithm) is given else "does not return x")
            found.append("" if given.tobytes() == out.tobytes() else "in place differs from out of place")
        failures += [f"rank {comm.rank}, {case}: {text}" for text in found if text]
    return failures


def judge(group: Any, sizes: list[int], kinds: list[tuple[str, str]]) -> None:
    ways = group.run(usable)[0]
    assert len(ways) == (8 if group.size == 1 or group.transport != "tcp" else 6)
    cases = [Case(*way, kind, size) for way in ways for kind in kinds for size in sizes]
    cases = [c for c in cases if c.algorithm != "recursive_doubling" or c.size <= SEGMENT]
    cases = tiers.thinned(cases, lambda c: (c[:2], c.kind, c.size), salt=(group.size, group.transport))
    failures = [text for report in group.run(check, cases, max(sizes)) for text in report]
    assert not failures, "\n".join(failures[:20])


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_every_type_operation_and_algorithm(pools: Pools, n: int, transport: str) -> None:
    judge(pools.get(n, transport), [0, 16, INLINE, 1000], KINDS)


@pytest.mark.parametrize(("n", "transport"), [(2, "local"), (4, "shm"), (3, "tcp")])
def test_at_the_borders_of_chunks(pools: Pools, n: int, transport: str) -> None:
    sizes = [STAGE, STAGE + 8, SEGMENT + 8, 3 * SEGMENT + 24]
    judge(pools.get(n, transport), sizes, [("float32", "sum"), ("int64", "prod")])


@pytest.mark.parametrize(("n", "transport"), [(2, "shm"), (5, "local"), (4, "tcp")])
def test_tiny_bounce_buffers(pools: Pools, n: int, transport: str) -> None:
    group = pools.get(n, transport, slot_bytes=192, slots=2 if n < 5 else 4, segment_bytes=64)
    judge(group, [8, 64, 192, 200, 384, 768, 4000], [("float64", "sum"), ("uint8", "sum"), ("bool", "logical_xor")])


def in_order(comm: Any) -> list[str]:
    """Where the order is canonical, the bits are those of a loop over the ranks."""
    failures = []
    for dtype in ("float32", "float16", "bfloat16", "complex64"):
        for count in (1, 9, 40_001):
            arrays = [a[:count] for a in inputs(dtype, False, 40_001, comm.size)]
            for collective in ("scan", "exscan"):
                names = ["auto", *sorted(canonical(collective))]
                for name in names:
                    try:
                        more = {"deterministic": True} if name == "auto" else {"algorithm": name}
                        out = getattr(comm, collective)(arrays[comm.rank], out=np.empty_like(arrays[0]), **more)
                    except ValueError as error:
                        assert "mapped" in str(error)
                        continue
                    end = contributing(comm, collective)
                    if end == 0:
                        continue
                    wanted = arrays[0]
                    for array in arrays[1:end]:
                        wanted = wanted + array
                    if out.tobytes() != wanted.tobytes():
                        failures.append(f"rank {comm.rank}: {collective} {name} {dtype} {count}")
    return failures


@pytest.mark.parametrize(("n", "transport"), [(5, "shm"), (6, "tcp")])
def test_deterministic_adds_from_rank_0_upwards(pools: Pools, n: int, transport: str) -> None:
    assert pools.get(n, transport).run(in_order) == [[]] * n


def forms(comm: Any) -> None:
    rank, size = comm.rank, comm.size
    up, below = (rank + 1) * (rank + 2) / 2, rank * (rank + 1) / 2
    mine = float(rank + 1)
    # Lists: packed into one piece, and not.
    for lengths in ((3, 0, 5), (40_000, 7)):
        arrays = [np.full(n, mine) for n in lengths]
        assert comm.scan(arrays) is arrays
        assert all((a == up).all() for a in arrays)
        arrays, outs = [np.full(n, mine) for n in lengths], [np.full(n, -1.0) for n in lengths]
        assert comm.exscan(arrays, out=outs) is (None if rank == 0 else outs)
        assert all((o == (below if rank else -1.0)).all() for o in outs)
        assert all((a == mine).all() for a in arrays)
        arrays = [np.full(n, mine) for n in lengths]
        assert comm.exscan(arrays) is (None if rank == 0 else arrays)
        assert all((a == (below if rank else mine)).all() for a in arrays)
    # Asynchronous, with names; in the other order.
    works = [comm.scan(np.full(n, mine), async_op=True, name=f"scan {n}") for n in (1, 1000, 100_000)]
    before = comm.exscan(np.full(5, mine), async_op=True)
    assert before.result() is None if rank == 0 else (before.result() == below).all()
    assert all((work.result() == up).all() for work in reversed(works))
    # Not contiguous, 0-d, read-only where nothing is written, tuples, positional op.
    grid = np.full((4, 6), mine)
    comm.scan(grid[:, ::2], "max")
    assert (grid[:, ::2] == mine).all()
    assert comm.scan(np.array(mine))[()] == up
    fixed = np.full(3, mine)
    fixed.flags.writeable = rank > 0
    assert comm.exscan(fixed) is (None if rank == 0 else fixed)
    assert isinstance(comm.scan((np.ones(2), np.ones(3))), tuple)
    # Symmetric memory.
    shared = comm.empty(10_000, np.float32)
    shared[...] = mine
    assert (comm.scan(shared) == up).all()
    # Factors of each rank.
    scaled = comm.scan(np.ones(5), "premul_sum", factor=mine)
    assert (scaled == up).all()
    scaled = comm.exscan(np.ones(5), "premul_sum", out=np.zeros(5), factor=mine)
    assert scaled is None if rank == 0 else (scaled == below).all()
    # 0 and 1 also of what no other rank contributes to.
    assert (comm.scan(np.full(3, 7), "logical_or") == 1).all()
    truth = comm.exscan(np.full(3, 7.5), "logical_and")
    assert truth is None if rank == 0 else (truth == 1).all()
    # What a program does with it.
    rows = comm.exscan(np.array([rank]))
    assert (0 if rows is None else rows[0]) == rank * (rank - 1) // 2
    last = [e for e in comm.recorder() if e["name"] == "scan 1000"][-1]
    assert (last["collective"], last["elements"], last["op"]) == ("scan", 1000, "sum")
    assert comm.recorder()[-1]["collective"] == "exscan"
    with pytest.raises(TypeError, match=r"exscan\(\) got an unexpected keyword argument 'root'"):
        comm.exscan(np.ones(3), root=0)
    for collective in ("scan", "exscan"):
        with pytest.raises(TypeError, match=f"{collective} has no op 'avg'"):
            getattr(comm, collective)(np.ones(3), "avg")
        with pytest.raises(TypeError, match="no meaning for dtype complex64"):
            getattr(comm, collective)([np.ones(3, np.complex64)], "max")
        with pytest.raises(ValueError, match=f"{collective} has no algorithm 'ring'; it has one_shot, pipeline"):
            getattr(comm, collective)(np.ones(3), algorithm="ring")
        with pytest.raises(ValueError, match="it is for arrays of at most 512 KiB"):
            getattr(comm, collective)(np.ones(70_000), algorithm="recursive_doubling")
        with pytest.raises(ValueError, match="depends on the size"):
            getattr(comm, collective)(np.ones(3), algorithm="recursive_doubling", deterministic=True)
    assert comm.all_reduce(np.ones(1))[0] == size


@pytest.mark.parametrize(("n", "transport"), [(1, "local"), (3, "local"), (4, "shm"), (3, "tcp")])
def test_every_form_of_a_call(pools: Pools, n: int, transport: str) -> None:
    pools.get(n, transport).run(forms)


def other_libraries(comm: Any) -> None:
    import jax.numpy as jnp
    import torch

    tensor = torch.full((4,), float(comm.rank + 1))
    assert comm.scan(tensor) is tensor
    assert (tensor == sum(range(1, comm.rank + 2))).all()
    fixed = jnp.full(3, comm.rank + 1, jnp.float32)
    assert type(comm.scan(fixed)) is type(fixed)
    result = comm.exscan(fixed)
    assert result is None if comm.rank == 0 else float(result[0]) == sum(range(1, comm.rank + 1))
    assert float(fixed[0]) == comm.rank + 1


def test_arrays_of_other_libraries(pools: Pools) -> None:
    pools.get(3, "local").run(other_libraries)


def mismatched(comm: Any, one: str, other: str) -> Any:
    call = {
        "scan": lambda: comm.scan(np.ones(9)),
        "exscan": lambda: comm.exscan(np.ones(9)),
        "all_reduce": lambda: comm.all_reduce(np.ones(9)),
        "scan of 8": lambda: comm.scan(np.ones(8)),
        "scan of max": lambda: comm.scan(np.ones(9), "max"),
        "scan of large": lambda: comm.scan(np.ones(300_000)),
    }
    return call[other if comm.rank == comm.size - 1 else one]()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("scan", "exscan"),
        ("all_reduce", "scan"),
        ("scan", "scan of 8"),
        ("scan of max", "scan"),
        ("scan of large", "scan"),
    ],
)
def test_ranks_that_disagree(pools: Pools, transport: str, one: str, other: str) -> None:
    for outcome in pools.get(3, transport).outcomes(mismatched, one, other, limit=NOTICED):
        assert isinstance(outcome.error, MismatchError), outcome.text
        assert outcome.value is None


def late(comm: Any) -> None:
    if comm.rank == 0:
        return
    with pytest.raises(DeadlineError, match=r"exscan #0 'sum of rows' has waited .* for rank 0"):
        comm.exscan(np.ones(3), timeout=0.3, name="sum of rows")


def test_a_rank_that_does_not_come(pools: Pools) -> None:
    pools.get(3, "shm").run(late)
