"""Does what a newcomer does who has README.md and nothing else, and records it in docs/first_minutes.md.

    python tools/first_minutes.py           fails when the commands, or what they print, are no longer those of the page
    python tools/first_minutes.py --write   writes the page
    python tools/first_minutes.py --folder /tmp/mine    the same in a folder that stays; later runs there compile less

The commands are the blocks of the README, literally, except for the tests, which take long. They run in a copy of the
files that git knows, in a new virtual environment, both in a folder of their own. What differs from one run or machine
to the next is replaced: paths, times, versions, names of processors, what pip says of downloads, and the order in which
ranks print. It compiles the library, so it takes as long as an installation.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "first_minutes.md"
BLOCK = re.compile(r"^<!-- run: ([^\n]+) -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"save this as `([\w.]+)`")
LIMIT = 1800  # seconds for a command

BEFORE = """\
<!-- Written by tools/first_minutes.py; do not edit. -->

# The first ten minutes

This is what you see when you follow the [README](../README.md) and nothing else: each command with its output, in a
new virtual environment `env` and a clone `collectives` of the repository. `python tools/first_minutes.py` runs the
commands and compares. What differs between machines and runs is replaced: `#` stands for a time, a speed, a version or
a number of cores, `...` for lines of pip about downloads, and for names of processors and algorithms.
"""
NEW_ENVIRONMENT = "python3 -m venv env && . env/bin/activate && cd collectives"

# Lines of pip that depend on what was downloaded before, and from where.
_PIP = re.compile(
    r"\s*(?:Looking in|Collecting|Obtaining|Using cached|Downloading|Processing (?!~)|Requirement already|Installing"
    r"|Getting requirements|Preparing metadata|Created wheel|Stored in|Building wheel .*(?:started|running)"
    r"|WARNING: |\[notice\]|━)"
)
# Lines of the bench about other programs on the machine.
_BUSY = re.compile(r"\d+ of \d+ blocks dropped|rank \d+ was interrupted|.*: other programs run")
# The bench makes its columns as wide as what is in them; here they have these widths.
_COLUMNS = "{:>7}  {:>8}  {:<7}  {:<6}  {:<10}  {:<9}  {:>6}  {:>6}  {:>6}  {:>6}  {:>8}"
_UNITS = ["elements", "us", "us", "GB/s", "GB/s", "elements"]


def program() -> tuple[str, str]:
    """The name and the text of the README's first program."""
    text = README.read_text(encoding="utf-8")
    (found,) = FILE.findall(text)
    return found, next(body for _, language, body in BLOCK.findall(text) if language == "python")


def commands() -> tuple[str, str]:
    """The commands of the README: the one that installs and measures, and the one that starts the program."""
    bodies = [
        body.strip() for _, language, body in BLOCK.findall(README.read_text(encoding="utf-8")) if language == "bash"
    ]
    start, install, tests = bodies
    if "pip install" not in install or "pytest" not in tests or program()[0] not in start:
        raise ValueError(f"README.md should start {program()[0]}, install and test, in this order; it has {bodies}")
    return install, start


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--folder", type=Path, help="work there and leave what is built (default: a temporary folder)")
    arguments = parser.parse_args()
    begin = time.monotonic()
    if arguments.folder:
        made = page(arguments.folder.resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="first-minutes-") as temporary:
            made = page(Path(temporary).resolve())
    print(f"all commands of the README work; they took {time.monotonic() - begin:.0f} s")
    if arguments.write:
        PAGE.write_text(made, encoding="utf-8")
        return 0
    known = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    difference = difflib.unified_diff(known.splitlines(), made.splitlines(), str(PAGE), "now", lineterm="")
    print(*difference, sep="\n")
    if known != made:
        print("what a newcomer sees has changed; if that is meant: python tools/first_minutes.py --write")
    return int(known != made)


def page(folder: Path) -> str:
    """Runs everything below a folder; the text of the page."""
    clone = folder / "collectives"
    copied(clone)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder / "env"], check=True)
    install, start = commands()
    installed = said(install, folder)
    name, text = program()
    (clone / name).write_text(text, encoding="utf-8")
    started = said(start, folder)
    return (
        f"{BEFORE}\n{_console(NEW_ENVIRONMENT, '')}\n## Install, and measure\n\n{_console(install, installed)}\n"
        f"## The first program\n\nThis is `{name}`:\n\n```python\n{text}```\n\n{_console(start, started)}"
    )


def _console(command: str, output: str) -> str:
    return f"```console\n$ {command}\n{output}```\n"


def copied(clone: Path) -> None:
    """Copies the files that git tracks or would add, as a clone of their commit would have them."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in (ROOT / name for name in listed.split("\0") if name):
        if path.is_file():
            target = clone / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def said(command: str, folder: Path) -> str:
    """What a command of the README prints in the clone below the folder, without what differs between runs.

    Raises:
        RuntimeError: it fails; the text has its output.
    """
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder / "collectives",
        env=_environment(folder / "env"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"`{command}`, from the README, has failed ({done.returncode}):\n{done.stdout}")
    return "".join(f"{line}\n" for line in normalised(done.stdout, folder))


def _environment(environment: Path) -> dict[str, str]:
    """That of a user who has activated a new virtual environment."""
    gone = re.compile(r"COLLECTIVES_|PYTHON|PYTEST_|OMP_|VIRTUAL_ENV$")
    kept = {name: value for name, value in os.environ.items() if not gone.match(name)}
    kept["PATH"] = f"{environment / 'bin'}:{kept.get('PATH', os.defpath)}"
    # Where ccache compiles, it finds what an earlier run has compiled in another folder.
    return kept | {"VIRTUAL_ENV": str(environment), "CCACHE_BASEDIR": str(environment.parent / "collectives")}


def normalised(output: str, folder: Path) -> list[str]:
    """The lines of an output, without what differs between runs and machines."""
    lines: list[str] = []
    for line in output.replace(f"{folder}/", "~/").splitlines():
        if _BUSY.match(line):
            continue
        lines.append("..." if _PIP.match(line) else _steady(line.rstrip()))
    return list(_without_repeats(_by_rank(lines)))


def _steady(line: str) -> str:
    cells = re.split(r"\s{2,}", line.strip())
    if cells == _UNITS:
        return _COLUMNS.format("", cells[0], "", "", "", "", *cells[1:])
    if len(cells) == _COLUMNS.count("{"):
        measured = cells[0] != "size"
        return _COLUMNS.format(*cells[:4], *(["auto [...]", "...", *"####"] if measured else cells[4:10]), cells[10])
    line = re.sub(r"lib/python3\.\d+", "lib/python3.#", line)
    line = re.sub(r"^(# \w[\w-]*) [\d.]+ from ([^,]+), .*$", r"\1 # from \2, ...", line)
    line = re.sub(r"\b[\d.]+ (us|GB/s|s per row)\b", r"# \1", line)
    line = re.sub(r"\b\d+ in each rank \(\d+ cores", "# in each rank (# cores", line)
    if line.startswith("Successfully installed"):
        line = re.sub(r"-\d[\w.+]*", "-#", line)
    return line


def _by_rank(lines: list[str]) -> Iterator[str]:
    """Lines of ranks that follow each other, in the order of the ranks."""
    ranks: list[str] = []
    for line in [*lines, ""]:
        if re.match(r"\[\d+\] ", line):
            ranks.append(line)
            continue
        yield from sorted(ranks, key=lambda each: int(each[1 : each.index("]")]))
        ranks = []
        yield line


def _without_repeats(lines: Iterator[str]) -> Iterator[str]:
    """One line for several that are the same, also with none for empty ones at the beginning and the end."""
    last, empty = "", False
    for line in lines:
        if line and line != last:
            yield from [""] if empty and last else []
            yield line
            last = line
        empty = not line


if __name__ == "__main__":
    sys.exit(main())
