"""Measures collectives between real ranks of this machine.

    python bench/allreduce.py
    python bench/allreduce.py -n 4 --algorithm all --json out.json --plot out.png
    python bench/allreduce.py --vs openmpi,gloo

With several peers each has a run of its own, in which its blocks alternate with ours; ratios are within these runs.

The median and the 99th percentile are over calls (below 8 KiB: over batches of 50 calls), a call taking as long as on
the slowest rank. algbw is bytes over time, busbw what nccl-tests calls so. Results are checked against a model in
float64; `wrong` counts the elements, over all ranks, that are not what they should be. Exit codes: 0, 1 when a rank
failed or anything was wrong, 2 when what was asked for is not possible.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import cases
import collectives
import peers
import plot
import ranks
import table
import timed
from cases import BadRequestError, Config
from collectives import _core

TOTAL = 20.0  # seconds of measuring, shared by all rows, when no duration is given
LONGEST, SHORTEST = 1.5, 0.1  # of a row
MAX_RANKS = 1024
MAX_TENSORS = 1 << 20


def main() -> int:
    """The command line."""
    parser = _parser()
    arguments = parser.parse_args()
    try:
        runs = _configure(arguments)
        _check_outputs(arguments)
        _print_head(runs[0][0])
        rows: list[dict[str, object]] = []
        for config, environment in runs:
            report = ranks.run(config, environment)
            rows += [row | {"against": config.peer} for row in report["rows"]]
            _print_report(report, config)
    except (BadRequestError, plot.NoPlotError, peers.PeerMissingError) as error:
        parser.error(str(error))
    except (collectives.CollectivesError, ranks.LaunchError, MemoryError) as error:
        print(f"{parser.prog}: error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    config = runs[0][0]
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if arguments.plot:
        # Ours was measured against each peer; one line says enough.
        plot.save([row for row in rows if row["peer"] or row["against"] == config.peer], config, arguments.plot)
    if len(runs) > 1:
        print(f"\n{table.best_as_text(rows)}")
    print(f"\n{table.summary(rows, config)}")
    return 1 if table.total_wrong(rows) else 0


def _print_report(report: dict[str, Any], config: Config) -> None:
    print(table.rows_as_text(report, config))
    if config.peer:
        print(f"\n{table.versus_as_text(report['rows'], config.peer)}\n", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/allreduce.py",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
        epilog="The cores' placement (smt, near, far) is probed, and reported apart.",
    )
    add = parser.add_argument
    add("-n", "--ranks", type=_ranks, default=2, help="number of ranks (default 2)")
    add("-b", "--begin", type=_size, default=8, metavar="SIZE", help="smallest size, as 8, 1K, 4M or 1G (default 8)")
    add("-e", "--end", type=_size, default=64 << 20, metavar="SIZE", help="largest size (default 64M)")
    add("-f", "--factor", type=_factor, default=2.0, help="between one size and the next (default 2)")
    add("--collective", choices=cases.COLLECTIVES, default="all_reduce")
    add("--algorithm", default="auto", metavar="NAME[,NAME]|all|auto", help="default auto; all: every one that applies")
    add("--transport", choices=("local", "shm", "tcp", "auto"), default="auto", help="local: threads of one process")
    add("--memory", choices=("private", "symmetric"), default="private", help="ordinary arrays, or comm.empty()")
    add("--dtype", choices=tuple(cases.DTYPES), default="float32", metavar="TYPE", help=", ".join(cases.DTYPES))
    add("--op", choices=cases.OPS, default="sum")
    add("--level", choices=(*timed.LEVELS, "both"), help="who calls: Python (default), C, or both (default with --vs)")
    add("--tensors", type=_tensors, default=1, metavar="N", help="measure lists of N tensors in one call as well")
    add("--check", action=argparse.BooleanOptionalAction, default=True, help="check results (default)")
    add("--timeout", type=_seconds, default=120.0, help="seconds that starting, and each collective, may take")
    add("--duration", type=_seconds, help="seconds of measuring per size and algorithm (default: 20 for all rows)")
    add(
        "--vs",
        type=_peers,
        default=[],
        metavar="PEER[=DIR][,PEER...]|all",
        help=f"measure against peers: {', '.join(peers.names())}; all: those that are installed",
    )
    add("--seed", type=int, default=1, help="of the random inputs")
    add("--json", type=Path, metavar="FILE", help="write the rows there")
    add("--plot", type=Path, metavar="FILE", help="draw bandwidth and latency against size (needs matplotlib)")
    return parser


def _configure(arguments: argparse.Namespace) -> list[tuple[Config, Path | None]]:
    """The runs, each with the environment of its peer. Raises BadRequestError, PeerMissingError."""
    a = arguments
    try:
        sizes = cases.size_range(a.begin, a.end, a.factor)
    except ValueError as error:
        raise BadRequestError(str(error)) from None
    everything = [str(known["name"]) for known in _core._algorithms(a.collective)]
    names = everything if a.algorithm == "all" else list(dict.fromkeys(a.algorithm.split(",")))
    for name in names:
        if name not in (*everything, "auto"):
            raise BadRequestError(
                f"argument --algorithm: {name!r} is no algorithm of {a.collective}; there are all, auto, "
                + ", ".join(everything)
            )
    if a.op == "avg" and cases.DTYPES[a.dtype].kind in "iub" and a.collective in ("all_reduce", "reduce"):
        raise BadRequestError(f"--op avg needs floats, not {a.dtype}")
    if a.memory == "symmetric" and a.transport == "tcp":
        raise BadRequestError("--memory symmetric needs ranks that share memory; over tcp they do not")
    levels = timed.LEVELS if (a.level or "both") == "both" and (a.vs or a.level) else (a.level or "python",)
    config = Config(
        collective=a.collective,
        algorithms=tuple(names),
        every_algorithm=a.algorithm == "all",
        sizes=sizes,
        ranks=a.ranks,
        transport=a.transport,
        memory=a.memory,
        dtype=a.dtype,
        op=a.op,
        check=a.check,
        timeout=a.timeout,
        duration=a.duration or _default_duration(len(sizes) * len(names) * len(levels) * 2 * max(0.5, len(a.vs))),
        seed=a.seed,
        levels=levels,
        tensors=a.tensors,
    )
    if a.plot:
        plot.check_possible(a.plot)
    if not a.vs:
        return [(config, None)]
    if a.transport == "local":
        raise BadRequestError("--vs needs processes; --transport local makes threads")
    runs: list[tuple[Config, Path | None]] = []
    reasons = []
    for name, directory, wanted in a.vs:
        peer = peers.load(name)
        shared = tuple(level for level in config.levels if level in peer.LEVELS)
        reason = peer.unsupported(config) if shared else f"it is measured at level {' and '.join(peer.LEVELS)} only"
        if reason:
            reasons.append(f"--vs {name}: {reason}")
            if wanted:
                raise BadRequestError(reasons[-1])
            continue
        try:
            environment = peer.locate(directory)
        except peers.PeerMissingError as error:
            if wanted:
                raise
            reasons.append(str(error))
            continue
        runs.append((dataclasses.replace(config, peer=name, levels=shared), environment))
    if not runs:
        raise BadRequestError("; ".join(reasons))
    for reason in reasons:
        print(f"# not measured: {reason}")
    return runs


def _default_duration(rows: int) -> float:
    return min(LONGEST, max(SHORTEST, TOTAL / rows))


def _check_outputs(arguments: argparse.Namespace) -> None:
    """That files can be written is better known before measuring."""
    for path in (arguments.json, arguments.plot):
        if path is not None and not (path.absolute().parent.is_dir() and os.access(path.absolute().parent, os.W_OK)):
            raise BadRequestError(f"{path} cannot be written: no such folder, or no permission")


def _print_head(config: Config) -> None:
    where = Path(collectives.__file__).parent
    print(f"# collectives {collectives.__version__} from {where}, {_core.isa()}; {plot.machine()}")
    print(
        f"# {config.collective}, {config.ranks} ranks, transport {config.transport}, {config.memory} memory, "
        f"{config.duration:.2g} s per row",
        flush=True,
    )


def _ranks(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= MAX_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r} ranks; a number from 1 to {MAX_RANKS} is accepted")
    return number


def _tensors(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= MAX_TENSORS:
        raise argparse.ArgumentTypeError(f"{text!r} tensors; a number from 1 to {MAX_TENSORS} is accepted")
    return number


def _size(text: str) -> int:
    try:
        return cases.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not (math.isfinite(factor) and factor > 1):
        raise argparse.ArgumentTypeError(f"{text!r}; a number above 1 is accepted")
    return factor


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"{text!r}; a positive number of seconds is accepted")
    return seconds


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


if __name__ == "__main__":
    sys.exit(main())
