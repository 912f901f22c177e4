"""TLS on the connections of the rendezvous: both sides show certificates that one authority has signed.

It uses the standard library's ``ssl`` on non-blocking sockets and ignores the names in certificates: the token proves
that a process is a rank, and the proofs cover both certificates (`wire`), so the holder of another certificate of the
same authority cannot act as a man in the middle.
"""

from __future__ import annotations

import hashlib
import selectors
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from . import wire
from .secrets import read_secret
from .wire import Task, UntrustedError

T = TypeVar("T")

_READY = b"T"


class _Blocked(BlockingIOError):
    """The socket must become ready for `event`; TLS may have to read in order to write, and vice versa."""

    def __init__(self, event: int) -> None:
        super().__init__()
        self.event = event


class _Socket(ssl.SSLSocket):
    """A TLS socket that raises BlockingIOError like plain sockets."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        return _non_blocking(lambda: super(_Socket, self).recv(buflen))

    def send(self, data: Any, flags: int = 0) -> int:
        # ssl accepts no flags, so no MSG_NOSIGNAL; Python ignores SIGPIPE by itself.
        return _non_blocking(lambda: super(_Socket, self).send(data))

    def do_handshake(self, block: bool = False) -> None:
        _non_blocking(lambda: super(_Socket, self).do_handshake(block))

    def begins_plainly(self) -> bool:
        """Whether the other side began our protocol without TLS. Raises ``BlockingIOError``."""
        return socket.socket.recv(self, len(wire.MAGIC), socket.MSG_PEEK) == wire.MAGIC


class _Plain:
    """Sends and receives on a TLS socket without TLS."""

    def __init__(self, sock: _Socket) -> None:
        self._sock = sock

    def recv(self, count: int) -> bytes:
        return socket.socket.recv(self._sock, count)

    def send(self, data: Any, flags: int = 0) -> int:
        return socket.socket.send(self._sock, data, flags)


class Tls:
    """The TLS settings of one rank."""

    def __init__(self, files: tuple[str, str, str]) -> None:
        """Loads the certificate of this rank, its key, and the certificates of the authority.

        Raises:
            ValueError: a file cannot be used; the text names the variable and says why.
        """
        cert, key, authority = files
        # The proofs cover the certificate that this rank presents, which is the first in the file.
        self._own = _fingerprint(_first_certificate(cert))
        if key != cert:
            read_secret(key, "COLLECTIVES_TLS_KEY")
        else:
            read_secret(cert, "COLLECTIVES_TLS_CERT (which has the key too, since COLLECTIVES_TLS_KEY is not set)")
        self._listening = _context(ssl.PROTOCOL_TLS_SERVER, cert, key, authority)
        self._listening.num_tickets = 0
        self._connecting = _context(ssl.PROTOCOL_TLS_CLIENT, cert, key, authority)

    def wrap_listening(self, sock: socket.socket) -> socket.socket:
        """A TLS socket over an accepted connection. Raises ``OSError``."""
        return self._listening.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def wrap_connecting(self, sock: socket.socket) -> socket.socket:
        """A TLS socket over a connection that this rank has made. Raises ``OSError``."""
        return self._connecting.wrap_socket(sock, do_handshake_on_connect=False)

    def accept(self, sock: socket.socket) -> Task[bytes]:
        """The handshake of the side that listens; returns the binding that the proofs cover.

        Raises:
            WireError, OSError: close the connection.
        """
        assert isinstance(sock, _Socket)
        while True:
            try:
                plain = sock.begins_plainly()
                break
            except BlockingIOError:
                yield selectors.EVENT_READ
        if plain:
            yield from self._refuse_plain(sock)
        yield from _handshake(sock)
        # In TLS 1.3 the other side finishes before this side has checked its certificate. It waits for this message
        # before it sends anything: if data were unread when this side refuses and closes, the reset would destroy the
        # alert that says why.
        yield from wire.send_bytes(sock, _READY)
        return _peer(sock) + self._own

    def connect(self, sock: socket.socket) -> Task[bytes]:
        """The handshake of the side that connects; returns the binding that the proofs cover.

        Raises:
            UntrustedError: one side does not accept the certificate of the other, or the other speaks no TLS.
            WireError, OSError: close the connection.
        """
        assert isinstance(sock, _Socket)
        yield from _handshake(sock)
        try:
            if (yield from wire.receive_bytes(sock, len(_READY))) != _READY:
                raise wire.WireError("it speaks TLS, but not this protocol")
        except ssl.SSLError as error:
            raise _explain(error) from None
        return self._own + _peer(sock)

    def _refuse_plain(self, sock: _Socket) -> Task[None]:
        """Refuses a rank that speaks no TLS, over the plain connection."""
        reason = "it does not speak TLS, and COLLECTIVES_TLS_CERT is set on this side"
        plain: Any = _Plain(sock)
        yield from wire.receive_payload(plain, wire.STRANGER_LIMIT)
        yield from wire.send(plain, {"refused": "TLS is needed there: set COLLECTIVES_TLS_CERT here too"})
        raise wire.WireError(reason)


def _non_blocking(call: Callable[[], T]) -> T:
    try:
        return call()
    except ssl.SSLWantReadError:
        raise _Blocked(selectors.EVENT_READ) from None
    except ssl.SSLWantWriteError:
        raise _Blocked(selectors.EVENT_WRITE) from None


def _handshake(sock: _Socket) -> Task[None]:
    while True:
        try:
            sock.do_handshake()
            return
        except _Blocked as blocked:
            yield blocked.event
        except ssl.SSLError as error:
            raise _explain(error) from None


def _explain(error: ssl.SSLError) -> Exception:
    """The error with advice if trying again cannot help; as it is if the connection just ended."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return UntrustedError(
            f"its certificate is not accepted here: {error.verify_message}. COLLECTIVES_TLS_CA of each rank must have "
            "the authority that signed the certificates of the others, and these must be valid today"
        )
    reason = str(error.reason or "")
    if reason == "WRONG_VERSION_NUMBER":
        return UntrustedError("it does not speak TLS, and COLLECTIVES_TLS_CERT is set on this side")
    if "ALERT" in reason:
        what = reason.lower().partition("alert_")[2].replace("_", " ")
        return UntrustedError(
            f"it refused TLS with this side ({what}). COLLECTIVES_TLS_CERT must be signed by the authority in its "
            "COLLECTIVES_TLS_CA and be valid today"
        )
    return error


def _peer(sock: _Socket) -> bytes:
    certificate = sock.getpeercert(binary_form=True)
    assert certificate is not None  # both contexts demand one
    return _fingerprint(certificate)


def _fingerprint(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()


def _first_certificate(path: str) -> bytes:
    try:
        text = Path(path).read_text(encoding="ascii", errors="replace")
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        return ssl.PEM_cert_to_DER_cert(text[text.index(begin) : text.index(end) + len(end)])
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it has no certificate in PEM"
        raise ValueError(f"COLLECTIVES_TLS_CERT is {path!r}, which cannot be used: {why}") from None


def _context(kind: int, cert: str, key: str, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslsocket_class = _Socket
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cafile=authority)
    except OSError as error:
        raise ValueError(f"COLLECTIVES_TLS_CA is {authority!r}, which cannot be used: {_why(error)}") from None

    def refuse() -> str:
        raise ValueError("the key is encrypted; a key without a password is needed")

    try:
        context.load_cert_chain(cert, key, password=refuse)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"COLLECTIVES_TLS_CERT {cert!r} with the key in {key!r} cannot be used: {_why(error)}"
        ) from None
    return context


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return str(error.reason or "something in it is missing, or is not PEM").lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
