"""Calls on plain arrays and tensors: they give what the general way gives, without taking it."""

from __future__ import annotations

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


def plain_tensors() -> dict[str, torch.Tensor]:
    """Tensors whose memory takes part as it is, with the value 1 everywhere."""
    rows = torch.ones(6, 4)
    return {
        **{name: torch.ones(6, 4).to(dtype) for name, dtype in TORCH.items()},
        "parameter": torch.nn.Parameter(torch.ones(6, 4)),
        "requires grad": torch.ones(6, 4, requires_grad=True),
        "not a leaf": torch.ones(6, 4, requires_grad=True) + 0,
        "inference": inference(),
        "part": torch.ones(9, 4)[1:7],
        "column": torch.ones(6, 1)[:, 0:1],
        "transposed back": rows.t().contiguous().t().t().reshape(4, 6).reshape(6, 4),
        "no dimensions": torch.tensor(1.0),
        "no elements": torch.ones(6, 0),
        "one element": torch.ones(1, 1)[:, ::7],
    }


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(6, 4)


def bits(x: Any) -> bytes:
    """Also of types that NumPy does not have."""
    if isinstance(x, np.ndarray):
        return x.tobytes()
    dense = torch.zeros(x.numel(), dtype=x.dtype).copy_(x.detach().reshape(-1))
    return bytes(dense.view(torch.uint8).numpy()) if x.numel() else b""


def tensors(comm: Any) -> list[str]:
    """The wrong ones of all calls on all plain tensors."""
    wrong = []

    def check(what: str, got: Any, want: Any, same: Any = None) -> None:
        alike = type(got) is type(want) and got.dtype == want.dtype and got.shape == want.shape
        if not alike or bits(got) != bits(want) or (same is not None and got is not same):
            wrong.append(what)

    undo = no_general_way()
    try:
        for name, x in plain_tensors().items():
            one = x.detach().clone()
            op = "avg" if one.is_complex() else "max"
            check(f"{name}: all_reduce", comm.all_reduce(x, op), x, x)
            check(f"{name}: broadcast", comm.broadcast(x), x, x)
            out = torch.zeros_like(one)
            check(f"{name}: out", comm.all_reduce(one, op, out=out), one, out)
            array = np.zeros(tuple(one.shape), numpy_type(one.dtype))
            comm.all_reduce(one, op, out=array)
            if array.tobytes() != bits(one):
                wrong.append(f"{name}: into a NumPy array")
            if one.dim() == 0:
                continue
            all_of_it = torch.cat([one.view(torch.uint8) if is_wide(one) else one] * comm.size)
            all_of_it = all_of_it.view(one.dtype) if is_wide(one) else all_of_it
            check(f"{name}: all_gather", comm.all_gather(x), all_of_it)
            into = torch.zeros_like(all_of_it)
            check(f"{name}: all_gather with out", comm.all_gather(x, out=into, counts=len(one)), all_of_it, into)
            if len(one) % comm.size == 0:
                check(f"{name}: all_to_all", comm.all_to_all(x), one)
                check(f"{name}: reduce_scatter", comm.reduce_scatter(x, op), one[: len(one) // comm.size])
            other = (comm.rank + 1) % comm.size
            if comm.size == 2 and comm.rank == 0:
                comm.send(one, other, 3)
            elif comm.size == 2:
                check(f"{name}: recv", comm.recv(out.zero_(), other, 3), one, out)
    finally:
        undo()
    return wrong


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
    (comm,) = collectives.local_group(1)
    for call in (comm.all_reduce, lambda x, **o: comm.send(x, 0, **o)):
        with pytest.raises(ValueError, match="timeout"):
            call(np.ones(2), timeout=value)


@pytest.mark.parametrize("name", [1, b"x", "\ud800"])
def test_a_name_that_is_none(name: Any) -> None:
    (comm,) = collectives.local_group(1)
    with pytest.raises((TypeError, ValueError), match="name"):
        comm.all_reduce(np.ones(2), name=name)


def test_a_subclass_keeps_its_own_way() -> None:
    """What inherits from torch.Tensor may have another meaning of memory than PyTorch's functions tell."""

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
