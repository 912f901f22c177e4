"""What both ways of starting ranks need: a place to meet, and children that do not outlive their parent."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket

_PR_SET_PDEATHSIG = 1
# Loaded beforehand, because between fork and exec nothing may be imported or allocated at will.
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process as soon as the thread of `parent` that started it is gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os._exit(128 + signal.SIGKILL)


def new_token() -> str:
    """A random secret for one job."""
    return secrets.token_hex(32)


def listen_for_ranks(ranks: int) -> socket.socket:
    """The socket of the rendezvous, for rank 0 to inherit: nobody else can take its port in between."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind(("127.0.0.1", 0))
        listener.listen(max(128, ranks))
    except BaseException:
        listener.close()
        raise
    return listener


def rank_environment(
    rank: int, size: int, listener: socket.socket, token: str, transport: str | None, timeout: float | None
) -> dict[str, str]:
    """The variables that tell a process its rank; rank 0 needs the descriptor of `listener` under the same number."""
    host, port = listener.getsockname()
    variables = {
        "COLLECTIVES_RANK": str(rank),
        "COLLECTIVES_SIZE": str(size),
        "COLLECTIVES_RENDEZVOUS": f"{host}:{port}",
        "COLLECTIVES_TOKEN": token,
        "COLLECTIVES_RENDEZVOUS_FD": str(listener.fileno()) if rank == 0 else "",
    }
    if transport is not None:
        variables["COLLECTIVES_TRANSPORT"] = transport
    if timeout is not None:
        variables["COLLECTIVES_TIMEOUT"] = repr(timeout)
    return variables


def signal_name(number: int) -> str:
    """``"signal 9 (SIGKILL)"``."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
