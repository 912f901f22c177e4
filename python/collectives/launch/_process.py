"""Shared by ``collectives run`` and ``spawn``: the rendezvous socket, and children that die with their parent."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

from .._startup.environment import format_address
from .._startup.sockets import listen_on_loopback, out_of_files
from .._startup.system import libc

_PR_SET_PDEATHSIG = 1
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process as soon as the thread of `parent` that started it ends."""
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os._exit(128 + signal.SIGKILL)


@contextlib.contextmanager
def exit_codes_are_kept() -> Iterator[None]:
    """While inside, the kernel keeps the exit codes of children for this process, also if it has inherited an ignored
    SIGCHLD. Works in the main thread only."""
    ignored = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    if not ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def new_token() -> str:
    """A random secret for one job."""
    return secrets.token_hex(32)


def listen_for_ranks() -> socket.socket:
    """The socket of the rendezvous, for rank 0 to inherit, so that no other process can take its port in between.

    Raises:
        OSError: there is no loopback address, or no descriptor is left.
    """
    try:
        listener, *others = listen_on_loopback()
    except OSError as error:
        if out_of_files(error):
            raise
        where = "the ranks cannot meet on loopback, at 127.0.0.1 or ::1"
        raise OSError(error.errno, f"{where} ({error.strerror})") from error
    for other in others:
        other.close()
    return listener


def rank_environment(
    rank: int,
    size: int,
    listener: socket.socket,
    token: str,
    transport: str | None,
    timeout: float | None,
    ended: int = -1,
) -> dict[str, str]:
    """The variables that tell a process its rank.

    The process must inherit the descriptor `ended` (`_startup.ended`) under the same number, and rank 0 `listener`."""
    address = format_address(*listener.getsockname()[:2])
    settings = job_settings(transport, timeout)
    return {**settings, **rank_variables(rank, size, address, token, listener.fileno(), ended)}


def rank_variables(
    rank: int, size: int, rendezvous: str, token: str, listener: int = -1, ended: int = -1
) -> dict[str, str]:
    """The variables that tell a process its rank in a job whose rendezvous is at this address.

    The process must inherit the descriptor `ended` (`_startup.ended`) under the same number, and rank 0 `listener`; -1:
    there is none."""
    return {
        "COLLECTIVES_RANK": str(rank),
        "COLLECTIVES_SIZE": str(size),
        "COLLECTIVES_RENDEZVOUS": rendezvous,
        "COLLECTIVES_TOKEN": token,
        "COLLECTIVES_RENDEZVOUS_FD": str(listener) if rank == 0 and listener >= 0 else "",
        "COLLECTIVES_LAUNCHER_FD": str(ended) if ended >= 0 else "",
    }


def job_settings(transport: str | None, timeout: float | None) -> dict[str, str]:
    """The variables for settings of the job that were given to the launcher."""
    variables = {}
    if transport is not None:
        variables["COLLECTIVES_TRANSPORT"] = transport
    if timeout is not None:
        variables["COLLECTIVES_TIMEOUT"] = repr(timeout)
    return variables


def share_of_cores(ranks: int, environ: Mapping[str, str], say: Callable[[str], None]) -> dict[str, str]:
    """OMP_NUM_THREADS such that the BLAS and OpenMP threads of all ranks fit on the cores; prints a line about it.

    Empty where the user has set it or the variable of a BLAS, or there is one rank only.
    """
    if ranks == 1 or any(environ.get(name) for name in _THREADS):
        return {}
    cores = len(os.sched_getaffinity(0))
    threads = max(1, cores // ranks)
    say(f"OMP_NUM_THREADS is {threads} in each rank ({cores} cores, {ranks} ranks); set it for another number")
    return {"OMP_NUM_THREADS": str(threads)}


def signal_name(number: int) -> str:
    """``"signal 9 (SIGKILL)"``."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
