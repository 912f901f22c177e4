"""Collectives of threads that address each other's fake devices; tests/devices/test_device_peers.py says what for."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence
from typing import Any

import collectives
import numpy as np
from collectives import BackendError, MismatchError
from collectives._calls.options import CallOptions
from collectives._devices import peers
from device_checks import bitwise_equal, expected, problem
from fake_devices import DeviceArray, Fake
from reducing import MEANINGFUL, numpy_dtype
from threaded import on_ranks

fake = Fake()
FACTORS = (0.5, 3.0, -1.25, 2.0, 1.0)


class Rank:
    """The arrays of one rank in one collective."""

    def __init__(self, comm: Any, device: int, length: int, got: int | None, dtype: str, pieces: int) -> None:
        """`length`, `got`: elements of the input, and of the output unless it is the input."""
        self.comm, self.dtype, self.item = comm, dtype, numpy_dtype(dtype).itemsize
        self.stream = fake.stream(device)
        self.peers = peers.find(comm, device)
        self.given = self.arrays(device, length, pieces)
        self.got = self.given if got is None else self.arrays(device, got, pieces)

    def arrays(self, device: int, length: int, pieces: int) -> list[DeviceArray]:
        borders = [length * i // pieces for i in range(pieces + 1)]
        return [DeviceArray(fake, device, (high - low) * self.item) for low, high in itertools.pairwise(borders)]

    def write(self, values: np.ndarray[Any, Any]) -> None:
        at = 0
        for array in self.given:
            array.produce(values[at : at + array.nbytes // self.item], self.stream)
            at += array.nbytes // self.item

    def run(self, name: str, op: str, root: int, count: int, counts: Sequence[int], factor: float = 1.0) -> None:
        memory = [[(a.pointer, a.nbytes) for a in arrays] for arrays in (self.given, self.got)]
        options = CallOptions(name="test", stream=self.stream, op=op, root=root, factor=factor)
        call = peers.Call(name, *memory, counts, self.dtype, [], count, options)
        assert self.peers is not None
        peers.run(self.comm, self.peers, call)

    def read(self) -> list[np.ndarray[Any, Any]]:
        return [a.consume(np.empty(a.nbytes // self.item, numpy_dtype(self.dtype)), self.stream) for a in self.got]


def check(
    name: str,
    n: int,
    dtype: str,
    op: str,
    count: int,
    devices: Sequence[int],
    *,
    in_place: bool,
    pieces: int,
    calls: int,
) -> None:
    """The same collective several times, other values each time, against the host."""
    root = n // 2
    inputs, gets, counts = problem(name, n, dtype, op, count, root)
    factors = [FACTORS[r % len(FACTORS)] for r in range(n)]
    if op == "premul_sum":
        want = scaled(inputs, factors)
    else:
        want = expected(name, algorithm_of(name), op, root, inputs, counts)

    def body(comm: Any) -> list[Any]:
        r = comm.rank
        rank = Rank(comm, devices[r], inputs[r].size, None if in_place else gets[r], dtype, pieces)
        seen = []
        for _ in range(calls):
            rank.write(inputs[r])
            rank.run(name, op, root, sum(counts) or count, counts, factors[r])
            seen.append(rank.read())
        comm.barrier()
        if r == 0:
            fake.finish()
        comm.barrier()
        return [np.concatenate(s) for s in seen]

    results = on_ranks(n, body)
    fake.check()
    for r in range(n):
        for result in results[r] if want[r] is not None else []:
            where = f"{name} n={n} {dtype} {op} count={count} devices={list(devices)} rank {r}"
            assert bitwise_equal(result, np.ascontiguousarray(want[r])), f"{where}:\n{result}\n{want[r]}"


def algorithm_of(name: str) -> str:
    """One that combines values as the peers do, along the canonical tree."""
    return {"all_reduce": "reduce_to_one", "reduce": "reduce_to_one", "reduce_scatter": "one_shot"}.get(name, "auto")


def scaled(inputs: list[Any], factors: list[float]) -> list[Any]:
    outs = [np.zeros_like(i) for i in inputs]

    def body(comm: Any) -> Any:
        r = comm.rank
        comm.all_reduce(inputs[r], "premul_sum", factor=factors[r], out=outs[r], algorithm="reduce_to_one")
        return outs[r]

    return on_ranks(len(inputs), body)


def every_collective() -> None:
    """1 to 9 ranks on as many devices, on fewer, and on one."""
    for name in (
        "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter",
    ):  # fmt: skip
        for n in range(1, 10):
            for i, spread in enumerate((range(n), [r % 2 for r in range(n)], [0] * n)):
                fake.seed(n + i)
                in_place = name in ("all_reduce", "broadcast") and (n + i) % 2 == 0
                check(name, n, "float32", "sum", 40 * i + 7 * n, list(spread), in_place=in_place, pieces=1, calls=2)


def every_type() -> None:
    """All dtypes with all ops, in up to 9 arrays, which do not fit into the head of a call."""
    for i, (dtype, op) in enumerate(MEANINGFUL):
        n = 2 + i % 4
        check(
            "all_reduce", n, dtype, op, 129 + i, [r % 3 for r in range(n)],
            in_place=bool(i % 2), pieces=1 + 4 * (i % 3), calls=1,
        )  # fmt: skip


def disagreement() -> None:
    """All ranks get the same error, and none a result."""

    def body(comm: Any) -> None:
        r = comm.rank
        rank = Rank(comm, r, 10, None, "float32", 1)
        rank.write(np.ones(10, np.float32))
        rank.run("all_reduce", "max" if r == 1 else "sum", 0, 10, [])

    results = on_ranks(3, body, (collectives.CollectivesError,))
    for error in results:
        assert isinstance(error, MismatchError), error
        assert "rank 0 called all_reduce of 10 float32, op sum" in str(error)
        assert "rank 1 called all_reduce of 10 float32, op max" in str(error)


def failures() -> None:
    """Whatever call of a device fails on one rank, all ranks raise, and no memory is left."""
    functions = ("reduce", "stream_wait", "event_record")
    for function, k in itertools.product(functions, (1, 2, 3)):

        def body(comm: Any) -> None:
            r = comm.rank
            rank = Rank(comm, r, 10, None, "float32", 1)
            rank.write(np.ones(10, np.float32))
            comm.barrier()
            if r == 0:
                fake.fail(k, function=function)  # noqa: B023
            comm.barrier()
            rank.run("all_reduce", "sum", 0, 10, [])

        results = on_ranks(3, body, (collectives.CollectivesError,))
        fake.fail(0)
        fake.finish()
        assert any(isinstance(error, BackendError) for error in results), (function, k, results)
        assert all(isinstance(error, collectives.CollectivesError) for error in results), (function, k, results)
        kinds = [type(error).__name__ for error in results]
        del results
        gc.collect()
        assert fake.live()["memory"] == 0, (function, k, kinds)
        # Those of three ranks are used again and again.
        assert fake.live()["events"] <= 9, (function, k, fake.live())


def no_peers() -> None:
    """Devices that cannot address each other: all ranks go another way."""
    assert on_ranks(3, lambda comm: peers.find(comm, 0 if comm.rank < 2 else 1)) == [None] * 3
    one_device = on_ranks(3, lambda comm: peers.find(comm, 1) is not None)
    assert one_device == [True] * 3
