"""How the benches write sizes and numbers."""

from __future__ import annotations

import math


def format_size(nbytes: int) -> str:
    """Bytes as a short text: "8 B", "64 KiB", "1.5 MiB"."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):.4g} {unit}"
    return f"{nbytes} B"


def number(value: float) -> str:
    """A number of three digits or so."""
    if value == 0:
        return "0"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.{2 - math.floor(math.log10(value))}f}" if value >= 0.01 else f"{value:.1e}"


def bandwidth(value: float) -> str:
    """A bandwidth in GB/s, also one of a few bytes, without an exponent."""
    return number(value) if value >= 0.01 else f"{value:.4f}"
