"""A progress bar on stderr."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Protocol

_WIDTH = 40
_INTERVAL = 0.1  # seconds between updates: drawing must not show in the measurements


class Progress(Protocol):
    """Shows the fraction of the run that is done."""

    def update(self, fraction: float) -> None:
        """Shows it."""

    def close(self) -> None:
        """Removes the bar."""


class _Nothing:
    def update(self, fraction: float) -> None:
        pass

    def close(self) -> None:
        pass


class _File:
    """For ranks whose stderr is not the terminal: writes the fraction to a file for the starting process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._next = 0.0

    def update(self, fraction: float) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _INTERVAL
            new = self._path + ".new"
            Path(new).write_text(repr(fraction), encoding="ascii")
            os.replace(new, self._path)

    def close(self) -> None:
        pass


class _Plain:
    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._next = 0.0

    def update(self, fraction: float) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _INTERVAL
            bar = "#" * round(_WIDTH * min(1.0, fraction))
            sys.stderr.write(f"\r[{bar:<{_WIDTH}}] {fraction:4.0%} {now - self._begin:4.0f} s")
            sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


class _Tqdm:
    def __init__(self, tqdm: Any) -> None:
        self._bar = tqdm(
            total=100.0,
            leave=False,
            mininterval=_INTERVAL,
            file=sys.stderr,
            bar_format="{percentage:3.0f}% |{bar}| {elapsed} < {remaining}",
        )

    def update(self, fraction: float) -> None:
        self._bar.update(100 * fraction - self._bar.n)

    def close(self) -> None:
        self._bar.close()


def make(show: str) -> Progress:
    """The progress display for `Config.show`."""
    if not show:
        return _Nothing()
    if show != "-":
        return _File(show)
    try:
        from tqdm import tqdm
    except ImportError:
        return _Plain()
    return _Tqdm(tqdm)


def wanted() -> bool:
    """Whether stderr is a terminal, so that a bar makes sense."""
    return sys.stderr.isatty()
