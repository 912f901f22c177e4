"""What rank 0 says to the other ranks of its host, by a Unix socket that has a name and no file.

For jobs on one host whose launcher has a store that is better left to an MPI library. The name is made of that of the
job. Both sides look at the user of the other: processes of other users learn nothing, and cannot say anything either.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import struct
import threading
import time

from ..wire import Deadline

_PAUSE = 0.02  # seconds between attempts, until rank 0 listens
_PATIENCE = 5.0  # seconds for one of them to take, or to say, a few hundred bytes
_LONGEST = 1 << 16  # bytes


class OneHostError(RuntimeError):
    """Nothing was heard of rank 0."""


def broadcast(job: str, size: int, text: str | None, deadline: Deadline) -> str:
    """What rank 0 passes, on every rank. Rank 0 does not wait for the others; the rendezvous then says who is missing.

    Args:
        job: a name that no other job on this host has.
        size: of the job.
        text: on rank 0; else None.
        deadline: for rank 0 to come.

    Raises:
        OneHostError: rank 0 did not come, or another user listens in its place.
        ValueError: another process has the name.
    """
    name = name_of(job)
    if text is None:
        return _ask(name, deadline)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(name)
    except OSError as error:
        listener.close()
        raise ValueError(f"the socket of this job on this host cannot be made ({error})") from error
    listener.listen(size)
    threading.Thread(target=_tell, args=(listener, size - 1, text), daemon=True, name="collectives-tell").start()
    return text


def name_of(job: str) -> bytes:
    """The name of the socket."""
    return b"\0collectives-" + hashlib.sha256(job.encode()).hexdigest()[:32].encode()


def _tell(listener: socket.socket, others: int, text: str) -> None:
    with listener:
        while others > 0:
            try:
                sock, _ = listener.accept()
            except OSError:  # no descriptor is free, say
                time.sleep(_PAUSE)
                continue
            with contextlib.suppress(OSError), sock:
                if _user(sock) == os.geteuid():
                    sock.settimeout(_PATIENCE)
                    sock.sendall(text.encode())
                    others -= 1


def _ask(name: bytes, deadline: Deadline) -> str:
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_PATIENCE)
            try:
                sock.connect(name)
                if _user(sock) != os.geteuid():
                    raise OneHostError(f"a process of user {_user(sock)} listens in the place of rank 0")
                if said := _read(sock):
                    return said
            except OSError as error:
                if error.errno not in (errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNRESET, None):  # None: a timeout
                    raise OneHostError(f"rank 0 does not answer on this host: {error}") from error
        if deadline.remaining() == 0:
            raise OneHostError(f"rank 0 did not come within {deadline.seconds:g} s")
        time.sleep(min(_PAUSE, deadline.remaining()))


def _read(sock: socket.socket) -> str:
    """All that comes; empty where rank 0 has ended meanwhile."""
    said = b""
    while part := sock.recv(4096):
        said += part
        if len(said) > _LONGEST:
            raise OneHostError(f"rank 0 said more than {_LONGEST} bytes")
    return said.decode()


def _user(sock: socket.socket) -> int:
    """The user of the process at the other end."""
    return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])
