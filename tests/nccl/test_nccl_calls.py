"""The public calls on device arrays by NCCL: a fake NCCL between processes, on devices that have memory of the host."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import nccl_fake
import numpy as np
import pytest
from nccl_fake import count, set_to

STREAM = 0x100


class Shown:
    """An array that shows itself as one of device 0."""

    def __init__(self, values: Any) -> None:
        self.values = np.ascontiguousarray(values)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.values.shape,
            "typestr": self.values.dtype.str,
            "data": (self.values.ctypes.data, False),
            "strides": None,
            "stream": STREAM,
        }


def seen(array: Any) -> Any:
    """The values of a result, when the stream has come so far."""
    from collectives import _core

    _core._DeviceEvent(STREAM, 0).wait(30)
    shown = array.__cuda_array_interface__
    dtype = np.dtype(shown["typestr"])
    nbytes = int(np.prod(shown["shape"])) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(shown["data"][0], nbytes), dtype).reshape(shown["shape"])


def calls(comm: Any) -> None:
    set_to("bus_offset", comm.rank)
    rank, n = comm.rank, comm.size
    x = Shown(np.arange(6.0) + rank)
    total = n * np.arange(6.0) + sum(range(n))
    assert comm.all_reduce(x) is x
    np.testing.assert_array_equal(seen(x), total)
    out = Shown(np.zeros(6))
    work = comm.all_reduce(Shown(np.arange(6.0) + rank), "max", out=out, async_op=True)
    assert work.result() is out
    with pytest.raises(NotImplementedError, match="nccl"):
        work.add_done_callback(print)
    np.testing.assert_array_equal(seen(out), np.arange(6.0) + n - 1)
    y = Shown(np.full(3, float(rank)))
    comm.broadcast(y, 1)
    np.testing.assert_array_equal(seen(y), [1.0, 1.0, 1.0])
    z = Shown(np.full(3, rank + 1.0))
    comm.reduce(z, root=0)
    np.testing.assert_array_equal(seen(z), np.full(3, n * (n + 1) / 2 if rank == 0 else rank + 1.0))

    rows = [np.full((r + 1, 2), float(r)) for r in range(n)]
    np.testing.assert_array_equal(seen(comm.all_gather(Shown(rows[rank]))), np.concatenate(rows))
    first, second = comm.all_gather([Shown(rows[rank]), Shown(rows[rank][:1] + 5)])
    np.testing.assert_array_equal(seen(first), np.concatenate(rows))
    np.testing.assert_array_equal(seen(second), np.concatenate([r[:1] + 5 for r in rows]))
    given = [np.arange(4.0 * n).reshape(2 * n, 2) * (r + 1) for r in range(n)]
    part = slice(2 * rank, 2 * rank + 2)
    np.testing.assert_array_equal(seen(comm.reduce_scatter(Shown(given[rank]))), sum(given)[part])
    arrived = Shown(np.zeros((2 * n, 2)))
    assert comm.all_to_all(Shown(given[rank]), out=arrived) is arrived
    np.testing.assert_array_equal(seen(arrived), np.concatenate([g[part] for g in given]))
    got = comm.gather(Shown(rows[rank]), 1)
    assert (got is None) == (rank != 1)
    if got is not None:
        np.testing.assert_array_equal(seen(got), np.concatenate(rows))
    assert comm.bytes_by_transport().get("shm", 0) < 100_000
    assert len([e for e in comm.recorder() if e["algorithm"] == "nccl"]) == 9
    assert count("ncclGroupEnd") >= 9


def test_calls(groups: Any, tmp_path: Path) -> None:
    library = nccl_fake.build(tmp_path / "library")
    groups(3, "nccl", variables=nccl_fake.variables(library, tmp_path)).run(calls)


def lacks(comm: Any) -> None:
    """With "nccl" asked for, what it lacks is an error on every rank; nothing was begun, and the group goes on."""
    import collectives

    set_to("bus_offset", comm.rank)
    for _ in range(2):
        with pytest.raises(collectives.BackendError, match="int16"):
            comm.all_reduce(Shown(np.ones(3, np.int16)))
    x = Shown(np.ones(3, np.float32))
    comm.all_reduce(x)
    np.testing.assert_array_equal(seen(x), [2, 2, 2])


def test_what_nccl_lacks(groups: Any, tmp_path: Path) -> None:
    library = nccl_fake.build(tmp_path / "library")
    groups(2, "nccl", variables=nccl_fake.variables(library, tmp_path)).run(lacks)
