"""The network interfaces of this machine, and which of them a job may use."""

from __future__ import annotations

import array
import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .wire import is_loopback

VARIABLE = "COLLECTIVES_SOCKET_IFNAME"
_ACCEPTED = "accepted are eth,ib (prefixes), =eth0,eth1 (exact names), and ^docker or ^=docker0 (all but these)"
_SIOCGIFCONF, _SIOCGIFFLAGS = 0x8912, 0x8913
_IFF_UP = 1
_UNUSABLE = 0x08 | 0x40  # IFA_F_DADFAILED, IFA_F_TENTATIVE: nothing can be bound to such an address


class Interface(NamedTuple):
    """An address of an interface; ``scope`` is the number of the interface, which link-local addresses need."""

    name: str
    address: str
    scope: int

    @property
    def link_local(self) -> bool:
        """Whether the address is valid on one link only."""
        return is_link_local(self.address)

    def sockaddr(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        """The address for ``bind`` and ``connect``."""
        if ":" not in self.address:
            return self.address, port
        return self.address, port, 0, self.scope if self.link_local else 0


def is_link_local(host: str) -> bool:
    """Whether an address is a link-local IPv6 address. Those of IPv4 (169.254.*) need no scope and do not count."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return address.version == 6 and address.is_link_local


def interfaces() -> list[Interface]:
    """All addresses of interfaces that are up, IPv4 first, without those of loopback."""
    return [found for found in [*_ipv4(), *_ipv6()] if not is_loopback(found.address)]


def interface_addresses() -> list[tuple[str, str]]:
    """(interface, address) of all interfaces that are up, IPv4 first, without loopback and link-local addresses."""
    return [(found.name, found.address) for found in interfaces() if not found.link_local]


def check_pattern(pattern: str, source: str = VARIABLE) -> str:
    """The pattern itself. Raises ``ValueError`` when its syntax is wrong."""
    _parse(pattern, source)
    return pattern


def choose(pattern: str, found: Sequence[Interface]) -> list[Interface]:
    """The interfaces that data may use: all, or those that match the pattern (in NCCL's syntax).

    Raises:
        ValueError: none matches; the text lists the interfaces.
    """
    if not pattern:
        return list(found)
    names, exact, exclude = _parse(pattern, VARIABLE)
    chosen = [
        entry
        for entry in found
        if any(entry.name == name if exact else entry.name.startswith(name) for name in names) != exclude
    ]
    if not chosen:
        there = ", ".join(dict.fromkeys(entry.name for entry in found))
        raise ValueError(
            f"{VARIABLE} is {pattern!r}, which leaves no interface of {socket.gethostname()} that is up and is not "
            f"loopback; there {'are ' + there if there else 'is none'}, and {_ACCEPTED}"
        )
    return chosen


def _parse(pattern: str, source: str) -> tuple[list[str], bool, bool]:
    """(names, exact, exclude)."""
    rest = pattern.removeprefix("^")
    names = rest.removeprefix("=").split(",")
    for name in names:
        if not name or name[0] in "^=" or len(name) > 15 or not name.isascii() or not name.isprintable() or " " in name:
            raise ValueError(
                f"{source} is {pattern!r}, in which {name!r} is no name of an interface; {_ACCEPTED}; write the signs "
                "once, before the first name"
            )
    return names, rest.startswith("="), rest != pattern


def _ipv4() -> list[Interface]:
    """From ioctl(SIOCGIFCONF): an array of struct ifreq, a name of 16 bytes and a union with a sockaddr_in."""
    entry = 16 + max(16, 8 + 2 * struct.calcsize("P"))  # sizeof(struct ifreq); its largest member is a struct ifmap
    buffer = array.array("B", bytes(entry * 1024))
    request = struct.pack("iP", len(buffer), buffer.buffer_info()[0])
    result = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:  # no IPv4 here
        reply = fcntl.ioctl(sock, _SIOCGIFCONF, request)
        data = buffer.tobytes()
        for start in range(0, struct.unpack("iP", reply)[0], entry):
            raw = data[start : start + 16]
            # An address alias has a name of its own, like eth0:1.
            name = raw.partition(b"\0")[0].decode(errors="replace").partition(":")[0]
            with contextlib.suppress(OSError):  # it has gone meanwhile
                flags = struct.unpack_from("H", fcntl.ioctl(sock, _SIOCGIFFLAGS, raw + bytes(entry - 16)), 16)[0]
                if flags & _IFF_UP:
                    result.append(Interface(name, socket.inet_ntoa(data[start + 20 : start + 24]), 0))
    return result


def _ipv6() -> list[Interface]:
    result = []
    with contextlib.suppress(OSError):  # no IPv6 in this kernel
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, index, _, _, flags, name = line.split()
            if not int(flags, 16) & _UNUSABLE:
                address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
                result.append(Interface(name, address, int(index, 16)))
    return result
