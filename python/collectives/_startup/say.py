"""Output of the library on stderr."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """Writes a line to stderr, or nothing in a process without; ``print`` would write it to stdout there."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # stderr is closed, or its reader is gone
            print(text, file=sys.stderr, flush=True)
