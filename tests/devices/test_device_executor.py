"""Collectives on fake devices (tests/support/fake_device/): the same bits as on the host, and all of it ordered."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiers
from collectives import _core
from fake_devices import build, in_child

COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "barrier",
)  # fmt: skip


@pytest.fixture(scope="module")
def library() -> Path:
    return build()


def check(library: Path, call: str, **variables: str) -> str:
    return in_child(library, f"import device_checks; device_checks.{call}", FAKE_DEVICES="9", **variables)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("collective", "peers"),
    # In the short tier both for the first, and of the others each for every second.
    [(c, p) for i, c in enumerate(COLLECTIVES) for p in "10" if tiers.full() or i == 0 or p == "10"[i % 2]],
)
def test_every_algorithm(library: Path, collective: str, peers: str) -> None:
    ran = dict(
        line.split() for line in check(library, f"every_algorithm('{collective}')", FAKE_PEERS=peers).splitlines()
    )
    assert set(ran) == {entry["name"] for entry in _core._algorithms(collective)}
    # `hierarchical` is for several hosts; with one rank everything runs.
    assert all(int(count) == 81 or name == "hierarchical" for name, count in ran.items()), ran


@pytest.mark.timeout(300)
@pytest.mark.parametrize("peers", ["1", "0"], ids=["peers", "no_peers"])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "one_shot"),
        ("all_reduce", "two_shot"),
        ("all_reduce", "hierarchical_copy"),
        ("all_reduce", "reduce_to_one"),
        ("reduce_scatter", "ring"),
    ],
)
def test_every_type(library: Path, collective: str, algorithm: str, peers: str) -> None:
    check(library, f"every_type('{collective}', '{algorithm}')", FAKE_PEERS=peers)
