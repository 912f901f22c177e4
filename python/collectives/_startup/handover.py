"""Processes of one host hand each other descriptors of their memory, which also proves that they are on one host.

Every process listens on an abstract Unix socket with a random name; abstract names are not in the file system, so
nothing is left behind. Of each pair the process with the higher number connects to the lower. Both check that the other
side runs as the same user and knows the token, then each sends two descriptors for each of its ranks: memory segment
and doorbell. The connection stays open as the control connection of the pair.

A process that cannot be reached this way is not on the same host; that is no error, since such pairs use TCP. Here and
in errors "rank" is the number of a process, which with replicas is not that of a rank in the world.
"""

from __future__ import annotations

import array
import contextlib
import errno
import logging
import os
import secrets
import selectors
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from . import wire
from .acceptor import Acceptor
from .loop import Loop
from .system import pidfd_open
from .wire import Message, Task, WireError

_log = logging.getLogger("collectives")
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_BATCH = 252  # descriptors in one message; Linux takes 253
_BUSY_PAUSE = 0.01  # seconds before another attempt when the other side's backlog is full


@dataclass
class Handover:
    """The descriptors from one peer; the holder of this object must close them.

    Attributes:
        memory_fds: the memory segment of each of the peer's ranks.
        doorbell_fds: the eventfd of each of them.
        control_fd: the connection, non-blocking.
        pid_fd: the pidfd of the peer's process, -1 when the kernel has none.
        pid: the peer's process number as seen here, 0 when it is in another pid namespace.
    """

    memory_fds: list[int] = field(default_factory=list)
    doorbell_fds: list[int] = field(default_factory=list)
    control_fd: int = -1
    pid_fd: int = -1
    pid: int = 0

    def close(self) -> None:
        """Closes all descriptors."""
        for descriptors in (self.memory_fds, self.doorbell_fds):
            while descriptors:
                os.close(descriptors.pop())
        for name in ("control_fd", "pid_fd"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


@dataclass
class Exchanger:
    """Exchanges memory with all processes of this host, driven by a loop.

    Attributes:
        name: of the abstract socket; the other processes need it.
        done: the finished hand-overs, by peer.
        reasons: why peers could not be reached, by number (only those to which this process connects).
    """

    loop: Loop
    rank: int
    size: int
    job: str
    token: bytes
    name: str = field(default_factory=lambda: f"collectives-{secrets.token_hex(16)}")
    done: dict[int, Handover] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    _wanted: int = 0
    _own: tuple[int, ...] = ()
    _counts: Sequence[int] = ()
    _acceptor: Acceptor | None = None

    def __post_init__(self) -> None:
        """Listens. Processes that connect before `start` wait in the backlog."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(f"\0{self.name}")
            self._listener.listen(4096)
            self._listener.setblocking(False)
        except BaseException:
            self._listener.close()
            raise

    def start(
        self, names: Mapping[int, str], segments: Sequence[int], doorbells: Sequence[int], counts: Sequence[int]
    ) -> None:
        """Accepts, and connects to the given processes (all lower than the own).

        Args:
            names: of their sockets, by number.
            segments, doorbells: the descriptors to hand over, by replica.
            counts: how many ranks each process has.
        """
        self._own = (*segments, *doorbells)
        self._counts = counts
        # No time limit: a process of another user is refused at once.
        self._acceptor = Acceptor(
            self.loop,
            [self._listener],
            self._handshake_listening,
            lambda sock, result: self._finish(sock, *result),
            what="hand-over of memory",
            capacity=max(256, 2 * self.size),
            limit=None,
        )
        self._wanted = len(names)
        for peer, name in names.items():
            self._connect(peer, name)

    def settled(self) -> bool:
        """Whether every hand-over that `start` has begun is done or has failed."""
        return sum(peer < self.rank for peer in self.done) + len(self.reasons) == self._wanted

    def close(self) -> None:
        """Stops listening. The descriptors in `done` stay open."""
        if self._acceptor is not None:
            self._acceptor.close()
        self._listener.close()

    def _connect(self, peer: int, name: str) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)

        def ended(result: tuple[int, Handover] | None, error: Exception | None) -> None:
            if result is not None:
                self._finish(sock, *result)
                return
            sock.close()
            if isinstance(error, OSError) and error.errno == errno.EAGAIN:
                self.loop.later(_BUSY_PAUSE, lambda: self._connect(peer, name))
            elif isinstance(error, ConnectionRefusedError):
                self.reasons[peer] = "its Unix socket is not in this network namespace"
            else:
                # The peer is on this host, so the slower TCP deserves a warning.
                self.reasons[peer] = str(error)
                _log.warning("no shared memory between ranks %d and %d: %s", peer, self.rank, error)

        self.loop.start(sock, self._handshake_connecting(sock, peer, name), ended)

    def _finish(self, sock: socket.socket, peer: int, handover: Handover) -> None:
        if peer in self.done:  # an authenticated process connected twice; the first connection is in use
            handover.close()
            sock.close()
            return
        handover.control_fd = sock.detach()
        self.done[peer] = handover

    def _handshake_connecting(self, sock: socket.socket, peer: int, name: str) -> Task[tuple[int, Handover]]:
        yield from wire.connect(sock, f"\0{name}")
        handover = _identify(sock)
        with _closing_on_failure(handover):
            hello = {"purpose": "memory", "rank": self.rank, "to": peer, "job": self.job}
            yield from wire.authenticate_connecting(sock, self.token, hello)
            yield from send_descriptors(sock, self._own)
            yield from self._receive(sock, peer, handover)
        return peer, handover

    def _handshake_listening(self, sock: socket.socket) -> Task[tuple[int, Handover]]:
        handover = _identify(sock)
        with _closing_on_failure(handover):
            hello = yield from wire.authenticate_listening(sock, self.token, self._check)
            assert self._acceptor is not None
            self._acceptor.trust(sock)
            yield from self._receive(sock, hello["rank"], handover)
            yield from send_descriptors(sock, self._own)
        return hello["rank"], handover

    def _receive(self, sock: socket.socket, peer: int, handover: Handover) -> Task[None]:
        count = self._counts[peer]
        descriptors = yield from receive_descriptors(sock, 2 * count)
        handover.memory_fds, handover.doorbell_fds = descriptors[:count], descriptors[count:]

    def _check(self, hello: Message) -> str | None:
        if hello.get("purpose") != "memory" or hello.get("job") != self.job or hello.get("to") != self.rank:
            return f"this is rank {self.rank}'s hand-over of memory, in another job or for another rank"
        if not self.rank < hello["rank"] < self.size:
            return f"rank {hello['rank']} does not connect to rank {self.rank}"
        return None


@contextlib.contextmanager
def _closing_on_failure(handover: Handover) -> Iterator[None]:
    try:
        yield
    except BaseException:
        handover.close()
        raise


def _identify(sock: socket.socket) -> Handover:
    """Checks the user of the other side and opens a pidfd of its process.

    The number cannot belong to another process by now: the peer must take part in one more round of the rendezvous, so
    it was alive when `pidfd_open` was called.
    """
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if uid != os.geteuid():
        raise WireError(f"it runs as user {uid} and this side as user {os.geteuid()}")
    handover = Handover(pid=pid)
    if pid > 0:
        with contextlib.suppress(OSError):
            handover.pid_fd = pidfd_open(pid)
    return handover


def send_descriptors(sock: socket.socket, descriptors: Sequence[int]) -> Task[None]:
    """Sends descriptors, with one byte of data in each batch, since a message with descriptors cannot be empty."""
    for begin in range(0, len(descriptors), _BATCH):
        batch = array.array("i", descriptors[begin : begin + _BATCH])
        while True:
            try:
                sock.sendmsg([b"F"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, batch)], socket.MSG_NOSIGNAL)
                break
            except BlockingIOError:
                yield selectors.EVENT_WRITE


def receive_descriptors(sock: socket.socket, count: int) -> Task[list[int]]:
    """Receives what `send_descriptors` sent: exactly `count` descriptors, closed on exec."""
    received: list[int] = []
    try:
        while len(received) < count:
            yield from _receive_batch(sock, min(_BATCH, count - len(received)), received)
    except BaseException:
        for descriptor in received:
            os.close(descriptor)
        raise
    return received


def _receive_batch(sock: socket.socket, count: int, received: list[int]) -> Task[None]:
    """Receives up to `count` descriptors and appends them to `received`, also when it raises.

    Not by `socket.recv_fds`, which ignores its flags (until Python 3.14), so descriptors would stay open across exec.
    """
    while True:
        try:
            data, ancillary, flags, _ = sock.recvmsg(
                1, socket.CMSG_SPACE(count * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
            )
            break
        except BlockingIOError:
            yield selectors.EVENT_READ
    batch = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            batch.frombytes(content[: len(content) - len(content) % batch.itemsize])
    received.extend(batch)
    if data != b"F" or len(batch) != count or flags & socket.MSG_CTRUNC:
        if not data:
            raise wire.EndedError("the connection was closed by the other side")
        hint = " (is this process out of file descriptors? see `ulimit -n`)" if flags & socket.MSG_CTRUNC else ""
        raise WireError(f"{len(batch)} descriptors came instead of {count}{hint}")
