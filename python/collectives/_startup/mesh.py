"""TCP data connections between the pairs of ranks that do not share memory.

Of each pair the lower rank accepts and the higher connects. The accepting side offers all its addresses, or those of
the interfaces in COLLECTIVES_SOCKET_IFNAME; the connecting side tries them in a race (`race`) and keeps the first
connection that is authenticated. An address may lead to another machine (the bridge of a container runtime has the same
address on each); authentication covers the ranks of both ends, so such a connection fails.

Ranks of different hosts never use loopback addresses. A link-local IPv6 address is offered without its scope, which is
valid on its machine only, and tried over each interface of the connecting side that has a link-local address.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from . import sockets, wire
from .acceptor import Acceptor
from .environment import format_address
from .interfaces import Interface, choose, interfaces, is_link_local
from .loop import Loop
from .race import Race, Target
from .wire import Message, Task

Address = tuple[str, int]

_RETRY = (0.05, 1.0)  # seconds before all addresses are tried again: the first time, and at most


@dataclass(frozen=True)
class Reach:
    """By which addresses ranks may reach this one, and over which interfaces it may reach others.

    Attributes:
        loopback: all ranks are on this host and met over loopback; only loopback is used.
        local: the address by which this rank reached the rendezvous, which is known to work.
        pattern: of interfaces, in NCCL's syntax; ``""`` for all.
        shares: how many ranks of this process listen.
    """

    loopback: bool
    local: str
    pattern: str = ""
    shares: int = 1

    def offers(self) -> list[Interface]:
        """The addresses to offer, the best first.

        Link-local ones only when the pattern names their interface, or when there are no others: virtual interfaces
        have link-local addresses, too, the same ones on many machines.

        Raises:
            ValueError: no interface matches the pattern.
        """
        found = choose(self.pattern, interfaces())
        plain = [entry for entry in found if not entry.link_local]
        if self.pattern or not plain or is_link_local(self.local):
            plain += [entry for entry in found if entry.link_local]
        local = self.local.partition("%")[0]
        return sorted(plain, key=lambda entry: entry.address != local)


class Mesh:
    """Makes the data connections of one rank, driven by a loop.

    Attributes:
        connections: the finished connections by rank, non-blocking.
        offered: the addresses at which this rank accepts.
    """

    def __init__(self, loop: Loop, rank: int, job: str, token: bytes, *, accept: Collection[int], reach: Reach) -> None:
        """Listens, if there are ranks to accept.

        Args:
            accept: the higher ranks that will connect to this one.
            reach: where this rank listens and what it offers.

        Raises:
            ValueError: no interface matches the pattern.
        """
        self.connections: dict[int, socket.socket] = {}
        self.offered: list[Address] = []
        self._loop = loop
        self._rank = rank
        self._job = job
        self._token = token
        self._reach = reach
        self._accept = set(accept)
        self._races: dict[int, Race] = {}
        self._targets: dict[int, list[Target]] = {}
        self._acceptor: Acceptor | None = None
        usable = [] if reach.loopback else reach.offers()
        if not self._accept:
            return
        if reach.loopback:
            listeners = sockets.listen_on_loopback()
        elif reach.pattern:
            listeners = sockets.listen_on_interfaces(usable)
        else:
            listeners = sockets.listen_anywhere(0)
        self._acceptor = Acceptor(
            loop,
            listeners,
            self._handshake_listening,
            self._accepted,
            what="data port",
            capacity=max(256, 2 * len(self._accept)),
            shares=reach.shares,
        )
        if reach.loopback or reach.pattern:
            self.offered = [(str(sock.getsockname()[0]).partition("%")[0], sock.getsockname()[1]) for sock in listeners]
        else:
            ports = {sock.family: sock.getsockname()[1] for sock in listeners}
            hosts = [entry.address for entry in usable]
            if reach.local.partition("%")[0] not in hosts and not wire.is_loopback(reach.local):
                hosts.insert(0, reach.local.partition("%")[0])
            families = [(host, socket.AF_INET6 if ":" in host else socket.AF_INET) for host in dict.fromkeys(hosts)]
            self.offered = [(host, ports[family]) for host, family in families if family in ports]

    def start(self, targets: Mapping[int, list[Address]]) -> None:
        """Connects to the given (lower) ranks at the addresses they offer."""
        found = interfaces()
        own = {entry.address for entry in found}
        usable = [] if self._reach.loopback else choose(self._reach.pattern, found)
        links = [entry for entry in usable if entry.link_local]
        for peer, addresses in targets.items():
            # An address that this machine has as well is tried last: it rarely leads to the other machine.
            ordered = sorted(addresses, key=lambda address: address[0] in own)
            self._targets[peer] = [target for address in ordered for target in self._spell(address, links)]
            self._races[peer] = self._race(peer)
            self._races[peer].start()

    def _race(self, peer: int) -> Race:
        def won(sock: socket.socket) -> None:
            self.connections[peer] = sock

        return Race(
            self._loop,
            lambda: self._targets[peer],
            lambda sock: self._handshake_connecting(sock, peer),
            won,
            pauses=_RETRY,
        )

    def _spell(self, address: Address, links: Collection[Interface]) -> list[Target]:
        """The targets for ``connect`` of an offered address: none, one, or one for each scope of a link-local one."""
        host, port = address
        try:
            version = ipaddress.ip_address(host).version
        except ValueError:
            return []  # ranks offer numeric addresses only
        if wire.is_loopback(host) and not self._reach.loopback:
            return []
        if not is_link_local(host):
            return [Target(socket.AF_INET if version == 4 else socket.AF_INET6, address, format_address(host, port))]
        return [
            Target(socket.AF_INET6, (host, port, 0, link.scope), format_address(f"{host}%{link.name}", port))
            for link in {link.scope: link for link in links}.values()
        ]

    def finished(self) -> bool:
        """Whether all connections are made."""
        return len(self.connections) == len(self._races) + len(self._accept)

    def used(self) -> list[str]:
        """The interface and the own address of each connection, without duplicates."""
        names = {entry.address: entry.name for entry in interfaces()}
        addresses = (str(sock.getsockname()[0]).partition("%")[0] for sock in self.connections.values())
        return sorted({f"{names.get(address, 'loopback')} {address}" for address in addresses})

    def missing(self) -> str:
        """Which connections are missing, and why, as far as known."""
        parts = []
        for peer, race in self._races.items():
            if peer not in self.connections:
                offers = ", ".join(target.shown for target in self._targets[peer])
                if offers:
                    parts.append(f"rank {peer} was not reached at {offers} ({race.describe()})")
                else:
                    parts.append(f"rank {peer} offers no address that leads from this host to it")
        waiting = sorted(self._accept - self.connections.keys())
        if waiting:
            offers = ", ".join(format_address(*address) for address in self.offered)
            parts.append(f"rank {', '.join(map(str, waiting))} did not connect to this rank at {offers}")
            if self._acceptor is not None and self._acceptor.refused:
                parts.append(
                    f"{self._acceptor.refused} connections were refused, the last: {self._acceptor.last_refusal}"
                )
        return "; ".join(parts)

    def close(self) -> None:
        """Stops listening and closes every connection that is still in `connections`."""
        if self._acceptor is not None:
            self._acceptor.close()
        for race in self._races.values():
            race.stop()
        for sock in self.connections.values():
            sock.close()
        self.connections.clear()

    # The accepting side.

    def _handshake_listening(self, sock: socket.socket) -> Task[int]:
        hello = yield from wire.authenticate_listening(sock, self._token, self._check)
        assert self._acceptor is not None
        self._acceptor.trust(sock)
        # The other side may have connected by several addresses; this message tells which connection it keeps.
        yield from wire.receive(sock, wire.STRANGER_LIMIT)
        rank: int = hello["rank"]
        return rank

    def _check(self, hello: Message) -> str | None:
        if hello.get("purpose") != "data" or hello.get("job") != self._job or hello.get("to") != self._rank:
            return f"this is rank {self._rank}'s data port, in another job or for another rank"
        if hello["rank"] not in self._accept or hello["rank"] in self.connections:
            return f"rank {hello['rank']} is not expected by rank {self._rank}"
        return None

    def _accepted(self, sock: socket.socket, rank: int) -> None:
        if rank in self.connections:
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections[rank] = sock

    # The connecting side.

    def _handshake_connecting(self, sock: socket.socket, peer: int) -> Task[None]:
        hello = {"purpose": "data", "rank": self._rank, "to": peer, "job": self._job}
        yield from wire.authenticate_connecting(sock, self._token, hello)
