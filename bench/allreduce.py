"""Measures collectives between real ranks of this machine.

    python bench/allreduce.py
    python bench/allreduce.py -n 4 --algorithm all --json out.json --plot out.png
    python bench/allreduce.py --vs openmpi,gloo
    python bench/allreduce.py --vs all --json out.json

This is the suite of the developers; `python -m collectives.bench` is for users: under any launcher, over hosts.

With several peers each has a run of its own, in which its blocks alternate with ours; ratios are within these runs.

The median and the 99th percentile are over calls (below 8 KiB: over batches of 50 calls), a call taking as long as on
the slowest rank. algbw is bytes over time, busbw what nccl-tests calls so. Results are checked against a model in
float64; `wrong` counts the elements, over all ranks, that are not what they should be. Exit codes: 0, 1 when a rank
failed or anything was wrong, 2 when what was asked for is not possible.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import about
import cases
import collectives
import limit
import options
import peers
import plot
import ranks
import suite
import table
import timed
from cases import LIMIT, BadRequestError, Config
from collectives import _core
from collectives.bench.sizes import size_range
from table import Row

TOTAL = 20.0  # seconds of measuring, shared by all rows, when no duration is given
LONGEST, SHORTEST = 1.5, 0.1  # of a row
SECTION_DURATION = 0.5  # of a row of the suite: long enough to see most placements of the cores
Run = tuple[Config, Path | None]  # with the environment of its peer


def main() -> int:
    """The command line."""
    parser = options.parser(__doc__ or "")
    arguments = parser.parse_args()
    try:
        _check_outputs(arguments)
        plan = _plan(arguments)
        rows: list[Row] = []
        versions: dict[str, str] = {}
        for section, runs in plan:
            _print_head(runs[0][0], section)
            for config, environment in runs:
                try:
                    rows += _measure(config, environment, section, arguments.tries, versions)
                except ranks.LaunchError as error:
                    if len(plan) == 1:
                        raise
                    # A peer that fails must not destroy the results of the others.
                    print(f"# not measured: {config.peer}: {error}", flush=True)
            if len(runs) > 1:
                print(f"\n{table.best_as_text([row for row in rows if row['section'] == section])}\n")
    except (BadRequestError, plot.NoPlotError, peers.PeerMissingError) as error:
        parser.error(str(error))
    except (collectives.CollectivesError, ranks.LaunchError, MemoryError) as error:
        print(f"{parser.prog}: error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    _save(rows, versions, plan[0][1][0][0], arguments)
    if len(plan) > 1:
        print(f"\n{suite.aims_as_text(rows)}\n{suite.doubts_as_text(rows)}")
    first = plan[0][0]
    print(f"\n{table.summary([row for row in rows if row['section'] == first], plan[0][1][0][0])}")
    return 1 if table.total_wrong(rows) else 0


def _measure(config: Config, environment: Path | None, section: str, tries: int, versions: dict[str, str]) -> list[Row]:
    """The rows of one run, or of up to `tries` runs, until the cores were both near each other and far."""
    rows: list[Row] = []
    for _ in range(tries):
        try:
            report = ranks.run(config, environment)
        except ranks.LaunchError as error:
            if not rows:
                raise
            print(f"# not measured again: {config.peer}: {error}", flush=True)
            break
        versions |= report["versions"]
        again = [row | {"against": config.peer, "section": section} for row in report["rows"]]
        rows = suite.with_more(rows, again, config.peer) if rows else again
        _print_report(report, config)
        if not config.peer or not suite.one_placement_only(rows, config.peer):
            break
    return rows


def _save(rows: list[Row], versions: dict[str, str], config: Config, arguments: argparse.Namespace) -> None:
    if arguments.json:
        arguments.json.write_text(about.as_json(about.this_run(versions), rows), encoding="utf-8")
    if arguments.plot:
        # Ours was measured against each peer; one line is enough.
        first = [row for row in rows if row["section"] == rows[0]["section"]]
        plot.save([row for row in first if row["peer"] or row["against"] == config.peer], config, arguments.plot)


def _print_report(report: dict[str, Any], config: Config) -> None:
    print(table.rows_as_text(report, config))
    if config.peer == LIMIT:
        print(f"\n{limit.as_text(report['rows'])}\n", flush=True)
    elif config.peer:
        print(f"\n{table.versus_as_text(report['rows'], config.peer)}\n", flush=True)


def _plan(arguments: argparse.Namespace) -> list[tuple[str, list[Run]]]:
    """What to measure: sections by title, each with its runs. Raises BadRequestError, PeerMissingError."""
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    shape = sorted(given.keys() & options.DEFAULTS.keys())
    filled = vars(arguments) | options.DEFAULTS | given
    whole = [peer for peer, _, wanted in arguments.vs if not wanted] and not shape
    if arguments.section and shape:
        raise BadRequestError(f"--section says what to measure, and so does --{shape[0]}; only one of them can")
    if not whole and not arguments.section:
        a = argparse.Namespace(**filled)
        try:
            a.sizes = size_range(a.begin, a.end, a.factor)
        except ValueError as error:
            raise BadRequestError(str(error)) from None
        return [("", _configure(a))]
    plan = []
    for name in arguments.section or suite.SECTIONS:
        section = suite.SECTIONS[name]
        a = argparse.Namespace(**(filled | section.options()))
        a.duration = a.duration or SECTION_DURATION
        if section.tensors > 1:
            a.vs = []  # no peer supports lists
        plan.append((section.title, _configure(a)))
    return plan


def _configure(a: argparse.Namespace) -> list[Run]:
    """The runs, each with the environment of its peer."""
    sizes = a.sizes
    everything = [str(known["name"]) for known in _core._algorithms(a.collective)]
    names = everything if a.algorithm == "all" else list(dict.fromkeys(a.algorithm.split(",")))
    for name in names:
        if name not in (*everything, "auto"):
            raise BadRequestError(
                f"argument --algorithm: {name!r} is no algorithm of {a.collective}; there are all, auto, "
                + ", ".join(everything)
            )
    if a.op == "avg" and cases.DTYPES[a.dtype].kind in "iub" and a.collective in cases.REDUCING:
        raise BadRequestError(f"--op avg needs floats, not {a.dtype}")
    if a.memory == "symmetric" and a.transport == "tcp":
        raise BadRequestError("--memory symmetric needs ranks that share memory; over tcp they do not")
    if a.collective in cases.PARTS and (a.memory == "symmetric" or a.tensors > 1):
        raise BadRequestError(
            f"{a.collective} is measured with one ordinary array; --memory and --tensors are not for it"
        )
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
    """Raises before measuring if a file cannot be written."""
    for path in (arguments.json, arguments.plot):
        if path is not None and not (path.absolute().parent.is_dir() and os.access(path.absolute().parent, os.W_OK)):
            raise BadRequestError(f"{path} cannot be written: no such folder, or no permission")


def _print_head(config: Config, section: str) -> None:
    if section:
        print(f"\n## {section}\n")
    print(about.first_line())
    print(
        f"# {config.collective}, {config.ranks} ranks, transport {config.transport}, {config.memory} memory, "
        f"{config.duration:.2g} s per row",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
