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
from collections.abc import Iterator
from typing import Any

import collectives
import ml_dtypes
import numpy as np
import pytest
import torch
from array_kinds import Kind, Refused, exercise, judge_refused
from collectives._arrays import adapt, empty
from conformance import Array
from pool import Pools
from torch._subclasses import FakeTensorMode

torch.set_num_threads(1)  # the ranks are threads already
FLAT = [(0,), (1,), (7,), (4097,)]
DTYPES = ["float32", "float64", "float16", "int32", "int64", "uint8", "bool"]


class Interface:
    """Memory by ``__array_interface__``."""

    def __init__(self, a: Array) -> None:
        self._store = a.copy()
        self.__array_interface__ = self._store.__array_interface__


class DLPack:
    """Memory by DLPack, of the version that tells whether it may be written, or of the one before."""

    device = (1, 0)
    old = False

    def __init__(self, a: Array) -> None:
        self._store = a.copy()

    def __dlpack__(self, **options: Any) -> Any:
        return self._store.__dlpack__() if self.old else self._store.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OldDLPack(DLPack):
    old = True


class ForeignDLPack(DLPack):
    device = (2, 3)


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


def ones() -> torch.Tensor:
    return torch.ones(4)


def fake(device: str) -> Any:
    with FakeTensorMode():
        return torch.empty(3, device=device)


def quantised() -> Any:
    with pytest.warns(UserWarning):
        return torch.quantize_per_tensor(ones(), 0.1, 0, torch.qint8)


def nested() -> Any:
    return torch.nested.nested_tensor([ones(), torch.ones(2)], layout=torch.jagged)


def given_back() -> Any:
    tensor = torch.ones(8)[2:]
    tensor.untyped_storage().resize_(0)
    return tensor


def in_vmap(comm: Any) -> Any:
    return torch.func.vmap(comm.all_reduce)(torch.ones(2, 3))


def released() -> memoryview:
    view = memoryview(bytearray(3))
    view.release()
    return view


class Deaf:
    """Converts to an array, by a copy; shows no memory."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.ones(3)


def broken_interface() -> Any:
    made = Interface(np.ones(3))
    made.__array_interface__ = {**made.__array_interface__, "typestr": "?!"}
    return made


T, V, B = TypeError, ValueError, collectives.BackendError
REFUSED = {
    # Without a device in the machine these are all that can be said; test_device_arrays.py goes on from there.
    "cuda": Refused(lambda c: c.all_reduce(fake("cuda")), B, ["CUDA device", "cannot use one"]),
    "cuda in a list": Refused(
        lambda c: c.all_reduce([ones(), ones(), fake("cuda")]), T, ["x[0] is a torch.Tensor", "x[2] is on", "x.cpu()"]
    ),
    "cuda out": Refused(lambda c: c.all_reduce(ones(), out=fake("cuda")), T, ["x is a torch.Tensor", "out is on"]),
    "meta": Refused(lambda c: c.all_reduce(torch.ones(2, device="meta")), T, ["torch.Tensor on device meta"]),
    "fake": Refused(lambda c: c.all_reduce(fake("cpu")), T, ["FakeTensor", "without memory"]),
    "vmap": Refused(in_vmap, T, ["torch.Tensor", "without memory"]),
    "sparse": Refused(lambda c: c.all_reduce(torch.eye(2).to_sparse()), T, ["torch.sparse_coo", "to_dense()"]),
    "nested": Refused(lambda c: c.all_reduce(nested()), T, ["nested", "unbind()"]),
    "quantised": Refused(lambda c: c.all_reduce(quantised()), T, ["quantised", "torch.qint8", "dequantize()"]),
    "conj": Refused(lambda c: c.all_reduce(torch.ones(2, dtype=torch.complex64).conj()), T, ["conj", "resolve_conj()"]),
    "neg": Refused(lambda c: c.all_reduce(torch.ones(2, dtype=torch.complex64).conj().imag), T, ["resolve_neg()"]),
    "contiguous neg": Refused(
        lambda c: c.all_reduce(torch.ones(1, dtype=torch.complex64).conj().imag), T, ["resolve_neg()"]
    ),
    "zeros without memory": Refused(lambda c: c.all_reduce(torch._efficientzerotensor((8,))[2:]), T, ["ZeroTensor"]),
    "storage given back": Refused(lambda c: c.all_reduce(given_back()), T, ["given back", "allocate"]),
    "half complex": Refused(lambda c: c.all_reduce(torch.ones(2, dtype=torch.complex32)), T, ["torch.complex32"]),
    "expanded": Refused(lambda c: c.all_reduce(torch.ones(1).expand(4)), V, ["read-only", "out="]),
    "expanded out": Refused(lambda c: c.all_reduce(ones(), out=torch.ones(1).expand(4)), V, ["read-only"]),
    "another dtype": Refused(lambda c: c.all_reduce([ones(), np.ones(4)]), T, ["tensor 1", "float64", "float32"]),
    "another dtype out": Refused(lambda c: c.all_reduce(ones(), out=np.ones(4)), V, ["float64", "float32"]),
    "overlap": Refused(lambda c: c.all_reduce([t := ones(), t[1:]]), V, ["tensor 0", "tensor 1", "memory"]),
    "bytes": Refused(lambda c: c.all_reduce(b"abc"), V, ["read-only", "out="]),
    "read-only view": Refused(lambda c: c.broadcast(memoryview(b"abc")), V, ["read-only", "out="]),
    "read-only in a list": Refused(lambda c: c.all_reduce([bytearray(2), b"ab"]), V, ["read-only", "tensor 1"]),
    "read-only out": Refused(lambda c: c.all_reduce(bytearray(3), out=b"abc"), V, ["read-only"]),
    "old DLPack": Refused(lambda c: c.all_reduce(OldDLPack(np.ones(3))), V, ["read-only", "out="]),
    "foreign DLPack": Refused(lambda c: c.all_reduce(ForeignDLPack(np.ones(3))), B, ["CUDA device"]),
    "released": Refused(lambda c: c.all_reduce(released()), T, ["x of type memoryview", "released"]),
    "interface": Refused(lambda c: c.all_reduce([broken_interface()]), T, ["x[0]", "Interface", "cannot be used"]),
    "characters": Refused(lambda c: c.all_reduce(array.array("u", "ab")), T, ["<U1", "accepted"]),
    "masked": Refused(lambda c: c.all_reduce(np.ma.ones(3)), T, ["x is a masked array", "x.data", "filled"]),
    "masked in a list": Refused(lambda c: c.all_reduce([np.ones(3), np.ma.ones(3)]), T, ["x[1] is a masked array"]),
    "scalar": Refused(lambda c: c.all_reduce(np.float32(1)), T, ["x is a scalar", "numpy.float32", "numpy.array(x)"]),
    "number": Refused(lambda c: c.all_reduce(2.5), T, ["x is of type float", "numpy.ndarray", "buffer protocol"]),
    "numbers": Refused(lambda c: c.all_reduce([1.0, 2.0]), T, ["x[0] is of type float", "numpy.ndarray"]),
    "text": Refused(lambda c: c.all_reduce("abc"), T, ["x is of type str", "numpy.ndarray"]),
    "None": Refused(lambda c: c.all_reduce([None]), T, ["x[0] is of type NoneType"]),
    "deaf": Refused(lambda c: c.all_reduce(Deaf()), T, ["Deaf", "numpy.asarray(x)"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def alone() -> Iterator[Any]:
    (comm,) = collectives.local_group(1)
    with comm:
        yield comm


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(alone: Any, name: str) -> None:
    judge_refused(alone, REFUSED[name])


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
