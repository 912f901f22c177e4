"""What a file of results says of its run, and the first line of the output."""

from __future__ import annotations

import datetime
import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import collectives
import plot
from collectives import _core


@functools.cache
def own_version() -> str:
    """The version that is measured; the commit if it was built in a source tree."""
    if collectives.__version__ != "unknown":
        return str(collectives.__version__)
    command = ["git", "-C", str(Path(collectives.__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return collectives.__version__


def first_line() -> str:
    """Which library is measured on which machine."""
    where = Path(collectives.__file__).parent
    return f"# collectives {own_version()} from {where}, {_core.isa()}; {plot.machine()}"


def this_run(versions: dict[str, str]) -> dict[str, Any]:
    """What a file says of this run, with the versions of what else takes part."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": plot.machine(),
        "versions": {"collectives": own_version(), "isa": _core.isa(), **versions},
    }


def as_json(about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The text of a file of results, a row a line."""
    lines = ",\n".join(map(json.dumps, rows))
    return f'{{"about": {json.dumps(about, indent=1)},\n"rows": [\n{lines}\n]}}\n'
