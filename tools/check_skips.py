"""Fails when pytest skipped a test that tests/support/allowed_skips.txt does not name.

    python tools/check_skips.py report.xml [more.xml ...]

The reports are those of `pytest --junit-xml`.
"""

from __future__ import annotations

import fnmatch
import sys
from pathlib import Path

from reports import cases

ALLOWED = Path(__file__).resolve().parent.parent / "tests" / "support" / "allowed_skips.txt"


def allowed(text: str) -> list[tuple[str, str]]:
    """(pattern of node ids, part of the reason) of each line of the list."""
    result = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            parts = [part.strip() for part in line.split(" | ")]
            if len(parts) != 3 or not all(parts):
                raise ValueError(f"line {number} is not 'pattern | reason | why': {line}")
            result.append((parts[0], parts[1]))
    return result


def skipped(report: Path) -> list[tuple[str, str]]:
    """(node id, reason) of each test that did not run. Expected failures (xfail) are tests that ran."""
    result = []
    for case in cases(report):
        for mark in case.element.findall("skipped"):
            if mark.get("type") != "pytest.xfail":
                result.append((case.node, mark.get("message", "")))
    return result


def main(arguments: list[str]) -> int:
    """Checks the reports and prints what is wrong."""
    rules = allowed(ALLOWED.read_text())
    used = set()
    bad = 0
    for report in arguments:
        for name, reason in skipped(Path(report)):
            matching = [r for r in rules if fnmatch.fnmatchcase(name, r[0]) and r[1] in reason]
            used.update(matching)
            if not matching:
                print(f"skipped, and not in {ALLOWED.name}: {name} ({reason})")
                bad += 1
    for rule in rules:
        if rule not in used:
            print(f"{ALLOWED.name} allows what no test needs: {' | '.join(rule)}")
            bad += 1
    print(f"{bad} wrong with skipped tests" if bad else "no test was skipped that may not be")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
