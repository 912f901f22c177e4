"""Reaching one peer that may have several addresses: attempts in a race, of which the first that is authenticated wins.

As RFC 8305 ("happy eyeballs") has it, the next address is tried beside the one before when that takes long, and at once
when it fails. So an address that swallows packets costs a quarter of a second, not the time that it takes to give up.
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
_ATTEMPT = 10.0  # seconds to connect, and again to authenticate, so that an address that says nothing is tried afresh


class Target(NamedTuple):
    """An address to connect to: as ``connect`` wants it, and as people read it."""

    family: int
    address: Any
    shown: str


class Race:
    """The attempts to reach one peer, driven by a loop. When all have failed, they begin anew after a pause.

    Attributes:
        winner: the connection that both sides keep, once there is one.
        failures: why attempts failed, by the address as it is shown.
    """

    def __init__(
        self,
        loop: Loop,
        find: Callable[[], Sequence[Target]],
        greet: Callable[[socket.socket], Task[None]],
        won: Callable[[socket.socket], None],
        *,
        pauses: tuple[float, float],
        wrap: Callable[[socket.socket], socket.socket] | None = None,
        refused: Callable[[RefusedError], None] | None = None,
    ) -> None:
        """Nothing happens before `start`.

        Args:
            find: gives the addresses, before each round of attempts; an ``OSError`` of it counts as a failure,
                unless no descriptors are left: then it is raised, as it is when there are none for a socket.
            greet: authenticates both sides on a connection.
            won: is told of the winner, once.
            pauses: seconds between the first rounds, and at most.
            wrap: makes of a connected socket the one that is used.
            refused: is told when all attempts have failed and one was refused by the other side; by default a refusal
                is a failure like others.
        """
        self.winner: socket.socket | None = None
        self.failures: dict[str, str] = {}
        self._loop = loop
        self._find = find
        self._greet = greet
        self._told = won
        self._pause, self._longest = pauses
        self._wrap = wrap
        self._on_refusal = refused
        self._waiting: list[Target] = []
        self._running: dict[socket.socket, str] = {}
        self._claimed: socket.socket | None = None
        self._refusal: RefusedError | None = None
        self._begun = 0
        self._wanted = 0  # how many calls of `_next` are not done
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
        """Ends all attempts but the one that has won."""
        self._over = True
        self._waiting.clear()
        for sock in self._running:
            self._loop.cancel(sock)
            sock.close()
        self._running.clear()

    def describe(self) -> str:
        """What has become of the attempts."""
        running = {shown: "no answer yet" for shown in self._running.values() if shown not in self.failures}
        return "; ".join(f"{shown}: {why}" for shown, why in {**self.failures, **running}.items())

    def _next(self) -> None:
        """Tries the next address, and the one after it a little later."""
        # An address may fail at once, which calls this from within: a loop, since there may be hundreds of them.
        self._wanted += 1
        if self._wanted > 1:
            return
        try:
            while self._wanted > 0:
                self._try_one()
                self._wanted -= 1
        finally:
            self._wanted = 0

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
        yield from self._greet(sock)
        if self._claimed is not None:
            raise WireError("another address was faster")
        self._claimed = sock
        # The other side may have authenticated several connections; this says which one is used.
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
        self._told(sock)

    def _failed(self, sock: socket.socket, error: Exception) -> None:
        if out_of_files(error):
            raise error  # of this process, whatever the address
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
        # With nobody listening, the kernel may give the very port that is wanted to this end of the connection.
        raise WireError("it connected to itself")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
