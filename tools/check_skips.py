"""Fails when pytest skipped a test that tests/allowed_skips.txt does not name.

    python tools/check_skips.py report.xml [more.xml ...]

The reports are those of `pytest --junit-xml`.
"""

from __future__ import annotations

import fnmatch
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ALLOWED = Path(__file__).resolve().parent.parent / "tests" / "allowed_skips.txt"


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


def node_id(case: ET.Element) -> str:
    """The id that pytest prints, from the names in the report."""
    words = case.get("classname", "").split(".")
    classes = [word for word in words if word.startswith("Test")]
    module = "/".join(word for word in words if word not in classes)
    return "::".join([*([f"{module}.py"] if module else []), *classes, case.get("name", "")])


def skipped(report: Path) -> list[tuple[str, str]]:
    """(node id, reason) of each test that did not run. Expected failures (xfail) are tests that ran."""
    result = []
    for case in ET.parse(report).iter("testcase"):
        for mark in case.findall("skipped"):
            if mark.get("type") != "pytest.xfail":
                result.append((node_id(case), mark.get("message", "")))
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
