"""Where things lie, for the tests and for processes that they start.

pytest finds the modules of support/ and of tools/ by `pythonpath` in pyproject.toml, and puts the room of each test
file into `sys.path`, so all of them are imported by their plain names. Processes that tests start are given the same
`sys.path`: ranks of pools with their settings, others by `python_path`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
BENCH = ROOT / "bench"


def python_path() -> str:
    """The value of PYTHONPATH with which a child process imports what this process can."""
    return os.pathsep.join(entry for entry in sys.path if entry)
