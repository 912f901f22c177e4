"""The C++ tests and the fuzz target, built against the installed engine. .ci/run runs them with sanitizers, too."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from collectives import _core
from paths import ROOT

LIMIT = 300  # seconds


def run(*command: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def configure(folder: str, *options: str) -> None:
    """A build against the installed engine."""
    engine = Path(_core.__file__).parent / "libcollectives_core.so"
    ninja = shutil.which("ninja")
    assert ninja, "ninja is not installed: pip install '.[test]'"
    # The engine is as it is installed; what is compiled here only calls it. (With -O0 the tests take twice as long.)
    fast = "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"
    more = (f"-DCMAKE_MAKE_PROGRAM={ninja}", f"-DCOLLECTIVES_CORE={engine}", fast, *options)
    run("cmake", "--preset", "release", "-B", folder, *more)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the tests are built."""
    folder = str(tmp_path_factory.mktemp("build"))
    configure(folder)
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


@pytest.mark.timeout(2 * LIMIT)
def test_a_static_libstdcpp_stays_inside(tmp_path: Path) -> None:
    """As some toolchains link it. What a library shows of it is bound to another in the process, which has crashed."""
    flags = [f"-DCMAKE_{kind}_LINKER_FLAGS=-static-libstdc++" for kind in ("SHARED", "MODULE")]
    pybind11 = run(sys.executable, "-m", "pybind11", "--cmakedir").strip()
    configure(str(tmp_path), "-DCOLLECTIVES_PYTHON=ON", f"-Dpybind11_DIR={pybind11}", *flags)
    run("cmake", "--build", str(tmp_path), "--target", "_tensorflow")
    library = str(tmp_path / "_tensorflow.so")
    assert "libstdc++" not in run("readelf", "-d", library)
    shown = run("nm", "-D", "-C", "--defined-only", library)
    assert " T collectives::" in shown
    assert " T std::" not in shown
