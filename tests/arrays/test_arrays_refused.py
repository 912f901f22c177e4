"""What is refused of arrays that are not NumPy's, and what the error says. Devices: test_device_arrays.py."""

from __future__ import annotations

import array
from collections.abc import Iterator
from typing import Any

import collectives
import numpy as np
import pytest
import torch
from array_kinds import ForeignDLPack, Interface, OldDLPack, Refused, judge_refused
from conformance import Array
from torch._subclasses import FakeTensorMode


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
    "storage given back": Refused(lambda c: c.all_reduce(given_back()), T, ["freed", "allocate"]),
    "half complex": Refused(
        lambda c: c.all_reduce(torch.ones(2, dtype=torch.complex32)), T, ["complex32", "accepted are float16"]
    ),
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
