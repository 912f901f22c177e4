"""What tests compile for themselves, compiled once for a run of the tests, whose processes share it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

FOLDER = "TESTS_BUILD_FOLDER"  # the variable that tells the processes of a run where it lies


def begin() -> None:
    """In the first process of a run, before it starts others, and in these, which find the folder made."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="clv-built-")
        os.environ[f"{FOLDER}_OF"] = str(os.getpid())


def end() -> None:
    """Removes the folder, in the process that made it."""
    if os.environ.get(f"{FOLDER}_OF") == str(os.getpid()):
        shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)
        del os.environ[f"{FOLDER}_OF"]


def once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder of this name, filled by the first who asks for it; the others wait until it is full."""
    folder = Path(os.environ[FOLDER]) / name
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            half = folder.with_suffix(".half")
            shutil.rmtree(half, ignore_errors=True)  # of an attempt that failed
            half.mkdir()
            make(half)
            half.rename(folder)
    return folder
