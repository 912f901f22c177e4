"""Messages and authentication on the connections that are made while a job starts.

A message is 4 bytes of magic, 4 bytes of length (big endian) and that much JSON. Every connection (to the rendezvous,
for the hand-over of memory, for data) begins with the same four messages; C connects, L listens:

    C -> L  hello       purpose, the ranks of both ends, a fresh nonce, and what the purpose adds
    L -> C  challenge   a fresh nonce
    C -> L  proof       HMAC-SHA256(token, "connecting", hello, challenge)
    L -> C  proof       HMAC-SHA256(token, "listening", hello, challenge)

So each side proves that it has the token and means this connection. The token is never sent; an old proof does not fit
a new nonce; and a proof cannot be reflected, because the role is part of it. C proves first, so that a stranger that
connects gets nothing to test guesses against. Over TLS (`tls`) the proofs also cover the certificates of both sides, so
a man in the middle cannot relay them.

All functions that wait are generators ("tasks") over non-blocking sockets and yield the event they wait for. `run`
drives one of them; `loop.Loop` drives many.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import select
import selectors
import socket
import struct
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
Task = Generator[int, None, T]
Message = dict[str, Any]

PROTOCOL = 3
MAGIC = b"CLV1"
STRANGER_LIMIT = 4096  # bytes of one message before the sender is authenticated
MEMBER_LIMIT = 64 << 20  # bytes of one message afterwards
LONGEST_WAIT = 86400.0  # seconds; poll and epoll take milliseconds in 32 bits, and a deadline may be years away
_LONGEST_SHOWN = 300  # characters
_HEADER = struct.Struct(">4sI")


class WireError(Exception):
    """The other side does not speak this protocol, or not correctly."""


class EndedError(WireError):
    """The other side closed the connection in the middle of the protocol."""


class RefusedError(WireError):
    """The other side refused the connection; ``reason`` is its text, or ``"token"`` for a wrong token."""

    def __init__(self, reason: str) -> None:
        super().__init__("the tokens differ" if reason == "token" else reason)
        self.reason = reason


class SpeaksTlsError(WireError):
    """The other side speaks TLS and this side does not."""

    def __init__(self) -> None:
        super().__init__("it speaks TLS, and COLLECTIVES_TLS_CERT is not set on this side")


class UntrustedError(RefusedError):
    """TLS cannot work: one side does not accept the certificate of the other, or only one of them speaks TLS."""


class Deadline:
    """A point in time; ``seconds`` is how far away it was when it was set."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def tighten(self, seconds: float) -> None:
        """Moves the deadline to at most `seconds` from now."""
        self._end = min(self._end, time.monotonic() + seconds)


def run(task: Task[T], sock: socket.socket, deadline: Deadline) -> T:
    """Drives one task to its end. Raises ``TimeoutError`` at the deadline."""
    while True:
        try:
            event = next(task)
        except StopIteration as stop:
            result: T = stop.value
            return result
        poll = select.poll()
        poll.register(sock, select.POLLIN if event == selectors.EVENT_READ else select.POLLOUT)
        while True:
            remaining = deadline.remaining()
            if remaining == 0:
                task.close()
                raise TimeoutError(f"nothing came within {deadline.seconds:g} s")
            if poll.poll(min(remaining, LONGEST_WAIT) * 1000):
                break


def connect(sock: socket.socket, address: Any) -> Task[None]:
    """Connects a non-blocking socket. Raises ``OSError``."""
    code = sock.connect_ex(address)
    if code in (errno.EINPROGRESS, errno.EINTR):
        yield selectors.EVENT_WRITE
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def encode(message: Message) -> bytes:
    """A message as it goes over the wire."""
    payload = json.dumps(message, separators=(",", ":")).encode()
    return _HEADER.pack(MAGIC, len(payload)) + payload


def decode(payload: bytes) -> Message:
    """The reverse of `encode` without the header. Raises ``WireError``."""
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        raise WireError("a message is not JSON") from None
    if not isinstance(message, dict):
        raise WireError(f"a message is a JSON {type(message).__name__}, not an object")
    return message


def send_bytes(sock: socket.socket, data: bytes) -> Task[None]:
    """Sends all of `data`."""
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view, socket.MSG_NOSIGNAL) :]
        except BlockingIOError as blocked:
            yield getattr(blocked, "event", selectors.EVENT_WRITE)


def send(sock: socket.socket, message: Message) -> Task[None]:
    """Sends one message."""
    yield from send_bytes(sock, encode(message))


def receive_bytes(sock: socket.socket, count: int) -> Task[bytes]:
    """Receives exactly `count` bytes and never more: what follows may carry descriptors or belong to the core."""
    data = bytearray()
    while len(data) < count:
        try:
            # In pieces, so that memory is allocated only for bytes that have arrived.
            piece = sock.recv(min(count - len(data), 1 << 16))
        except BlockingIOError as blocked:
            yield getattr(blocked, "event", selectors.EVENT_READ)  # TLS may have to write first
            continue
        if not piece:
            raise EndedError("the connection was closed by the other side")
        data += piece
    return bytes(data)


def receive_payload(sock: socket.socket, limit: int) -> Task[bytes]:
    """Receives one message of at most `limit` bytes and returns it undecoded."""
    magic, length = _HEADER.unpack((yield from receive_bytes(sock, _HEADER.size)))
    if magic != MAGIC:
        if _is_tls(magic):
            raise SpeaksTlsError
        raise WireError(f"it begins with {magic!r}, which is not this protocol")
    if length > limit:
        raise WireError(f"a message of {length} bytes, more than the {limit} that are accepted here")
    return (yield from receive_bytes(sock, length))


def receive(sock: socket.socket, limit: int = MEMBER_LIMIT) -> Task[Message]:
    """Receives one message of at most `limit` bytes."""
    return decode((yield from receive_payload(sock, limit)))


def authenticate_connecting(sock: socket.socket, token: bytes, hello: Message, binding: bytes = b"") -> Task[None]:
    """Authentication by the side that connects.

    Args:
        hello: ``purpose`` (str), ``rank`` (own), ``to`` (the rank to reach), and fields of the purpose. The proofs
            cover all of it.
        binding: further bytes that both sides know of this connection; the proofs cover them, too.

    Raises:
        RefusedError, WireError, OSError: do not use the connection.
    """
    opening = encode({**hello, "protocol": PROTOCOL, "nonce": secrets.token_hex(32)})
    yield from send_bytes(sock, opening)
    try:
        challenge = yield from receive_payload(sock, STRANGER_LIMIT)
    except SpeaksTlsError as error:
        raise UntrustedError(str(error)) from None
    answer = decode(challenge)
    if "refused" in answer:
        raise RefusedError(printable(str(answer["refused"])))
    if not _is_nonce(answer.get("nonce")):
        raise WireError("a challenge without a nonce")
    yield from send(sock, {"proof": _proof(token, "connecting", opening[_HEADER.size :], challenge, binding)})
    answer = yield from receive(sock, STRANGER_LIMIT)
    if "refused" in answer:
        raise RefusedError(printable(str(answer["refused"])))
    if not _same(answer.get("proof"), _proof(token, "listening", opening[_HEADER.size :], challenge, binding)):
        raise RefusedError("token")


def authenticate_listening(
    sock: socket.socket, token: bytes, check: Callable[[Message], str | None], binding: bytes = b""
) -> Task[Message]:
    """Authentication by the side that listens; returns the other side's hello.

    Args:
        check: gets the hello before it is authenticated, and returns why it must be refused, or ``None``.
        binding: as for the other side.

    Raises:
        WireError, OSError: close the connection.
    """
    try:
        opening = yield from receive_payload(sock, STRANGER_LIMIT)
    except SpeaksTlsError:
        yield from send(sock, {"refused": "no TLS here"})  # no TLS record, so the other side reports that
        yield from _drain(sock)
        raise
    hello = decode(opening)
    rank = hello.get("rank")
    if not isinstance(rank, int) or isinstance(rank, bool) or not _is_nonce(hello.get("nonce")):
        raise WireError("a hello without a rank or a nonce")
    refusal = check(hello)
    if hello.get("protocol") != PROTOCOL:
        refusal = f"it speaks protocol {hello.get('protocol')!r} and this side speaks {PROTOCOL}: install one version"
    if refusal is not None:
        yield from send(sock, {"refused": refusal})
        raise WireError(refusal)
    challenge = encode({"nonce": secrets.token_hex(32)})
    yield from send_bytes(sock, challenge)
    answer = yield from receive(sock, STRANGER_LIMIT)
    if not _same(answer.get("proof"), _proof(token, "connecting", opening, challenge[_HEADER.size :], binding)):
        yield from send(sock, {"refused": "token"})
        raise WireError(f"it said to be rank {rank} but does not know the token")
    yield from send(sock, {"proof": _proof(token, "listening", opening, challenge[_HEADER.size :], binding)})
    return hello


def printable(text: str) -> str:
    """A text from an untrusted peer, for logs and errors: control characters escaped, and shortened."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} ..."


def _is_nonce(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64


def _is_tls(data: bytes) -> bool:
    """Whether these bytes begin a TLS record: an alert or a handshake, of version 3."""
    return data[0] in (0x15, 0x16) and data[1] == 3


def _drain(sock: socket.socket) -> Task[None]:
    """Reads to the end, up to a limit: closing with unread bytes resets the connection, and drops the last message."""
    with contextlib.suppress(WireError, OSError):
        yield from receive_bytes(sock, STRANGER_LIMIT)


def _proof(token: bytes, role: str, hello: bytes, challenge: bytes, binding: bytes = b"") -> str:
    parts = (b"collectives", role.encode(), hello, challenge, binding)
    text = b"".join(struct.pack(">I", len(part)) + part for part in parts)
    return hmac.new(token, text, hashlib.sha256).hexdigest()


def _same(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def is_loopback(host: str) -> bool:
    """Whether a numeric address is one of this machine's loopback addresses."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def require_token(token: bytes, host: str) -> None:
    """Raises ``ValueError`` unless there is a token or `host` is a loopback address."""
    if not token and not is_loopback(host):
        raise ValueError(
            f"the rendezvous address {host} is not a loopback address, so anyone on the network could join the job: "
            "set COLLECTIVES_TOKEN to the same random secret on every rank, e.g. the output of `openssl rand -hex 32`, "
            "or COLLECTIVES_TOKEN_FILE to a file that has it"
        )
