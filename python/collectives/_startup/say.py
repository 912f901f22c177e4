"""What the library says on stderr."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """Writes a line to stderr, where there is one; ``print`` would write it to stdout in a process without."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # it is closed, or nobody reads it
            print(text, file=sys.stderr, flush=True)
