"""``python -m collectives.bench``: every rank of the job runs `main`; rank 0 prints.

Exit codes, on every rank: 0; 1 when a result was wrong or a rank failed; 2 when what was asked for is not possible;
130 after Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core
from .._distribution import library_version
from .._startup import joined
from .._startup.say import say
from .._world import init
from ..communicator import Communicator
from ..errors import CollectivesError
from ..launch.spawn import spawn
from . import dtypes, place, report
from .calls import COLLECTIVES
from .measure import Bench, Row, needed
from .options import PROG, START_SEVERAL, BadUsageError, Options, parse, usage
from .text import format_size

FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130


@dataclass(frozen=True)
class Problem:
    """Why nothing can be measured, and the exit code for that."""

    text: str
    code: int = BAD_USAGE


@dataclass(frozen=True)
class Rank:
    """What a rank tells the others before anything is measured."""

    options: Options | None
    problem: Problem | None
    host: str
    needed: int
    available: int | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the bench with the given arguments (``sys.argv[1:]`` by default) and returns the exit code."""
    options: Options | None = None
    problem: Problem | None = None
    try:
        options = parse(arguments)
    except BadUsageError as error:
        problem = Problem(str(error))
    try:
        # Also with a bad command line: rank 0 alone is to say what is wrong with it.
        comm = init(**_settings(options))
        if comm.size == 1 and options is not None and options.ranks is not None:
            comm.close()
            return _start_ranks(options, options.ranks)
        with comm:
            return _run(comm, options, problem, place.started_by(comm.size))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, TypeError) as error:
        say(f"{PROG}: error: {error}" if problem is None else _as_usage(problem))
        return BAD_USAGE
    except (CollectivesError, OSError) as error:
        say(f"{PROG}: error: {type(error).__name__}: {error}")
        return problem.code if problem is not None else FAILED


def _settings(options: Options | None) -> dict[str, Any]:
    return {} if options is None else {"transport": options.transport, "timeout": options.timeout}


def _start_ranks(options: Options, ranks: int) -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # nothing that is measured uses OpenMP
    return max(spawn(_rank, ranks, (options,), **_settings(options)))


def _rank(comm: Communicator, options: Options) -> int:
    """The main function of a rank that `_start_ranks` has started."""
    return _run(comm, options, None, f"--ranks {comm.size}")


def _run(comm: Communicator, options: Options | None, problem: Problem | None, started_by: str) -> int:
    """Measures on this rank, unless a rank says that it cannot be."""
    needs = 0
    if options is not None:
        problem = _impossible(comm, options, started_by)
        needs = sum(needed(options, comm.rank, comm.size))
    mine = Rank(options, problem, socket.gethostname(), needs, place.memory_available())
    ranks: list[Rank] = comm.all_gather_object(mine)
    problem = _first_problem(ranks) or _too_much(ranks)
    bench: Bench | None = None
    if problem is None:
        assert options is not None
        failure = ""
        try:
            bench = Bench(comm, options)
        except MemoryError:
            failure = f"rank {comm.rank} on {mine.host} asked for {needs} bytes of memory and did not get them"
        failures = [text for text in comm.all_gather_object(failure) if text]
        problem = Problem(f"{failures[0]}; give a smaller --maxbytes", FAILED) if failures else None
    if problem is not None:
        if comm.rank == 0:
            say(_as_usage(problem) if problem.code == BAD_USAGE else f"{PROG}: error: {problem.text}")
        comm.barrier()  # a launcher ends the others once one has failed, and rank 0 could not say it
        return problem.code
    assert options is not None
    assert bench is not None
    return _measure(comm, options, bench, _circumstances(comm, [rank.host for rank in ranks], started_by))


def _measure(comm: Communicator, options: Options, bench: Bench, circumstances: dict[str, Any]) -> int:
    leads = comm.rank == 0
    table = report.Table(options.percentiles)
    if leads:
        print(report.about(options, circumstances))
        if comm.size == 1:
            print(f"# The world has one rank, so nothing moves between ranks. To start several: {START_SEVERAL}\n#")
        print(table.head(), flush=True)
    rows: list[Row] = []
    stopped = False
    with _Stop(comm) as stop:
        for row in bench.rows():
            rows.append(row)
            if leads:
                print(table.line(row), flush=True)
            if stopped := stop.asked():
                break
    if leads:
        if stopped:
            print("# interrupted")
        if bench.disturbed and comm.local_size <= len(os.sched_getaffinity(0)):
            print("# Other programs ran on the core of rank 0: these times are too long")
        print(report.summary(rows), flush=True)
        if options.json is not None:
            report.save(options.json, options, circumstances, rows)
    if stopped:
        return INTERRUPTED
    return FAILED if report.wrong(rows) else 0


class _Stop:
    """While inside, Ctrl-C only asks for the end, and all ranks end together after a row; pressed again it raises."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._mine = np.zeros(1, np.int8)
        # Left alone where Ctrl-C is ignored: in processes whose parent ends them, as those of `spawn`.
        self._handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def __enter__(self) -> _Stop:
        if self._handles:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, *_: object) -> None:
        self._mine[0] = 1
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def asked(self) -> bool:
        """Whether a rank was asked to end. All ranks call it."""
        return bool(self._comm.all_reduce(self._mine.copy(), "max")[0])


def _impossible(comm: Communicator, options: Options, started_by: str) -> Problem | None:
    """What only shows when the ranks are known."""
    kind = COLLECTIVES[options.collective]
    if options.ranks is not None and started_by != f"--ranks {comm.size}":
        return Problem(
            f"--ranks {options.ranks}: {started_by} has started {comm.size} ranks already; leave --ranks out"
        )
    if kind.rooted and options.root >= comm.size:
        return Problem(f"--root {options.root}: there are ranks 0 to {comm.size - 1}")
    if options.algorithm != "auto" and comm.size > 1:
        for name in options.types:
            reason = _core._unsupported(
                *(kind.name, options.algorithm, comm.size),
                dtype=dtypes.DTYPES[name].name,
                memory="private",
                hosts=_core._describe(comm)["host"],
                count=max(options.sizes) // dtypes.DTYPES[name].itemsize,
            )
            if reason:
                return Problem(f"--algorithm {options.algorithm} cannot be used here: {reason}")
    if options.json is not None and comm.rank == 0:
        folder = options.json.absolute().parent
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            return Problem(f"--json {options.json}: it cannot be written: no such folder, or no permission")
    return None


def _first_problem(ranks: list[Rank]) -> Problem | None:
    """What stops all ranks, the same on each."""
    texts = {theirs.problem.text for theirs in ranks if theirs.problem is not None}
    for rank, theirs in enumerate(ranks):
        if theirs.problem is not None:
            differs = len(texts) > 1 or ranks[0].problem is None
            return Problem(f"rank {rank}: {theirs.problem.text}") if differs else theirs.problem
    other = next((rank for rank, theirs in enumerate(ranks) if theirs.options != ranks[0].options), None)
    if other is not None:
        return Problem(f"rank {other} was started with other options than rank 0; give all ranks the same")
    return None


def _too_much(ranks: list[Rank]) -> Problem | None:
    """Whether the ranks of a host need more memory than it has: Linux would give it, and then kill one of them."""
    for host in dict.fromkeys(rank.host for rank in ranks):
        there = [rank for rank in ranks if rank.host == host]
        asked = sum(rank.needed for rank in there)
        available = min((rank.available for rank in there if rank.available is not None), default=None)
        if available is not None and asked > available:
            return Problem(
                f"the arrays of {len(there)} ranks on {host} need {asked} bytes of memory ({format_size(asked)}), and "
                f"{format_size(available)} are free; give a smaller --maxbytes",
                FAILED,
            )
    return None


def _circumstances(comm: Communicator, names: list[str], started_by: str) -> dict[str, Any]:
    hosts = _core._describe(comm)["host"]
    world = joined.current()
    asked = "auto" if world is None else world.environment.transport
    return {
        "version": library_version(),
        "isa": _core.isa(),
        "ranks": comm.size,
        "hosts": place.hosts_as_text(names),
        "transport": place.carrier(asked, hosts),
        "started_by": started_by,
    }


def _as_usage(problem: Problem) -> str:
    return f"{usage()}{PROG}: error: {problem.text}"
