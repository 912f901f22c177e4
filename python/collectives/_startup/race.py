"""Connects to a peer that may have several addresses: the attempts race, and the first authenticated connection wins.

As in RFC 8305 ("happy eyeballs"), the next address is tried at once when one fails, and beside it when it takes long.
So an address that drops packets costs a quarter of a second instead of a timeout.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import wire
from .loop import Loop
from .sockets import out_of_files
from .wire import RefusedError, Task, WireError

_STAGGER = 0.25  # seconds until the next address is tried beside the one before
_ATTEMPT = 10.0  # seconds to connect, and again to authenticate; then the address is tried again


class Target(NamedTuple):
    """An address for ``connect``, and its text for people."""

    family: int
    address: Any
    shown: str


class Race:
    """The attempts to reach one peer, driven by a loop. When all have failed, they start again after a pause.

    Attributes:
        winner: the connection that both sides keep, once there is one.
        failures: why attempts failed, by the text of the address.
    """

    def __init__(
        self,
        loop: Loop,
        find: Callable[[], Sequence[Target]],
        handshake: Callable[[socket.socket], Task[None]],
        won: Callable[[socket.socket], None],
        *,
        pauses: tuple[float, float],
        wrap: Callable[[socket.socket], socket.socket] | None = None,
        refused: Callable[[RefusedError], None] | None = None,
    ) -> None:
        """Does nothing before `start`.

        Args:
            find: returns the addresses; called before each round of attempts. An ``OSError`` of it counts as a failed
                attempt. Running out of descriptors is raised, here and when a socket is made.
            handshake: authenticates both sides on a connection.
            won: called once, with the winner.
            pauses: seconds between the first rounds, and at most.
            wrap: makes of a connected socket the one that is used.
            refused: called when all attempts have failed and the other side has refused one; by default a refusal is
                a failure like others.
        """
        self.winner: socket.socket | None = None
        self.failures: dict[str, str] = {}
        self._loop = loop
        self._find = find
        self._handshake = handshake
        self._on_won = won
        self._pause, self._longest = pauses
        self._wrap = wrap
        self._on_refusal = refused
        self._waiting: list[Target] = []
        self._running: dict[socket.socket, str] = {}
        self._claimed: socket.socket | None = None
        self._refusal: RefusedError | None = None
        self._begun = 0
        self._calls_of_next = 0  # pending calls of `_next`
        self._over = False

    def start(self) -> None:
        """Begins a round."""
        if self._over:
            return
        self._refusal = None
        try:
            self._waiting = list(self._find())
            self.failures.pop("the name", None)
        except OSError as error:
            if out_of_files(error):
                raise
            self.failures["the name"] = f"it does not resolve: {error.strerror or error}"
        self._next()

    def stop(self) -> None:
        """Ends all attempts; a winner stays open."""
        self._over = True
        self._waiting.clear()
        for sock in self._running:
            self._loop.cancel(sock)
            sock.close()
        self._running.clear()

    def describe(self) -> str:
        """The state of each attempt, as text."""
        running = {shown: "no answer yet" for shown in self._running.values() if shown not in self.failures}
        return "; ".join(f"{shown}: {why}" for shown, why in {**self.failures, **running}.items())

    def _next(self) -> None:
        """Tries the next address, and the one after it a little later."""
        # An address that fails at once calls this again from within. A loop instead of recursion, since there may be
        # hundreds of addresses.
        self._calls_of_next += 1
        if self._calls_of_next > 1:
            return
        try:
            while self._calls_of_next > 0:
                self._try_one()
                self._calls_of_next -= 1
        finally:
            self._calls_of_next = 0

    def _try_one(self) -> None:
        if self._claimed is not None or self._over:
            return
        if not self._waiting:
            self._ended_round()
            return
        target = self._waiting.pop(0)
        self._begun += 1
        begun = self._begun
        try:
            sock = socket.socket(target.family, socket.SOCK_STREAM)
        except OSError as error:
            if out_of_files(error):
                raise
            self.failures[target.shown] = str(error)
            self._next()
            return
        sock.setblocking(False)
        self._running[sock] = target.shown

        def stagger() -> None:
            if self._begun == begun and self._waiting:
                self._next()

        if self._waiting:
            self._loop.later(_STAGGER, stagger)
        self._loop.start(sock, _reach(sock, target.address), lambda _, error: self._reached(sock, error), _ATTEMPT)

    def _reached(self, sock: socket.socket, error: Exception | None) -> None:
        if error is not None:
            self._failed(sock, error)
            return
        used = sock
        if self._wrap is not None:
            shown = self._running.pop(sock)
            try:
                used = self._wrap(sock)
            except OSError as failure:
                self._running[sock] = shown
                self._failed(sock, failure)
                return
            self._running[used] = shown
        self._loop.start(used, self._attempt(used), lambda _, failure: self._settled(used, failure), _ATTEMPT)

    def _attempt(self, sock: socket.socket) -> Task[None]:
        yield from self._handshake(sock)
        if self._claimed is not None:
            raise WireError("another address was faster")
        self._claimed = sock
        # The other side may have authenticated several connections; this message tells it which one is used.
        yield from wire.send(sock, {"keep": True})

    def _settled(self, sock: socket.socket, error: Exception | None) -> None:
        if error is not None:
            if self._claimed is sock:
                self._claimed = None
            self._failed(sock, error)
            return
        del self._running[sock]
        self.stop()
        self.winner = sock
        self._on_won(sock)

    def _failed(self, sock: socket.socket, error: Exception) -> None:
        if out_of_files(error):
            raise error  # the limit of this process, not a fault of the address
        self.failures[self._running.pop(sock)] = str(error) or type(error).__name__
        sock.close()
        if isinstance(error, RefusedError) and self._refusal is None:
            self._refusal = error
        self._next()

    def _ended_round(self) -> None:
        if self._running:
            return
        if self._refusal is not None and self._on_refusal is not None:
            self._on_refusal(self._refusal)
        self._loop.later(self._pause, self.start)
        self._pause = min(2 * self._pause, self._longest)


def _reach(sock: socket.socket, address: Any) -> Task[None]:
    yield from wire.connect(sock, address)
    if sock.getsockname() == sock.getpeername():
        # Where no process listens on a local port, the kernel may choose it as the source port of this connection.
        raise WireError("it connected to itself")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
