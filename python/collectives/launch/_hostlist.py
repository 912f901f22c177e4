"""Which hosts, and how many ranks on each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

# It goes to ssh as an argument, so it must not begin like an option; user@host, IPv6 addresses and % as ssh has them.
_HOST = re.compile(r"(?:[\w.-]+@)?[\w:.%-]+", re.ASCII)
_MOST = 4096  # ranks
_ACCEPTED = "accepted are NAME, NAME:4 or [IPv6]:4, with commas between them"
_LINE = "a line is a host: NAME, NAME:4 or NAME slots=4; # begins a comment"


class Place(NamedTuple):
    """Ranks of one host.

    Attributes:
        host: as the user has written it, without the number of slots.
        ranks: their numbers.
    """

    host: str
    ranks: range


def read_hosts(text: str, slots: int = 1) -> list[tuple[str, int]]:
    """(host, slots) of each host in a list like ``a,b:4``.

    Args:
        slots: of a host that does not say how many it has.

    Raises:
        ValueError: the text is no such list; the error has the entry and what is accepted.
    """
    found: dict[str, int] = {}
    for entry in text.split(","):
        host, count = _host(entry.strip(), slots, f"--hosts {text!r}: {entry!r}", _ACCEPTED)
        if host in found:
            raise ValueError(f"--hosts {text!r}: {host!r} is there twice; name it once, with its slots: {host}:2")
        found[host] = count
    return list(found.items())


def read_hostfile(path: str, slots: int = 1) -> list[tuple[str, int]]:
    """(host, slots) of each line of a file.

    Args:
        slots: of a host that does not say how many it has.

    Raises:
        ValueError: a line cannot be read, or there is none; the error has the file, the line and its number.
        OSError: the file cannot be read.
    """
    found: dict[str, tuple[int, int]] = {}
    text = Path(path).read_text(encoding="utf-8", errors="backslashreplace")
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        where = f"{path}, line {number}: {line.strip()!r}"
        host, count = _host(entry, slots, where, _LINE)
        if host in found:
            raise ValueError(f"{where}: {host!r} is in line {found[host][0]} already; name it once, with all its slots")
        found[host] = number, count
    if not found:
        raise ValueError(f"{path} names no host; {_LINE}")
    return [(host, count) for host, (_, count) in found.items()]


def places(hosts: Sequence[tuple[str, int]], ranks: int | None) -> list[Place]:
    """The ranks of each host that gets some, in the order of the list: a host is filled before the next one gets any.

    Args:
        hosts: (host, slots).
        ranks: of the job; None: as many as there are slots.

    Raises:
        ValueError: there are more ranks than slots.
    """
    slots = sum(count for _, count in hosts)
    if ranks is None:
        ranks = slots
        if ranks > _MOST:
            raise ValueError(f"the hosts have {slots} slots; at most {_MOST} ranks are accepted")
    if ranks > slots:
        listed = ", ".join(f"{host}:{count}" for host, count in hosts)
        raise ValueError(f"-n is {ranks}, but the hosts have {slots} slots ({listed}); give them more, as in NAME:4")
    found = []
    first = 0
    for host, count in hosts:
        last = min(first + count, ranks)
        if last > first:
            found.append(Place(host, range(first, last)))
        first = last
    return found


def _host(entry: str, slots: int, where: str, accepted: str) -> tuple[str, int]:
    """(host, slots) of one entry."""
    name, *rest = entry.split() or [""]
    count = str(slots)
    if rest:
        key, sign, count = "".join(rest).partition("=")
        if key != "slots" or not sign:
            raise ValueError(f"{where} cannot be read; {accepted}")
        name = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    elif name.startswith("["):
        name, bracket, after = name[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise ValueError(f"{where} cannot be read; {accepted}")
        count = after[1:] if after else count
    elif name.count(":") == 1:
        name, _, count = name.partition(":")
    if not _HOST.fullmatch(name) or name.startswith("-"):
        raise ValueError(f"{where}: {name!r} is no name of a host; {accepted}")
    if not count.isascii() or not count.isdigit() or not 1 <= int(count) <= _MOST:
        raise ValueError(f"{where}: {count!r} is not a number of slots from 1 to {_MOST}; {accepted}")
    return name, int(count)
