"""Runs of the programs in bench/."""

from __future__ import annotations

import os
import subprocess
import sys

from paths import BENCH


def run_bench(
    *arguments: object,
    program: str = "allreduce.py",
    environment: dict[str, str] | None = None,
    timeout: float = 200,
) -> subprocess.CompletedProcess[str]:
    """The finished run, with what it printed."""
    return subprocess.run(
        [sys.executable, str(BENCH / program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=os.environ | (environment or {}),
    )
