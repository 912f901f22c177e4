"""The command ``collectives``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from .._distribution import library_version
from .._startup.say import say
from .._startup.settings import TRANSPORTS, address
from ._binding import CHOICES
from ._guardian import guarded
from ._hostlist import Place, read_hostfile, read_hosts
from ._hostlist import places as places_of
from ._output import Printing
from ._process import exit_codes_are_kept
from ._program import command_of, exit_code_of
from .hosts import HostsOptions, run_hosts
from .info import format_info, info
from .local import run_local

# No terminal, and no question that nobody could answer.
RSH = ["ssh", "-T", "-o", "BatchMode=yes"]
SILENCE = 30.0  # seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with the given arguments (``sys.argv[1:]`` by default) and returns its exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "info":
        found = info()
        print(json.dumps(found, indent=2) if options.json else format_info(found))
        return 0
    if options.command == "tune":
        return _tune(options)
    try:
        places = _places(options)
    except (OSError, ValueError) as error:
        options.fail(str(error))
    try:
        with exit_codes_are_kept():
            return guarded(lambda front_gone: _checked_run(options, places, front_gone), options.grace)
    except OSError as error:
        say(f"collectives run: {error.strerror or error}")
        return 126


def _tune(options: argparse.Namespace) -> int:
    from .tune import tune  # here, since it loads NumPy, which `collectives run` need not

    output = None if options.output is None else Path(options.output)
    try:
        tune(output, options.ranks, options.seconds, lambda line: print(line, flush=True))
    except OSError as error:
        say(f"collectives tune: {error}")
        return 1
    return 0


def _places(options: argparse.Namespace) -> list[Place] | None:
    """The ranks of each host; None: this host. Raises ``OSError`` and ``ValueError`` for bad options."""
    if options.hosts is not None and options.hostfile is not None:
        raise ValueError("--hosts and --hostfile are both given; give one")
    if options.hosts is None and options.hostfile is None:
        for name in ("rsh", "python", "rendezvous", "host_timeout"):
            if getattr(options, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} is for several hosts; give --hosts or --hostfile, too")
        if options.ranks is not None and options.per_host is not None:
            raise ValueError("-n and --nproc-per-node are both given; on one host they mean the same")
        return None
    slots = options.per_host or 1
    if options.hosts is not None:
        return places_of(read_hosts(options.hosts, slots), options.ranks)
    return places_of(read_hostfile(options.hostfile, slots), options.ranks)


def _checked_run(options: argparse.Namespace, places: list[Place] | None, front_gone: int) -> int:
    try:
        return _run(options, places, front_gone)
    except ValueError as error:  # an option that turns out to be wrong
        say(f"collectives run: {error}")
        return 2


def _run(options: argparse.Namespace, places: list[Place] | None, front_gone: int) -> int:
    printing = Printing(options.prefix, None if options.log_dir is None else Path(options.log_dir))
    shared = {name: getattr(options, name) for name in ("transport", "timeout", "grace", "keep_going", "bind")}
    if places is not None:
        try:
            return run_hosts(
                places,
                options.program,
                options.arguments,
                options.module,
                HostsOptions(
                    rsh=options.rsh or RSH,
                    python=options.python or sys.executable,
                    rendezvous=options.rendezvous,
                    silence=options.host_timeout or SILENCE,
                    printing=printing,
                    **shared,
                ),
                front_gone,
            )
        except OSError as error:
            say(f"collectives run: {error.strerror or error}")
            return exit_code_of(error)
    try:
        command = command_of(options.program, options.arguments, options.module)
        ranks = options.ranks or options.per_host or 1
        return run_local(command, ranks, printing=printing, front_gone=front_gone, **shared)
    except OSError as error:
        say(f"collectives run: cannot start {options.program!r}: {error.strerror or error}")
        return exit_code_of(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="collectives", description="Collective communication between processes.")
    version = f"collectives {library_version()}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="{run,info,tune}")
    run = commands.add_parser(
        "run",
        help="run a program as several ranks on this host or on others",
        usage="%(prog)s [options] [-m] program [arguments ...]",
        description="Runs a program as several ranks, on this host or by ssh on others: a .py file or (-m) a module by "
        "Python, anything else as it is. Lines of output are prefixed by the rank. When one rank fails, all are ended "
        "and its exit code is returned (128 + n for death by signal n).",
        allow_abbrev=False,
    )
    run.set_defaults(fail=run.error)
    run.add_argument("--version", action="version", version=version)
    run.add_argument(
        "-n",
        "-np",
        dest="ranks",
        metavar="RANKS",
        type=_count,
        help="number of ranks (default 1; on several hosts as many as they have slots)",
    )
    run.add_argument(
        "--nproc-per-node",
        dest="per_host",
        metavar="N",
        type=_count,
        help="ranks of each host that does not say how many slots it has (default 1)",
    )
    _add_options_of_hosts(run)
    run.add_argument("--transport", choices=TRANSPORTS, help="what carries the data (default auto)")
    run.add_argument("--timeout", type=_seconds, metavar="S", help="seconds a start or a collective may take")
    run.add_argument(
        "--grace", type=_seconds, default=5.0, metavar="S", help="seconds between SIGTERM and SIGKILL (default 5)"
    )
    run.add_argument(
        "--keep-going", action="store_true", help="when a rank fails the others go on, for programs that use shrink()"
    )
    run.add_argument(
        "--bind",
        choices=CHOICES,
        default="none",
        help="core: each rank runs on its share of the cores of its host; socket: on those of a socket (default none)",
    )
    run.add_argument(
        "--no-prefix", dest="prefix", action="store_false", help="print lines without the number of their rank"
    )
    run.add_argument(
        "--log-dir", metavar="DIR", help="also write what each rank prints to DIR/rank-N.out and DIR/rank-N.err"
    )
    run.add_argument("-m", dest="module", action="store_true", help="the program is the name of a Python module")
    run.add_argument("program", help="what to run")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments, passed on as they are")
    information = commands.add_parser("info", help="print version, transports, and what was found on this machine")
    information.add_argument("--json", action="store_true", help="print JSON")
    _add_tune(
        commands.add_parser(
            "tune",
            help="measure this machine, and write what was found to a file that COLLECTIVES_PROFILE can name",
            description="Measures by small jobs what the choice of algorithms counts with, and compares algorithms "
            "with the choice, in under a minute. Ranks use the file only where COLLECTIVES_PROFILE names it.",
        )
    )
    return parser


def _add_tune(tune: argparse.ArgumentParser) -> None:
    tune.add_argument(
        "--output",
        metavar="FILE",
        help="the file to write (default $XDG_CONFIG_HOME/collectives/profile.json, else below ~/.config)",
    )
    tune.add_argument(
        "--ranks",
        metavar="N",
        type=_ranks_of_tune,
        help="ranks of the job in which algorithms are compared (default one for each core, from 2 to 8)",
    )
    tune.add_argument(
        "--seconds", metavar="S", type=_seconds, default=40.0, help="that measurements may take (default 40)"
    )


def _add_options_of_hosts(run: argparse.ArgumentParser) -> None:
    run.add_argument("--hosts", metavar="A,B:4", help="hosts, each with its slots (default 1), filled in order")
    run.add_argument("--hostfile", metavar="FILE", help="the same from a file: a host a line, as A, B:4 or B slots=4")
    run.add_argument(
        "--rsh",
        metavar="COMMAND",
        type=_words,
        help=f"what runs a command on a host, put before the host's name (default {shlex.join(RSH)})",
    )
    run.add_argument("--python", metavar="PATH", help="Python on the hosts (default: the same path as here)")
    run.add_argument(
        "--rendezvous",
        metavar="HOST[:PORT]",
        type=_address,
        help="where rank 0 listens (default: an address of the first host that the others reach, any port)",
    )
    run.add_argument(
        "--host-timeout",
        metavar="S",
        type=_seconds,
        help=f"seconds without a word after which a host is lost (default {SILENCE:g})",
    )


def _words(text: str) -> list[str]:
    try:
        found = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be split into words: {error}") from None
    if not found:
        raise argparse.ArgumentTypeError("it is empty; a command is accepted, such as 'ssh -p 2222'")
    return found


def _address(text: str) -> tuple[str, int]:
    """(host, port), port 0 where none is given."""
    if text.startswith("[") and text.endswith("]"):
        return text[1:-1], 0
    if text and (":" not in text or (text.count(":") > 1 and "]" not in text)):
        return text, 0
    try:
        return address(text, "it")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks from 1 to 4096")
    return int(text)


def _ranks_of_tune(text: str) -> int:
    count = _count(text)
    if count < 2:
        raise argparse.ArgumentTypeError("one rank has nothing to choose between; at least 2 are accepted")
    return count


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds
