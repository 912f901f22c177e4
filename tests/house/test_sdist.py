"""The source distribution has what building and testing need, and no more."""

from __future__ import annotations

import subprocess
import sys
import tarfile

import pytest
from paths import ROOT

LARGEST = 1_300_000  # bytes; two fifths are the tests
NEEDED = (
    *("pyproject.toml", "CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "PKG-INFO", ".ci/run"),
    *("csrc/CMakeLists.txt", "csrc/core", "csrc/bindings", "csrc/cuda"),
    *("python/collectives/__init__.py", "python/collectives/_core.pyi", "python/collectives/py.typed"),
    *("tests/conftest.py", "tests/support/allowed_skips.txt", "tests/cpp", "tests/model", "tests/fuzz", "tests/net"),
    *("bench/allreduce.py", "bench/peers/bare.c", "bench/instructions.json", "bench/results/figures.csv"),
    *("tools/make_stub.py", "examples/all_reduce.py", "docs/index.md", "docs/performance.md", "docs/design.md"),
)
UNWANTED = ("docs/lab/", ".png", ".so", ".pyc", ".git", "build/")


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The files in it, without the folder that all are in."""
    folder = tmp_path_factory.mktemp("sdist")
    program = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, folder], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (archive,) = folder.iterdir()
    assert archive.stat().st_size <= LARGEST, f"{archive.stat().st_size} bytes"
    with tarfile.open(archive) as files:
        return [member.name.partition("/")[2] for member in files.getmembers() if member.isfile()]


def test_it_has_what_building_and_testing_need(names: list[str]) -> None:
    missing = [need for need in NEEDED if not any(name == need or name.startswith(f"{need}/") for name in names)]
    assert not missing


def test_it_has_nothing_else(names: list[str]) -> None:
    found = [name for name in names if any(part in f"/{name}" for part in UNWANTED)]
    assert not found
    assert {name.partition("/")[0] for name in names if "/" in name} <= {
        *(".ci", "bench", "csrc", "docs", "examples", "python", "tests", "tools"),
    }
