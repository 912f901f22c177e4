"""What several command lines of benches accept as arguments, with an error that says so."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def checked(read: Callable[[str], int]) -> Callable[[str], int]:
    """What `read` returns; its ``ValueError`` is that of the argument."""

    def value(text: str) -> int:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return value


def whole_number(least: int) -> Callable[[str], int]:
    """A whole number, at least so large."""

    def number(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() else least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r}; a whole number of at least {least} is accepted")
        return value

    return number


def number_above(limit: float) -> Callable[[str], float]:
    """A finite number, larger than that."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > limit):
            raise argparse.ArgumentTypeError(f"{text!r}; a number above {limit:g} is accepted")
        return value

    return number
