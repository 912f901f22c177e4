"""Meeting by the key-value store of a launcher: rank 0 leaves there where it listens, and a secret that it made.

Where the user gave a token, that is used instead and does not go into the store: who can read the store then still
cannot join.
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
    """How a rank looks again where rank 0 listens, since what it found may be from an earlier start.

    Attributes:
        look: gives the launch environment with what is in the store now, ``None`` for nothing. It may raise as
            `read_published` does, and ``CollectivesError`` when the store does not answer.
        token_made: rank 0 makes a token for each start, so a wrong one is an old one; else the user gave it.
    """

    look: Callable[[], Environment | None]
    token_made: bool


def publish(host: str, port: int, own: bytes) -> tuple[socket.socket, str, bytes, str]:
    """What rank 0 does.

    Args:
        host: where the others look for it: an address or a name of this machine, or else of the store.
        port: of the store, to find the own address on the way there when `host` is not of this machine.
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
    """What the others do with what they found in the store: the address of rank 0, and the token.

    Raises:
        ValueError: tokens were given to some ranks only, or this is not what rank 0 puts there.
    """
    try:
        found = json.loads(text)
        where, made = str(found["address"]), found["token"]
    except (ValueError, TypeError, KeyError):  # without the text, which may have the token
        raise ValueError("the launcher's store has something else where rank 0 says where it listens") from None
    if (made is None) != bool(own):
        with_token, without = ("this rank", "rank 0") if own else ("rank 0", "this rank")
        raise ValueError(
            f"{with_token} was given a token (COLLECTIVES_TOKEN, COLLECTIVES_TOKEN_FILE or token=) and {without} was "
            "not; give the same one to all ranks, or to none"
        )
    return where, own or str(made).encode()


def _listen(host: str, token: bytes) -> socket.socket:
    """A socket on a free port where others look for `host`."""
    sockets = listen_at(host, 0, token)
    families = [entry[0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    chosen = next((sock for family in families for sock in sockets if sock.family == family), sockets[0])
    for sock in sockets:
        if sock is not chosen:
            sock.close()
    return chosen


def _address_towards(host: str, port: int) -> str:
    """The address of this machine on the way to another one; nothing is sent."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.connect(address)
        return str(sock.getsockname()[0])
