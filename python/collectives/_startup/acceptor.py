"""Accepts connections, also from strangers, and keeps those that authenticate themselves."""

from __future__ import annotations

import ipaddress
import logging
import resource
import socket
from collections.abc import Callable, Sequence
from typing import Any

from .loop import Loop
from .wire import EndedError, Task, printable

_log = logging.getLogger("collectives")


class Acceptor:
    """Accepts on some listeners, authenticates each connection, and refuses the others without blocking.

    At most `capacity` connections are pending. A further one drops the oldest of the source with the most, so a flood
    from one source drops its own connections. A rank that is dropped tries again. An authenticated connection is not
    dropped any more, since its rank would not try again.

    Attributes:
        refused: number of connections that were refused.
        last_refusal: address and reason of the last one, ``""`` if there was none.
    """

    def __init__(
        self,
        loop: Loop,
        listeners: Sequence[socket.socket],
        handshake: Callable[[socket.socket], Task[Any]],
        accepted: Callable[[socket.socket, Any], None],
        *,
        what: str,
        capacity: int = 256,
        shares: int = 1,
        limit: float | None = 10.0,
        wrap: Callable[[socket.socket], socket.socket] | None = None,
    ) -> None:
        """Accepts from now on, whenever the loop runs.

        Args:
            handshake: authenticates both sides on a connection, and calls `trust` then if it is not done yet; its
                result is passed to `accepted`.
            what: the purpose of the listeners, for the log.
            capacity: see above.
            shares: how many acceptors this process has.
            limit: seconds in which a connection must authenticate itself.
            wrap: makes of an accepted socket the one that is used.
        """
        self.refused = 0
        self.last_refusal = ""
        self._loop = loop
        self._listeners = list(listeners)
        self._handshake = handshake
        self._accepted = accepted
        self._what = what
        # Pending connections may use a share of the descriptors of this process, not all of them.
        limit_of_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._capacity = capacity if limit_of_files < 0 else max(8, min(capacity, limit_of_files // (4 * shares)))
        self._limit = limit
        self._wrap = wrap
        self._pending: dict[socket.socket, Any] = {}  # connection: address, oldest first
        self._sources: dict[Any, dict[socket.socket, None]] = {}  # the same connections, by source
        self._trusted: dict[socket.socket, Any] = {}  # authenticated connections whose handshake is not done
        for sock in self._listeners:
            loop.listen(sock, self._incoming)

    def close(self) -> None:
        """Closes the listeners and all connections that are not accepted yet."""
        if self._listeners and self.refused > 1:
            _log.info(
                "%d connections to the %s were refused, the last: %s", self.refused, self._what, self.last_refusal
            )
        while self._listeners:
            sock = self._listeners.pop()
            self._loop.unlisten(sock)
            sock.close()
        for sock in [*self._pending, *self._trusted]:
            self._loop.cancel(sock)
            sock.close()
        self._pending.clear()
        self._sources.clear()
        self._trusted.clear()

    def trust(self, sock: socket.socket) -> None:
        """Marks a connection as authenticated before its handshake is done: from now on it is not dropped.

        It has no time limit either: the other side may use the connection already, while its last message is lost and
        sent again, and would wait for ever if this side closed it.
        """
        self._trusted[sock] = self._remove(sock)
        self._loop.lift_limit(sock)

    def _incoming(self, connection: socket.socket, address: Any) -> None:
        while len(self._pending) >= self._capacity:
            most = max(self._sources, key=lambda source: len(self._sources[source]))
            oldest = next(iter(self._sources[most]))
            self._loop.cancel(oldest)
            self._refuse(oldest, "dropped, too many connections were pending")
        sock = connection
        if self._wrap is not None:
            try:
                sock = self._wrap(connection)
            except OSError as error:  # the peer has closed it already
                connection.close()
                self._count(address, str(error))
                return
        self._pending[sock] = address
        self._sources.setdefault(_source(address), {})[sock] = None
        self._loop.start(
            sock, self._handshake(sock), lambda result, error: self._settled(sock, result, error), self._limit
        )

    def _settled(self, sock: socket.socket, result: Any, error: Exception | None) -> None:
        if sock in self._trusted and isinstance(error, (EndedError, ConnectionError)):
            # The rank has connected by several addresses, and keeps another connection.
            del self._trusted[sock]
            sock.close()
            return
        if error is not None:
            self._refuse(sock, str(error) or type(error).__name__)
            return
        self._remove(sock)
        self._accepted(sock, result)

    def _remove(self, sock: socket.socket) -> Any:
        if sock in self._trusted:
            return self._trusted.pop(sock)
        address = self._pending.pop(sock)
        source = _source(address)
        del self._sources[source][sock]
        if not self._sources[source]:
            del self._sources[source]
        return address

    def _refuse(self, sock: socket.socket, reason: str) -> None:
        address = self._remove(sock)
        sock.close()
        self._count(address, reason)

    def _count(self, address: Any, reason: str) -> None:
        self.refused += 1
        peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a local process"
        self.last_refusal = f"{peer}: {printable(reason)}"
        if self.refused == 1:
            _log.warning(
                "refused a connection to the %s from %s; further ones are only counted", self._what, self.last_refusal
            )


def _source(address: Any) -> Any:
    """The source of a connection: its address; of IPv6 the /64 network, since one machine may have all of that."""
    if not isinstance(address, tuple):
        return ""
    host = str(address[0])
    if ":" not in host:
        return host
    parsed = ipaddress.IPv6Address(host.partition("%")[0])
    return host if parsed.is_link_local or parsed.ipv4_mapped else parsed.packed[:8]
