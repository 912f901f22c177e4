"""The hosts of bench/hosts.py: network namespaces on one bridge, each with a port that can be limited both ways."""

from __future__ import annotations

import sys
from pathlib import Path

# What tests use: one way to make hosts. Behind the own modules, which have the same names in part.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from hosts_cells import BURST
from net.hosts import Bridged, command, why_no_ports

__all__ = ["Ports", "why_no_ports"]

# Of TCP, whatever the machine has for itself: what Linux has where nobody chose another. `bbr`, which paces each
# connection by what it was able to send before, leaves a port with seven of them idle for a fifth of the time.
CONGESTION = "cubic"

# Gives the command its own UTS name, by which MPI libraries tell hosts apart. `hostname` is not installed everywhere.
_NAMED = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
# What `ssh` would be: the name of the host, then words that its shell puts together.
_SHELL = """#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c '{named}' "$host" sh -c "$*"
"""


class Ports(Bridged):
    """Hosts with names of their own. Their ports can be limited while ranks run on them."""

    like_a_cable = False  # two cores cannot handle the packets of eight ports one by one
    burst = f"{BURST}b"
    network = "10.93.0.0/24"

    def join(self) -> None:
        super().join()
        for name, address, device in zip(
            self.names, self.addresses, map(self.device, range(len(self.names))), strict=True
        ):
            route = (self.network, "dev", device, "proto", "kernel", "scope", "link", "src", address)
            command("ip", "-n", name, "route", "change", *route, "congctl", CONGESTION)

    def inside(self, host: int) -> tuple[str, ...]:
        """What to put before a command that is to run on a host."""
        return (*super().inside(host), "unshare", "--uts", "sh", "-c", _NAMED, self.names[host])

    def device(self, host: int) -> str:
        """The network device of a host."""
        return f"clv{host}"

    def limit(self, rate: int | None) -> None:
        """Limits what each port sends and what it receives, in bits per second; None: as fast as it goes."""
        for host in range(len(self.names)):
            self.slow(host, (rate or 0) / 1e6)

    def shell(self, folder: Path) -> Path:
        """A program as ssh is one, made in `folder`: it runs a command on a host."""
        path = folder / "shell"
        path.write_text(_SHELL.format(named=_NAMED), encoding="ascii")
        path.chmod(0o700)
        return path
