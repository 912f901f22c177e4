"""Ranks that address each other's device memory, on fake devices (tests/support/fake_device/)."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_devices import build, in_child


@pytest.fixture(scope="module")
def library() -> Path:
    return build()


@pytest.mark.parametrize("what", ["every_collective", "every_type", "disagreement", "failures"])
def test_peers(library: Path, what: str) -> None:
    in_child(library, f"import device_peer_checks; device_peer_checks.{what}()", FAKE_DEVICES="9")


def test_devices_that_cannot_reach_each_other(library: Path) -> None:
    in_child(library, "import device_peer_checks; device_peer_checks.no_peers()", FAKE_DEVICES="2", FAKE_PEERS="0")
