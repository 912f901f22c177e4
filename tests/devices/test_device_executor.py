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


def usable_on_one_host(collective: str, algorithm: str, size: int) -> bool:
    return not _core._unsupported(collective, algorithm, size, root=size // 2, count=100)


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
    for name, count in ran.items():  # with one rank everything runs
        usable = [n for n in range(1, 10) if n == 1 or usable_on_one_host(collective, name, n)]
        assert int(count) == 9 * len(usable), ran


@pytest.mark.timeout(300)
@pytest.mark.parametrize("peers", ["1", "0"], ids=["peers", "no_peers"])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        (collective, entry["name"])
        for collective in ("all_reduce", "reduce_scatter")
        for entry in _core._algorithms(collective)
        if all(usable_on_one_host(collective, entry["name"], n) for n in (2, 3, 4, 5))
    ],
)
def test_every_type(library: Path, collective: str, algorithm: str, peers: str) -> None:
    check(library, f"every_type('{collective}', '{algorithm}')", FAKE_PEERS=peers)
