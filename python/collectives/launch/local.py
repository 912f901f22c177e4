"""Runs a command as several ranks on this host and makes sure that all of them end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from .._startup.ended import EndedRanks
from ._job import forwarding
from ._output import Printing
from ._process import listen_for_ranks, new_token, rank_environment
from ._ranks import JobOfThisHost


def run_local(
    command: Sequence[str],
    ranks: int,
    *,
    transport: str | None = None,
    timeout: float | None = None,
    grace: float = 5.0,
    keep_going: bool = False,
    bind: str = "none",
    printing: Printing | None = None,
    environ: Mapping[str, str] | None = None,
    front_gone: int = -1,
) -> int:
    """Runs `command` as `ranks` processes and waits for all of them. Call it from the main thread.

    Every line that a rank prints is forwarded with ``[rank] `` before it. When one rank fails, the others get SIGTERM,
    and SIGKILL `grace` seconds later, each with the processes it started. SIGINT, SIGTERM and SIGHUP are forwarded to
    the ranks, which then have the same time to end. The ranks die with this process, even if it is killed. Where none
    of ``OMP_NUM_THREADS``, ``MKL_NUM_THREADS`` and ``OPENBLAS_NUM_THREADS`` is set, the first is set to a rank's share
    of the cores, and a line on stderr says so.

    Args:
        command: program and arguments.
        ranks: number of processes, at least 1.
        transport, timeout: for ``COLLECTIVES_TRANSPORT`` and ``COLLECTIVES_TIMEOUT``; ``None`` leaves them as they are.
        grace: seconds.
        keep_going: the other ranks continue when one fails, for programs that use ``shrink``.
        bind: "none", "core" or "socket": the processors of each rank (`_binding`).
        printing: how the lines are shown.
        environ: the environment of the ranks, ``os.environ`` by default.
        front_gone: in a guardian (`_guardian`) a descriptor; when it becomes readable the ranks are ended.

    Returns:
        0 when all ranks ended with 0, or with `keep_going` any of them;
        else the exit code of the first that failed, 128 + n for death by signal n; and
        128 + n when this process received signal n, unless a rank had failed before and so ended the job.

    Raises:
        OSError: the command cannot be started.
        ValueError: `ranks` is less than 1, or the folder for output cannot be written.
    """
    if ranks < 1:
        raise ValueError(f"the number of ranks is {ranks}; at least 1 is accepted")
    job = JobOfThisHost(grace, keep_going, front_gone, printing)
    try:
        with forwarding(job):
            token = new_token()
            job.printer.prepare(ranks)
            with listen_for_ranks() as listener:
                job.start_ranks(
                    command,
                    range(ranks),
                    os.environ if environ is None else environ,
                    lambda rank, ended: rank_environment(rank, ranks, listener, token, transport, timeout, ended),
                    ended=EndedRanks(ranks, token),
                    listener=listener.fileno(),
                    stdin=subprocess.DEVNULL if _reads_terminal() else None,
                    bind=bind,
                )
            return job.wait()
    finally:
        job.close()


def _reads_terminal() -> bool:
    """Whether standard input is a terminal, or closed: a background process cannot read it."""
    try:
        return os.isatty(0)
    except OSError:
        return True
