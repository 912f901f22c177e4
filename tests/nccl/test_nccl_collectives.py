"""All collectives by NCCL's side of a communicator, with a fake NCCL that really moves the bytes between processes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import nccl_fake
import numpy as np
import pytest
import threaded
from nccl_fake import call, count, dtype_of, set_to, start

SIZES = (3, 2, 0)  # rows of the ranks, where they differ
REDUCTIONS = [
    *itertools.product(
        ("sum", "prod", "min", "max"),
        ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64"),
    ),
    *itertools.product(("avg",), ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")),
    *itertools.product(("sum",), ("complex64", "complex128")),
    *itertools.product(("max", "min", "logical_or", "logical_and", "bitwise_or", "bitwise_and"), ("bool",)),
]


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nccl_fake.build(tmp_path_factory.mktemp("nccl"))


def values(rank: int, count: int, dtype: str, seed: int = 0) -> Any:
    """Small numbers, so that sums and products are exact in every type."""
    chance = np.random.default_rng([seed, rank])
    low, high = (0, 2) if dtype == "bool" else (1, 4)
    numbers = chance.integers(low, high, count)
    if dtype.startswith("complex"):
        numbers = numbers + 1j * chance.integers(low, high, count)
    return numbers.astype(dtype_of(dtype))


def combined(op: str, arrays: list[Any]) -> Any:
    if arrays[0].dtype.kind == "c":
        return (combined(op, [a.real for a in arrays]) + 1j * combined(op, [a.imag for a in arrays])).astype(
            arrays[0].dtype
        )
    wide = np.stack([a.astype(np.float64) for a in arrays])
    result = {
        "sum": lambda: wide.sum(0),
        "avg": lambda: wide.sum(0) / len(arrays),
        "prod": lambda: wide.prod(0),
        "min": lambda: wide.min(0),
        "max": lambda: wide.max(0),
        "logical_or": lambda: wide.max(0),
        "logical_and": lambda: wide.min(0),
        "bitwise_or": lambda: wide.max(0),
        "bitwise_and": lambda: wide.min(0),
    }[op]()
    return result.astype(arrays[0].dtype)


def same(what: str, got: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(got), np.asarray(expected), err_msg=what)


def reduce_all(comm: Any) -> None:
    for op, dtype in REDUCTIONS:
        given = [values(r, 17, dtype) for r in range(comm.size)]
        x = given[comm.rank].copy()
        out = np.empty_like(x)
        call(comm, "all_reduce", [x], [out], op=op)
        same(f"all_reduce {op} {dtype}", out, combined(op, given))
        same("input", x, given[comm.rank])
        call(comm, "all_reduce", [x], [x], op=op)
        same(f"all_reduce in place {op} {dtype}", x, out)


def move_all(comm: Any, dtype: str) -> None:
    rank, size = comm.rank, comm.size
    given = [values(r, 7, dtype) for r in range(size)]
    whole = np.concatenate(given)
    for root in range(size):
        x = given[rank].copy()
        call(comm, "broadcast", [x] if rank == root else [], [x], root=root)
        same("broadcast", x, given[root])
    out = np.empty_like(whole)
    call(comm, "all_gather", [given[rank]], [out], counts=[7] * size)
    same("all_gather", out, whole)

    # Parts of unequal lengths, one of them empty.
    parts = [values(r, SIZES[r], dtype, 1) for r in range(size)]
    counts = list(SIZES[:size])
    out = np.empty(sum(counts), dtype_of(dtype))
    call(comm, "all_gather", [parts[rank]], [out], counts=counts)
    same("all_gather of unequal parts", out, np.concatenate(parts))
    for root in range(size):
        at_root = rank == root
        out = np.empty(sum(counts) if at_root else 0, dtype_of(dtype))
        call(comm, "gather", [parts[rank]], [out] if at_root else [], counts=counts, root=root)
        same("gather", out, np.concatenate(parts) if at_root else [])
        out = np.empty(counts[rank], dtype_of(dtype))
        call(comm, "scatter", [np.concatenate(parts)] if at_root else [], [out], counts=counts, root=root)
        same("scatter", out, parts[rank])

    # Rank i gives i + j elements to rank j.
    table = [[values(i * size + j, i + j, dtype, 2) for j in range(size)] for i in range(size)]
    x = np.concatenate(table[rank])
    out = np.empty(sum(i + rank for i in range(size)), dtype_of(dtype))
    call(comm, "all_to_all", [x], [out], counts=[i + j for i in range(size) for j in range(size)])
    same("all_to_all", out, np.concatenate([table[i][rank] for i in range(size)]))
    following, before = (rank + 1) % size, (rank - 1) % size
    sent = start(comm, "send", [given[rank]], [], peer=following)
    received = np.empty_like(given[rank])
    call(comm, "recv", [], [received], peer=before)
    assert sent.wait(30)
    same("message", received, given[before])


def reduce_parts(comm: Any) -> None:
    rank, size = comm.rank, comm.size
    for counts in ([2] * size, list(SIZES[:size])):
        given = [values(r, sum(counts), "float32", 3) for r in range(size)]
        borders = np.concatenate(([0], np.cumsum(counts)))
        total = combined("sum", given)
        out = np.empty(counts[rank], np.float32)
        call(comm, "reduce_scatter", [given[rank]], [out], counts=counts)
        same("reduce_scatter", out, total[borders[rank] : borders[rank + 1]])
        for root in range(size):
            out = np.zeros(sum(counts), np.float32)
            call(comm, "reduce", [given[rank]], [out] if rank == root else [], root=root, op="max")
            same("reduce", out, combined("max", given) if rank == root else np.zeros_like(out))
    # Each rank scales its own values.
    given = [values(r, 5, "float64", 4) for r in range(size)]
    x = given[rank].copy()
    call(comm, "all_reduce", [x], [x], op="premul_sum", factor=0.5 * (rank + 1))
    same("premul_sum", x, sum(0.5 * (r + 1) * g for r, g in enumerate(given)))
    assert count("ncclRedOpDestroy") == count("ncclRedOpCreatePreMulSum") > 0
    call(comm, "barrier", [], [])


def lists(comm: Any) -> None:
    rank, size = comm.rank, comm.size
    lengths = (5, 0, 9)
    given = [[values(r, n, "float32", n) for n in lengths] for r in range(size)]
    tensors = [a.copy() for a in given[rank]]
    groups, calls = count("ncclGroupEnd"), count("ncclAllReduce")
    call(comm, "all_reduce", tensors, tensors)
    assert count("ncclGroupEnd") == groups + 1
    assert count("ncclAllReduce") == calls + 2  # of the empty one there is nothing to do
    for t, array in enumerate(tensors):
        same(f"tensor {t}", array, combined("sum", [g[t] for g in given]))
    # Of a list of two, the parts of rank r have r + 1 and 2 elements: by part, then by tensor.
    counts = [n for r in range(size) for n in (r + 1, 2)]
    parts = [[values(r, r + 1, "int16", 5), values(r, 2, "int16", 6)] for r in range(size)]
    outs = [np.empty(sum(r + 1 for r in range(size)), np.int16), np.empty(2 * size, np.int16)]
    call(comm, "all_gather", parts[rank], outs, counts=counts)
    for t, out in enumerate(outs):
        same(f"gathered tensor {t}", out, np.concatenate([p[t] for p in parts]))


def everything(comm: Any) -> None:
    reduce_all(comm)
    for dtype in ("uint8", "int16", "bool", "complex128", "float8_e5m2"):
        move_all(comm, dtype)
    reduce_parts(comm)
    lists(comm)


@pytest.mark.parametrize("settings", ["", "init_polls=3,call_polls=2"], ids=["at once", "in progress"])
@pytest.mark.parametrize("size", [2, 3])
def test_results(groups: Any, fake: Path, tmp_path: Path, size: int, settings: str) -> None:
    group = groups(size, "nccl", variables=nccl_fake.variables(fake, tmp_path, settings))
    group.run(everything)


def place_in_stream(comm: Any) -> None:
    x = np.ones(4, np.float32)
    for stream in (0x10, 0x20):
        call(comm, "all_reduce", [x], [x], stream=stream)
        assert nccl_fake.library().fake_last_stream() == stream
    events = count("event_create")
    for _ in range(5):
        call(comm, "all_reduce", [x], [x], stream=0x10)
    assert count("event_create") == events, "events are used again"
    # While a stream is captured into a graph no event may be asked about.
    set_to("capturing", 1)
    records = count("event_record")
    work = start(comm, "all_reduce", [x], [x], stream=0x10)
    assert work.done()
    assert count("event_record") == records
    set_to("capturing", 0)
    call(comm, "barrier", [], [])


def test_the_stream_of_the_caller(groups: Any, fake: Path, tmp_path: Path) -> None:
    groups(2, "nccl", variables=nccl_fake.variables(fake, tmp_path)).run(place_in_stream)


def use_groups(comm: Any) -> None:
    from collectives._devices import nccl

    x = np.full(3, comm.rank + 1.0)
    call(comm, "all_reduce", [x], [x])
    made = count("ncclCommInitRankConfig")
    pair = comm.split(0 if comm.rank < 2 else 1)
    twin = comm.dup()
    assert pair is not None
    assert count("ncclCommInitRankConfig") == made, "not before it is used"
    y = np.full(3, float(comm.rank))
    call(pair, "all_reduce", [y], [y], device=comm.rank)
    same("group", y, [1, 1, 1] if comm.rank < 2 else [2, 2, 2])
    z = np.full(3, 1.0)
    call(twin, "all_reduce", [z], [z])
    same("dup", z, [3, 3, 3])
    assert count("ncclCommInitRankConfig") == made + 2
    with pytest.raises(ValueError, match="has used device"):
        nccl.wanted(twin, comm.rank + 1)
    destroyed = count("ncclCommDestroy")
    twin.close()
    twin.close()
    assert count("ncclCommDestroy") == destroyed + 1
    assert count("ncclCommAbort") == 0
    call(comm, "all_reduce", [x], [x])
    comm.barrier()


def test_groups_have_their_own(groups: Any, fake: Path, tmp_path: Path) -> None:
    groups(3, "nccl", variables=nccl_fake.variables(fake, tmp_path)).run(use_groups)


def record(comm: Any) -> list[dict[str, Any]]:
    x = np.ones(4, np.float32)
    call(comm, "all_reduce", [x, x.copy()], [x, x.copy()], op="max", name="gradients")
    return [entry for entry in comm.recorder() if entry["algorithm"] == "nccl"]


def test_the_recorder_has_them(groups: Any, fake: Path, tmp_path: Path) -> None:
    for entries in groups(2, "nccl", variables=nccl_fake.variables(fake, tmp_path)).run(record):
        (entry,) = entries
        assert (entry["collective"], entry["op"], entry["dtype"]) == ("all_reduce", "max", "float32")
        assert (entry["tensors"], entry["name"], entry["state"]) == (2, "gradients", "done")


def use_threads(comm: Any) -> None:
    def work(one: Any) -> None:
        x = np.full(5, one.rank + 1.0, np.float32)
        call(one, "all_reduce", [x], [x])
        same("threads", x, [6] * 5)

    threaded.on_ranks(3, work)


def test_ranks_may_be_threads(groups: Any, fake: Path, tmp_path: Path) -> None:
    groups(1, "nccl", variables=nccl_fake.variables(fake, tmp_path)).run(use_threads)
