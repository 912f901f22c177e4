"""The source distribution has what building needs, and no more."""

from __future__ import annotations

import subprocess
import sys
import tarfile

import pytest
from paths import ROOT

LARGEST = 1_200_000  # bytes
NEEDED = (
    *("pyproject.toml", "CMakeLists.txt", "CMakePresets.json", "LICENSE", "THIRD_PARTY_NOTICES.txt", "README.md"),
    *("PKG-INFO", "csrc/CMakeLists.txt", "csrc/core", "csrc/bindings", "csrc/cuda"),
    *("python/collectives/__init__.py", "python/collectives/bench", "python/collectives/py.typed"),
    "python/collectives/_core.pyi",
    *("tools/check_ranks.py", "examples/all_reduce.py", "docs/index.md", "docs/performance.md", "docs/design.md"),
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


def test_it_has_what_building_needs(names: list[str]) -> None:
    missing = [need for need in NEEDED if not any(name == need or name.startswith(f"{need}/") for name in names)]
    assert not missing


def test_it_has_nothing_else(names: list[str]) -> None:
    found = [name for name in names if any(part in f"/{name}" for part in UNWANTED)]
    assert not found
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert folders <= {"csrc", "docs", "examples", "python", "tools"}
    assert [name for name in names if name.startswith("tools/")] == ["tools/check_ranks.py"]
