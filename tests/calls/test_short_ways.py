"""Calls on plain arrays and tensors: they give what the general way gives, without taking it."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import collectives
import ml_dtypes
import numpy as np
import pytest
import torch
from pool import Pools
from short_ways import no_general_way

TORCH = {
    **{name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")},
    **{name: getattr(torch, name) for name in ("int8", "int16", "int32", "int64", "bool")},
    **{name: getattr(torch, name) for name in ("uint8", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")},
}


GUARD = 3  # elements before and after a view


def numbers(rank: int, *shape: int) -> torch.Tensor:
    """Small whole numbers, others for every rank."""
    return torch.tensor([(7 * i + 5 * rank) % 11 for i in range(math.prod(shape))], dtype=torch.float32).reshape(shape)


def plain_tensors(rank: int) -> dict[str, torch.Tensor]:
    """Tensors whose memory takes part as it is."""
    rows = numbers(rank, 6, 4)
    return {
        **{name: rows.to(dtype) for name, dtype in TORCH.items()},
        "parameter": torch.nn.Parameter(rows.clone()),
        "requires grad": rows.clone().requires_grad_(),
        "not a leaf": rows.clone().requires_grad_() + 0,
        "inference": inference(rows),
        "part": torch.cat([torch.full((GUARD, 4), -1.0), rows, torch.full((GUARD, 4), -1.0)])[GUARD:-GUARD],
        "column": numbers(rank, 6, 1)[:, 0:1],
        "no dimensions": numbers(rank, 1)[0],
        "no elements": torch.ones(6, 0),
        "one element": numbers(rank, 1, 1)[:, ::7],
    }


def inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


def bits(x: Any) -> bytes:
    """Also of types that NumPy does not have."""
    if isinstance(x, np.ndarray):
        return x.tobytes()
    dense = torch.zeros(x.numel(), dtype=x.dtype).copy_(x.detach().reshape(-1))
    return bytes(dense.view(torch.uint8).numpy()) if x.numel() else b""


def tensors(comm: Any) -> list[str]:
    """The wrong ones of all calls on all plain tensors."""
    wrong = []
    of_all = [plain_tensors(rank) for rank in range(comm.size)]

    def check(what: str, got: Any, want: Any, same: Any = None) -> None:
        alike = type(got) in (torch.Tensor, torch.nn.Parameter) and got.dtype == want.dtype and got.shape == want.shape
        if not alike or bits(got) != bits(want) or (same is not None and got is not same):
            wrong.append(what)

    undo = no_general_way()
    try:
        for name in of_all[0]:
            given = [t[name].detach() for t in of_all]
            wide = torch.complex128 if given[0].is_complex() else torch.float64
            total = torch.stack([g.to(wide) for g in given]).sum(0).to(given[0].dtype)
            exact = not name.startswith("float8")  # of those each sum is rounded

            def fresh(name: str = name) -> torch.Tensor:
                return plain_tensors(comm.rank)[name]

            if exact:
                check(f"{name}: all_reduce", comm.all_reduce(x := fresh()), total, x)
                check(f"{name}: out", comm.all_reduce(fresh(), out=(out := torch.zeros_like(total))), total, out)
                comm.all_reduce(fresh(), out=(array := np.zeros(tuple(total.shape), numpy_type(total.dtype))))
                if array.tobytes() != bits(total):
                    wrong.append(f"{name}: into a NumPy array")
                reduced = comm.reduce(x := fresh(), root=1)
                check(f"{name}: reduce", reduced, total if comm.rank == 1 else given[comm.rank], x)
            check(f"{name}: broadcast", comm.broadcast(x := fresh(), 1), given[1], x)
            if name == "part":
                around = x._base
                if around is None or not bool((around[:GUARD] == -1).all() and (around[-GUARD:] == -1).all()):
                    wrong.append("what is around a part was written")
            if comm.size == 2 and comm.rank == 0:
                comm.send(fresh(), 1, 3)
            elif comm.size == 2:
                check(f"{name}: recv", comm.recv(x := fresh(), 0, 3), given[0], x)
            if given[0].dim() == 0:
                continue
            whole = joined(given)
            check(f"{name}: all_gather", comm.all_gather(fresh()), whole)
            into = torch.zeros_like(whole)
            check(f"{name}: all_gather out", comm.all_gather(fresh(), out=into, counts=len(given[0])), whole, into)
            if comm.rank == 1:
                check(f"{name}: gather", comm.gather(fresh(), 1), whole)
            elif comm.gather(fresh(), 1) is not None:
                wrong.append(f"{name}: gather elsewhere")
            rows = len(given[0]) // comm.size
            if rows * comm.size == len(given[0]):
                own = slice(comm.rank * rows, (comm.rank + 1) * rows)
                scattered = comm.scatter(fresh() if comm.rank == 1 else None, 1)
                if comm.rank == 1:
                    check(f"{name}: scatter", scattered, given[1][own])
                elif scattered.tobytes() != bits(given[1][own]) or scattered.dtype != numpy_type(given[1].dtype):
                    wrong.append(f"{name}: scatter elsewhere")
                check(f"{name}: all_to_all", comm.all_to_all(fresh()), joined([g[own] for g in given]))
                if exact:
                    check(f"{name}: reduce_scatter", comm.reduce_scatter(fresh()), total[own])
    finally:
        undo()
    return wrong


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Of some types torch.cat knows nothing."""
    if not is_wide(parts[0]):
        return torch.cat(parts)
    return torch.cat([p.view(torch.uint8) for p in parts]).view(parts[0].dtype)


def is_wide(x: torch.Tensor) -> bool:
    """Of these torch.cat knows nothing on the CPU, or in some versions."""
    return x.dtype in (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2)


def numpy_type(dtype: torch.dtype) -> Any:
    name = str(dtype).removeprefix("torch.")
    return getattr(ml_dtypes, name, None) or np.dtype(name)


@pytest.mark.parametrize(("n", "transport"), [(2, "shm"), (3, "shm"), (2, "tcp")])
def test_tensors_of_pytorch(pools: Pools, n: int, transport: str) -> None:
    assert hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), "PyTorch from 2.10 on is needed here"
    assert pools.get(n, transport).run(tensors) == [[]] * n


def sums(comm: Any) -> list[str]:
    """Results that differ from what each rank gave, of calls with one argument that is not usual."""
    want = np.full(5, sum(range(1, comm.size + 1)), np.float32)
    wrong = []

    def fresh() -> Any:
        return np.full(5, comm.rank + 1, np.float32)

    def several() -> Any:
        return fresh(), torch.from_numpy(fresh())

    forms: dict[str, Callable[[], Any]] = {
        "timeout": lambda: comm.all_reduce(fresh(), timeout=20),
        "timeout as float": lambda: comm.all_reduce(fresh(), timeout=20.5),
        "name": lambda: comm.all_reduce(fresh(), name="gradient"),
        "algorithm": lambda: comm.all_reduce(fresh(), algorithm="ring"),
        "auto": lambda: comm.all_reduce(fresh(), algorithm="auto"),
        "deterministic": lambda: comm.all_reduce(fresh(), deterministic=True),
        "factor": lambda: comm.all_reduce(fresh() / 2, "premul_sum", factor=2),
        "tuple": lambda: comm.all_reduce(several()),
        "list": lambda: comm.all_reduce(list(several())),
        "list with factor": lambda: comm.all_reduce([a / 2 for a in several()], "premul_sum", factor=2.0),
        "list with name": lambda: comm.all_reduce(list(several()), name="a", timeout=20, algorithm="one_shot"),
        "asynchronous": lambda: comm.all_reduce(fresh(), async_op=True).result(),
        "asynchronous list": lambda: comm.all_reduce(list(several()), async_op=True, name="b").result(),
        "asynchronous out": lambda: comm.all_reduce(fresh(), out=np.zeros(5, np.float32), async_op=True).result(),
        "asynchronous tensor": lambda: comm.all_reduce(several()[1], async_op=True, algorithm="ring").result(),
    }
    undo = no_general_way()
    try:
        for form, call in forms.items():
            for _ in range(2):
                result = call()
                given = result if isinstance(result, (list, tuple)) else [result]
                if not all(np.array_equal(np.asarray(a), want) for a in given):
                    wrong.append(f"{form}: {result}")
        if comm.barrier(async_op=True, timeout=20).result() is not None:
            wrong.append("barrier")
    finally:
        undo()
    return wrong


@pytest.mark.parametrize(("n", "transport"), [(2, "shm"), (3, "shm"), (2, "tcp")])
def test_arguments_that_are_not_usual(pools: Pools, n: int, transport: str) -> None:
    assert pools.get(n, transport).run(sums) == [[]] * n


def arguments_afterwards(comm: Any) -> Any:
    """What the calls after one with many arguments are recorded with."""
    x = np.ones(3, np.float32)
    comm.all_reduce(x, "premul_sum", factor=2, name="first", algorithm="ring", timeout=20)
    comm.all_reduce(x)
    comm.send(x, 1, name="message") if comm.rank == 0 else comm.recv(x, 0, name="message")
    comm.send(x, 1, 4) if comm.rank == 0 else comm.recv(x, 0, 4)
    last = [(e["collective"], e["name"], e["op"], e["tag"]) for e in comm.recorder()[-4:]]
    return last, comm.recorder()[-4]["algorithm"], x.tolist()


def test_arguments_are_of_one_call_only(pools: Pools) -> None:
    last = [
        ("all_reduce", "first", "premul_sum", None),
        ("all_reduce", None, "sum", None),
    ]
    for entries, algorithm, values in pools.get(2, "shm").run(arguments_afterwards):
        assert entries[:2] == last
        assert [(name, tag) for _, name, _, tag in entries[2:]] == [("message", 0), (None, 4)]
        assert algorithm == "ring"
        assert values == [8.0] * 3


def messages(comm: Any) -> list[str]:
    """Messages of every form between two ranks, of which one sends what the other expects."""
    wrong = []
    undo = no_general_way()
    try:
        for x in (np.arange(5.0), torch.arange(5.0), [np.arange(3.0), torch.arange(70_000, dtype=torch.float64)]):
            empty = [np.zeros(3), torch.zeros(70_000, dtype=torch.float64)] if isinstance(x, list) else x * 0
            for options in ({}, {"timeout": 20, "name": "m"}, {"async_op": True}):
                if comm.rank == 0:
                    sent = comm.send(x, 1, 7, **options)
                    sent = sent.result() if options.get("async_op") else sent
                    if sent is not None:
                        wrong.append(f"send returned {sent}")
                    continue
                got = comm.recv(empty, 0, 7, **options)
                got = got.result() if options.get("async_op") else got
                pairs = zip(got, x, strict=True) if isinstance(x, list) else [(got, x)]
                if got is not empty or not all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs):
                    wrong.append(f"{options}: {got}")
    finally:
        undo()
    return wrong


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_messages(pools: Pools, transport: str) -> None:
    assert pools.get(2, transport).run(messages) == [[], []]


@pytest.mark.parametrize("value", [0, -1, float("nan"), 10**400, True, "1"])
def test_a_timeout_that_is_none(value: Any) -> None:
    comm = collectives.local_group(2)[0]
    for call in (comm.all_reduce, lambda x, **o: comm.send(x, 1, **o)):
        with pytest.raises(ValueError, match="timeout"):
            call(np.ones(2), timeout=value)


@pytest.mark.parametrize("name", [1, b"x", "\ud800"])
def test_a_name_that_is_none(name: Any) -> None:
    (comm,) = collectives.local_group(1)
    with pytest.raises((TypeError, ValueError), match="name"):
        comm.all_reduce(np.ones(2), name=name)


def test_a_subclass_keeps_its_own_way() -> None:
    """What inherits from torch.Tensor may have another meaning of memory than PyTorch's functions report."""

    class Meant(torch.Tensor):
        asked = 0

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Meant.asked += 1
            return super().__torch_function__(function, types, args, kwargs or {})

    (comm,) = collectives.local_group(1)
    x = torch.ones(3).as_subclass(Meant)
    before = Meant.asked
    assert comm.all_reduce(x) is x
    assert Meant.asked > before


def replaced(comm: Any) -> bool:
    """The memory of a tensor is replaced by the caller while the call is in flight."""
    tensors = [torch.full((100_000,), comm.rank + 1.0) for _ in range(3)]
    old = [torch.zeros(0).set_(t.untyped_storage(), 0, t.shape) for t in tensors] if comm.rank == 0 else []
    works = [comm.all_reduce(tensors[0], async_op=True), comm.all_reduce(tensors[1:], async_op=True)]
    for t in tensors:
        t.data = torch.zeros(5)
    if comm.rank == 1:  # of rank 0 the test itself keeps the memory, to see the results
        filler = [torch.full((100_000,), 9.0) for _ in range(6)]  # would take the place of what was given back
    for work in works:
        work.result()
    return all(bool((t == 3).all()) for t in old) if comm.rank == 0 else all(bool((f == 9).all()) for f in filler)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_memory_that_is_replaced_lives_until_the_call_is_over(pools: Pools, transport: str) -> None:
    assert pools.get(2, transport).run(replaced) == [True, True]


@pytest.mark.parametrize("end", ["wait", "done"])
def test_a_handle_that_its_tensor_has_is_collected(end: str) -> None:
    (comm,) = collectives.local_group(1)
    tensor = torch.ones(3)
    tensor.work = comm.all_reduce(tensor, async_op=True)
    assert getattr(tensor.work, end)() in (None, True)
    gone = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert gone() is None


def scaled_memory(comm: Any) -> bool:
    """Whether a rank that scales more than it may write keeps the copy after the call."""

    def used() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    x = np.ones(32 << 20, np.float32)
    comm.reduce(x[:10], "premul_sum", factor=2)
    before = used()
    comm.reduce(x, "premul_sum", factor=2)
    return used() - before < x.nbytes // 2


def test_a_scaled_copy_is_given_back(pools: Pools) -> None:
    assert pools.get(2, "shm").run(scaled_memory) == [True, True]
