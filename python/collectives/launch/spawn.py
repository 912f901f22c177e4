"""`spawn` runs a function in several new processes, each with a communicator."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any, TypeVar

from .._startup.say import say
from ..errors import CollectivesError, PeerError
from ._failures import Failures, pickled, rebuilt
from ._process import (
    die_with_parent,
    exit_codes_are_kept,
    listen_for_ranks,
    new_token,
    rank_environment,
    share_of_cores,
    signal_name,
)

R = TypeVar("R")

_GRACE = 3.0  # seconds between SIGTERM and SIGKILL


def spawn(
    fn: Callable[..., R],
    n: int,
    args: Sequence[Any] = (),
    *,
    transport: str | None = None,
    timeout: float | None = None,
) -> list[R]:
    """Runs ``fn(comm, *args)`` in `n` new processes of this host and returns their results, by rank.

    The processes are started by multiprocessing's "spawn" method: `fn` must be importable (a function of a module, not
    a lambda), `args` and the results picklable, and a script must guard its own work by ``if __name__ ==
    "__main__":``.
    They end with this call, also when it raises, and die with the thread that made it.

    Args:
        fn: called with a connected communicator, and `args`.
        n: number of processes, at least 1.
        args: further arguments.
        transport: "auto", "shm", "tcp" or "nccl".
        timeout: seconds that starting, and each collective, may take.

    Raises:
        Exception: the exception of `fn`, with the traceback of the rank as its ``__cause__``; when several ranks
            failed, that of the root cause. One that cannot be pickled becomes a `CollectivesError` with its text.
        PeerError: a rank was killed or exited; the text has the signal or the exit code.
        ValueError: `n` is less than 1, or `fn` is defined in no file: in a notebook, at a prompt, by ``python -c``.
    """
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"n is {n!r} of type {type(n).__name__}; an integer is accepted")
    if n < 1:
        raise ValueError(f"n is {n}; at least 1 is accepted")
    if not _is_importable(fn):
        raise ValueError(
            f"{fn!r} is defined where no new process can import it (python -c, standard input, a notebook); put it "
            "into a module and import it from there"
        )
    job = _Job(n)
    with exit_codes_are_kept():
        try:
            job.start(fn, tuple(args), transport, timeout)
            job.wait()
        finally:
            job.close()
    failure = job.failures.root_cause()
    if failure is not None:
        raise failure
    return [job.results[rank] for rank in range(n)]


class _Job:
    def __init__(self, size: int) -> None:
        self.size = size
        self.results: dict[int, Any] = {}
        self.failures = Failures()
        self._processes: list[Any] = []  # of multiprocessing.context.SpawnProcess
        self._reports: dict[int, Any] = {}  # rank: multiprocessing.connection.Connection

    def start(
        self, fn: Callable[..., Any], args: tuple[Any, ...], transport: str | None, timeout: float | None
    ) -> None:
        context = multiprocessing.get_context("spawn")
        token = new_token()
        with listen_for_ranks() as listener, _sharing_cores(self.size):
            for rank in range(self.size):
                variables = rank_environment(rank, self.size, listener, token, transport, timeout)
                theirs: Any = None
                ours, theirs = context.Pipe(duplex=False)
                self._reports[rank] = ours
                with theirs:
                    process = context.Process(
                        target=_main,
                        name=f"collectives rank {rank}",
                        # Through the pipe that carries the arguments, so that the token is on no command line.
                        args=(variables, listener if rank == 0 else None, theirs, os.getpid(), fn, args),
                    )
                    process.start()
                self._processes.append(process)

    def wait(self) -> None:
        """Waits until all ranks have reported or ended, or the root cause of a failure is known."""
        while self._reports:
            left = self.failures.patience()
            if left is not None and left <= 0:
                return
            ready = set(connection.wait(list(self._reports.values()), left))
            for rank in [rank for rank, report in self._reports.items() if report in ready]:
                self._read(rank)
        for process in self._processes:
            # All ranks have reported; their interpreters still have to end.
            process.join(_GRACE)

    def close(self) -> None:
        """Ends every process and closes every descriptor."""
        for process in self._processes:
            if process.is_alive():
                process.terminate()
        end = time.monotonic() + _GRACE
        for process in self._processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for report in self._reports.values():
            report.close()
        self._reports.clear()

    def _read(self, rank: int) -> None:
        """Reads the report of a rank: a result, an error, or the end of the process without either."""
        report = self._reports.pop(rank)
        with report:
            try:
                kind, payload, text = pickle.loads(report.recv_bytes())  # noqa: S301 (from our own child)
            except (EOFError, OSError):
                self._ended(rank)
                return
        if kind == "result":
            try:
                self.results[rank] = pickle.loads(payload)  # noqa: S301 (from our own child)
            except Exception as error:
                self.failures.add(
                    CollectivesError(f"the result of rank {rank} cannot be unpickled: {error}", rank=rank)
                )
            return
        self.failures.add(rebuilt(rank, payload, text))

    def _ended(self, rank: int) -> None:
        process = self._processes[rank]
        process.join(_GRACE)
        code = process.exitcode
        if code is not None and code < 0:
            self.failures.add(
                PeerError(
                    f"rank {rank} (pid {process.pid}) was killed by {signal_name(-code)}. If that was SIGKILL and not "
                    "you, the machine may be out of memory",
                    peer=rank,
                )
            )
        else:
            self.failures.add(
                PeerError(
                    f"rank {rank} (pid {process.pid}) ended with exit code {code} before the function returned. See "
                    "what it wrote to stderr; if that is a RuntimeError about bootstrapping, the script has to call "
                    'spawn under `if __name__ == "__main__":`',
                    peer=rank,
                )
            )


@contextlib.contextmanager
def _sharing_cores(ranks: int) -> Iterator[None]:
    """While inside, new processes inherit OMP_NUM_THREADS. Set in the rank it would be too late: the rank first imports
    the module of its function, and so NumPy."""
    share = share_of_cores(ranks, os.environ, lambda text: say(f"collectives.spawn: {text}"))
    os.environ.update(share)
    try:
        yield
    finally:
        for name in share:
            del os.environ[name]


def _is_importable(fn: Callable[..., Any]) -> bool:
    """Whether a new process can import the function; it cannot if ``__main__`` is no file."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if getattr(fn, "__module__", None) != "__main__":
        return True
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or (path is not None and os.path.exists(path))


def _main(
    variables: dict[str, str],
    listener: socket.socket | None,
    report: Any,
    parent: int,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    """The main function of a rank."""
    die_with_parent(parent)
    # Ctrl-C also reaches the parent, which ends this process; a traceback from each rank would only be noise.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if listener is not None:
        # Pickling has given the descriptor another number.
        variables["COLLECTIVES_RENDEZVOUS_FD"] = str(listener.fileno())
    os.environ.update(variables)
    try:
        collectives: Any = importlib.import_module("collectives")
        comm = collectives.init()
        payload = pickle.dumps(fn(comm, *args))
        comm.close()
        message = ("result", payload, "")
    except BaseException as error:
        message = ("error", pickled(error), "".join(traceback.format_exception(error)))
    with contextlib.suppress(OSError):  # the parent does not wait any more
        report.send_bytes(pickle.dumps(message))
    report.close()
    if message[0] == "error":
        sys.exit(1)
