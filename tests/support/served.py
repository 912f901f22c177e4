"""Real processes that run functions for tests until these have enough, and then leave by themselves.

`torch_ranks` and `tf_workers` say what such processes are. The functions are those of test modules; what they return or
raise comes back, and what they `say` meanwhile.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

import nursery
from pool import Outcome, RankDied, TestTimeout

GRACE = 5.0  # seconds that the others of a job get when one has failed

# --- in the process that serves -------------------------------------------------------------------------------------

_parent: connection.Connection | None = None


def begin(descriptor: int) -> dict[str, Any]:
    """The first thing that such a process does; returns the settings that the test has given."""
    global _parent
    _parent = connection.Connection(descriptor)
    settings: dict[str, Any] = pickle.loads(_parent.recv_bytes())
    sys.path[:] = settings["path"]
    importlib.import_module("collectives.launch._process").die_with_parent(settings["parent"])
    return settings


def portable(error: BaseException) -> BaseException:
    """The error, or one of the same words where it cannot be pickled."""
    with contextlib.suppress(Exception):
        pickle.loads(pickle.dumps(error))
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def answer(make_portable: Callable[[BaseException], BaseException] = portable) -> None:
    """Runs what comes until the test closes the pipe."""
    assert _parent is not None
    while True:
        try:
            fn, args = pickle.loads(_parent.recv_bytes())
        except EOFError:
            break
        outcome = Outcome()
        try:
            outcome.value = fn(*args)
        except BaseException as error:
            outcome.text = "".join(traceback.format_exception(error))
            outcome.error = make_portable(error)
        outcome.ended = time.monotonic()
        _parent.send_bytes(pickle.dumps(("outcome", outcome)))


def say(what: Any) -> None:
    """From a function that goes on: tells the test something."""
    assert _parent is not None
    _parent.send_bytes(pickle.dumps(("event", what)))


# --- in the test ----------------------------------------------------------------------------------------------------


def free_ports(n: int) -> list[int]:
    """Ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


class Served:
    """One process.

    Args:
        name: for errors.
        serve: what it runs: is given the descriptor for `begin`.
        imported: the modules that it shares with others of its kind, which are imported once.
        environ: its environment.
        quiet: that part of it that has to be there already while they are imported.
        settings: what `begin` returns there, besides what it needs itself.
        limit: seconds that one call may take.
    """

    def __init__(
        self,
        name: str,
        serve: Callable[[int], None],
        imported: Sequence[str],
        environ: dict[str, str],
        quiet: dict[str, str],
        settings: dict[str, Any],
        limit: float,
    ) -> None:
        self.name = name
        self.limit = limit
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = nursery.nursery(*imported, **quiet).start(serve, [theirs.fileno()], environ)
        self.link = connection.Connection(ours.detach())
        self.tell({"path": sys.path, "parent": os.getpid(), **settings})

    def tell(self, what: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.link.send_bytes(pickle.dumps(what))

    def _next(self, kind: str, limit: float | None) -> Any:
        if not self.link.poll(self.limit if limit is None else limit):
            raise TestTimeout(f"{self.name} gave no answer in time")
        try:
            got, what = pickle.loads(self.link.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise RankDied(f"{self.name} ended with code {self.process.wait(self.limit)}") from None
        assert got == kind, f"{got} {what!r} instead of {kind}: {getattr(what, 'text', '')}"
        return what

    def outcome(self, limit: float | None = None) -> Outcome:
        try:
            what: Outcome = self._next("outcome", limit)
            return what
        except RankDied as died:
            return Outcome(error=died)

    def event(self, limit: float | None = None) -> Any:
        return self._next("event", limit)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)


class ServedJob:
    """The processes of one job.

    Args:
        processes: all of them.
        leaving: seconds from the end of main to that of a process.
    """

    def __init__(self, processes: Sequence[Served], leaving: float) -> None:
        self.processes = list(processes)
        self._leaving = leaving
        self._failed = ""

    def start(self, fn: Callable[..., Any], *args: Any) -> None:
        for process in self.processes:
            process.tell((fn, args))

    def outcomes(self, fn: Callable[..., Any], *args: Any, limit: float | None = None) -> list[Outcome]:
        self.start(fn, *args)
        return [process.outcome(limit) for process in self.processes]

    def run(self, fn: Callable[..., Any], *args: Any, limit: float | None = None) -> list[Any]:
        """The results, in order; raises what the first of them that failed has raised.

        The others may wait for that one: they get a moment, then later runs raise at once.
        """
        if self._failed:
            raise AssertionError(f"not run, since processes of this job have not come back from: {self._failed}")
        self.start(fn, *args)
        values: dict[str, Any] = {}
        first: BaseException | None = None
        end = time.monotonic() + (self.processes[0].limit if limit is None else limit)
        waiting: dict[Any, Served] = {process.link: process for process in self.processes}
        while waiting:
            ready = connection.wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                self._failed = str(first) or "a call that was too late"
                raise first or TestTimeout(f"{[process.name for process in waiting.values()]} gave no answer in time")
            process = waiting.pop(ready[0])
            outcome = process.outcome()
            values[process.name] = outcome.value
            if outcome.error is not None and first is None:
                first = outcome.error
                first.add_note(f"{process.name}:\n{outcome.text}")
                end = min(end, time.monotonic() + GRACE)
        if first is not None:
            raise first
        return [values[process.name] for process in self.processes]

    def leave(self) -> list[int | str]:
        """Ends main in all processes; their exit codes, or how late they were."""
        for process in self.processes:
            process.link.close()
        began = time.monotonic()
        codes: list[int | str] = []
        for one in self.processes:
            try:
                codes.append(one.process.wait(max(0.01, began + self._leaving - time.monotonic())))
            except subprocess.TimeoutExpired:
                one.process.send_signal(signal.SIGABRT)  # so that it says where its threads are
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.process.wait(self._leaving)
                codes.append(f"{one.name} did not leave in {self._leaving:g} s")
        self.destroy()
        return codes

    def destroy(self) -> None:
        for one in self.processes:
            one.link.close()
            one.process.kill()
            one.process.wait()
