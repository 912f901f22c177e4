"""Reductions over replicas on fake devices (tests/support/fake_device/): bits, order, failures, and what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_devices import build, in_child


@pytest.fixture(scope="module")
def library() -> Path:
    return build()


def check(library: Path, call: str, **variables: str) -> str:
    return in_child(library, f"import device_checks; device_checks.{call}", FAKE_DEVICES="4", **variables)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("peers", ["1", "0"], ids=["peers", "no_peers"])
@pytest.mark.parametrize("what", ["replicas_of_all_types", "replicas_to_some", "back_to_back"])
def test_replicas(library: Path, what: str, peers: str) -> None:
    check(library, f"{what}()", FAKE_PEERS=peers)


@pytest.mark.timeout(300)
def test_late_producers(library: Path) -> None:
    check(library, "delayed_producers(1000)")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "arguments",
    [
        "[0, 0, 0], 'canonical', 'two_shot'",
        "[0, 1, 2], 'chain', 'ring'",
        "[0, 1, 2], 'canonical', 'two_shot'",
        "[0, 1, 0], 'canonical', 'reduce_to_one'",
    ],
)
@pytest.mark.parametrize("peers", ["1", "0"], ids=["peers", "no_peers"])
def test_every_call_that_fails(library: Path, arguments: str, peers: str) -> None:
    check(library, f"injected({arguments})", FAKE_PEERS=peers)


@pytest.mark.parametrize(
    "what", ["no_host_wait", "caches", "growing", "capture", "out_of_memory", "staged", "waiting", "reference"]
)
def test_devices(library: Path, what: str) -> None:
    check(library, f"{what}()")


def test_the_checker_sees(library: Path) -> None:
    check(library, "the_checker_sees()")


@pytest.mark.parametrize("what", ["results", "full", "refused"])
def test_tensors_of_pytorch_without_python(library: Path, what: str) -> None:
    in_child(library, f"import fake_torch; fake_torch.{what}()", FAKE_DEVICES="2")
