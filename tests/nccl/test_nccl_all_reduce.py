"""NcclAllReduce: the replicas of one process, with a fake NCCL and arrays that only say that they are on devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nccl_fake
import numpy as np
import pytest
from collectives._devices import nccl_replicas
from nccl_fake import await_aborts, count, fail


@dataclass(frozen=True)
class Shown:
    """As ``collectives._arrays.device.DeviceArray``, of memory of the host."""

    values: Any
    device: int
    stream: int
    library: Any

    @property
    def owner(self) -> Any:
        return self.values

    @property
    def pointer(self) -> int:
        return int(self.values.ctypes.data)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def dtype(self) -> Any:
        return self.values.dtype


@dataclass(frozen=True)
class New:
    array: Shown
    finish: Callable[[], Any]


class StandIn:
    """A library of arrays, and the module that finds it."""

    def library_of(self, x: Any) -> Any:
        return self if isinstance(x, Shown) else None

    def look(self, x: Any, what: str) -> Any:
        return x

    def current_stream(self, device: int) -> int:
        return 0x100 + device

    def new(self, like: Any, shape: tuple[int, ...], dtype: Any) -> New:
        made = replace(like, values=np.zeros(shape, dtype))
        return New(made, lambda: made)


def on_devices(arrays: list[Any], devices: list[int] | None = None) -> list[Any]:
    library = StandIn()
    nccl_replicas.library_of = library.library_of
    nccl_replicas.look_at = library.look
    places = range(len(arrays)) if devices is None else devices
    return [Shown(a, d, library.current_stream(d), library) for a, d in zip(arrays, places, strict=True)]


def finish(devices: list[int]) -> None:
    """Waits until the streams of the devices have come so far."""
    from collectives import _core
    from collectives._calls.options import CallOptions
    from collectives._devices import nccl

    calls = [nccl.call_of("barrier", [], [], [], "uint8", CallOptions(timeout=30.0, stream=0x100 + d)) for d in devices]
    for work in _core._nccl_run_group(nccl_replicas._connect(tuple(devices)), calls):
        assert work.wait(30)


def reduce_and_gather(comm: Any) -> None:
    from collectives.cross_device_ops import NcclAllReduce

    ops = NcclAllReduce(num_packs=2)
    given = [np.full((2, 3), r + 1.0, np.float32) for r in range(3)]
    inputs = [a.copy() for a in given]
    for op, expected in (("sum", 6), ("MEAN", 2), ("prod", 6), ("max", 3), ("min", 1)):
        results = ops.reduce(op, on_devices(inputs))
        finish([0, 1, 2])
        assert [r.device for r in results] == [0, 1, 2]
        for r in results:
            np.testing.assert_array_equal(r.values, np.full((2, 3), expected, np.float32))
    np.testing.assert_array_equal(inputs, given)
    (result,) = ops.reduce("sum", on_devices(inputs), [2])
    assert result.device == 2

    # Two packs, and a group of NCCL's for each dtype of a pack.
    made, groups, calls = (count(f) for f in ("ncclCommInitRankConfig", "ncclGroupEnd", "ncclAllReduce"))
    whole = [np.full(5, 10 * (r + 1), np.int64) for r in range(3)]
    batch = [
        (on_devices(inputs), None),
        (on_devices(whole), None),
        (on_devices(inputs), [0]),
        (on_devices(inputs), [1]),
    ]
    results = ops.batch_reduce("sum", batch)
    assert count("ncclGroupEnd") - groups == 3
    assert count("ncclAllReduce") - calls == 4 * 3
    finish([0, 1, 2])
    assert [len(r) for r in results] == [3, 3, 1, 1]
    np.testing.assert_array_equal(results[1][2].values, [60] * 5)
    np.testing.assert_array_equal(results[3][0].values, np.full((2, 3), 6.0))
    assert count("ncclCommInitRankConfig") == made, "communicators are used again"

    parts = [np.full((r, 2), float(r)) for r in range(3)]
    joined = ops.gather(on_devices(parts), 0)
    finish([0, 1, 2])
    for r in joined:
        np.testing.assert_array_equal(r.values, np.concatenate(parts))
    copies = ops.broadcast(on_devices([np.arange(4.0)], [1])[0], [0, 1, 3])
    finish([1, 0, 3])
    assert [c.device for c in copies] == [0, 1, 3]
    for c in copies:
        np.testing.assert_array_equal(c.values, np.arange(4.0))


def bad_input(comm: Any) -> None:
    from collectives import BackendError
    from collectives.cross_device_ops import NcclAllReduce

    ops = NcclAllReduce()
    x = np.ones(3, np.float32)
    on_devices([])
    for values, error, words in (
        ([x, x], TypeError, "value 0 is a ndarray in the memory of the host.*RingAllReduce"),
        ([on_devices([x])[0], x], TypeError, "value 1 is a ndarray"),
        (on_devices([x, x], [3, 3]), BackendError, "values 0 and 1 are on the same device, 0000:03:00.0.*NCCL_HOSTID"),
        (on_devices([x, x[:2]]), ValueError, "value 1 has shape"),
        (on_devices([x, x.astype(np.float64)]), TypeError, "value 1 has shape"),
        ([], ValueError, "values is empty"),
    ):
        with pytest.raises(error, match=words):
            ops.reduce("sum", values)
    whole = x.astype(np.int32)
    with pytest.raises(TypeError, match="mean of int32"):
        ops.reduce("mean", on_devices([whole, whole]))
    with pytest.raises(ValueError, match="axis 0 only"):
        ops.gather(on_devices([np.ones((2, 2))]), 1)
    with pytest.raises(ValueError, match="num_packs is 0"):
        NcclAllReduce(0)
    with pytest.raises(ValueError, match="those of pair 0 on"):
        ops.batch_reduce("sum", [(on_devices([x, x]), None), (on_devices([x, x], [0, 2]), None)])
    assert count("ncclCommInitRankConfig") == 0


def fail_and_go_on(comm: Any) -> None:
    from collectives import BackendError
    from collectives.cross_device_ops import NcclAllReduce

    ops = NcclAllReduce()
    x = np.ones(3, np.float32)
    ops.reduce("sum", on_devices([x, x]))
    aborts = count("ncclCommAbort")
    fail("ncclAllReduce", 1, 3, "made up")
    with pytest.raises(BackendError, match=r"internal error.*made up"):
        ops.reduce("sum", on_devices([x, x]))
    await_aborts(aborts + 2)  # those of both devices; the second by the watchdog, where it was quicker
    assert nccl_fake.library().fake_depth() == 0
    # The next call makes new ones.
    results = ops.reduce("sum", on_devices([x, x]))
    finish([0, 1])
    np.testing.assert_array_equal(results[0].values, [2, 2, 2])


@pytest.mark.parametrize("work", [reduce_and_gather, bad_input, fail_and_go_on], ids=lambda f: f.__name__)
def test_replicas(groups: Any, tmp_path: Path, work: Any) -> None:
    library = nccl_fake.build(tmp_path / "library")
    groups(1, "auto", variables=nccl_fake.variables(library, tmp_path)).run(work)
