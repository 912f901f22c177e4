"""Checks what is in wheels: the symbols of glibc that they need, what their libraries lack, and their notices.

    python tools/check_wheel.py WHEEL ...

A wheel fails where one of its libraries needs a symbol newer than GLIBC_2.28, or than that of the C++ library of that
time, or a symbol that neither Python, nor its own libraries, nor one with a version has. It needs pyelftools.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

# The newest that manylinux_2_28 has.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
NOTICES = ("LICENSE", "THIRD_PARTY_NOTICES.txt")
# What the linker and the tools that watch programs put there.
OPTIONAL = re.compile(r"_?_?(Py|gmon_start|ITM_|cxa_finalize|tsan|asan)\w*")


def version_of(name: str) -> tuple[str, tuple[int, ...]]:
    """ "GLIBC_2.28" as ("GLIBC", (2, 28)); no numbers for one such as GLIBC_PRIVATE."""
    prefix, _, numbers = name.rpartition("_")
    return prefix, tuple(int(part) for part in numbers.split(".")) if re.fullmatch(r"[\d.]+", numbers) else ()


class Library:
    """A shared library.

    Attributes:
        versions: the versions of symbols that it needs.
        lacks: symbols that it needs without a version, and must find somewhere.
        has: those that it defines.
    """

    def __init__(self, data: bytes) -> None:
        file = ELFFile(io.BytesIO(data))
        needed = file.get_section_by_name(".gnu.version_r")
        found = [version.name for _, versions in needed.iter_versions() for version in versions] if needed else []
        self.versions = sorted(set(found), key=version_of)
        table, marks = file.get_section_by_name(".dynsym"), file.get_section_by_name(".gnu.version")
        self.lacks, self.has = set(), set()
        for number, symbol in enumerate(table.iter_symbols()):
            if symbol["st_shndx"] != "SHN_UNDEF":
                self.has.add(symbol.name)
            elif symbol.name and symbol["st_info"]["bind"] != "STB_WEAK":
                mark = marks.get_symbol(number)["ndx"] if marks else "VER_NDX_GLOBAL"
                if mark in ("VER_NDX_GLOBAL", "VER_NDX_LOCAL"):
                    self.lacks.add(symbol.name)


def newest_glibc(libraries: dict[str, Library]) -> tuple[int, ...]:
    """The newest version of glibc that one of them needs."""
    versions = [version_of(name) for library in libraries.values() for name in library.versions]
    return max((numbers for prefix, numbers in versions if prefix == "GLIBC"), default=())


def problems_of(libraries: dict[str, Library]) -> list[str]:
    """What is wrong with the libraries of a wheel, a line each."""
    lines = []
    defined = set().union(*(library.has for library in libraries.values()))
    for name, library in libraries.items():
        for version in library.versions:
            prefix, numbers = version_of(version)
            if prefix not in NEWEST or not numbers or numbers > NEWEST[prefix]:
                lines.append(f"{name} needs {version}, which manylinux_2_28 has not")
        lacks = sorted(symbol for symbol in library.lacks - defined if not OPTIONAL.fullmatch(symbol))
        if lacks:
            lines.append(f"{name} needs {', '.join(lacks)}, which nothing defines")
    return lines


def read(wheel: Path) -> tuple[dict[str, Library], set[str]]:
    """The libraries of a wheel, and the names of the notices in it."""
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        found = {name: Library(files.read(name)) for name in names if re.search(r"\.so(\.[\d.]+)?$", name)}
    return found, {Path(name).name for name in names if "dist-info/licenses/" in name}


def check(wheel: Path) -> list[str]:
    """What is wrong with a wheel, a line each."""
    libraries, notices = read(wheel)
    lines = problems_of(libraries) if libraries else ["it has no library"]
    lines += [f"its metadata has no {notice}" for notice in NOTICES if notice not in notices]
    if not lines:
        newest = ".".join(map(str, newest_glibc(libraries)))
        print(f"{wheel.name}: {wheel.stat().st_size} bytes, {len(libraries)} libraries, glibc {newest}")
    return lines


def main() -> int:
    """Prints what is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    lines = [f"{wheel.name}: {line}" for wheel in parser.parse_args().wheels for line in check(wheel)]
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
