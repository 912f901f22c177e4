"""What calls on arrays on devices refuse, and failures of a device: for processes that have loaded the fake devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import collectives
import numpy as np
import pytest
from device_arrays import ByDlpack, OnDevice, copied, fake, read, staged

T, V = TypeError, ValueError


class Refused(NamedTuple):
    call: Callable[[Any], Any]
    error: type[Exception]
    words: list[str]


def ones(n: int = 4, **where: Any) -> OnDevice:
    return OnDevice(np.ones(n, np.float32), **where)


def shown(**changes: Any) -> OnDevice:
    x = ones()
    x.changes = changes
    return x


def read_only() -> OnDevice:
    x = ones()
    x.changes = {"data": (x.pointer, True)}
    return x


def overlapping() -> list[OnDevice]:
    x, y = ones(), ones()
    y.changes = {"data": (x.pointer + 8, False)}
    return [x, y]


def rocm() -> ByDlpack:
    x = ByDlpack(np.ones(4))
    x.kind = 10
    return x


REFUSED = {
    "host in a list": Refused(
        lambda c: c.all_reduce([ones(), np.ones(4)]), T, ["x[1]", "numpy.ndarray", "x[0]", "copy x[1]"]
    ),
    "host out": Refused(lambda c: c.all_reduce(ones(), out=np.ones(4)), T, ["out is a numpy.ndarray", "x is on"]),
    "device out": Refused(lambda c: c.all_reduce(np.ones(4), out=ones()), T, ["x is a numpy.ndarray", "out is on"]),
    "host out of a gather": Refused(lambda c: c.all_gather(ones(), out=np.ones(4)), T, ["out is a numpy.ndarray"]),
    "two devices": Refused(
        lambda c: c.all_reduce([ones(), ones(device=1)]), V, ["x[1] is on device 1", "x[0] on device 0"]
    ),
    "out on another device": Refused(lambda c: c.all_reduce(ones(), out=ones(device=1)), V, ["out is on"]),
    "read-only": Refused(lambda c: c.all_reduce(read_only()), V, ["x is read-only", "out="]),
    "read-only out": Refused(lambda c: c.all_gather(ones(), out=read_only()), V, ["out is read-only"]),
    "read-only to receive": Refused(lambda c: c.broadcast([ones(), read_only()]), V, ["x[1] is read-only"]),
    "not contiguous": Refused(
        lambda c: c.all_reduce(shown(shape=(2,), strides=(8,))), V, ["not one piece of memory", "contiguous copy"]
    ),
    "overlap": Refused(lambda c: c.all_reduce(overlapping()), V, ["x[0] and x[1] share memory"]),
    "stream 0": Refused(lambda c: c.all_reduce(shown(stream=0)), T, ["stream 0"]),
    "version": Refused(lambda c: c.all_reduce(shown(version=1)), T, ["version 1", "2 and 3"]),
    "mask": Refused(lambda c: c.all_reduce(shown(mask=object())), T, ["mask"]),
    "no dtype": Refused(lambda c: c.all_reduce(shown(typestr="?!")), T, ["dtype"]),
    "void": Refused(lambda c: c.all_reduce(shown(typestr="<V2")), T, ["bfloat16", "DLPack"]),
    "other bytes": Refused(lambda c: c.all_reduce(shown(typestr=">f4")), T, ["byte order"]),
    "datetime": Refused(lambda c: c.all_reduce(shown(typestr="<M8[s]", shape=(2,))), T, ["datetime64"]),
    "host memory": Refused(lambda c: c.all_reduce(shown(data=(np.ones(9).ctypes.data, False))), T, ["host's"]),
    "another platform": Refused(lambda c: c.all_reduce(rocm()), T, ["ROCm"]),
    "stream of the host": Refused(lambda c: c.all_reduce(np.ones(2), stream=1), T, ["stream= is for"]),
    "stream of the host, parts": Refused(lambda c: c.all_gather(np.ones(2), stream=1), T, ["stream= is for"]),
    "not a stream": Refused(lambda c: c.all_reduce(ones(), stream="fast"), T, ["'fast'", "__cuda_stream__"]),
    "negative stream": Refused(lambda c: c.all_reduce(ones(), stream=-3), V, ["-3"]),
    "a bool as stream": Refused(lambda c: c.all_reduce(ones(), stream=True), T, ["True"]),
    "another dtype": Refused(
        lambda c: c.all_reduce([ones(), OnDevice(np.ones(4))]), T, ["tensor 1", "float64", "float32"]
    ),
    "another shape of out": Refused(lambda c: c.all_reduce(ones(), out=ones(5)), V, ["out[0]", "(5,)", "(4,)"]),
    "avg of integers": Refused(lambda c: c.all_reduce(OnDevice(np.ones(3, int)), "avg"), T, ["avg", "int64"]),
    "no such root": Refused(lambda c: c.broadcast(ones(), 3), V, ["root 3"]),
    "no such op": Refused(lambda c: c.all_reduce(ones(), "add"), Exception, ["add"]),
    "no such rank": Refused(lambda c: c.send(ones(), 1), V, ["dest 1", "0 to 0"]),
    "one half of an exchange": Refused(lambda c: c.sendrecv(ones(), 0, 1), V, ["source 1", "0 to 0"]),
    "no such tag": Refused(lambda c: c.sendrecv(ones(), 0, 0, recvtag=-1), V, ["recvtag -1"]),
}


def refuse(name: str) -> None:
    """Nothing is put into a stream of the device, nothing is counted as a collective, and the group goes on."""
    (alone,) = collectives.local_group(1)
    refused = REFUSED[name]
    before = copied()
    with pytest.raises(refused.error) as caught:
        refused.call(alone)
    for word in refused.words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    assert copied() == before
    assert not alone.recorder()
    assert alone.all_reduce(np.ones(2))[0] == 1
    alone.close()


@staged()
def fails_before(function: str) -> None:
    """Nothing was sent: the group goes on, and the call can be made again."""
    from collectives import _core

    (alone,) = collectives.local_group(1)
    x = ones()
    fake().finish()
    _core._device_drop_caches()
    fake().fail(1, 2, function)
    with pytest.raises(collectives.BackendError, match="cudaErrorMemoryAllocation"):
        alone.all_reduce(x)
    fake().fail(0)
    assert not alone.recorder()
    assert alone.all_reduce(x) is x
    assert (read(x) == 1).all()
    alone.close()


@staged()
def fails_behind() -> None:
    """The collective was done, and the other ranks have its result: this rank raises, and the group goes on."""
    (alone,) = collectives.local_group(1)
    x = ones()
    work = alone.all_reduce(x, async_op=True)
    fake().fail(1, 700, "copy")
    with pytest.raises(collectives.BackendError, match="cudaErrorIllegalAddress"):
        work.wait()
    fake().fail(0)
    work.wait()  # again, and now it goes
    assert (read(x) == 1).all()
    assert [entry["state"] for entry in alone.recorder()] == ["done"]
    assert alone.all_reduce(np.ones(2))[0] == 1
    alone.close()


@staged()
def stuck() -> None:
    """A stream in which the work before the call does not end."""
    from collectives import _core

    (alone,) = collectives.local_group(1)
    x = ones()
    wait = _core._PinnedBuffer.wait

    def never(self: Any, timeout: float) -> None:
        raise collectives.DeadlineError("the test says so")

    _core._PinnedBuffer.wait = never
    try:
        with pytest.raises(collectives.DeadlineError, match=r"device 0 before this call was not done after 0\.3 s"):
            alone.all_reduce(x, timeout=0.3)
    finally:
        _core._PinnedBuffer.wait = wait
    assert not alone.recorder()
    assert alone.all_reduce(np.ones(2))[0] == 1
    fake().finish()
    alone.close()
