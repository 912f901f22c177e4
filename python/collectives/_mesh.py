"""TCP data connections between the pairs of ranks that do not share memory.

Of each pair the lower rank accepts and the higher connects. The accepting side offers all addresses at which it may be
reached; the connecting side tries them one after the other, starting the next when one fails or takes long (as RFC
8305, "happy eyeballs", does), and keeps the first that is authenticated. Whether an address is the right one (the
bridge of a container runtime has the same address on every machine) is decided by the proof, which names the ranks.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from . import _sockets, _wire
from ._environment import format_address
from ._loop import Acceptor, Loop
from ._wire import Message, Task, WireError

Address = tuple[str, int]

_STAGGER = 0.25  # seconds until the next address is tried beside the one before
_RETRY_FIRST, _RETRY_LAST = 0.05, 1.0  # seconds before all addresses are tried again
_ATTEMPT = 10.0  # seconds for one attempt, so that an address that swallows packets is tried afresh


@dataclass
class _Race:
    """The attempts to reach one peer."""

    peer: int
    addresses: list[Address]
    next: int = 0
    pause: float = _RETRY_FIRST
    running: set[socket.socket] = field(default_factory=set)
    failures: dict[Address, str] = field(default_factory=dict)
    winner: socket.socket | None = None


class Mesh:
    """Makes the data connections of one rank, driven by a loop.

    Attributes:
        connections: the finished connections by rank, non-blocking.
        offered: the addresses at which this rank accepts.
    """

    def __init__(
        self, loop: Loop, rank: int, job: str, token: bytes, *, accept: Collection[int], loopback: bool, local: str
    ) -> None:
        """Listens, if there are ranks to accept.

        Args:
            accept: the higher ranks that will connect to this one.
            loopback: listen on loopback addresses only, instead of on all but loopback addresses.
            local: the address by which this rank reached the rendezvous; offered first, for it is known to work.
        """
        self.connections: dict[int, socket.socket] = {}
        self.offered: list[Address] = []
        self._loop = loop
        self._rank = rank
        self._job = job
        self._token = token
        self._accept = set(accept)
        self._races: dict[int, _Race] = {}
        self._acceptor: Acceptor | None = None
        if not self._accept:
            return
        listeners = _sockets.listen_on_loopback() if loopback else _sockets.listen_anywhere(0)
        self._acceptor = Acceptor(
            loop,
            listeners,
            self._greet_listening,
            self._accepted,
            what="data port",
            capacity=max(256, 2 * len(self._accept)),
        )
        ports = {sock.family: sock.getsockname()[1] for sock in listeners}
        if loopback:
            hosts = [str(sock.getsockname()[0]) for sock in listeners]
        else:
            hosts = list(dict.fromkeys([local, *(address for _, address in _sockets.interface_addresses())]))
        families = [(host, socket.AF_INET6 if ":" in host else socket.AF_INET) for host in hosts]
        self.offered = [(host, ports[family]) for host, family in families if family in ports and "%" not in host]

    def start(self, targets: Mapping[int, list[Address]]) -> None:
        """Connects to the given (lower) ranks at the addresses they offer."""
        own = {address for _, address in _sockets.interface_addresses()}
        for peer, addresses in targets.items():
            # An address that is also one of this machine is tried last: it rarely leads to another one.
            race = _Race(peer, sorted(addresses, key=lambda address: address[0] in own))
            self._races[peer] = race
            self._next(race)

    def finished(self) -> bool:
        """Whether all connections are there."""
        return len(self.connections) == len(self._races) + len(self._accept)

    def missing(self) -> str:
        """Which connections are not there, and why as far as it is known."""
        parts = []
        for peer, race in self._races.items():
            if peer not in self.connections:
                tried = "; ".join(f"{format_address(*address)}: {why}" for address, why in race.failures.items())
                offers = ", ".join(format_address(*address) for address in race.addresses)
                parts.append(f"rank {peer} was not reached at {offers or 'any address, for it offers none'} ({tried})")
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
            self._stop(race)
        for sock in self.connections.values():
            sock.close()
        self.connections.clear()

    # The accepting side.

    def _greet_listening(self, sock: socket.socket) -> Task[int]:
        hello = yield from _wire.authenticate_listening(sock, self._token, self._check)
        # The other side may have reached us by several addresses; it says which connection it keeps.
        yield from _wire.receive(sock, _wire.STRANGER_LIMIT)
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

    def _next(self, race: _Race) -> None:
        """Tries the next address of a race, and the one after it a little later."""
        if race.winner is not None or race.next >= len(race.addresses):
            return
        address = race.addresses[race.next]
        race.next += 1
        following = race.next
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            race.failures[address] = str(error)
            self._failed(race)
            return
        sock.setblocking(False)
        race.running.add(sock)

        def ended(result: None, error: Exception | None) -> None:
            race.running.discard(sock)
            if error is None:
                self._won(race, sock)
                return
            sock.close()
            if race.winner is sock:
                race.winner = None
            race.failures[address] = str(error) or type(error).__name__
            self._failed(race)

        def stagger() -> None:
            if race.next == following:
                self._next(race)

        self._loop.later(_STAGGER, stagger)
        self._loop.start(sock, self._greet_connecting(sock, address, race), ended, _ATTEMPT)

    def _greet_connecting(self, sock: socket.socket, address: Address, race: _Race) -> Task[None]:
        yield from _wire.connect(sock, address)
        if sock.getsockname() == sock.getpeername():
            raise WireError("it connected to itself")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = {"purpose": "data", "rank": self._rank, "to": race.peer, "job": self._job}
        yield from _wire.authenticate_connecting(sock, self._token, hello)
        if race.winner is not None:
            raise WireError("another address was faster")
        race.winner = sock
        yield from _wire.send(sock, {"keep": True})

    def _failed(self, race: _Race) -> None:
        if race.next < len(race.addresses):
            self._next(race)
        elif not race.running and race.winner is None:
            self._loop.later(race.pause, lambda: self._again(race))
            race.pause = min(2 * race.pause, _RETRY_LAST)

    def _again(self, race: _Race) -> None:
        race.next = 0
        self._next(race)

    def _won(self, race: _Race, sock: socket.socket) -> None:
        self.connections[race.peer] = sock
        self._stop(race)

    def _stop(self, race: _Race) -> None:
        for sock in race.running:
            self._loop.cancel(sock)
            sock.close()
        race.running.clear()
