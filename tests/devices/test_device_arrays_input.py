"""What calls on arrays on devices refuse, before anything is sent, and what becomes of failures of a device."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import collectives
import device_refusals as refusals
import numpy as np
import pytest
from collectives import _core
from collectives._arrays import streams
from device_arrays import run_case
from fake_devices import build
from pool import make_group


@pytest.fixture(scope="module")
def one() -> Iterator[Any]:
    """A process with fake devices."""
    library = build()
    group = make_group(1, "shm", variables={"COLLECTIVES_CUDA_LIB": str(library)})
    yield group
    group.close()


@pytest.mark.parametrize("name", refusals.REFUSED)
def test_refused(one: Any, name: str) -> None:
    one.run(run_case, refusals.refuse, name)


@pytest.mark.parametrize("function", ["allocate_pinned", "copy", "event_record"])
def test_a_device_that_fails_before(one: Any, function: str) -> None:
    one.run(run_case, refusals.fails_before, function)


def test_a_device_that_fails_behind(one: Any) -> None:
    one.run(run_case, refusals.fails_behind)


def test_a_stream_that_is_stuck(one: Any) -> None:
    one.run(run_case, refusals.stuck)


def test_no_devices_in_this_installation() -> None:
    class There:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {"version": 3}

    (alone,) = collectives.local_group(1)
    reason = _core._device_status()["reason"]
    assert reason
    for call in (alone.all_reduce, alone.all_gather, alone.broadcast):
        with pytest.raises(collectives.BackendError) as caught:
            call(There())
        assert reason in str(caught.value)
    assert alone.all_reduce(np.ones(2))[0] == 1
    alone.close()


def test_streams() -> None:
    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 12

    class Newer:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 1, 12

    class Pointer:
        def __init__(self, value: int | None) -> None:
            self.value = value

    class Numba:
        def __init__(self, value: int | None) -> None:
            self.handle = Pointer(value)

    class Cupy:
        ptr = 13

    assert [streams.handle_of(s) for s in (Protocol(), Numba(14), Numba(None), Cupy(), 0, 1, 2, np.int64(5))] == [
        *(12, 14, 1, 13),
        *(1, 1, 2, 5),
    ]
    with pytest.raises(TypeError, match=r"\(1, 12\)"):
        streams.handle_of(Newer())
    with pytest.raises(TypeError, match="is accepted"):
        streams.handle_of(None)


def test_capsules_of_dlpack() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    for capsule in (tensor.__dlpack__(), tensor.__dlpack__(max_version=(1, 0))):
        seen = _core._read_dlpack(capsule)
        assert (seen["pointer"], seen["shape"], seen["dtype"]) == (tensor.data_ptr(), (2, 3), (4, 16, 1))
        assert seen["contiguous"]
        assert not seen["read_only"]
    assert not _core._read_dlpack(tensor.T.__dlpack__())["contiguous"]
    with pytest.raises(TypeError, match="no capsule"):
        _core._read_dlpack(3)

    class Owner:
        pass

    array, owner = np.arange(6.0).reshape(2, 3), Owner()
    alive = weakref.ref(owner)
    shown = torch.from_dlpack(_core._to_dlpack(owner, array.ctypes.data, 1, 0, (2, 3), 2, 64))
    del owner
    assert alive() is not None
    assert (shown.numpy() == array).all()
    assert shown.data_ptr() == array.ctypes.data
    del shown
    assert alive() is None
    _core._to_dlpack(Owner(), array.ctypes.data, 1, 0, (2, 3), 2, 64)  # and no consumer takes it
