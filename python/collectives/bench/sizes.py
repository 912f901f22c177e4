"""Sizes in bytes: how they are written on a command line, and the sequence from the smallest to the largest."""

from __future__ import annotations

import re

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse_size(text: str) -> int:
    """Bytes from "8", "1K", "4M" or "1G", as nccl-tests reads them (K is 1024; "KiB" and "KB" mean the same).

    Raises:
        ValueError: the text is something else.

    Example:
        >>> parse_size("1.5K")
        1536
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", text.strip().upper())
    if match is None:
        raise ValueError(f"{text!r} is not a size; a number of bytes is accepted, with K, M or G behind it if you like")
    size = float(match[1]) * (1 << _UNITS[match[2]])
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def size_range(begin: int, end: int, factor: float = 2.0, step: int = 0) -> tuple[int, ...]:
    """begin, begin * factor, ... up to and including `end`; with a step begin, begin + step, ...

    Args:
        begin, end, step: bytes.
        factor: between one size and the next, where there is no step.

    Raises:
        ValueError: the values make no range.

    Example:
        >>> size_range(8, 100, 4)
        (8, 32)
    """
    if begin < 1:
        raise ValueError(f"the sizes begin at {begin} bytes; at least 1 is accepted")
    if end < begin:
        raise ValueError(f"the sizes end at {end} bytes, before they begin at {begin}")
    if step:
        return tuple(range(begin, end + 1, step))
    if not factor > 1 and end != begin:
        raise ValueError(f"the factor between sizes is {factor:g}; more than 1 is accepted")
    sizes = [begin]
    while begin != end and round(sizes[-1] * factor) <= end:
        sizes.append(max(sizes[-1] + 1, round(sizes[-1] * factor)))
    return tuple(sizes)
