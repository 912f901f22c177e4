"""The options of bench/allreduce.py, and the errors for combinations that make no sense."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import peers
import suite
import timed
from collectives import _core
from collectives.bench.arguments import checked, number_above
from collectives.bench.sizes import parse_size

MAX_RANKS = 1024
MAX_TENSORS = 1 << 20
MAX_TRIES = 100
# The defaults of the options that say what to measure; the parser gives None where an option is missing.
DEFAULTS: dict[str, Any] = {
    "ranks": 2,
    "begin": 8,
    "end": 64 << 20,
    "factor": 2.0,
    "collective": "all_reduce",
    "algorithm": "auto",
    "transport": "auto",
    "memory": "private",
    "dtype": "float32",
    "op": "sum",
    "level": None,
    "tensors": 1,
}


def parser(description: str) -> argparse.ArgumentParser:
    """The command line of bench/allreduce.py, which `description` is about."""
    result = argparse.ArgumentParser(
        prog="bench/allreduce.py",
        description=description.split("\n", maxsplit=1)[0],
        epilog="The cores' placement (smt, near, far) is probed, and reported apart.",
    )
    add = result.add_argument
    add("-n", "--ranks", type=_number_of("ranks", MAX_RANKS), help="number of ranks (default 2)")
    add("-b", "--begin", type=checked(parse_size), metavar="SIZE", help="smallest size, as 8, 1K, 4M or 1G (default 8)")
    add("-e", "--end", type=checked(parse_size), metavar="SIZE", help="largest size (default 64M)")
    add("-f", "--factor", type=number_above(1), help="between one size and the next (default 2)")
    add("--collective", choices=cases.COLLECTIVES, help="default all_reduce")
    add("--algorithm", metavar="NAME[,NAME]|all|auto", help="default auto; all: every one that applies")
    add("--transport", choices=(*_core.transports(), "auto"), help="default auto; local: threads of one process")
    add("--memory", choices=("private", "symmetric"), help="ordinary arrays (default), or comm.empty()")
    add("--dtype", choices=tuple(cases.DTYPES), metavar="TYPE", help=f"default float32; {', '.join(cases.DTYPES)}")
    add("--op", choices=cases.OPS, help="default sum")
    add("--level", choices=(*timed.LEVELS, "both"), help="who calls: Python (default), C, or both (default with --vs)")
    add(
        "--tensors",
        type=_number_of("tensors", MAX_TENSORS),
        metavar="N",
        help="measure lists of N tensors in one call as well",
    )
    add("--check", action=argparse.BooleanOptionalAction, default=True, help="check results (default)")
    add("--timeout", type=number_above(0), default=120.0, help="seconds that starting, and each collective, may take")
    add(
        "--duration",
        type=number_above(0),
        help="seconds of measuring per size and algorithm (default: 20 for all rows)",
    )
    add(
        "--vs",
        type=_peers,
        default=[],
        metavar="PEER[=DIR][,PEER...]|all",
        help=f"measure against peers: {', '.join(peers.names())}; all: those that are installed, and, when no option "
        "above says what to measure, everything that the project has aims for",
    )
    add("--section", type=_sections, metavar="NAME[,NAME]", help=f"of that, only: {', '.join(suite.SECTIONS)}")
    add(
        "--tries",
        type=_number_of("tries", MAX_TRIES),
        default=1,
        metavar="N",
        help="run against a peer up to N times, until the cores were seen both near each other and far (default 1)",
    )
    add("--seed", type=int, default=1, help="of the random inputs")
    add("--json", type=Path, metavar="FILE", help="write the rows there")
    add("--plot", type=Path, metavar="FILE", help="draw bandwidth and latency against size (needs matplotlib)")
    return result


def _number_of(what: str, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() else 0
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} {what}; a number from 1 to {most} is accepted")
        return value

    return number


def _sections(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in suite.SECTIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is no section; there are {', '.join(suite.SECTIONS)}")
    return names


def _peers(text: str) -> list[tuple[str, Path | None, bool]]:
    """For each peer its name, its directory where one was given, and whether it was named."""
    if text == "all":
        return [(name, None, False) for name in peers.names()]
    found = []
    for part in text.split(","):
        name, _, directory = part.partition("=")
        if name not in peers.names():
            raise argparse.ArgumentTypeError(f"{name!r} is no peer; there are all, {', '.join(peers.names())}")
        found.append((name, Path(directory).expanduser().absolute() if directory else None, True))
    return found
