"""A folder against which g++ links for glibc 2.28, without a container: stub libraries from the package ziglang.

They have just the symbols of that version, so the linker takes the versions of symbols that a system of 2018 has. The
compiler, the headers and libstdc++ are those that are installed. libstdc++ is linked statically, since a newer one than
that of the system would be needed. It compares types by their names, so errors cross the borders of our libraries, each
of which has a copy; libgcc_s, which unwinds stacks, stays the system's. What newer headers and libstdc++ want of a
newer glibc is in tools/sysroot_missing.c, and what is not there is found by tools/check_wheel.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

GLIBC = "2.28"
MISSING = Path(__file__).resolve().parent / "sysroot_missing.c"
PROBE = "int main(void) { return 0; }\n"
LINKED = ("libm", "libpthread", "libdl", "librt", "libutil", "libresolv")
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


@dataclass(frozen=True)
class Sysroot:
    """What a linker has to be told.

    Attributes:
        path: the folder.
        compiler: the C++ compiler.
        link_flags: for each library and program.
    """

    path: Path
    compiler: str
    link_flags: list[str]

    def environment(self) -> dict[str, str]:
        """The variables from which CMake takes them."""
        return {"CXX": self.compiler, "LDFLAGS": " ".join(self.link_flags)}


def make_sysroot(folder: Path, machine: str = "x86_64", compiler: str = "g++") -> Sysroot:
    """Makes the folder, or takes the one that is there.

    Args:
        folder: of the sysroot; beside it lies the cache of ziglang.
        machine: a key of LOADERS.
        compiler: a g++ for that machine.

    Raises:
        FileNotFoundError: ziglang or the compiler is not installed.
        RuntimeError: one of them fails; the text has what it said.

    Example:
        >>> make_sysroot(Path("build/sysroot")).environment()["CXX"]
        'g++'
    """
    if shutil.which(compiler) is None:
        package = "g++" if machine == "x86_64" else f"g++-{machine}-linux-gnu"
        raise FileNotFoundError(f"{compiler} is not installed; on Debian: apt-get install {package}")
    folder = folder.resolve()
    made = folder / "made"
    if not made.exists() or made.stat().st_mtime < MISSING.stat().st_mtime:
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder, machine, compiler)
        made.touch()
    lib = folder / "usr" / "lib"
    # libgcc_s of this machine may want a newer glibc than that of the sysroot, which is its own business.
    places = (f"--sysroot={folder}", f"-B{lib}", f"-L{lib}")
    return Sysroot(folder, compiler, [*places, "-static-libstdc++", "-Wl,--allow-shlib-undefined"])


def _make(folder: Path, machine: str, compiler: str) -> None:
    cache = folder.parent / "zig"
    work = cache / machine
    work.mkdir(parents=True, exist_ok=True)
    (work / "probe.c").write_text(PROBE)
    said = _zig(cache, work, machine, "probe.c", "-o", "probe", *(f"-l{name[3:]}" for name in LINKED))
    libraries = {Path(path).name: work / path for path in re.findall(r"\S+\.so\.\d+|\S+\.a\b|\S*crt1\.o", said)}
    lib = folder / "usr" / "lib"
    lib.mkdir(parents=True)
    for name in ("libc.so.6", "libc_nonshared.a", "crt1.o"):
        shutil.copy(libraries[name], lib / name)
    shutil.copy(libraries["crt1.o"], lib / "Scrt1.o")
    shutil.copy(libraries["libld.so.2"], lib / LOADERS[machine])  # ziglang has a name of its own for the loader
    for name in LINKED:
        found = next(path for file, path in libraries.items() if file.startswith(f"{name}.so."))
        shutil.copy(found, lib / found.name)
        (lib / f"{name}.so").write_text(f"INPUT ( {found.name} )\n")
    for name in ("crti.o", "crtn.o", "libgcc_s.so.1"):
        shutil.copy(_output([compiler, f"-print-file-name={name}"]).strip(), lib / name)
    c = compiler.replace("g++", "gcc")
    _output([c, "-O2", "-fPIC", "-fvisibility=hidden", "-c", str(MISSING), "-o", str(lib / "missing.o")])
    _output([f"{c}-ar", "rcs", str(lib / "libmissing.a"), str(lib / "missing.o")])
    group = f"libc.so.6 libc_nonshared.a libmissing.a AS_NEEDED ( {LOADERS[machine]} )"
    (lib / "libc.so").write_text(f"GROUP ( {group} )\n")


def _zig(cache: Path, work: Path, machine: str, *arguments: str) -> str:
    """What the compiler of ziglang says of its steps."""
    target = f"{machine}-linux-gnu.{GLIBC}"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, "-v", *arguments]
    folders = {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    done = subprocess.run(command, cwd=work, env={**os.environ, **folders}, capture_output=True, text=True, check=False)
    if "No module named" in done.stderr:
        raise FileNotFoundError("ziglang is not installed: pip install '.[wheels]'")
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return done.stderr + done.stdout


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return done.stdout
