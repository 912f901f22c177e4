"""The hand-over of memory between processes of one host, which is also the proof that they are on one host.

Every rank listens on an abstract Unix socket with a random name; abstract names live in a network namespace and nowhere
in a file system, so nothing can be left behind. Of each pair the higher rank connects to the lower. Both check that the
other side runs as the same user and knows the token, then each sends two descriptors: its memory segment and its
doorbell. The connection stays open as the control connection of the pair.

That the other rank cannot be reached this way means "not the same host", which is no error: TCP serves that pair.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import secrets
import selectors
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from . import _wire
from ._loop import Acceptor, Loop
from ._wire import Message, Task, WireError

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_COUNT = 2  # descriptors each side sends
_BUSY_PAUSE = 0.01  # seconds before another attempt when the other side's backlog is full


@dataclass
class Handover:
    """What came of the hand-over with one peer; the descriptors belong to whoever holds this.

    Attributes:
        memory_fd: the peer's memory segment.
        doorbell_fd: the peer's eventfd.
        control_fd: the connection, non-blocking.
        pid_fd: refers to the peer's process, -1 when the kernel cannot say.
        pid: the peer's process number as seen here, 0 when it is in another pid namespace.
    """

    memory_fd: int = -1
    doorbell_fd: int = -1
    control_fd: int = -1
    pid_fd: int = -1
    pid: int = 0

    def close(self) -> None:
        """Closes all descriptors."""
        for name in ("memory_fd", "doorbell_fd", "control_fd", "pid_fd"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


@dataclass
class Exchanger:
    """Hands over memory to all ranks of this host, driven by a loop.

    Attributes:
        name: of the abstract socket, to be told to the other ranks.
        done: the peers that were handed over to, by rank.
        reasons: why the others could not be reached, by rank (only ranks to which this one connects).
    """

    loop: Loop
    rank: int
    size: int
    job: str
    token: bytes
    segment_fd: int
    doorbell_fd: int
    name: str = field(default_factory=lambda: f"collectives-{secrets.token_hex(16)}")
    done: dict[int, Handover] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    _wanted: int = 0

    def __post_init__(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(f"\0{self.name}")
            listener.listen(4096)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        # No time limit: only processes of the same user get as far as being pending.
        self._acceptor = Acceptor(
            self.loop,
            [listener],
            self._greet_listening,
            lambda sock, result: self._finish(sock, *result),
            what="hand-over of memory",
            capacity=max(256, 2 * self.size),
            limit=None,
        )

    def start(self, names: Mapping[int, str]) -> None:
        """Connects to the given ranks (all lower than the own)."""
        self._wanted = len(names)
        for peer, name in names.items():
            self._connect(peer, name)

    def settled(self) -> bool:
        """Whether it is known of every rank given to `start` if it is on this host."""
        return sum(peer < self.rank for peer in self.done) + len(self.reasons) == self._wanted

    def close(self) -> None:
        """Stops listening. What is in `done` stays open."""
        self._acceptor.close()

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
                self.reasons[peer] = str(error)

        self.loop.start(sock, self._greet_connecting(sock, peer, name), ended)

    def _finish(self, sock: socket.socket, peer: int, handover: Handover) -> None:
        if peer in self.done:  # an authenticated rank that comes twice; the first connection is in use
            handover.close()
            sock.close()
            return
        handover.control_fd = sock.detach()
        self.done[peer] = handover

    def _greet_connecting(self, sock: socket.socket, peer: int, name: str) -> Task[tuple[int, Handover]]:
        yield from _wire.connect(sock, f"\0{name}")
        handover = _identify(sock)
        with _closing_on_failure(handover):
            hello = {"purpose": "memory", "rank": self.rank, "to": peer, "job": self.job}
            yield from _wire.authenticate_connecting(sock, self.token, hello)
            yield from send_descriptors(sock, (self.segment_fd, self.doorbell_fd))
            handover.memory_fd, handover.doorbell_fd = yield from receive_descriptors(sock)
        return peer, handover

    def _greet_listening(self, sock: socket.socket) -> Task[tuple[int, Handover]]:
        handover = _identify(sock)
        with _closing_on_failure(handover):
            hello = yield from _wire.authenticate_listening(sock, self.token, self._check)
            handover.memory_fd, handover.doorbell_fd = yield from receive_descriptors(sock)
            yield from send_descriptors(sock, (self.segment_fd, self.doorbell_fd))
        return hello["rank"], handover

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
    """Checks the user of the other side and takes hold of its process.

    The process cannot be another one that got the same number: every rank must come to one more round of the rendezvous
    after this, so it was alive when `pidfd_open` was called.
    """
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if uid != os.geteuid():
        raise WireError(f"it runs as user {uid} and this side as user {os.geteuid()}")
    handover = Handover(pid=pid)
    if pid > 0:
        with contextlib.suppress(OSError):
            handover.pid_fd = os.pidfd_open(pid)
    return handover


def send_descriptors(sock: socket.socket, descriptors: tuple[int, ...]) -> Task[None]:
    """Sends descriptors with one byte of data, which they need to travel."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    while True:
        try:
            sock.sendmsg([b"F"], ancillary, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            yield selectors.EVENT_WRITE
        else:
            return


def receive_descriptors(sock: socket.socket) -> Task[tuple[int, int]]:
    """Receives what `send_descriptors` sent: exactly two descriptors, closed on exec.

    Not by `socket.recv_fds`, which drops its flags (until Python 3.14) and so would leave them open across exec.
    """
    while True:
        try:
            data, ancillary, flags, _ = sock.recvmsg(
                1, socket.CMSG_SPACE(_COUNT * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
            )
            break
        except BlockingIOError:
            yield selectors.EVENT_READ
    received = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
    if data != b"F" or len(received) != _COUNT or flags & socket.MSG_CTRUNC:
        for descriptor in received:
            os.close(descriptor)
        if not data:
            raise _wire.EndedError("the connection was closed by the other side")
        hint = " (is this process out of file descriptors? see `ulimit -n`)" if flags & socket.MSG_CTRUNC else ""
        raise WireError(f"{len(received)} descriptors came instead of {_COUNT}{hint}")
    return received[0], received[1]
