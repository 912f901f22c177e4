"""Where the ranks are: hosts, what carries the data between them, and what started them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

from .._startup import launchers
from .._startup.environment import variables_set


def carrier(asked: str, hosts: Sequence[int]) -> str:
    """The transport between ranks on these hosts.

    Args:
        asked: that of ``init``; where it is "auto" the hosts decide.
        hosts: by rank, the number of its host.
    """
    if asked != "auto":
        return asked
    if len(set(hosts)) == 1:
        return "shm" if len(hosts) > 1 else "local"
    return "tcp" if len(set(hosts)) == len(hosts) else "shm+tcp"


def hosts_as_text(names: Sequence[str]) -> str:
    """Which ranks are on which host.

    Args:
        names: by rank, the name of its host.

    Example:
        >>> hosts_as_text(["a", "a", "b"])
        'a (ranks 0-1), b (rank 2)'
    """
    parts = []
    for host in dict.fromkeys(names):
        ranks = [rank for rank, other in enumerate(names) if other == host]
        parts.append(f"{host} (rank{'s' * (len(ranks) > 1)} {_spans(ranks)})")
    return ", ".join(parts)


def memory_available() -> int | None:
    """Bytes that this host, or this container, can still give; None where neither says."""
    found = []
    with contextlib.suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) << 10)
    with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(found, default=None)


def started_by(size: int) -> str:
    """What has started this process, as the variables say."""
    ours = variables_set()
    if "COLLECTIVES_LAUNCHER_FD" in ours:
        return "collectives run"
    if "COLLECTIVES_RANK" in ours:
        return "COLLECTIVES_RANK and COLLECTIVES_SIZE"
    job = launchers.find_job()
    if job is not None:
        # A job that several launchers could have made says which; torchrun's is made in the file of that name.
        return str(getattr(job, "launcher", "")) or type(job).__module__.rpartition(".")[2]
    return "nothing but itself" if size == 1 else "an unknown launcher"


def _spans(numbers: list[int]) -> str:
    """Rising numbers as "0-3, 5"."""
    spans = []
    for _, group in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        spans.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(spans)
