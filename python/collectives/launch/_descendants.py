"""The descendants of this process, found in /proc."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .._startup.say import say
from .._startup.system import libc

_PR_SET_CHILD_SUBREAPER = 36
_POLL = 0.02  # seconds between checks of processes that are no children
_LAST = 2.0  # seconds for the system to end processes after SIGKILL


class _Process(NamedTuple):
    pid: int
    parent: int
    group: int


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent ends."""
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap() -> dict[int, int]:
    """Reaps all children that have ended; their statuses by process number."""
    statuses = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    return statuses


def group_lives(group: int) -> bool:
    """Whether some process of a process group still runs."""
    return any(process.group == group for process in _running())


def end_descendants(grace: float) -> None:
    """Ends all descendants, by SIGTERM and `grace` seconds later by SIGKILL; prints those that it cannot end."""
    number, end = signal.SIGTERM, time.monotonic() + grace
    signalled: set[int] = set()
    refused: set[int] = set()
    while left := [pid for pid in _descendants() if pid not in refused]:
        if time.monotonic() >= end:
            if number == signal.SIGKILL:
                refused.update(left)
                break
            number, end = signal.SIGKILL, end + _LAST
            signalled.clear()
        for pid in left:
            if pid not in signalled:
                signalled.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    try:
                        os.kill(pid, number)
                    except PermissionError:
                        refused.add(pid)
        time.sleep(_POLL)  # most of them are no children of this process, so it cannot wait for them
    if refused:
        say(f"collectives run: left running, since it cannot be ended: {', '.join(map(_describe, sorted(refused)))}")


def _descendants() -> list[int]:
    """The descendants that still run; reaps the children that have ended."""
    reap()
    children: dict[int, list[int]] = {}
    for process in _running():
        children.setdefault(process.parent, []).append(process.pid)
    found = children.get(os.getpid(), [])
    for pid in found:  # the list grows in this loop
        found += children.get(pid, [])
    return found


def _running() -> Iterator[_Process]:
    """All running processes; none where /proc is missing, or belongs to another pid namespace."""
    with contextlib.suppress(OSError):
        if os.readlink("/proc/self") != str(os.getpid()):
            return
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    # Parsed from the last parenthesis: the name before it may contain any character.
                    stat = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
                    if stat[0] not in (b"Z", b"X"):
                        yield _Process(int(name), int(stat[1]), int(stat[2]))


def _describe(pid: int) -> str:
    with contextlib.suppress(OSError):
        user = os.stat(f"/proc/{pid}").st_uid
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        with contextlib.suppress(KeyError):
            return f"process {pid} ({command[:80]}) of user {pwd.getpwuid(user).pw_name}"
        return f"process {pid} ({command[:80]}) of user {user}"
    return f"process {pid}"
