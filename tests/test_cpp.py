"""The C++ tests and the fuzz target, built against the installed engine. .ci/run runs them with sanitizers, too."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from collectives import _core

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 300  # seconds


def run(*command: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the tests are built."""
    folder = str(tmp_path_factory.mktemp("build"))
    engine = Path(_core.__file__).parent / "libcollectives_core.so"
    ninja = shutil.which("ninja")
    assert ninja, "ninja is not installed: pip install '.[test]'"
    run("cmake", "--preset", "release", "-B", folder, f"-DCMAKE_MAKE_PROGRAM={ninja}", f"-DCOLLECTIVES_CORE={engine}")
    run("cmake", "--build", folder)
    return folder


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize(
    "source",
    sorted([*(ROOT / "tests" / "cpp").glob("*_test.cc"), *(ROOT / "tests" / "fuzz").glob("*_fuzz.cc")]),
    ids=lambda path: path.stem,
)
def test_cpp(build: str, source: Path) -> None:
    run("ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "-R", f"^{source.stem}$")
