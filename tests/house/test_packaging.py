"""What is installed: its name and metadata, how wheels are checked, and what guards the statics of the module."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import check_wheel
import pytest
from collectives import _core, _distribution
from paths import ROOT
from staged import tool

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
WORKFLOW = ROOT / ".github" / "workflows" / "wheels.yml"
PAGE = ROOT / "docs" / "packaging.md"
BINDINGS = ROOT / "csrc" / "bindings"


def test_it_has_one_name() -> None:
    name = _distribution.NAME
    assert f'\nname = "{name}"' in PROJECT
    assert f'#define COLLECTIVES_DISTRIBUTION "{name}"' in (ROOT / "csrc" / "core" / "distribution.h").read_text()
    for room in ("nccl", "device"):
        assert "COLLECTIVES_DISTRIBUTION" in (ROOT / "csrc" / room / "library.cc").read_text(), (
            "errors name the package"
        )
    old = re.compile(r"(?<![\w./])collectives\[|no-binary collectives |install collectives(?![-\w])")
    for folder in ("csrc", "python", "docs", "bench", "tools", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".h", ".cc", ".md", ".txt", ""):
                found = old.search(path.read_text(encoding="utf-8")) if path.is_file() else None
                assert found is None, f"{path.relative_to(ROOT)} says {found}"


def test_every_extra_that_is_named_exists() -> None:
    extras = re.findall(r"^([\w-]+) = \[", PROJECT.partition("[project.optional-dependencies]")[2], re.MULTILINE)
    for path in (*ROOT.glob("docs/*.md"), *(ROOT / "python").rglob("*.py")):
        named = re.findall(r"collectives-comm\[([\w-]+)\]|install_command\(\"([\w-]+)\"\)", path.read_text())
        assert {one or other for one, other in named} <= set(extras), path


def test_the_metadata_names_the_pythons_for_which_wheels_are_built() -> None:
    listed = re.search(r"^build = \[(.*)\]$", PROJECT, re.MULTILINE)
    assert listed
    built = set(re.findall(r'"cp3(\d+)-\*"', listed[1]))
    assert built == set(re.findall(r":: Python :: 3\.(\d+)\"", PROJECT))
    assert re.search(r'"cp3\d+t-\*"', listed[1])
    assert ":: Free Threading ::" in PROJECT
    assert 'requires-python = ">=3.' + min(built, key=int) + '"' in PROJECT


def test_the_workflow_runs_what_is_here() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    for program in re.findall(r"python (tools/\w+\.py)", text + PROJECT.replace("{project}/", "")):
        assert (ROOT / program).exists(), program
    pinned = re.findall(r"cibuildwheel==([\d.]+)", text + PROJECT)
    assert len(pinned) == 2 and len(set(pinned)) == 1, "the workflow and the extra differ"
    assert set(re.findall(r"machine: (\w+)", text)) == {"x86_64", "aarch64"}


def library(versions: list[str], lacks: tuple[str, ...] = (), has: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(versions=versions, lacks=set(lacks), has=set(has))


@pytest.mark.parametrize(
    ("versions", "wrong"),
    [
        (["GLIBC_2.2.5", "GLIBC_2.28", "GCC_3.0"], ""),
        (["GLIBC_2.29"], "GLIBC_2.29"),
        (["GLIBC_2.4", "GLIBC_2.36"], "GLIBC_2.36"),
        (["GLIBCXX_3.4.30"], "GLIBCXX_3.4.30"),
        (["GLIBC_PRIVATE"], "GLIBC_PRIVATE"),
    ],
)
def test_newer_symbols_are_found(versions: list[str], wrong: str) -> None:
    problems = check_wheel.problems_of({"a.so": library(versions)})
    found = [word for line in problems for word in re.findall(r"needs ([\w.]+),", line)]
    assert found == ([wrong] if wrong else [])


def test_symbols_that_nothing_defines_are_found() -> None:
    core = library([], has=("engine",))
    assert not check_wheel.problems_of({"a.so": library([], ("engine", "PyLong_AsLong")), "core.so": core})
    (problem,) = check_wheel.problems_of({"a.so": library([], ("arc4random",)), "core.so": core})
    assert "a.so needs arc4random" in problem


def test_a_real_library_is_read() -> None:
    path = Path(_core.__file__)
    module = check_wheel.Library(path.read_bytes())
    engine = check_wheel.Library(path.with_name("libcollectives_core.so").read_bytes())
    assert "PyInit__core" in module.has and "PyModule_Create2" not in module.has
    assert any(version.startswith("GLIBC_2.") for version in module.versions)
    assert module.lacks & engine.has, "the module uses the engine"
    assert check_wheel.newest_glibc({"_core": module})[0] == 2


def test_a_wheel_without_notices_fails(tmp_path: Path) -> None:
    wheel = tmp_path / "empty.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("collectives_comm-1.dist-info/licenses/LICENSE", "")
    assert check_wheel.check(wheel) == ["it has no library", "its metadata has no THIRD_PARTY_NOTICES.txt"]


def test_without_a_compiler_the_error_says_what_to_install(tmp_path: Path) -> None:
    tools = {name: tool(name) for name in ("cmake", "ninja")}
    variables = {key: value for key, value in os.environ.items() if key not in ("CXX", "CC")} | {"PATH": "/nowhere"}
    command = [tools["cmake"], "-S", ROOT, "-B", tmp_path, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools['ninja']}"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    for words in ("needs a C++ compiler", "apt-get install g++", "gcc-c++", "--only-binary collectives-comm"):
        assert words in said, done.stderr


# The definition of a static, not of a function; and the names of globals wherever they stand.
STATIC = re.compile(r"^\s*(?:static|thread_local)\b(?! *_)[^(]*?\b(\w+)(?:\((?=[\"\w])|;|\{| = )", re.MULTILINE)
GLOBAL = re.compile(r"\bg_\w+")


def test_the_page_says_what_guards_each_static() -> None:
    found = set()
    for path in sorted(BINDINGS.rglob("*.cc")):
        text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        names = {*STATIC.findall(text), *GLOBAL.findall(text)}
        found |= {(path.relative_to(BINDINGS).as_posix(), name) for name in names}
    rows = re.findall(r"^\| `(\w+/\w+\.cc)` \| (`[^|]*) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {(file, name) for file, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert found == listed
    assert "py::mod_gil_not_used()" in (BINDINGS / "setup" / "module.cc").read_text()
