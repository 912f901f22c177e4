"""Hosts as network namespaces, joined by a bridge, with faults that the kernel makes.

Every device, queue and rule lies in one of the namespaces, so all of them go when the namespaces do, and nothing
outside is changed. The namespaces are named clv-<pid of the test>-..., by which the end of a test session finds those
that are left.

    python tests/support/net/hosts.py      removes namespaces of tests that were killed
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

LIMIT = 30.0  # seconds for one command
_FOLDER = Path("/run/netns")
_numbers = itertools.count()


def command(*words: str, text: str | None = None) -> str:
    """Runs a command and returns what it printed. Raises ``RuntimeError`` with what it said when it fails."""
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    """Some namespaces, each a host with a loopback device. A context manager, which removes them.

    Attributes:
        names: of the namespaces, by host.
        addresses: an IPv4 address of each host.
    """

    def __init__(self, count: int) -> None:
        self.prefix = f"clv-{os.getpid()}-{next(_numbers)}"
        self.names = [f"{self.prefix}-{index}" for index in range(count)]
        self.addresses = [f"10.93.0.{index + 1}" for index in range(count)]
        self._made: list[str] = []
        try:
            for name in self.names:
                self.add(name)
            self.join()
        except BaseException:
            self.close()
            raise

    def join(self) -> None:
        """Joins the hosts."""
        raise NotImplementedError

    def add(self, name: str) -> None:
        """A namespace."""
        self._made.append(name)  # first: a signal may end the command when it has done its work
        command("ip", "netns", "add", name)
        command("ip", "-n", name, "link", "set", "lo", "up")

    def inside(self, host: int) -> tuple[str, ...]:
        """What to put before a command that is to run on a host."""
        return ("ip", "netns", "exec", self.names[host])

    def rendezvous(self, port: int, host: int = 0) -> str:
        return f"{self.addresses[host]}:{port}"

    def filter(self, host: int, *rules: str) -> None:
        """Replaces the rules for what arrives at a host (nftables, chain `input`); none: everything may come."""
        lines = ["add table inet clv", "delete table inet clv"]
        if rules:
            lines += ["add table inet clv", "add chain inet clv in { type filter hook input priority 0; }"]
            lines += [f"add rule inet clv in {rule}" for rule in rules]
        command(*self.inside(host), "nft", "-f", "-", text="\n".join(lines) + "\n")

    def lose(self, host: int, per_mille: int) -> None:
        """Of what arrives at a host, drops this much, at random."""
        self.filter(host, f"ip saddr 10.93.0.0/24 numgen random mod 1000 < {per_mille} counter drop")

    def deafen(self, host: int, other: int) -> None:
        """A host receives nothing from another one any more, which still receives from it."""
        self.filter(host, f"ip saddr {self.addresses[other]} counter drop")

    def dropped(self, host: int) -> int:
        """How many packets the present rules have dropped."""
        listing = json.loads(command(*self.inside(host), "nft", "-j", "list", "ruleset"))
        rules = [entry["rule"] for entry in listing["nftables"] if "rule" in entry]
        return sum(part["counter"]["packets"] for rule in rules for part in rule["expr"] if "counter" in part)

    def close(self) -> None:
        while self._made:
            name = self._made.pop()
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=LIMIT, check=False)

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Bridged(Hosts):
    """Hosts on one bridge, which has a namespace of its own: host i has the device clv<i>, the bridge its port<i>.

    Attributes:
        like_a_cable: packets are as they are on a cable, instead of up to 64 KiB that are cut by the device.
        burst: what a slow port lets through at once after a pause.
    """

    like_a_cable = True
    burst = "16kb"

    def join(self) -> None:
        self.switch = f"{self.prefix}-s"
        self.slowed: set[int] = set()
        self.add(self.switch)
        self._on_switch("add", "bridge", "type", "bridge", "forward_delay", "0")
        self._on_switch("set", "bridge", "up")
        for index, name in enumerate(self.names):
            device, port = f"clv{index}", f"port{index}"
            command(
                "ip", "link", "add", device, "netns", name, "type", "veth", "peer", "name", port, "netns", self.switch
            )
            if self.like_a_cable:
                command("ip", "-n", name, "link", "set", device, "gso_max_segs", "1")
            command("ip", "-n", name, "addr", "add", f"{self.addresses[index]}/24", "dev", device)
            self._on_switch("set", port, "master", "bridge", "up")
            command("ip", "-n", name, "link", "set", device, "up")

    def _on_switch(self, *words: str) -> None:
        command("ip", "-n", self.switch, "link", *words)

    def cut(self, host: int, where: str = "port") -> None:
        """Takes a link down: at the bridge ("port"), as when a cable is pulled, or on the host itself ("device")."""
        if where == "port":
            self._on_switch("set", f"port{host}", "down")
        else:
            command("ip", "-n", self.names[host], "link", "set", f"clv{host}", "down")

    def mend(self, host: int, where: str = "port") -> None:
        """Takes it up again."""
        if where == "port":
            self._on_switch("set", f"port{host}", "up")
        else:
            command("ip", "-n", self.names[host], "link", "set", f"clv{host}", "up")

    def slow(self, host: int, mbit: float) -> None:
        """Bounds what leaves and what reaches a host, in Mbit/s; 0: as fast as it goes."""
        if not mbit and host not in self.slowed:
            return
        (self.slowed.add if mbit else self.slowed.discard)(host)
        for name, device in ((self.names[host], f"clv{host}"), (self.switch, f"port{host}")):
            words = ["tc", "-n", name, "qdisc", "replace" if mbit else "del", "dev", device, "root"]
            if mbit:
                words += ["tbf", "rate", f"{mbit}mbit", "burst", self.burst, "latency", "100ms"]
            command(*words)


def _refusal(tools: Sequence[str], probe: Sequence[Sequence[str]]) -> str | None:
    if os.geteuid() != 0:
        return "it needs root to make network namespaces"
    for tool in tools:
        if shutil.which(tool) is None:
            return f"it needs the command `{tool}` (packages iproute2, nftables)"
    name = f"clv-{os.getpid()}-probe"
    try:
        command("ip", "netns", "add", name)
        try:
            for words in probe:
                command(*(name if word == "NAME" else word for word in words))
        finally:
            command("ip", "netns", "del", name)
    except RuntimeError as error:
        return f"this kernel or container does not allow it: {error}"
    return None


_PORTS = [
    ("ip", "-n", "NAME", "link", "add", "clv0", "type", "veth", "peer", "name", "port0"),
    ("ip", "-n", "NAME", "link", "add", "bridge", "type", "bridge"),
    (
        *("tc", "-n", "NAME", "qdisc", "add", "dev", "clv0"),
        *("root", "tbf", "rate", "1mbit", "burst", "16kb", "latency", "1s"),
    ),
]


@functools.cache
def why_no_ports() -> str | None:
    """Why bridged hosts with slow ports cannot be made here, or None."""
    return _refusal(["ip", "tc"], _PORTS)


@functools.cache
def why_not() -> str | None:
    """Why bridged hosts with all their faults cannot be made here, or None."""
    inside = ("ip", "netns", "exec", "NAME", "nft")
    probe = [
        *_PORTS,
        (*inside, "add table inet clv; add chain inet clv in { type filter hook input priority 0; }"),
        (*inside, "add rule inet clv in numgen random mod 1000 < 10 counter drop"),
    ]
    return _refusal(["ip", "tc", "nft"], probe)


@functools.cache
def why_no_relay() -> str | None:
    """Why hosts cannot be joined by a relay here, or None."""
    return _refusal(["ip", "nft"], [("ip", "-n", "NAME", "tuntap", "add", "dev", "clvt", "mode", "tun")])


def left(pid: int) -> list[str]:
    """Namespaces that a test process has made and that are still there."""
    names = [entry.name for entry in _FOLDER.glob("clv-*")] if _FOLDER.exists() else []
    return [name for name in names if str(pid) in name.split("-")]


def outside() -> set[str]:
    """Devices, and tables of nftables where one may look at them, with our name that lie in no namespace of a test."""
    found = {f"device {entry.name}" for entry in Path("/sys/class/net").glob("clv*")}
    with contextlib.suppress(RuntimeError, OSError):
        tables = command("nft", "list", "tables").splitlines()
        found.update(line for line in tables if line.split()[-1].startswith("clv"))
    return found


def main() -> None:
    """Removes namespaces whose makers have ended."""
    for path in _FOLDER.glob("clv-*"):
        makers = [word for word in path.name.split("-") if word.isdigit()]
        if makers and not Path("/proc", makers[0]).exists():
            command("ip", "netns", "del", path.name)
            print(f"removed {path.name}")


if __name__ == "__main__":
    main()
