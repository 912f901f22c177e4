"""The checks of bench/gpu_check.py on the fake devices, and the programs where there is no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import device_library
import pytest
from bench_runs import run_bench
from collectives import _core
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


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    "check",
    [("reductions", (1, 7, 300), 4), ("gathers",), ("streams", 100), ("returns_early",), ("overhead", 20)],
    ids=lambda check: check[0],
)
def test_checks(one: Any, check: tuple[Any, ...], devices: int) -> None:
    one.run(run_case, device_library.run_check, check[0], devices, *check[1:])


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective(one: Any, ranks: int) -> None:
    one.run(run_case, device_library.run_check, "communicator", 1, ranks)


def test_every_type(one: Any) -> None:
    one.run(run_case, device_library.run_check, "types", 1, (1, 7), (2, 3))


def test_between_threads(one: Any) -> None:
    one.run(run_case, device_library.run_check, "between_threads", 1, ((1, 10), (1000, 10)))


@pytest.mark.parametrize("ranks", [1, 3])
def test_torch_backend(one: Any, ranks: int) -> None:
    one.run(run_case, device_library.torch_backend, ranks)


@pytest.mark.parametrize(("program", "ranks"), [("calls", 2), ("ddp", 2)])
def test_programs_of_torch_check_themselves(bench_module: Any, program: str, ranks: int) -> None:
    assert bench_module("gpu_torch").check(program, ranks, "cpu")


def test_the_fake_sees_streams_that_are_mixed_up(one: Any) -> None:
    one.run(run_case, device_library.wrong_streams)


@pytest.mark.parametrize("program", ["gpu.py", "gpu_check.py"])
def test_without_a_gpu(program: str) -> None:
    done = run_bench(program=program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no GPU to ")
    assert _core._device_status()["reason"] in done.stdout


def test_a_check_that_fails(bench_module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    gpu_check = bench_module("gpu_check")

    def fails() -> str:
        raise AssertionError("7 is not 8")

    kept: list[int] = []
    named = {"good": lambda: "fine", "bad": fails, "other": fails}
    results = gpu_check.run(named, ["good", "bad"], lambda so_far: kept.append(len(so_far)))
    assert kept == [1, 2]
    assert [(r["check"], r["passed"]) for r in results] == [("good", True), ("bad", False)]
    json.dumps(results)
    out = capsys.readouterr().out
    assert "pass  good" in out
    assert "FAIL  bad" in out
    assert "7 is not 8" in out
