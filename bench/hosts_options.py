"""The options of bench/hosts.py, and the errors for combinations that make no sense."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import plot
from cases import BadRequestError
from collectives.bench.arguments import checked, number_above, whole_number
from hosts_cells import COLLECTIVES, GBIT, PEERS, RATES, SHAPES, SIZES, Cell, K, M, algorithms, cells_of, parse_rate
from torch_step import sizes_of_floats

DURATION = 0.6  # seconds of measuring for each contender of a cell
BUDGET = 39.0  # minutes for the suite, and one more for the cell that it ends with
MOST_HOSTS, MOST_RANKS = 64, 64
GRID = cells_of(SHAPES, RATES, COLLECTIVES, SIZES)  # the suite
SHORT = cells_of([(2, 2)], [GBIT], ["all_reduce", "reduce", "all_gather"], [256 * K, 4 * M])


def parser(description: str) -> argparse.ArgumentParser:
    """The command line of bench/hosts.py, which `description` is about."""
    result = argparse.ArgumentParser(
        prog="bench/hosts.py", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = result.add_argument
    add("--hosts", type=_up_to("hosts", MOST_HOSTS), help="number of hosts (default 2)")
    add("--ranks", type=_up_to("ranks", MOST_RANKS), help="on each host (default 2)")
    add("--rate", type=_rate, help="of each port in each direction: 1gbit, 100mbit, unlimited (default 1gbit)")
    add("--sizes", type=sizes_of_floats, metavar="SIZE[,SIZE]", help="as 8, 1K or 4M (default 8,8K,256K,4M)")
    add("--collective", type=_collectives, metavar="NAME[,NAME]|all", help="default all_reduce")
    add("--algorithm", metavar="NAME[,NAME]|all|auto", help="default auto; all: auto, and every one that applies")
    add("--suite", action="store_true", help="measure the whole grid, and judge what is asked of it")
    add(
        "--short", action="store_true", help="measure and judge a few cells, in up to three runs; exit code 1: not held"
    )
    add("--budget", type=number_above(0), default=BUDGET, help="minutes that the suite may take (default %(default)g)")
    add("--anew", action="store_true", help="measure the suite again from the start, whatever the file of --json has")
    add("--judge", nargs="+", type=Path, metavar="FILE", help="judge, and draw the first of, these files of --json")
    add("--duration", type=number_above(0), help=f"seconds for each contender of a cell (default {DURATION:g})")
    add("--vs", type=_peers, metavar="PEER[=DIR][,PEER]|none", help="default: gloo and openmpi, where installed")
    add("--json", type=Path, metavar="FILE", help="write the rows there")
    add("--plot", type=Path, metavar="FILE", help="draw time against size (needs matplotlib), a file for each setting")
    return result


def _up_to(what: str, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = whole_number(1)(text)
        if value > most:
            raise argparse.ArgumentTypeError(f"{value} {what}; at most {most} are accepted")
        return value

    return read


def _rate(text: str) -> str:
    """The text: None, which stands for an unlimited port, would look like an option that is missing."""
    checked(lambda given: parse_rate(given) or 0)(text)
    return text


def _collectives(text: str) -> list[str]:
    found = list(COLLECTIVES) if text == "all" else text.split(",")
    for name in found:
        if name not in COLLECTIVES:
            raise argparse.ArgumentTypeError(f"{name!r} is no collective; there are all, {', '.join(COLLECTIVES)}")
    return found


def _peers(text: str) -> dict[str, Path | None]:
    if text == "none":
        return {}
    found = {}
    for part in text.split(","):
        name, _, directory = part.partition("=")
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"{name!r} is no peer between hosts; there are none, {', '.join(PEERS)}")
        found[name] = Path(directory).expanduser().absolute() if directory else None
    return found


def check(a: argparse.Namespace) -> None:
    """Whether the options make sense together. Raises BadRequestError, NoPlotError."""
    given = [name for name in ("hosts", "ranks", "rate", "sizes", "collective", "algorithm") if getattr(a, name)]
    if a.suite and given:
        raise BadRequestError(f"--suite says what to measure, and so does --{given[0]}; only one of them can")
    if a.short and (given or a.suite or a.json or a.plot or a.vs):
        raise BadRequestError("--short says what to measure, and writes no files; only --duration goes with it")
    if a.anew and not a.suite:
        raise BadRequestError("--anew is for --suite, which alone continues an earlier run")
    for path in (a.json, a.plot):
        if path is not None and not os.access(path.absolute().parent, os.W_OK):
            raise BadRequestError(f"{path} cannot be written: no such folder, or no permission")
    if a.plot:
        plot.check_possible(a.plot)
    known = {name for collective in a.collective or ["all_reduce"] for name in algorithms(collective)}
    for name in names(a):
        if name not in (*known, "all", "auto"):
            accepted = ", ".join(("all", "auto", *sorted(known)))
            raise BadRequestError(f"--algorithm: {name!r} is no algorithm of these; there are {accepted}")


def names(a: argparse.Namespace) -> list[str]:
    """The algorithms that were asked for; "all" alone where it is among them."""
    found = list(dict.fromkeys((a.algorithm or "auto").split(",")))
    return ["all"] if a.suite or "all" in found else found


def cells(a: argparse.Namespace) -> list[Cell]:
    """What is to be measured. Raises BadRequestError."""
    if a.suite:
        return GRID
    shape = (a.hosts or 2, a.ranks or 2)
    if shape == (1, 1):
        raise BadRequestError("one rank on one host has nobody to talk to")
    return cells_of([shape], [parse_rate(a.rate or "1gbit")], a.collective or ["all_reduce"], a.sizes or SIZES)
