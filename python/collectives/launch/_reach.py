"""Finds the addresses by which other hosts reach the first one.

The first host listens on all its addresses and tells them; each other host tries all, and knows by an answer only the
first host can give that it has reached that and not, say, a bridge of its own with the same address.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from .._startup.interfaces import choose, interfaces
from .._startup.sockets import listen_anywhere

_NONCE = 32  # bytes
_PATIENCE = 5.0  # seconds that all attempts may take
_MOST_OPEN = 512  # connections that wait at the same time


def new_key() -> str:
    """A secret for `Answering` and `Probing` of one job."""
    return secrets.token_hex(32)


def _answer(key: str, nonce: bytes) -> bytes:
    return hmac.digest(key.encode(), nonce, hashlib.sha256)


class Answering:
    """The first host's side.

    Args:
        pattern: of the interfaces, as in COLLECTIVES_SOCKET_IFNAME; empty: all.

    Raises:
        OSError: it cannot listen.
        ValueError: no interface matches the pattern.
    """

    def __init__(self, selector: selectors.BaseSelector, key: str, pattern: str) -> None:
        self._selector = selector
        self._key = key
        chosen = [entry.address for entry in choose(pattern, interfaces()) if not entry.link_local]
        chosen = chosen or ["127.0.0.1", "::1"]  # a machine without a network, which has several names
        self._listeners = listen_anywhere(0)
        self._open: list[socket.socket] = []
        self.addresses: list[tuple[str, int]] = []
        for listener in self._listeners:
            is_six = listener.family == socket.AF_INET6
            port = listener.getsockname()[1]
            self.addresses += [(address, port) for address in chosen if (":" in address) == is_six]
            selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))

    def take(self, is_six: bool) -> socket.socket:
        """Ends the search; returns the socket that listens for one family, for the rendezvous."""
        for listener in self._listeners:
            self._selector.unregister(listener)
            with contextlib.suppress(OSError):  # attempts that were given up: no stranger for the rendezvous
                while True:
                    listener.accept()[0].close()
        for sock in self._open:
            self._forget(sock)
        chosen = next(sock for sock in self._listeners if (sock.family == socket.AF_INET6) == is_six)
        self._listeners.remove(chosen)
        self.close()
        return chosen

    def close(self) -> None:
        """Closes all sockets but the one that was taken."""
        for sock in [*self._listeners, *self._open]:
            sock.close()
        self._listeners.clear()
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock, _ = listener.accept()
            sock.setblocking(False)
            if len(self._open) >= _MOST_OPEN:  # strangers: no descriptor would be left for the next host
                self._forget(self._open.pop(0))
            self._open.append(sock)
            self._selector.register(sock, selectors.EVENT_READ, partial(self._reply, sock))

    def _reply(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            nonce = sock.recv(_NONCE)
            if len(nonce) == _NONCE:
                sock.send(_answer(self._key, nonce))
                return
        self._open.remove(sock)
        self._forget(sock)

    def _forget(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        sock.close()


class Probing:
    """The side of every other host.

    Args:
        addresses: (address, port) of the first host.
        found: called once, with the address of each family by which it was reached first, or None.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        key: str,
        addresses: Sequence[tuple[str, int]],
        found: Callable[[dict[str, str | None]], None],
    ) -> None:
        self._selector = selector
        self._key = key
        self._found = found
        self._end = time.monotonic() + _PATIENCE
        self._open: dict[socket.socket, bytes] = {}
        self._reached: dict[str, str | None] = {"4": None, "6": None}
        self._is_over = False
        for address, port in addresses:
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            sock.setblocking(False)
            if sock.connect_ex((address, port)) not in (0, errno.EINPROGRESS):  # no route
                sock.close()
                continue
            self._open[sock] = os.urandom(_NONCE)
            selector.register(sock, selectors.EVENT_WRITE, partial(self._connected, sock))
        self.tick()

    def tick(self) -> None:
        """To be called now and then: ends the search when it is due."""
        if not self._is_over and (self._reached["4"] or not self._open or time.monotonic() >= self._end):
            self._is_over = True
            self.close()
            self._found(self._reached)

    def close(self) -> None:
        """Gives up."""
        for sock in list(self._open):
            self._forget(sock)

    def _connected(self, sock: socket.socket) -> None:
        try:
            sock.send(self._open[sock])
            self._selector.modify(sock, selectors.EVENT_READ, partial(self._answered, sock))
        except OSError:
            self._forget(sock)
        self.tick()

    def _answered(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if hmac.compare_digest(sock.recv(_NONCE), _answer(self._key, self._open[sock])):
                family = "6" if sock.family == socket.AF_INET6 else "4"
                self._reached[family] = self._reached[family] or sock.getpeername()[0]
        self._forget(sock)
        self.tick()

    def _forget(self, sock: socket.socket) -> None:
        del self._open[sock]
        self._selector.unregister(sock)
        sock.close()
