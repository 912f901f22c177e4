"""What tests have left behind: processes, files, descriptors, memory, network namespaces."""

from __future__ import annotations

import contextlib
import gc
import os
import time
import uuid
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import net.hosts
import nursery

# A variable that every process inherits which a test starts, and those that they start: finds those that outlived it.
MARK = "TESTS_OF_COLLECTIVES"
TOLERANCE = 4  # descriptors: pytest and its plugins open some of their own on the way, none of the kinds in OURS
OURS = ("eventfd", "memfd:", "socket:")
GRACE = 10.0  # seconds for processes that were told to end


def descendants() -> list[str]:
    """Processes that carry the mark of this session, besides this one."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    # Python's own helper, which lives as long as this process.
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)  # type: ignore[attr-defined]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in (os.getpid(), tracker):
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"process {entry.name}: {command[:200]}")
        except OSError:
            continue  # it has ended meanwhile, or is not ours
    return found


def mapped_segments() -> list[str]:
    """Segments that this process still has mapped."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:collectives" in line]


def files() -> set[str]:
    """Files with our name where temporary things lie."""
    return {
        str(path)
        for folder in ("/dev/shm", "/tmp", "/var/tmp")
        if os.path.isdir(folder)
        for path in Path(folder).glob("*collectives*")
    }


def descriptors() -> list[str]:
    found = []
    for entry in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            found.append(f"{entry} -> {os.readlink(f'/proc/self/fd/{entry}')}")
        except OSError:
            continue  # the listing itself
    return found


def begin() -> None:
    """Processes that are started from now on carry the mark, and say where their Python code was when they crash."""
    os.environ[MARK] = uuid.uuid4().hex
    os.environ["PYTHONFAULTHANDLER"] = "1"


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Fails when what is left at the end was not there at the beginning."""
    files_before, descriptors_before, networks_before = files(), descriptors(), net.hosts.outside()
    yield
    nursery.close_all()
    gc.collect()
    end = time.monotonic() + GRACE
    while (descendants() or files() - files_before) and time.monotonic() < end:
        time.sleep(0.05)  # a poll: processes that are no children of this one cannot be waited for
    processes, segments = descendants(), mapped_segments()
    assert not processes, f"processes are left: {processes}"
    assert not segments, f"segments are left: {segments}"
    new = files() - files_before
    assert not new, f"files are left: {new}"
    # What tests put into a namespace (devices, queues, rules) goes with it; outside they must have put nothing.
    namespaces = net.hosts.left(os.getpid())
    assert not namespaces, f"network namespaces are left: {namespaces}"
    outside = net.hosts.outside() - networks_before
    assert not outside, f"devices or rules are left: {outside}"
    # JAX and TensorFlow open a pipe each when they start, and keep it; this library makes none. The page for the stacks
    # of this process is kept by it until it ends (csrc/engine/failure/stacks.h).
    kept = (" -> pipe:", "memfd:rank-stack ")
    left = [d for d in descriptors() if d not in descriptors_before and not any(kind in d for kind in kept)]
    ours = [d for d in left if any(kind in d for kind in OURS)]
    alive = [repr(o) for o in gc.get_objects() if type(o).__name__ == "Communicator"]
    assert not ours, f"descriptors of this library are left: {ours}; communicators that something refers to: {alive}"
    assert len(left) <= TOLERANCE, f"descriptors are left: {left}"
