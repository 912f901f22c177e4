"""Whether devices can be used, and what is said where they cannot."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from fake_devices import build, in_child

SHOW = """
import json, collectives
from collectives import _core
status = _core._device_status()
assert collectives.cuda_available() is status["available"] is (not status["reason"])
try:
    _core._device_of(0)
    assert status["available"]
except collectives.BackendError as error:
    assert str(error) == "GPU arrays cannot be used: " + status["reason"]
print(json.dumps(status))
"""


@pytest.fixture(scope="module")
def library() -> Path:
    return build()


def test_found(library: Path) -> None:
    status = json.loads(in_child(library, SHOW, FAKE_DEVICES="2"))
    assert status["devices"] == ["Fake 0", "Fake 1"]
    assert (status["library"], status["driver"], status["runtime"]) == (str(library), 13000, 13000)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"FAKE_DEVICE_CODE": "35"}, "no NVIDIA driver"),
        ({"FAKE_DEVICE_CODE": "100"}, "finds no device"),
        ({"FAKE_DEVICE_CODE": "2"}, "cudaErrorMemoryAllocation"),
        ({"FAKE_DEVICES": "0"}, "finds no device"),
        ({"FAKE_VERSION": "99"}, "is of another version of collectives"),
    ],
    ids=["no_driver", "no_device", "other_error", "none", "version"],
)
def test_not_usable(library: Path, variables: dict[str, str], text: str) -> None:
    assert text in in_child(library, SHOW, **variables)


def test_not_a_library(tmp_path: Path) -> None:
    assert "cannot be loaded" in in_child(tmp_path / "none.so", SHOW)
    source = tmp_path / "other.cc"
    source.write_text("int other() { return 0; }\n")
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "other.so")], check=True, timeout=60)
    assert "has no function collectives_device_api" in in_child(tmp_path / "other.so", SHOW)


def test_info(library: Path) -> None:
    code = "from collectives.launch.info import format_info, info; print(format_info(info()))"
    assert "Fake 1" in in_child(library, code, FAKE_DEVICES="2")
    assert "no NVIDIA driver" in in_child(library, code, FAKE_DEVICE_CODE="35")
