"""Algorithms that the environment asks for in place of those that would be chosen: ``COLLECTIVES_ALGORITHM``."""

from __future__ import annotations

import re
from typing import NamedTuple

from .. import _core

VARIABLE = "COLLECTIVES_ALGORITHM"
ACCEPTED = (
    "accepted are collectives, each with ranges of bytes and an algorithm for each range, such as "
    "all_reduce:0-4k=one_shot,4k-=ring;broadcast:0-=tree"
)
COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
    "scan",
    "exscan",
)
_RANGE = re.compile(r"(\d+)([kmg]?)-(?:(\d+)([kmg]?))?=(\w+)", re.IGNORECASE | re.ASCII)
_SHIFT = {"": 0, "k": 10, "m": 20, "g": 30}
_MOST = 1 << 62


class Override(NamedTuple):
    """An algorithm for calls of some sizes.

    Attributes:
        collective: its name.
        low: the fewest bytes that a rank gives or gets, whichever is more.
        high: one more than the most of them.
        algorithm: its name.
    """

    collective: str
    low: int
    high: int
    algorithm: str


def parse(text: str, source: str = VARIABLE) -> list[Override]:
    """The overrides that a text says, in its order. Of several for one size, the first counts.

    Raises:
        ValueError: the text cannot be read, or names what does not exist; the error quotes that part of it.
    """
    found = []
    for block in text.split(";"):
        collective, colon, ranges = block.strip().partition(":")
        if not colon or collective not in COLLECTIVES:
            known = f"there is no collective {collective!r}" if colon else f"{block!r} has no collective and colon"
            raise ValueError(f"{source} is {text!r}, in which {known}; {ACCEPTED}")
        for entry in ranges.split(","):
            found.append(_entry(collective, entry.strip(), text, source))
    return found


def _entry(collective: str, entry: str, text: str, source: str) -> Override:
    match = _RANGE.fullmatch(entry)
    if match is None:
        raise ValueError(f"{source} is {text!r}, in which {entry!r} cannot be read; {ACCEPTED}")
    low = int(match[1]) << _SHIFT[match[2].lower()]
    high = int(match[3]) << _SHIFT[match[4].lower()] if match[3] else _MOST
    if not low < high <= _MOST:
        raise ValueError(f"{source} is {text!r}, in which {entry!r} is a range of no sizes; {ACCEPTED}")
    names = [about["name"] for about in _core._algorithms(collective)]
    if match[5] not in names:
        raise ValueError(
            f"{source} is {text!r}, in which {entry!r} names no algorithm of {collective}; it has {', '.join(names)}"
        )
    return Override(collective, low, high, match[5])
