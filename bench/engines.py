"""Compares builds of this library: two ranks of each run at the same time, and are measured in blocks of 5 ms in turn.

    python bench/engines.py old/bin/python new/bin/python
    python bench/engines.py old/bin/python new/bin/python --collective broadcast -b 8 -e 1K -f 2

Each argument is the interpreter of an environment in which a build is installed, one with the functions for timing
that this one has. Neighbouring blocks find the machine in the same state. What is left to chance are the pages that
ranks get when they start, which can make a tenth between cores that share a cache; so all start several times. Give one
build twice to see what chance does. Calls are made from C++ as bench/allreduce.py makes them. Blocks count together
where all placement probes around them agree. Exit codes: 0, 1 when a rank failed, 2 when what was asked for is not
possible.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import table
from cases import COLLECTIVES
from collectives.bench.sizes import parse_size, size_range
from collectives.bench.text import format_size, number
from measure import BATCH, BATCH_BELOW, MOST_ITERATIONS
from placement import PLACEMENTS

BLOCK = 5e-3  # seconds
LEAST_PAIRS = 3  # of blocks, for a row
UNIT = 8  # bytes: sizes are multiples of an element for each of two ranks
Blocks = list[tuple[str, list[float]]]  # where the cores were, and the time of each build


class RankError(Exception):
    """A rank ended, or sent an unexpected answer."""


class Build:
    """The two ranks of one build."""

    def __init__(self, interpreter: str, transport: str) -> None:
        self.interpreter = interpreter
        self.us = 0.0  # of a call in the last block
        token = secrets.token_hex(32)
        listener = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        program = str(Path(__file__).with_name("engine_rank.py"))
        # Each environment has its own packages.
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        variables |= {"COLLECTIVES_TOKEN": token, "OMP_NUM_THREADS": "1"}
        of_first = {"COLLECTIVES_RENDEZVOUS_FD": str(listener.fileno())}
        self._ranks = [
            subprocess.Popen(
                [interpreter, program, str(rank), address, transport],
                env=variables | (of_first if rank == 0 else {}),
                pass_fds=[listener.fileno()] if rank == 0 else [],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        listener.close()

    def package(self) -> str:
        """The file of the package that the ranks use, once they have met. Raises RankError."""
        return str(self._answers()[0]["package"])

    def block(self, collective: str, nbytes: int, rounds: int, batch: int) -> set[str]:
        """Measures one block, and returns the placements that its ranks saw. Raises RankError."""
        order = json.dumps({"collective": collective, "bytes": nbytes, "rounds": rounds, "batch": batch})
        try:
            for rank in self._ranks:
                assert rank.stdin is not None
                rank.stdin.write(order + "\n")
                rank.stdin.flush()
        except OSError:
            raise RankError(f"a rank under {self.interpreter} has ended") from None
        answers = self._answers()
        self.us = max(answer["us"] for answer in answers)
        return {placement for answer in answers for placement in answer["placements"]}

    def _answers(self) -> list[dict[str, Any]]:
        answers = []
        for rank in self._ranks:
            assert rank.stdout is not None
            try:
                answers.append(json.loads(rank.stdout.readline()))
            except ValueError:
                raise RankError(f"a rank under {self.interpreter} has ended") from None
        return answers

    def close(self) -> None:
        """Ends the ranks."""
        for rank in self._ranks:
            assert rank.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the rank has ended
                rank.stdin.close()
        for rank in self._ranks:
            try:
                rank.wait(5)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()


def measure(builds: list[Build], collective: str, nbytes: int, duration: float) -> Blocks:
    """Blocks of all builds in turn, for so many seconds for each build."""
    batch = BATCH if nbytes < BATCH_BELOW else 1
    for _ in range(2):  # the first round is a warm-up
        for build in builds:
            build.block(collective, nbytes, 2, batch)
    blocks: Blocks = []
    end = time.monotonic() + duration * len(builds)
    while time.monotonic() < end or len(blocks) < LEAST_PAIRS:
        seen: set[str] = set()
        for build in builds if len(blocks) % 2 == 0 else reversed(builds):
            rounds = round(BLOCK * 1e6 / max(build.us, 1e-3) / batch)
            seen |= build.block(collective, nbytes, min(max(1, rounds), MOST_ITERATIONS), batch)
        blocks.append((seen.pop() if len(seen) == 1 else "mixed", [build.us for build in builds]))
    return blocks


def rows(nbytes: int, blocks: Blocks) -> list[tuple[str, ...]]:
    """Lines of the table: one for each placement that was seen often enough, or one of all blocks."""
    known = [name for name in PLACEMENTS if name != "unknown"]
    by_placement = {name: [us for where, us in blocks if where == name] for name in known}
    enough = {name: times for name, times in by_placement.items() if len(times) >= LEAST_PAIRS}
    lines = []
    for placement, kept in (enough or {"any": [us for _, us in blocks]}).items():
        times = np.array(kept)
        line = [format_size(nbytes), placement, str(len(times)), number(float(np.median(times[:, 0])))]
        for other in times.T[1:]:
            low, middle, high = np.percentile(times[:, 0] / other, [25, 50, 75])
            line += [number(float(np.median(other))), f"{middle:.3f}", f"{low:.3f}-{high:.3f}"]
        lines.append(tuple(line))
    return lines


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="bench/engines.py"
    )
    parser.add_argument("interpreter", nargs="+", help="of the environments, the one to compare with first")
    with_data = [name for name in COLLECTIVES if name != "barrier"]
    parser.add_argument("--collective", choices=with_data, default="all_reduce", help="default all_reduce")
    parser.add_argument("--transport", choices=("auto", "shm", "tcp"), default="auto", help="default auto")
    parser.add_argument("-b", "--begin", default="8", metavar="SIZE", help="smallest size (8)")
    parser.add_argument("-e", "--end", default="8K", metavar="SIZE", help="largest size (8K)")
    parser.add_argument("-f", "--factor", type=float, default=8, help="between sizes (8)")
    parser.add_argument("--duration", type=float, default=2.0, help="seconds per row and build (2)")
    parser.add_argument("--starts", type=int, default=5, help="how often the ranks start anew in that time (5)")
    arguments = parser.parse_args()
    try:
        asked = size_range(parse_size(arguments.begin), parse_size(arguments.end), arguments.factor)
        if asked[0] < UNIT:
            raise ValueError(f"at least {UNIT} bytes are needed, one element for each rank, not {asked[0]}")
        sizes = list(dict.fromkeys(size // UNIT * UNIT for size in asked))
        if arguments.starts < 1:
            raise ValueError(f"the ranks have to start once at least, not {arguments.starts} times")
        if len(arguments.interpreter) < 2:
            raise ValueError("at least two interpreters are needed; give one twice to see what chance does")
    except ValueError as error:
        parser.error(str(error))
    blocks: dict[int, Blocks] = {nbytes: [] for nbytes in sizes}
    try:
        for start in range(arguments.starts):
            with contextlib.ExitStack() as builds:
                started = [
                    builds.enter_context(contextlib.closing(Build(interpreter, arguments.transport)))
                    for interpreter in arguments.interpreter
                ]
                for number, build in enumerate(started):
                    package = build.package()
                    if start == 0:
                        print(f"{number}: {package}")
                for nbytes in sizes:
                    duration = arguments.duration / arguments.starts
                    blocks[nbytes] += measure(started, arguments.collective, nbytes, duration)
    except (RankError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    lines = [line for nbytes in sizes for line in rows(nbytes, blocks[nbytes])]
    others = range(1, len(arguments.interpreter))
    columns = [column for i in others for column in (f"us, {i}", f"{i} faster by", "quartiles")]
    print(f"{arguments.collective}, two ranks, in turn; the times of the first over those of the others\n")
    print(table.grid([("size", "cores", "pairs", "us, 0", *columns), *lines], [False] * (4 + len(columns))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
