"""Counts the instructions of an all-reduce, and compares them with the counts that are kept beside this file.

    python bench/instructions.py            # compares; exit code 1 when a case needs more, or less, by over 3 %
    python bench/instructions.py --update   # writes new counts after a change that was meant to change them

One thread steps two ranks in turn (tests/cpp/instructions_test.cc) under ``valgrind --tool=callgrind``, so a count does
not depend on what else the machine does. It is that of both ranks together for one all-reduce, with the one look at a
flag that a rank takes before it gives way to another on its core. It is counted in the installed engine. Counts hold
for one compiler and its options: those of `pip install` by the version of g++ that is kept with them. Another version
is no error, but then nothing is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from collectives import _core

ENGINE = Path(_core.__file__).with_name("libcollectives_core.so")
ROOT = Path(__file__).resolve().parent.parent
KEPT = Path(__file__).with_suffix(".json")
CASES = ("8B", "64KiB", "fused100", "8Btcp")
FEW, MANY = 50, 150  # repetitions of the two runs; their difference cancels the instructions of the start
MARGIN = 0.03


def compiler() -> str:
    """The version of the compiler that CMake takes."""
    command = [os.environ.get("CXX", "c++"), "--version"]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return first.partition(" ")[2]


def build(folder: str) -> Path:
    for command in (
        ["cmake", "--preset", "release", "-B", folder, f"-DCOLLECTIVES_CORE={ENGINE}"],
        ["cmake", "--build", folder, "--target", "instructions_test"],
    ):
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return Path(folder) / "instructions_test"


def executed(program: Path, case: str, repetitions: int) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program, case, str(repetitions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise SystemExit(f"{case}: valgrind ended with code {done.returncode}\n{done.stderr}")
    return int(found[1])


def count(program: Path) -> dict[str, int]:
    return {c: round((executed(program, c, MANY) - executed(program, c, FEW)) / (MANY - FEW)) for c in CASES}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--update", action="store_true", help=f"write the counts to {KEPT.relative_to(ROOT)}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="instructions-") as folder:
        counts = count(build(folder))
    if arguments.update:
        KEPT.write_text(json.dumps({"compiler": compiler(), "instructions": counts}, indent=2) + "\n")
    kept = json.loads(KEPT.read_text())
    same = kept["compiler"] == compiler()
    bad = False
    for case, now in counts.items():
        before = kept["instructions"][case]
        change = now / before - 1
        wrong = same and abs(change) > MARGIN
        bad = bad or wrong
        print(f"{case:10} {before:10} -> {now:10}  {change:+7.2%}{'  over the margin' if wrong else ''}")
    if not same:
        print(f"not compared: the counts are for {kept['compiler']}, and this is {compiler()}")
    elif bad:
        print(f"over {MARGIN:.0%}: find out why; if it is meant, python bench/instructions.py --update and say why")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
