"""Rendezvous by the key-value store of a launcher: rank 0 publishes its address there, and a token that it makes.

A token from the user is used instead and not published, so that a process that can read the store still cannot join.
"""

from __future__ import annotations

import errno
import json
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from .environment import Environment, format_address
from .sockets import listen_at


@dataclass(frozen=True)
class Lookup:
    """Asks the store again for the address of rank 0, since the first answer may be from an earlier start.

    Attributes:
        look: returns the launch environment from what is in the store now, ``None`` for nothing. It may raise as
            `read_published` does, and ``CollectivesError`` when the store does not answer.
        token_made: whether rank 0 made the token; then a token that does not fit is from an earlier start.
    """

    look: Callable[[], Environment | None]
    token_made: bool


def publish(host: str, port: int, own: bytes) -> tuple[socket.socket, str, bytes, str]:
    """Makes on rank 0 what the others find in the store.

    Args:
        host: an address or a name of this machine by which the others reach it, or that of the store.
        port: of the store; where `host` is not of this machine, the address on the way to the store is published.
        own: the token that the user gave, or nothing.

    Returns:
        a socket that listens on a free port, its address as text, the token, and what to put into the store.

    Raises:
        OSError: nothing can be bound.
    """
    token = own or secrets.token_hex(32).encode()
    try:
        listener = _listen(host, token)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        host = _address_towards(host, port)
        listener = _listen(host, token)
    where = format_address(host, listener.getsockname()[1])
    return listener, where, token, json.dumps({"address": where, "token": None if own else token.decode()})


def read_published(text: str, own: bytes) -> tuple[str, bytes]:
    """The address of rank 0 and the token, from the text that the other ranks find in the store.

    Raises:
        ValueError: only some ranks were given a token, or rank 0 did not write this text.
    """
    try:
        found = json.loads(text)
        where, made = str(found["address"]), found["token"]
    except (ValueError, TypeError, KeyError):  # the error does not show the text, which may contain the token
        raise ValueError(
            "the launcher's store has something else in the place of the address of rank 0. Does another program or "
            "another version of collectives write there?"
        ) from None
    if (made is None) != bool(own):
        with_token, without = ("this rank", "rank 0") if own else ("rank 0", "this rank")
        raise ValueError(
            f"{with_token} was given a token (COLLECTIVES_TOKEN, COLLECTIVES_TOKEN_FILE or token=) and {without} was "
            "not; give the same one to all ranks, or to none"
        )
    return where, own or str(made).encode()


def _listen(host: str, token: bytes) -> socket.socket:
    """A socket on a free port of the first address of `host` that can be bound."""
    sockets = listen_at(host, 0, token)
    families = [entry[0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    chosen = next((sock for family in families for sock in sockets if sock.family == family), sockets[0])
    for sock in sockets:
        if sock is not chosen:
            sock.close()
    return chosen


def _address_towards(host: str, port: int) -> str:
    """The address of this machine on the route to another one; nothing is sent."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.connect(address)
        return str(sock.getsockname()[0])
