"""Two hosts as network namespaces: ranks of one namespace share memory, ranks of different ones use TCP."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from joining import LIMIT, Rank

PORT = 29417


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=LIMIT)


def why_not():
    """Why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "it needs root to make network namespaces"
    if shutil.which("ip") is None:
        return "it needs the command `ip` (package iproute2)"
    name = f"clv-probe-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"`ip netns add` fails here: {error.stderr.strip()}"
    return None


REASON = why_not()


@contextlib.contextmanager
def two_empty(mark: str = "") -> Iterator[list[str]]:
    """Two namespaces with nothing but loopback, and `mark` in their names; gone afterwards, and what is in them."""
    names = [f"clv-{os.getpid()}-{mark}{index}" for index in range(2)]
    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        yield names


@contextlib.contextmanager
def two_hosts():
    """Two namespaces joined by a veth pair, with IPv4 10.91.0.1/2 and IPv6 fd91::1/2; gone afterwards."""
    with two_empty() as names:
        ip("link", "add", "clv0", "netns", names[0], "type", "veth", "peer", "name", "clv1", "netns", names[1])
        for index, name in enumerate(names):
            device = f"clv{index}"
            ip("-n", name, "addr", "add", f"10.91.0.{index + 1}/24", "dev", device)
            # The same address on both hosts, as the bridges of container runtimes have it; a trap for the mesh.
            ip("-n", name, "addr", "add", "10.92.0.1/24", "dev", "lo")
            with contextlib.suppress(subprocess.CalledProcessError):  # no IPv6 in this kernel
                ip("-n", name, "addr", "add", f"fd91::{index + 1}/64", "dev", device, "nodad")
            ip("-n", name, "link", "set", device, "up")
        yield names


def environment(rank: int, size: int, address: str, /, **variables: str) -> dict[str, str]:
    """The variables of a rank whose rendezvous is at an address; `variables` without "COLLECTIVES_", in any case."""
    return {
        "COLLECTIVES_RANK": str(rank),
        "COLLECTIVES_SIZE": str(size),
        "COLLECTIVES_RENDEZVOUS": address,
        "COLLECTIVES_TOKEN": "y" * 64,
        "COLLECTIVES_TIMEOUT": str(LIMIT),
        **{f"COLLECTIVES_{name.upper()}": value for name, value in variables.items()},
    }


def with_hosts_file(file: Path) -> list[str]:
    """What to put before a command that is to see this file as /etc/hosts."""
    return ["unshare", "-m", "sh", "-c", f'mount --bind {file} /etc/hosts && exec "$@"', "sh"]


@contextlib.contextmanager
def job(
    hosts: Sequence[str],
    places: Sequence[int],
    address: str | Sequence[str],
    prefixes: Sequence[Sequence[str]] = (),
    **variables: str,
) -> Iterator[list[Any]]:
    """A rank per entry of `places` (indices of hosts), which joins and says what it found.

    Args:
        address: of the rendezvous: one, or one by host.
        prefixes: by rank, what to put before its command.
    """
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank, place in enumerate(places):
            own = environment(rank, len(places), address if isinstance(address, str) else address[place], **variables)
            prefix = ["ip", "netns", "exec", hosts[place], *(prefixes[rank] if prefixes else ())]
            ranks.append(Rank(own, prefix=prefix))
            stack.callback(ranks[-1].close)
        yield ranks


class Ended(NamedTuple):
    """What a rank that has ended leaves."""

    returncode: int
    out: str
    errors: str


def run_program(
    hosts: Sequence[str], places: Sequence[int], program: str, *arguments: str, limit: float = LIMIT
) -> list[Ended]:
    """Runs a Python program as the ranks of a job, on the hosts that `places` names, to its end."""
    ranks = []
    try:
        for rank, place in enumerate(places):
            ranks.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", hosts[place], sys.executable, "-c", program, *arguments],
                    env={**os.environ, **environment(rank, len(places), f"10.91.0.1:{PORT}", timeout=str(limit))},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        outputs = [rank.communicate(timeout=limit) for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [Ended(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]
