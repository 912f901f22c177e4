"""What both ways of starting ranks need: a place to meet, and children that do not outlive their parent."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
from collections.abc import Mapping

from .._environment import format_address

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
    refused: list[OSError] = []
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # a system without this family
            refused.append(error)
            continue
        try:
            listener.bind((host, 0))
            listener.listen(max(128, ranks))
            return listener
        except OSError as error:  # which is not up, or has only the other kind of address
            listener.close()
            refused.append(error)
        except BaseException:
            listener.close()
            raise
    raise OSError(
        refused[0].errno, f"the ranks cannot meet on loopback, 127.0.0.1 or ::1 ({refused[0].strerror}); is it up?"
    )


def rank_environment(
    rank: int, size: int, listener: socket.socket, token: str, transport: str | None, timeout: float | None
) -> dict[str, str]:
    """The variables that tell a process its rank; rank 0 needs the descriptor of `listener` under the same number."""
    host, port = listener.getsockname()[:2]
    variables = {
        "COLLECTIVES_RANK": str(rank),
        "COLLECTIVES_SIZE": str(size),
        "COLLECTIVES_RENDEZVOUS": format_address(host, port),
        "COLLECTIVES_TOKEN": token,
        "COLLECTIVES_RENDEZVOUS_FD": str(listener.fileno()) if rank == 0 else "",
    }
    if transport is not None:
        variables["COLLECTIVES_TRANSPORT"] = transport
    if timeout is not None:
        variables["COLLECTIVES_TIMEOUT"] = repr(timeout)
    return variables


def threads_of_a_rank(ranks: int, environ: Mapping[str, str]) -> str | None:
    """What OMP_NUM_THREADS is to be in each rank, so that their BLAS and OpenMP threads do not fight for the cores;
    ``None`` where it is set already, or one rank has them all."""
    if ranks == 1 or environ.get("OMP_NUM_THREADS"):
        return None
    return str(max(1, len(os.sched_getaffinity(0)) // ranks))


def threads_text(ranks: int, threads: str) -> str:
    """What is said of it."""
    cores = len(os.sched_getaffinity(0))
    return f"OMP_NUM_THREADS is {threads} in each rank ({cores} cores, {ranks} ranks); set it for another number"


def signal_name(number: int) -> str:
    """``"signal 9 (SIGKILL)"``."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
