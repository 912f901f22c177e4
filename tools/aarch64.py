"""Cross-builds for aarch64, and runs the C++ tests and the conformance of 2 and 4 ranks under qemu-user.

    python tools/aarch64.py
    python tools/aarch64.py --step root --step build

Works on Debian 12 of another machine, with the packages that it asks for. A root folder gets a Python for aarch64 from
Debian's packages, which apt only downloads, and what tests need from wheels. A script runs that Python by qemu: tests,
which start processes by `sys.executable`, start those by qemu, too. The first thing that fails ends it.
docs/packaging.md says what has run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from staged import Staged, tool

ROOT = Path(__file__).resolve().parent.parent
MACHINE, DEBIAN = "aarch64", "arm64"
PYTHON = "python3.11"  # of Debian 12
PROGRAMS = {
    f"{MACHINE}-linux-gnu-g++": f"g++-{MACHINE}-linux-gnu",
    f"qemu-{MACHINE}": "qemu-user",
    "dpkg": "dpkg",
}
PACKAGES = (PYTHON, f"lib{PYTHON}-dev", "libstdc++6")
WHEELS = ("numpy", "ml_dtypes", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "pybind11>=3.0,<4")
PLATFORMS = [f"manylinux_{version}_{MACHINE}" for version in ("2_28", "2_17")]
# Of the groups that the short tier has, those with 2 and 4 ranks; of those that only the full tier has, one test each.
CONFORMANCE = ("tests/calls/test_conformance.py", "tests/calls/test_conformance_parts.py")
GROUPS = "local-2 or shm-2 or tcp-2 or shm-4"
FULL_GROUPS = "(local-4 or tcp-4) and (test_every_root or test_around_what_fits_beside_the_signature)"
PAGES = (4096, 65536)  # bytes: those of most kernels, and of some for servers
PATIENCE = 10  # how many times as long all may take
# What fails for a reason of qemu-user 7.2.
OF_QEMU = {
    "host_memory_test": "it says that MADV_POPULATE_WRITE and MADV_REMOVE have been done, and does neither",
    "malformed_frames_test": "it keeps about 280 KiB of every thread that has ended, more than the memory allowed here",
}


def run(*command: object, **variables: str) -> None:
    """Ends this program where the command fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, env={**os.environ, **variables}, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} failed with exit code {done.returncode}")


class Machine:
    """What is cross-built in one folder, and the system of the other machine beside it."""

    def __init__(self, work: Path) -> None:
        self.root = work / "root"
        self.python = work / "python"
        self.headers = work / "headers"
        self.build_folder = work / "build"
        self.work = work

    def get_root(self) -> None:
        """A folder with a Python of the other machine, and the script that runs it."""
        shutil.rmtree(self.root, ignore_errors=True)
        state = self.work / "apt"
        for folder in ("lists/partial", "archives/partial", "state"):
            (state / folder).mkdir(parents=True, exist_ok=True)
        (state / "status").write_text("")
        options = [
            *("-o", f"APT::Architecture={DEBIAN}", "-o", f"APT::Architectures::={DEBIAN}"),
            *("-o", f"Dir::State={state}/state", "-o", f"Dir::State::lists={state}/lists"),
            *("-o", f"Dir::State::status={state}/status", "-o", f"Dir::Cache={state}"),
            *("-o", f"Dir::Cache::archives={state}/archives", "-o", "APT::Sandbox::User=", "-qq"),
        ]
        run("apt-get", *options, "update")
        run("apt-get", *options, "install", "--download-only", "-y", "--no-install-recommends", *PACKAGES)
        for package in sorted((state / "archives").glob("*.deb")):
            run("dpkg", "-x", package, self.root)
        platforms = [f"--platform={platform}" for platform in PLATFORMS]
        version = PYTHON.removeprefix("python")
        run(
            *(sys.executable, "-m", "pip", "install", "-q", "--only-binary", ":all:", *platforms),
            *("--python-version", version, "--implementation", "cp"),
            *("--target", self.root / "usr/lib/python3/dist-packages", *WHEELS),
        )
        program = self.root / "usr/bin" / PYTHON
        self.python.write_text(f'#!/bin/sh\nexec qemu-{MACHINE} -L {self.root} {program} "$@"\n')
        self.python.chmod(0o755)
        # Debian's own is a link to a file of the system.
        custom = self.root / "usr/lib" / PYTHON / "sitecustomize.py"
        custom.unlink(missing_ok=True)
        custom.write_text(f"import sys\n\nsys.executable = {str(self.python)!r}\n")
        # Only those of Python: those of the C library are the compiler's own.
        place = Path(f"{MACHINE}-linux-gnu") / PYTHON
        shutil.copytree(self.root / "usr/include" / place, self.headers / place, dirs_exist_ok=True)

    def build(self) -> None:
        """The engine, the module and the C++ tests."""
        found = subprocess.run(
            [str(self.python), "-m", "pybind11", "--cmakedir"], capture_output=True, text=True, check=True
        )
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_SYSTEM_NAME": "Linux",
            "CMAKE_SYSTEM_PROCESSOR": MACHINE,
            "CMAKE_CXX_COMPILER": f"{MACHINE}-linux-gnu-g++",
            "CMAKE_CXX_FLAGS": f"-isystem {self.headers}",
            "CMAKE_CROSSCOMPILING_EMULATOR": f"qemu-{MACHINE};-L;{self.root}",
            "CMAKE_INTERPROCEDURAL_OPTIMIZATION": "OFF",
            "CMAKE_MAKE_PROGRAM": tool("ninja"),
            "COLLECTIVES_CUDA": "OFF",
            "COLLECTIVES_PYTHON": "ON",
            "COLLECTIVES_TESTS": "ON",
            "COLLECTIVES_WERROR": "ON",
            "Python_EXECUTABLE": self.python,
            "Python_INCLUDE_DIR": self.root / "usr/include" / PYTHON,
            "Python_NumPy_INCLUDE_DIR": self.root / "usr/lib/python3/dist-packages/numpy/_core/include",
            "pybind11_DIR": found.stdout.strip(),
        }
        if shutil.which("ccache"):
            options["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
        settings = [f"-D{name}={value}" for name, value in options.items()]
        run(tool("cmake"), "-S", ROOT, "-B", self.build_folder, "-G", "Ninja", *settings)
        run(tool("cmake"), "--build", self.build_folder)
        Staged(self.build_folder).stage()

    def ctest(self) -> None:
        """The C++ tests, but for those that qemu fails."""
        for name, reason in OF_QEMU.items():
            print(f"{name} is left out, for qemu: {reason}", flush=True)
        options = ("--output-on-failure", "--no-tests=error", "--timeout", str(300 * PATIENCE))
        run(tool("ctest"), "--test-dir", self.build_folder, *options, "-E", f"^({'|'.join(OF_QEMU)})$")

    def run_python(self, *arguments: object, **variables: str) -> None:
        """With the package that was built."""
        # qemu keeps a record of each page of address space that a process reserves.
        variables |= {"PYTHONPATH": str(Staged(self.build_folder).path), "COLLECTIVES_SYMMETRIC_HEAP": "64M"}
        run(self.python, *arguments, **variables)

    def ranks(self) -> None:
        """2 ranks over each transport, an error that crosses our libraries, and 8 threads."""
        for page in PAGES:
            print(f"pages of {page} bytes", flush=True)
            self.run_python("-u", "tools/check_ranks.py", "--patience", PATIENCE, QEMU_PAGESIZE=str(page))

    def conformance(self) -> None:
        """Every collective with 2 and 4 ranks, against NumPy."""
        tests = ("-m", "pytest", "-p", "no:cacheprovider", "-v", "-n", "0", "--timeout", 300 * PATIENCE)
        variables = {"TESTS_PATIENCE": str(PATIENCE)}
        for file in CONFORMANCE:
            self.run_python(*tests, file, "-k", GROUPS, **variables)
            self.run_python(*tests, "--full", file, "-k", FULL_GROUPS, **variables)
        variables["QEMU_PAGESIZE"] = str(PAGES[-1])
        self.run_python(*tests, CONFORMANCE[-1], "-k", f"({GROUPS}) and test_symmetric_memory", **variables)


def main() -> int:
    """One step after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / MACHINE, help="folder (default: %(default)s)")
    names = ("root", "build", "ctest", "ranks", "conformance")
    parser.add_argument("--step", action="append", choices=names, help="only this one; may be repeated")
    arguments = parser.parse_args()
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if missing:
        sys.exit(f"on Debian: apt-get install --no-install-recommends {' '.join(missing)}")
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    machine = Machine(work)
    steps = dict(
        zip(
            names,
            (machine.get_root, machine.build, machine.ctest, machine.ranks, machine.conformance),
            strict=True,
        )
    )
    for name in arguments.step or names:
        begin = time.monotonic()
        print(f"=== {name}", flush=True)
        steps[name]()
        print(f"=== {name}: {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
