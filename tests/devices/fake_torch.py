"""A stand-in for PyTorch's tensors on the fake devices, since real ones need a GPU: the table of functions for C code,
and what C++ asks of a tensor besides. For processes that have loaded the fake devices and no PyTorch.
"""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any, ClassVar

import numpy as np
from collectives import _core
from collectives.cross_device_ops import HierarchicalCopyAllReduce, ReductionToOneDevice, RingAllReduce
from device_arrays import OnDevice, fake, read, stream

CUDA = 2
LEGACY = 1  # cudaStreamLegacy
CODES = {"f": 2, "i": 0, "u": 1, "b": 6}


class DlTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


Look = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlTensor))
Stream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Exchange(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("before", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("take", ctypes.c_void_p),
        ("give", ctypes.c_void_p),
        ("look", Look),
        ("stream", Stream),
    )


class Tensor:
    """On a fake device. `now`: the stream in which this library works, as a number of device_arrays.stream; -1: the
    default stream of the device.
    """

    now: ClassVar[int] = 0
    full: ClassVar[bool] = False  # there is no memory for more
    __dlpack_c_exchange_api__: ClassVar[object]

    def __init__(self, values: np.ndarray[Any, Any], device: int = 0) -> None:
        self.base = OnDevice(np.asarray(values), device, on=self.now, mode=LEGACY if self.now < 0 else None)
        self.lengths = (ctypes.c_int64 * len(self.base.shape))(*self.base.shape)
        self.marked = False

    def is_neg(self) -> bool:
        return self.marked

    def is_conj(self) -> bool:
        return False

    def _is_zerotensor(self) -> bool:
        return False

    def values(self) -> np.ndarray[Any, Any]:
        return read(self.base)


@Look
def look(x: Tensor, seen: Any) -> int:
    base = x.base
    seen[0] = DlTensor(
        base.pointer, CUDA, base.device, len(base.shape), CODES[base.dtype.kind], 8 * base.dtype.itemsize, 1,
        x.lengths, None, 0,
    )  # fmt: skip
    return 0


class OutOfMemoryError(RuntimeError):
    """PyTorch's."""


def empty_like(like: Tensor, *, memory_format: str) -> Tensor:
    assert memory_format == "contiguous"
    if Tensor.full:
        raise OutOfMemoryError("the fake device is full")
    return Tensor(np.zeros(like.base.shape, like.base.dtype), like.base.device)


@Stream
def current(_device_type: int, device: int, result: Any) -> int:
    result[0] = stream(Tensor.now, device) if Tensor.now >= 0 else 0
    return 0


def install() -> None:
    """As the module `torch`."""
    assert "torch" not in sys.modules
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    Tensor.__dlpack_c_exchange_api__ = capsule(ctypes.addressof(TABLE), b"dlpack_exchange_api", None)
    torch, nn = types.ModuleType("torch"), types.ModuleType("torch.nn")
    nn.Parameter = type("Parameter", (Tensor,), {})  # type: ignore[attr-defined]
    torch.Tensor, torch.nn = Tensor, nn  # type: ignore[attr-defined]
    torch.empty_like, torch.contiguous_format = empty_like, "contiguous"  # type: ignore[attr-defined]
    sys.modules["torch"] = torch


TABLE = Exchange(1, 2, None, None, None, None, look, current)


def results() -> None:
    """The bits of the same call on the host, in new tensors, in the order of the present stream."""
    install()
    random = np.random.default_rng(0)
    for dtype in ("f2", "f4", "f8", "i4", "u1"):
        for op in ("sum", "max", "mean"):
            if op == "mean" and dtype[0] != "f":
                continue
            for kind in (RingAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice):
                for shape in ((7,), (3, 5, 2), ()):
                    hosts = [np.array(10 * random.standard_normal(shape)).astype(dtype) for _ in range(3)]
                    Tensor.now += 1
                    given = [Tensor(host) for host in hosts]
                    expected = kind().reduce(op, hosts, [0, 2])
                    found = kind().reduce(op, given, [0, 2])
                    for x in given:
                        x.base.set(np.zeros_like(hosts[0]))  # may not overtake the reduction
                    assert [type(x) for x in found] == [Tensor, Tensor]
                    assert len({x.base.pointer for x in [*given, *found]}) == 5
                    for x, exact in zip(found, expected, strict=True):
                        label = f"{kind.__name__}, {op} of {dtype} {shape}"
                        assert x.values().tobytes() == exact.tobytes(), f"{label}: {x.values()}, {exact}"
    pairs = [([Tensor(np.full(n, r + n, "f4")) for r in range(2)], None) for n in (1, 4, 9)]
    for n, got in zip((1, 4, 9), RingAllReduce().batch_reduce("sum", pairs), strict=True):
        assert all((x.values() == 2 * n + 1).all() for x in got)
    Tensor.now = -1
    default = [sys.modules["torch"].nn.Parameter(np.full(5, r, "f4")) for r in range(3)]
    assert [list(x.values()) for x in RingAllReduce().reduce("sum", default)] == [[3] * 5] * 3
    fake().finish()
    fake().check()


def full() -> None:
    """The error is PyTorch's own, which programs know; nothing was put into a stream, and it goes on later."""
    install()
    xs = [Tensor(np.ones(4, "f4")) for _ in range(2)]
    fake().finish()
    Tensor.full = True
    try:
        RingAllReduce().reduce("sum", xs)
    except OutOfMemoryError:
        pass
    else:
        raise AssertionError("there was memory")
    assert fake().pending() == 0
    Tensor.full = False
    assert all((x.values() == 2).all() for x in RingAllReduce().reduce("sum", xs))
    fake().check()


def refused() -> None:
    """What the general path has to explain, or to do."""
    install()
    ones = np.ones(4, "f4")
    plain = [Tensor(ones), Tensor(ones)]

    def runs(values: list[Any], op: str = "sum") -> bool:
        found = _core._reduce_replicas("canonical", 1, [(values, op, 1)])
        fake().finish()
        return found is not None

    assert runs(plain)
    assert not runs([plain[0], Tensor(ones, 1)]), "two devices"
    assert not runs([plain[0], Tensor(np.ones(5, "f4"))]), "two shapes"
    assert not runs([plain[0], Tensor(np.ones(4, "f8"))]), "two types"
    assert not runs([plain[0], ones]), "one in the memory of the host"
    assert not runs([Tensor(np.ones(4, "i4"))] * 2, "avg"), "the mean of integers"
    assert not runs([Tensor(np.ones(4, "?"))] * 2), "the sum of bools"
    assert runs([Tensor(np.ones(4, "?"))] * 2, "max")
    assert not runs([Tensor(np.ones(0, "f4"))] * 2), "nothing to do"
    assert not runs([plain[0], type("Other", (Tensor,), {})(ones)]), "a type that may mean something else by its memory"
    plain[1].marked = True
    assert not runs(plain), "what is not in memory as it is meant"
    fake().check()
