"""Fails when the tests took longer than they may, and prints which files take most of the time.

    python tools/check_durations.py report.xml --minutes 31 --processes 4 --slower 400/273

The report is that of `pytest --junit-xml`. What is compared is the sum of the durations of all tests over the number of
processes that shared them: a wait for another process at the end is not counted, and neither is the collection. Where
other work slows the machine down, the limit grows by the factor that --slower says, a fraction too, to twice at most.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

from reports import cases

SHOWN = 12
SLOWEST = 2


def seconds_by_file(report: Path) -> Counter[str]:
    """The sum of the durations of each file's tests, their fixtures included."""
    found: Counter[str] = Counter()
    for case in cases(report):
        found[case.file] += case.seconds
    return found


def main(arguments: list[str] | None = None) -> int:
    """Prints the sum and the longest files; 1 when it is too much."""
    parser = argparse.ArgumentParser(description="whether the tests of a report took no longer than they may")
    parser.add_argument("report", type=Path)
    parser.add_argument("--minutes", type=float, required=True, help="how long they may take")
    parser.add_argument("--processes", type=int, required=True, help="how many processes shared them")
    parser.add_argument("--slower", type=Fraction, default=Fraction(1), help="how many times slower the machine is now")
    options = parser.parse_args(arguments)
    limit = options.minutes * float(min(max(options.slower, 1), SLOWEST))
    files = seconds_by_file(options.report)
    minutes = sum(files.values()) / options.processes / 60
    for name, seconds in files.most_common(SHOWN):
        print(f"{seconds:8.1f} s  {name}")
    print(f"{sum(files.values()):8.1f} s in all, in {options.processes} processes: {minutes:.1f} minutes each")
    if minutes > limit:
        print(f"more than {limit:.3g} minutes: make some of the tests above lighter, or move them to --full")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
