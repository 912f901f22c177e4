"""Arrays that are not NumPy's: buffers, NumPy's protocols and PyTorch. JAX and TensorFlow have files of their own."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import subprocess
import sys
import threading
import weakref
from typing import Any

import collectives
import ml_dtypes
import numpy as np
import pytest
import torch
from array_kinds import DLPack, Interface, Kind, OldDLPack, exercise
from collectives._arrays import adapt, empty
from conformance import Array
from pool import Pools

torch.set_num_threads(1)  # the ranks are threads already
FLAT = [(0,), (1,), (7,), (4097,)]
DTYPES = ["float32", "float64", "float16", "int32", "int64", "uint8", "bool"]


class Matrix(np.ndarray[Any, Any]):
    """A subclass of NumPy's."""


def read(x: Any) -> Array:
    return np.array(x)


def torch_of(a: Array) -> torch.Tensor:
    if a.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(a.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(a.copy())


def read_torch(x: torch.Tensor) -> Array:
    x = x.detach().clone().contiguous()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def torch_parameter(a: Array) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch_of(a))


def torch_strided(a: Array) -> torch.Tensor:
    """Every second place of a larger tensor, transposed."""
    dense = torch_of(a)
    store = torch.zeros((*reversed(dense.shape), 2), dtype=dense.dtype)
    view = store[..., 0].permute(tuple(reversed(range(dense.dim()))))
    view.copy_(dense)
    return view


def array_of(a: Array) -> Any:
    return array.array(a.dtype.char, a.tobytes())


def ctypes_of(a: Array) -> Any:
    return (ctypes.c_float * a.size)(*a.tolist())


TORCH = [*DTYPES, "bfloat16"]
KINDS = {
    "bytearray": Kind(bytearray, lambda x: np.frombuffer(bytes(x), np.uint8), bytearray, True, ["uint8"], FLAT),
    "array.array": Kind(array_of, read, array.array, True, ["float32", "float64", "int32", "int64"], FLAT),
    "memoryview": Kind(lambda a: memoryview(a.copy()), read, memoryview, True, DTYPES),
    "ctypes": Kind(ctypes_of, read, ctypes.c_float * 7, True, ["float32"], [(7,)]),
    "interface": Kind(Interface, read, Interface, True, DTYPES),
    "DLPack": Kind(DLPack, lambda x: x._store.copy(), DLPack, True, DTYPES),
    "numpy subclass": Kind(lambda a: a.copy().view(Matrix), read, Matrix, True, [*DTYPES, "bfloat16"]),
    "torch": Kind(torch_of, read_torch, torch.Tensor, True, TORCH),
    "torch parameter": Kind(torch_parameter, read_torch, torch.nn.Parameter, True, ["float32", "bfloat16"]),
    "torch strided": Kind(torch_strided, read_torch, torch.Tensor, True, ["float32", "bfloat16", "bool"]),
}  # fmt: skip


def exercise_kind(comm: Any, name: str) -> list[str]:
    return exercise(comm, KINDS[name])


@pytest.mark.parametrize("name", KINDS)
def test_every_call_with_every_kind(pools: Pools, name: str) -> None:
    failures = [text for report in pools.get(2, "local").run(exercise_kind, name) for text in report]
    assert not failures, "\n".join(failures[:20])


@pytest.mark.parametrize("name", ["torch", "bytearray"])
def test_between_processes(pools: Pools, name: str) -> None:
    failures = [text for report in pools.get(2, "shm").run(exercise_kind, name) for text in report]
    assert not failures, "\n".join(failures[:20])


def test_memory_is_used_as_it_is() -> None:
    for tensor in (torch.ones(3, 4), torch.ones(3, 4, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float8_e5m2)):
        adapted = adapt(tensor, "x")
        assert adapted.array.ctypes.data == tensor.data_ptr()
        result = empty((2, 5), adapted.array.dtype)
        back = adapted.wrap(result)
        assert (back.dtype, tuple(back.shape), back.data_ptr()) == (tensor.dtype, (2, 5), result.ctypes.data)
    store = bytearray(8)
    adapt(store, "x").array[:] = 7
    assert store == b"\7" * 8
    assert adapt(store, "x").wrap(empty((3,), np.dtype(np.uint8))).__class__ is bytearray
    floats = array.array("f", [1.0])
    assert adapt(floats, "x").wrap(np.float32([2, 3])) == array.array("f", [2, 3])
    assert adapt(b"ab", "x").wrap(np.uint8([1, 2])) == b"\1\2"
    view = adapt(memoryview(floats), "x").wrap(new := np.float32([2, 3]))
    assert type(view) is memoryview
    assert np.shares_memory(np.asarray(view), new)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 0), (17, 3)])
@pytest.mark.parametrize("dtype", ["float32", ">f8", "bool", ml_dtypes.bfloat16])
def test_new_arrays_can_be_taken_over(shape: tuple[int, ...], dtype: Any) -> None:
    made = empty(shape, np.dtype(dtype))
    assert made.shape == shape
    assert made.dtype == np.dtype(dtype).newbyteorder("=")
    assert made.size == 0 or made.ctypes.data % 64 == 0
    assert made.flags.c_contiguous
    assert made.flags.writeable


def test_autograd_does_not_see_it() -> None:
    """As with torch.distributed: the value is replaced, nothing is recorded."""
    (comm,) = collectives.local_group(1)
    leaf = torch.ones(3, requires_grad=True)
    assert comm.all_reduce(leaf) is leaf
    assert leaf.grad_fn is None
    leaf.sum().backward()
    assert leaf.grad is not None
    assert comm.all_reduce(leaf.grad, "avg") is leaf.grad


def test_a_read_only_input_is_fine_with_out() -> None:
    (comm,) = collectives.local_group(1)
    out = bytearray(3)
    assert comm.all_reduce(b"abc", out=out) is out
    assert out == b"abc"
    floats = np.zeros(2)
    comm.all_reduce(OldDLPack(np.array([1.0, 2.0])), out=floats)
    assert floats.tolist() == [1, 2]
    row = torch.zeros(4, 3)
    comm.all_reduce(torch.arange(3.0).expand(4, 3), out=row)
    assert row[3].tolist() == [0, 1, 2]


class Watched(bytearray):
    """Memory that says when it is gone."""


VIEWS = {
    "bytearray": lambda w: w,
    "memoryview": memoryview,
    "numpy": np.asarray,
    "torch": lambda w: torch.frombuffer(w, dtype=torch.uint8),
    "strided torch": lambda w: torch.frombuffer(w, dtype=torch.uint8)[::2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_work_keeps_the_memory(name: str) -> None:
    """The caller drops the array and every view of it while the other rank has yet to come."""
    go = threading.Event()
    found: list[str] = []

    def early(comm: Any) -> None:
        try:
            watched = Watched(b"\1" * 100_000)
            alive = weakref.ref(watched)
            view = VIEWS[name](watched)
            count = len(view)
            work = comm.all_reduce(view, async_op=True)
            del watched, view
            gc.collect()
            if alive() is None:
                found.append("the memory is gone while the work needs it")
            go.set()
            if np.asarray(work.result(30)).tobytes() != b"\3" * count:
                found.append("the result is wrong")
            del work
            gc.collect()
            if alive() is not None:
                found.append("the memory is kept after the end")
        finally:
            go.set()

    def late(comm: Any) -> None:
        go.wait(30)
        comm.all_reduce(bytearray(b"\2" * (50_000 if "strided" in name else 100_000)), timeout=30)

    comms = collectives.local_group(2)
    threads = [threading.Thread(target=t, args=(c,)) for t, c in zip((early, late), comms, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not found, found


def test_a_result_is_made_once_for_several_threads() -> None:
    """A thread that waits while another makes the result gets that one, when it is made."""
    (comm,) = collectives.local_group(1)
    made, returned, early = [], [], []
    over = threading.Event()

    def finish() -> object:
        made.append(object())
        second.start()
        early.append(over.wait(0.2))  # nothing is waited for: the other thread must not come through
        return made[-1]

    def wait() -> None:
        returned.append(work.result())
        over.set()

    work = collectives.Work(comm.barrier(async_op=True)._work, finish)
    second = threading.Thread(target=wait)
    assert work.result() is made[0]
    second.join()
    assert returned == made
    assert early == [False]


def test_types_are_not_kept() -> None:
    (comm,) = collectives.local_group(1)

    class Passing(DLPack):
        pass

    comm.all_reduce(Passing(np.ones(3)))
    gone = weakref.ref(Passing)
    del Passing
    gc.collect()
    assert gone() is None


def test_a_file_in_memory(tmp_path: Any) -> None:
    (comm,) = collectives.local_group(1)
    path = tmp_path / "values"
    path.write_bytes(np.arange(4096, dtype=np.uint8).tobytes())
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        assert comm.all_reduce(mapped) is mapped
    memory = np.memmap(path, np.float32, "r+")
    assert comm.all_reduce(memory) is memory


def test_no_library_is_imported() -> None:
    program = """
import sys, array
import collectives
comm = collectives.init()
comm.all_reduce([bytearray(3), memoryview(bytearray(3))])
try:
    comm.all_reduce(object())
except TypeError:
    pass
assert not {"torch", "jax", "tensorflow"} & set(sys.modules), "a library was imported"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
