"""``collectives run`` on several hosts, as a process of a test, and what it has started."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

LIMIT = 60.0  # seconds that nothing may reach
# Every rank says its process number and waits for ever, with a child in a session of its own.
FOREVER = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("pids", os.getpid(), child.pid, flush=True)
while True: signal.pause()
"""
SUM = """
import os, collectives, numpy
comm = collectives.init()
total = int(comm.all_reduce(numpy.ones(1))[0])
print("sum", total, "at", os.environ["COLLECTIVES_RENDEZVOUS"], "in", os.stat("/proc/self/ns/net").st_ino, flush=True)
"""


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    return {**kept, "OMP_NUM_THREADS": "1"}  # else a line says what it is


@contextlib.contextmanager
def started(*arguments: object, prefix: Sequence[str] = (), **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """The command as a process; killed and reaped at the end."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "collectives", "run", *map(str, arguments)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **settings,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT)


def run(*arguments: object, **settings: Any) -> tuple[int, str]:
    """The exit code, and what it prints."""
    with started(*arguments, **settings) as process:
        output, _ = process.communicate(timeout=LIMIT)
        return process.returncode, output


def pids(process: subprocess.Popen[str], ranks: int) -> dict[int, list[int]]:
    """Process numbers by rank, when all have said theirs."""
    assert process.stdout is not None
    found: dict[int, list[int]] = {}
    before = ""
    while len(found) < ranks:
        line = process.stdout.readline()
        assert line, f"the output ended: {before}"
        before += line
        if match := re.fullmatch(r"\[(\d+)\] pids ([\d ]+)\n", line):
            found[int(match[1])] = [int(pid) for pid in match[2].split()]
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone(pid: int) -> bool:
    """Waits until a process that is no child of ours has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], LIMIT)[0])
    finally:
        os.close(fd)


def children(pid: int) -> list[int]:
    """The children of a process, in the order of their numbers."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if parent(int(folder.name)) == pid:
                    found.append(int(folder.name))
    return sorted(found)
