"""The command line: options as nccl-tests has them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from .._distribution import library_version
from .._startup.settings import TRANSPORTS
from . import dtypes
from .arguments import checked, number_above, whole_number
from .calls import COLLECTIVES
from .sizes import parse_size, size_range

PROG = "collectives.bench"
AVERAGES = ("rank 0", "average", "least", "most")  # by the number of --average
START_SEVERAL = "collectives run -n 2 -m collectives.bench (or with --ranks 2, or under torchrun)"

# Options of nccl-tests that do not apply, and what to do instead.
_PROCESSES = (
    "a rank is a process here, with arrays in the memory of its host. Leave it out, and start as many ranks as you "
    f"want: {START_SEVERAL}"
)
_NOT_HERE: dict[tuple[str, ...], str] = {
    ("-g", "--ngpus"): _PROCESSES,
    ("-t", "--nthreads"): _PROCESSES,
    ("-m", "--agg_iters"): "calls are not aggregated; -z 0 has all of them in flight at once",
    **dict.fromkeys(
        (("-p", "--parallel_init"), ("-C", "--report_cputime"), ("-G", "--cudagraph"), ("-R", "--local_register")),
        "it is about GPUs; leave it out",
    ),
}
_EPILOG = """
Sizes are those of nccl-tests: of the array of each rank, and for all_gather, reduce_scatter, all_to_all, gather and
scatter of the whole array, of which each rank has one of n parts. They are rounded down to whole elements, and there to
whole elements in each part; sizes that become equal are measured once. docs/bench.md explains the columns.
"""


class BadUsageError(ValueError):
    """What was asked for is not possible; the text says why, and what is."""


@dataclass(frozen=True)
class Options:
    """What is measured, and how.

    Attributes:
        sizes: in bytes, before they are rounded down.
        kinds: types by their names in tables, each with an operation, "none" for collectives that do not reduce.
        left_out: pairs of those that were asked for which do not exist.
        algorithm: "auto" or the name of one.
        timeout: seconds that starting and each collective may take; None: those of ``init``.
        ranks: how many to start on this host; None: this process is one of them.
    """

    collective: str
    sizes: tuple[int, ...]
    iters: int
    warmup_iters: int
    kinds: tuple[tuple[str, str], ...]
    left_out: tuple[tuple[str, str], ...]
    root: int
    check: bool
    blocking: bool
    average: int
    percentiles: bool
    algorithm: str
    transport: str | None
    timeout: float | None
    ranks: int | None
    json: Path | None

    @property
    def types(self) -> tuple[str, ...]:
        """Those of `kinds`, each once."""
        return tuple(dict.fromkeys(name for name, _ in self.kinds))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raises instead of ending this process: the other ranks have to hear of it first."""
        raise BadUsageError(message)


class _NotHere(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        names = tuple(self.option_strings)
        parser.error(f"{'/'.join(names)} of nccl-tests does not apply: {_NOT_HERE[names]}")


def usage() -> str:
    """The summary of the options, which goes before an error."""
    return _parser().format_usage()


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The options of a command line, ``sys.argv[1:]`` by default.

    Raises:
        BadUsageError: they are not acceptable.
        SystemExit: the help or the version was asked for, and has been printed.
    """
    given = _parser().parse_args(arguments)
    kind = COLLECTIVES[given.collective]
    try:
        sizes = size_range(given.minbytes, given.maxbytes, given.stepfactor, given.stepbytes or 0)
    except ValueError as error:
        raise BadUsageError(str(error)) from None
    types = tuple(dtypes.DTYPES) if given.datatype == "all" else (given.datatype,)
    ops = ("none",) if not kind.reduces else dtypes.OPS if given.op == "all" else (given.op,)
    reasons = {(name, op): dtypes.refusal(op, dtypes.DTYPES[name]) for name in types for op in ops}
    if all(reasons.values()):
        raise BadUsageError(f"--op {given.op} --datatype {given.datatype}: {next(iter(reasons.values()))}")
    if given.algorithm != "auto" and given.algorithm not in kind.algorithms():
        known = ", ".join(("auto", *kind.algorithms()))
        raise BadUsageError(f"--algorithm {given.algorithm!r} is none of {kind.name}; there are {known}")
    return Options(
        collective=kind.name,
        sizes=sizes,
        iters=given.iters,
        warmup_iters=given.warmup_iters,
        kinds=tuple(pair for pair, reason in reasons.items() if not reason),
        left_out=tuple(pair for pair, reason in reasons.items() if reason),
        root=given.root,
        check=bool(given.check),
        blocking=bool(given.blocking),
        average=given.average,
        percentiles=given.percentiles,
        algorithm=given.algorithm,
        transport=given.transport,
        timeout=given.timeout,
        ranks=given.ranks,
        json=given.json,
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROG,
        usage=f"{START_SEVERAL.partition(' (')[0]} [COLLECTIVE] [options]",
        description="Measures a collective between the ranks of this job, with the options and columns of nccl-tests.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "collective",
        nargs="?",
        type=_collective,
        default="all_reduce",
        metavar="COLLECTIVE",
        help=f"what is measured: {', '.join(COLLECTIVES)} (default all_reduce)",
    )
    size, whole, least_one = checked(parse_size), whole_number(0), whole_number(1)
    add("-b", "--minbytes", type=size, default=8, metavar="SIZE", help="smallest size, as 8, 1K, 4M or 1G (default 8)")
    add("-e", "--maxbytes", type=size, default=128 << 20, metavar="SIZE", help="largest size (default 128M)")
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument(
        "-f", "--stepfactor", type=number_above(0), default=2.0, metavar="F", help="from size to size (2)"
    )
    steps.add_argument("-i", "--stepbytes", type=size, metavar="SIZE", help="added from size to size, in place of -f")
    add("-n", "--iters", type=least_one, default=20, metavar="N", help="calls that are timed together (default 20)")
    add("-w", "--warmup_iters", type=whole, default=5, metavar="N", help="calls before them, not timed (default 5)")
    add("-o", "--op", choices=(*dtypes.OPS, "all"), default="sum", help="of reductions (default sum)")
    add("-d", "--datatype", type=_datatype, default="float", metavar="TYPE", help=f"all, {', '.join(dtypes.DTYPES)}")
    add("-r", "--root", type=whole, default=0, metavar="RANK", help="of collectives that have one (default 0)")
    add("-c", "--check", type=int, choices=(0, 1), default=1, help="whether results are checked (default 1)")
    add("-z", "--blocking", type=int, choices=(0, 1), default=1, help="1 (default): wait for each call; 0: for all")
    add(
        "-a",
        "--average",
        type=int,
        choices=(0, 1, 2, 3),
        default=1,
        help="which time counts: 0 rank 0's, 1 the average of all ranks (default), 2 the least, 3 the most",
    )
    add("--percentiles", action="store_true", help="also time each call, and show the median and the 99th percentile")
    add("--algorithm", default="auto", metavar="NAME", help="that of the library (default auto; see collectives info)")
    add("--transport", choices=TRANSPORTS, help="what carries the data (default: as the launcher says, else auto)")
    add("-T", "--timeout", type=number_above(0), metavar="S", help="seconds that starting and each call may take")
    add("--ranks", type=least_one, metavar="N", help="start so many ranks on this host, without a launcher")
    add("--json", "-J", type=Path, metavar="FILE", help="write rows and circumstances there, by rank 0")
    add("--version", action="version", version=f"collectives {library_version()}")
    for names in _NOT_HERE:
        add(*names, action=_NotHere, help=argparse.SUPPRESS)
    return parser


def _collective(text: str) -> str:
    if text not in COLLECTIVES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no collective, nor the value of an option that is known; there are {', '.join(COLLECTIVES)}"
        )
    return text


def _datatype(text: str) -> str:
    try:
        return text if text == "all" else dtypes.find(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
