"""Arrays on devices in every public call, from device to device or staged; the devices are fakes that run late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import device_cases as cases
import pytest
from collectives._devices import staging
from conformance import DTYPES
from device_arrays import on_this_rank, run_case
from fake_devices import build
from pool import make_group


@pytest.fixture(scope="module")
def library() -> Path:
    return build()


@pytest.fixture(scope="module")
def three(library: Path) -> Iterator[Any]:
    """Three processes of this host."""
    group = make_group(3, "shm", variables={"COLLECTIVES_CUDA_LIB": str(library)})
    yield group
    group.close()


@pytest.fixture(scope="module")
def one(library: Path) -> Iterator[Any]:
    """A process for groups of threads."""
    group = make_group(1, "shm", variables={"COLLECTIVES_CUDA_LIB": str(library)})
    yield group
    group.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole(three: Any, dtype: str) -> None:
    three.run(on_this_rank, cases.whole, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_parts(three: Any, dtype: str) -> None:
    three.run(on_this_rank, cases.parts, dtype)
    three.run(on_this_rank, cases.scattered, dtype)
    three.run(on_this_rank, cases.prefixes, dtype)


@pytest.mark.parametrize("sequence", [list, tuple])
def test_a_list_is_one_collective(three: Any, sequence: Any) -> None:
    three.run(on_this_rank, cases.a_list, sequence)


def test_messages(three: Any) -> None:
    three.run(on_this_rank, cases.messages)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("how", ["peers", "staged"])
def test_threads(one: Any, how: str, dtype: str, n: int) -> None:
    one.run(run_case, cases.threads, n, dtype, how)


@pytest.mark.parametrize("how", ["peers", "staged"])
def test_one_work(one: Any, how: str) -> None:
    one.run(run_case, cases.one_work, how)


@pytest.mark.parametrize("how", ["peers", "staged"])
def test_other_shapes(one: Any, how: str) -> None:
    one.run(run_case, cases.other_shapes, how)


@pytest.mark.parametrize(
    "case",
    [
        cases.explicit_stream,
        cases.nothing_is_waited_for_behind,
        cases.work_orders_the_present_stream,
        cases.memory_is_used_again,
        cases.without_the_wait,
        cases.without_the_stream,
        cases.a_graph_is_recorded,
    ],
    ids=lambda case: case.__name__,
)
def test_streams(one: Any, case: Any) -> None:
    one.run(run_case, case)


class Event:
    looks = 0

    def __init__(self) -> None:
        self.over = False

    def done(self) -> bool:
        Event.looks += 1
        return self.over


def test_what_is_held_is_looked_at_once_for_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[Any, Any] = {}
    monkeypatch.setattr(staging, "_held", held)
    events: dict[tuple[int, int], list[Event]] = {(1, 0): [], (2, 0): []}
    for _ in range(100):
        for place, made in events.items():
            made.append(Event())
            staging.hold(made[-1], place, object())  # type: ignore[arg-type]
    assert Event.looks <= 2 * 200
    assert {place: len(queue) for place, queue in held.items()} == {(1, 0): 100, (2, 0): 100}
    for event in events[1, 0][:60]:
        event.over = True
    for event in events[2, 0]:
        event.over = True
    last = Event()
    staging.hold(last, (3, 1), object())  # type: ignore[arg-type]
    assert {place: len(queue) for place, queue in held.items()} == {(1, 0): 40, (3, 1): 1}
