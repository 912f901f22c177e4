"""The command ``collectives``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence

from .._startup.say import say
from .._startup.settings import TRANSPORTS
from ._guardian import guarded
from ._process import exit_codes_are_kept
from .info import format_info, info
from .local import run_local


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with the given arguments (``sys.argv[1:]`` by default) and returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "info":
        found = info()
        print(json.dumps(found, indent=2) if options.json else format_info(found))
        return 0
    try:
        with exit_codes_are_kept():
            return guarded(lambda front_gone: _run(options, front_gone), options.grace)
    except OSError as error:
        say(f"collectives run: {error.strerror or error}")
        return 126


def _run(options: argparse.Namespace, front_gone: int) -> int:
    try:
        command = _command(options.program, options.arguments, options.module)
        return run_local(
            command,
            options.ranks,
            transport=options.transport,
            timeout=options.timeout,
            grace=options.grace,
            keep_going=options.keep_going,
            front_gone=front_gone,
        )
    except OSError as error:
        say(f"collectives run: cannot start {options.program!r}: {error.strerror or error}")
        return 127 if isinstance(error, FileNotFoundError) else 126


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="collectives", description="Collective communication between processes.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{run,info}")
    run = commands.add_parser(
        "run",
        help="run a program as several ranks on this host",
        usage="%(prog)s [-h] [-n RANKS] [--transport T] [--timeout S] [--grace S] [--keep-going] [-m] "
        "program [arguments ...]",
        description="Runs a program as several ranks on this host: a .py file or (-m) a module by this Python, "
        "anything else as it is. Lines of output are prefixed by the rank. When one rank fails, all are ended and its "
        "exit code is returned (128 + n for death by signal n).",
        allow_abbrev=False,
    )
    run.add_argument("-n", dest="ranks", metavar="RANKS", type=_count, default=1, help="number of ranks (default 1)")
    run.add_argument("--transport", choices=TRANSPORTS, help="what carries the data (default auto)")
    run.add_argument("--timeout", type=_seconds, metavar="S", help="seconds a start or a collective may take")
    run.add_argument(
        "--grace", type=_seconds, default=5.0, metavar="S", help="seconds between SIGTERM and SIGKILL (default 5)"
    )
    run.add_argument(
        "--keep-going", action="store_true", help="when a rank fails the others go on, for programs that use shrink()"
    )
    run.add_argument("-m", dest="module", action="store_true", help="the program is the name of a Python module")
    run.add_argument("program", help="what to run")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments, passed on as they are")
    information = commands.add_parser("info", help="print version, transports, and what was found on this machine")
    information.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks from 1 to 4096")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds


def _command(program: str, arguments: list[str], module: bool) -> list[str]:
    """What to execute. Raises ``FileNotFoundError``."""
    if module:
        return [sys.executable, "-m", program, *arguments]
    if program.endswith((".py", ".pyz")):
        if not os.path.exists(program):
            raise FileNotFoundError(2, "no such file")
        return [sys.executable, program, *arguments]
    found = shutil.which(program)
    if found is None:
        reason = "it is not executable" if os.path.exists(program) else "no such file, and no such command in PATH"
        raise (PermissionError if os.path.exists(program) else FileNotFoundError)(2, reason)
    return [found, *arguments]
