"""The examples of README.md and of pages in docs/ run, and the README stays short and true.

A comment before a block says how:

    <!-- run -->             by Python or bash
    <!-- run: -n 2 -->       a Python program, by `collectives run -n 2`
    <!-- run: torchrun 2 --> a Python program, by torchrun, as two ranks
    <!-- run: FILE -->       FILE executes the block literally, so it is not run here
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

BLOCK = re.compile(r"^(?:<!-- run(?:: ([^\n]+))? -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT = 120  # seconds
# What other files execute of the README.
EXECUTED = {
    ".ci/run": ["pip install '.[test]' && pytest"],
    "tools/first_minutes.py": ["collectives run -n 4 average.py", "pip install . && python bench/allreduce.py"],
}


README = ROOT / "README.md"
DOCS = ROOT / "docs"
# Pages of which every example in Python runs, and how many there are at least; of other pages, those that are marked.
WHOLE = {README: 1, DOCS / "using.md": 9, DOCS / "asynchronous.md": 3, DOCS / "coming-from.md": 4}


def blocks(page: Path) -> list[tuple[bool, str, str, str]]:
    """(marked to run, how, language, text) of each block."""
    text = page.read_text()
    return [(m[0].startswith("<!--"), m[1] or "", m[2], m[3]) for m in BLOCK.finditer(text)]


def to_run(page: Path) -> list[tuple[str, str, str]]:
    """(how, language, text) of each block that runs here."""
    return [(how, language, text) for marked, how, language, text in blocks(page) if marked and "/" not in how]


PAGES = [README, *sorted(DOCS.glob("*.md"))]
RUN = {f"{page.stem}-{i}": block for page in PAGES for i, block in enumerate(to_run(page))}


@pytest.mark.parametrize("page", WHOLE, ids=lambda page: page.name)
def test_there_are_examples(page: Path) -> None:
    assert len([1 for _, language, _ in to_run(page) if language == "python"]) >= WHOLE[page]
    assert all(marked for marked, _, language, _ in blocks(page) if language == "python"), "an example is not run"


def test_what_a_file_executes_stands_there() -> None:
    commands = {how: [text.strip() for _, other, _, text in blocks(README) if other == how] for how in EXECUTED}
    assert commands == EXECUTED
    executed = (ROOT / ".ci" / "run").read_text()
    assert all(command in executed for command in commands[".ci/run"])


def test_it_is_read_in_minutes() -> None:
    assert len(README.read_text().split()) < 900
    (first,) = [text for how, language, text in to_run(README) if language == "python"]
    assert len([line for line in first.splitlines() if line.strip()]) == 6
    assert len(README.read_text().partition("\n## ")[0].split()) < 250, "what it is, and for whom"


TRIED = ("examples/*.py", "tests/tensorflow/*.py", "tests/horovod/*.py", "tests/torch/*.py")


def test_what_to_write_is_tried() -> None:
    """Each line of the table stands in a program that tests run."""
    table = README.read_text().partition("| you use | write this |")[2].partition("\n\n")[0]
    lines = {code for row in table.splitlines()[2:] for code in re.findall(r"`([^`]+[)\w])`", row.split("|")[2])}
    lines -= {"TF_CONFIG", "torchrun"}
    assert len(lines) >= 8
    programs = [text for page in PAGES for _, language, text in to_run(page) if language == "python"]
    programs += [path.read_text() for pattern in TRIED for path in ROOT.glob(pattern)]
    untried = {line for line in lines if not any(line in program for program in programs)}
    assert not untried


def launcher(how: str) -> list[str]:
    """What starts the ranks of a program, as arguments of Python."""
    if how.startswith("torchrun "):
        return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", how.split()[1]]
    return ["-m", "collectives", "run", *how.split()] if how else []


@pytest.mark.parametrize(("how", "language", "text"), RUN.values(), ids=RUN)
def test_example(how: str, language: str, text: str, tmp_path: Path) -> None:
    if language == "python":
        program = tmp_path / "program.py"
        program.write_text(text)
        command = [sys.executable, *launcher(how), str(program)]
    else:
        assert language == "bash"
        command = ["bash", "-euo", "pipefail", "-c", text]
    # The command `collectives` lies beside the interpreter, which need not be on the path, unless the package is used
    # from its sources.
    if not (Path(sys.executable).parent / "collectives").exists():
        stand_in = tmp_path / "collectives"
        stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m collectives "$@"\n')
        stand_in.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    environ["PATH"] = f"{Path(sys.executable).parent}:{tmp_path}:{environ.get('PATH', '')}"
    done = subprocess.run(
        command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
