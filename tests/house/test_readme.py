"""The examples of README.md run.

A comment before a block says how:

    <!-- run -->        by Python or bash
    <!-- run: -n 2 -->  a Python program, by `collectives run -n 2`
    <!-- run: FILE -->  FILE executes the block literally
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


def blocks() -> list[tuple[bool, str, str, str]]:
    """(marked to run, how, language, text) of each block."""
    text = (ROOT / "README.md").read_text()
    return [(m[0].startswith("<!--"), m[1] or "", m[2], m[3]) for m in BLOCK.finditer(text)]


RUN = [(how, language, text) for marked, how, language, text in blocks() if marked and not how.startswith(".ci/")]


def test_there_are_examples() -> None:
    assert len([1 for _, language, _ in RUN if language == "python"]) >= 6
    assert all(marked for marked, _, language, _ in blocks() if language == "python"), "a Python example is not run"


def test_the_first_two_commands() -> None:
    commands = [text.strip() for _, how, _, text in blocks() if how == ".ci/run"]
    assert commands == ["pip install . && python bench/allreduce.py", "pip install '.[test]' && pytest"]
    executed = (ROOT / ".ci" / "run").read_text()
    assert all(command in executed for command in commands)


@pytest.mark.parametrize(
    ("how", "language", "text"), RUN, ids=[f"{language}{i}" for i, (_, language, _) in enumerate(RUN)]
)
def test_example(how: str, language: str, text: str, tmp_path: Path) -> None:
    if language == "python":
        program = tmp_path / "program.py"
        program.write_text(text)
        launcher = ["-m", "collectives", "run", *how.split()] if how else []
        command = [sys.executable, *launcher, str(program)]
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
