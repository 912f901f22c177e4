"""Listening sockets."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from . import wire
from .environment import Environment, format_address
from .interfaces import Interface
from .wire import Deadline

_BACKLOG = 4096  # the kernel lowers it to net.core.somaxconn
_BIND_PATIENCE = 2.0  # seconds during which a port that is taken is tried again


def out_of_files(error: BaseException) -> TypeGuard[OSError]:
    """Whether an error says that no descriptors are left; then neither another address nor waiting helps."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def listen_on(family: int, address: Any) -> socket.socket:
    """A non-blocking socket that listens on one numeric address, given as for ``bind``. Raises ``OSError``."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # One socket for one family: otherwise an IPv4 peer has a mapped IPv6 address.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def listen_anywhere(port: int) -> list[socket.socket]:
    """Listens on all addresses of both families, as far as there are any. Raises ``OSError`` when there is none."""
    return _listen_on_all([(socket.AF_INET, ("0.0.0.0", port)), (socket.AF_INET6, ("::", port))])  # noqa: S104 (needs a token)


def listen_on_loopback() -> list[socket.socket]:
    """Listens on the loopback addresses of both families, each with a port of its own."""
    return _listen_on_all([(socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET6, ("::1", 0))])


def listen_on_interfaces(chosen: Sequence[Interface]) -> list[socket.socket]:
    """Listens on the addresses of some interfaces, each with a port of its own, as far as they can be bound.

    Raises:
        OSError: no descriptors are left.
    """
    sockets: list[socket.socket] = []
    for entry in chosen:
        try:
            sockets.append(listen_on(socket.AF_INET6 if ":" in entry.address else socket.AF_INET, entry.sockaddr(0)))
        except OSError as error:  # skipped: the interface went down just now
            if out_of_files(error):
                for sock in sockets:
                    sock.close()
                raise
    return sockets


def _listen_on_all(places: list[tuple[socket.AddressFamily, Any]]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    for family, address in places:
        try:
            sockets.append(listen_on(family, address))
        except OSError as error:
            # A machine without IPv6 (or IPv4) is usual and no error; a port in use is.
            failure = error
            if _is_fatal(error):
                break
    if sockets and (failure is None or not _is_fatal(failure)):
        return sockets
    for sock in sockets:
        sock.close()
    assert failure is not None
    raise failure


def _is_fatal(error: OSError) -> bool:
    return error.errno == errno.EADDRINUSE or out_of_files(error)


def listen_at(host: str, port: int, token: bytes) -> list[socket.socket]:
    """Listens on the addresses by which other ranks reach `host`, which may be a name.

    Normally these are the addresses of the name. But hosts often map their own name to 127.0.1.1 in /etc/hosts, and the
    name of a service may be the address of no interface; then this listens on all addresses.

    Raises:
        ValueError: the address needs a token.
        OSError: it cannot be bound.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # Complete addresses: a link-local one needs its scope.
    addresses: list[tuple[socket.AddressFamily, Any]] = list(dict.fromkeys((entry[0], entry[4]) for entry in found))
    for _, address in addresses:
        wire.require_token(token, str(address[0]))
    literal = _is_literal(host) or host == "localhost" or host.endswith(".localhost")
    if not literal and any(wire.is_loopback(str(address[0])) for _, address in addresses):
        wire.require_token(token, host)
        return listen_anywhere(port)
    try:
        return _listen_on_all(addresses)
    except OSError as error:
        if literal or error.errno != errno.EADDRNOTAVAIL:
            raise
        return listen_anywhere(port)


def _bind_retrying(
    bind: Callable[[], list[socket.socket]], host: str, port: int, deadline: Deadline
) -> list[socket.socket]:
    """Calls `bind`, for a short while again when the port is in use. Raises ``ValueError`` with the reason.

    The connection of a waiting rank may use the port for an instant, or rank 0 of a job that just ended.
    """
    patience = Deadline(min(_BIND_PATIENCE, deadline.remaining()))
    while True:
        try:
            return bind()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or patience.remaining() == 0:
                raise ValueError(
                    f"rank 0 cannot listen on the rendezvous {format_address(host, port)}: {error.strerror or error}. "
                    "COLLECTIVES_RENDEZVOUS must be an address of the machine of rank 0 and a port that is free there"
                ) from error
            time.sleep(0.05)


def rendezvous_listeners(environment: Environment, deadline: Deadline) -> list[socket.socket]:
    """The sockets on which rank 0 listens: the inherited one, or new ones at the rendezvous address.

    Raises:
        ValueError: the address or the descriptor cannot be used; the text says why.
    """
    assert environment.rendezvous is not None
    host, port = environment.rendezvous
    fd = environment.rendezvous_fd
    if fd < 0:
        return _bind_retrying(lambda: listen_at(host, port, environment.token), host, port, deadline)
    try:
        # A copy: the inherited descriptor stays open for a later start in this process.
        sock = socket.socket(fileno=os.dup(fd))
        listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ValueError(
            f"COLLECTIVES_RENDEZVOUS_FD is {fd}, which is not a socket here ({error}); accepted is the descriptor of a "
            "listening socket that this process inherited"
        ) from None
    try:
        if not listening:
            raise ValueError(
                f"COLLECTIVES_RENDEZVOUS_FD is {fd}, which does not listen; accepted is a listening socket"
            )
        wire.require_token(environment.token, sock.getsockname()[0])
        os.set_inheritable(fd, False)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return [sock]


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
