"""Groups of ranks that stay for many test cases: processes over shm or tcp, threads of one process for local.

Every rank runs what it is given and answers; nothing here retries or hides an error. All waits have a deadline.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import connection, reduction
from pathlib import Path
from typing import Any

import nursery
from paths import SUPPORT

LIMIT = 60.0 * nursery.PATIENCE  # seconds for one call on a pool, when it does not say otherwise
# Seconds in which an error that comes at once is seen, where other tests keep all cores busy: long before the deadlines
# of pools. The second that is promised is judged by tests/chaos/test_chaos.py, by the median of many.
NOTICED = 15.0
IMPORTED = ("numpy", "ml_dtypes", "pytest", "collectives", "pool", "conformance")  # by the ranks of pools
TRANSPORTS = ("local", "shm", "tcp")


class RankDied(Exception):
    """A rank process ended without an answer."""


class TestTimeout(Exception):
    """A rank gave no answer in time."""


@dataclass
class Outcome:
    """What became of a call on one rank.

    Attributes:
        value: what the function returned.
        error: what it raised, or `RankDied`, or None.
        text: the traceback.
        usable: whether the communicator can still be used.
        ended: the monotonic clock, which all processes of a machine share, when the function was over.
    """

    value: Any = None
    error: BaseException | None = None
    text: str = ""
    usable: bool = False
    ended: float = field(default_factory=time.monotonic)


class Leave(Exception):
    """Raised on a rank process: ends the process by an exception that is not caught."""


def execute(comm: Any, fn: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
    outcome = Outcome()
    try:
        outcome.value = fn(comm, *args)
    except Leave:
        raise
    except BaseException as error:
        outcome.error = error
        outcome.text = "".join(traceback.format_exception(error))
    outcome.ended = time.monotonic()
    state = importlib.import_module("collectives")._core._describe(comm)
    outcome.usable = not state["failed"] and not state["closed"]
    return outcome


# --- in the process of a rank ---------------------------------------------------------------------------------------

_parent: connection.Connection | None = None


def say(what: Any) -> None:
    """From a function that runs on a rank process: tells the test something while the function goes on."""
    assert _parent is not None
    _parent.send_bytes(pickle.dumps(("event", what)))


def hear() -> Any:
    """From a function that runs on a rank process: the next message of `Rank.tell`."""
    assert _parent is not None
    if not _parent.poll(LIMIT):
        raise TestTimeout("the test did not say when to go on")
    return pickle.loads(_parent.recv_bytes())


def told() -> bool:
    """From a function that runs on a rank process: whether a message of `Rank.tell` has come, which is taken."""
    assert _parent is not None
    return _parent.poll(0) and hear() is not None


def _pickled(outcome: Outcome) -> bytes:
    try:
        data = pickle.dumps(("outcome", outcome))
        pickle.loads(data)
    except Exception:
        outcome.error = RuntimeError(f"not picklable: {outcome.error!r}")
        outcome.value = None
        data = pickle.dumps(("outcome", outcome))
    return data


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def census() -> tuple[int, int, int]:
    """What this process holds: descriptors, mapped segments and threads."""
    segments = sum("memfd:collectives" in line for line in Path("/proc/self/maps").read_text().splitlines())
    return open_descriptors(), segments, len(os.listdir("/proc/self/task"))


def _join(collectives: Any, before: tuple[int, int, int]) -> Any:
    """A communicator, after which the test is told what was held before, and how many descriptors are open now."""
    assert _parent is not None
    comm = collectives.init()
    if inherited := os.environ.pop("COLLECTIVES_RENDEZVOUS_FD", ""):
        os.close(int(inherited))  # the library leaves it as it is
    _parent.send_bytes(pickle.dumps(("ready", (before, open_descriptors()))))
    return comm


def serve(descriptor: int, listener: int = -1) -> None:
    """The life of a rank process: connects, then runs what comes until the pipe ends.

    Args:
        listener: of the rendezvous, on a rank that inherits it.
    """
    global _parent
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _parent = connection.Connection(descriptor)
    settings = pickle.loads(_parent.recv_bytes())
    sys.path[:] = settings["path"]
    os.environ.update(settings["variables"])
    if listener >= 0:
        os.environ["COLLECTIVES_RENDEZVOUS_FD"] = str(listener)
    importlib.import_module("collectives.launch._process").die_with_parent(settings["parent"])
    collectives: Any = importlib.import_module("collectives")
    if settings["limits"]:
        world = importlib.import_module("collectives._world")
        ordinary = world._options
        world._options = lambda *given: {**ordinary(*given), **settings["limits"]}
    comm = _join(collectives, census())
    while True:
        try:
            fn, args = pickle.loads(_parent.recv_bytes())
        except EOFError:
            break
        if fn is not None:
            _parent.send_bytes(_pickled(execute(comm, fn, args)))
            continue
        # Start again, in a new job.
        comm.close()
        del comm
        gc.collect()  # errors may hold frames that hold it
        before = census()
        os.environ.update(args)
        if args["COLLECTIVES_RENDEZVOUS_FD"]:
            os.environ["COLLECTIVES_RENDEZVOUS_FD"] = str(reduction.recv_handle(_parent))
        comm = _join(collectives, before)
    comm.close()


# --- in the test ----------------------------------------------------------------------------------------------------


def await_sleep(process: int, thread: int) -> None:
    """Until a thread of a rank that is about to call waits inside the call: it goes to sleep again and again."""
    status = Path(f"/proc/{process}/task/{thread}/status")

    def switches() -> int:
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                return int(line.split()[1])
        raise AssertionError("the kernel does not count context switches")

    before, end = switches(), time.monotonic() + LIMIT
    while switches() < before + 4:
        if time.monotonic() > end:
            raise TestTimeout(f"thread {thread} of process {process} does not wait")
        time.sleep(0.001)  # a poll: /proc cannot be waited for


class Rank:
    """One rank process."""

    def __init__(
        self,
        rank: int,
        variables: dict[str, str],
        listener: socket.socket | None,
        limits: dict[str, int],
        prefix: tuple[str, ...] = (),
        own: bool = False,
    ) -> None:
        """`own`: in an interpreter of its own, as the variables have to be there when modules are imported."""
        ours, theirs = socket.socketpair()
        inherited = [theirs.fileno()] + ([listener.fileno()] if listener is not None else [])
        environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
        for name in ("COLLECTIVES_ISA", "COLLECTIVES_SYMMETRIC_HEAP"):
            if name in os.environ:
                environ[name] = os.environ[name]
                own = True
        with theirs:
            if prefix or own:
                program = f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import pool; pool.serve(*{inherited!r})"
                self.process: Any = subprocess.Popen(
                    [*prefix, sys.executable, "-c", program], pass_fds=inherited, stdin=subprocess.DEVNULL, env=environ
                )
            else:
                self.process = nursery.nursery(*IMPORTED).start(serve, inherited, environ)
        self.number = rank
        self.lost = False  # it owes an answer
        self.held: list[tuple[int, int, int]] = []  # before it joined each of its jobs, see `census`
        self.link = connection.Connection(ours.detach())
        settings = {"path": sys.path, "variables": variables, "parent": os.getpid(), "limits": limits}
        self.tell(settings)

    @property
    def pid(self) -> int:
        return self.process.pid

    def call(self, fn: Callable[..., Any], *args: Any) -> None:
        """Starts a function; `outcome` has what becomes of it."""
        self.lost = True  # it owes an answer
        self.tell((fn, args))

    def tell(self, what: Any) -> None:
        """For `hear` on the rank."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.link.send_bytes(pickle.dumps(what))

    def next(self, kind: str, end: float) -> Any:
        """The next message, which must be of this kind."""
        if not self.link.poll(max(0.0, end - time.monotonic())):
            raise TestTimeout(f"rank {self.number} (pid {self.pid}) gave no answer in time")
        try:
            got, what = pickle.loads(self.link.recv_bytes())
        except (EOFError, ConnectionResetError):
            code = self.process.wait(LIMIT)
            raise RankDied(f"rank {self.number} ended with code {code}") from None
        if got == "outcome" and kind != "outcome":
            raise AssertionError(f"rank {self.number} is over before its {kind}: {what.text or what.value}")
        assert got == kind, f"{got} {what!r} instead of {kind}"
        return what

    def event(self, limit: float = LIMIT) -> Any:
        """What the function on the rank says next."""
        return self.next("event", time.monotonic() + limit)

    def outcome(self, end: float) -> Outcome:
        try:
            outcome: Outcome = self.next("outcome", end)
            self.lost = False
            return outcome
        except RankDied as died:
            return Outcome(error=died)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """SIGSTOP, until all threads have stopped: one that runs goes on until another one has taken the signal."""
        self.signal(signal.SIGSTOP)
        # The kernel notifies the parent when the last thread has stopped.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def await_sleep(self) -> None:
        """Until the rank, which has said that it is about to call, waits inside the call."""
        await_sleep(self.pid, self.pid)

    def close(self, grace: float = 10.0) -> None:
        self.link.close()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Group:
    """n ranks that run functions together."""

    def __init__(self, size: int, transport: str) -> None:
        self.size = size
        self.transport = transport
        self.broken = False

    def connect(self) -> list[int]:
        raise NotImplementedError

    def start(self, fn: Callable[..., Any], *args: Any) -> None:
        raise NotImplementedError

    def collect(self, limit: float = LIMIT) -> list[Outcome]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def outcomes(self, fn: Callable[..., Any], *args: Any, limit: float = LIMIT) -> list[Outcome]:
        """Runs ``fn(comm, *args)`` on all ranks; what became of it, by rank."""
        self.start(fn, *args)
        return self.collect(limit)

    def run(self, fn: Callable[..., Any], *args: Any, limit: float = LIMIT) -> list[Any]:
        """As `outcomes`, and returns the results or raises the error of the rank that is the cause."""
        outcomes = self.outcomes(fn, *args, limit=limit)
        failed = [(distance(o.error), rank) for rank, o in enumerate(outcomes) if o.error is not None]
        if failed:
            rank = min(failed)[1]
            error = outcomes[rank].error
            assert error is not None
            error.add_note(f"in rank {rank} of {self.size} over {self.transport}:\n{outcomes[rank].text}")
            raise error
        return [o.value for o in outcomes]


def distance(error: BaseException | None) -> int:
    """How far an error is from its cause: ranks that only notice another's failure count last."""
    kinds = ("TestTimeout", "DeadlineError", "PeerError", "ClosedError")
    name = type(error).__name__
    return 1 + kinds.index(name) if name in kinds else 0


class ProcessGroup(Group):
    """Ranks as processes of this host."""

    rank_class = Rank

    def __init__(
        self,
        size: int,
        transport: str,
        *,
        limits: dict[str, int] | None = None,
        timeout: float = LIMIT,
        variables: dict[str, str] | None = None,
    ) -> None:
        super().__init__(size, transport)
        self._timeout = timeout
        self._limits = limits or {}
        self._variables = variables or {}
        self.ranks: list[Rank] = []
        self.connect()

    def connect(self) -> list[int]:
        """Starts the ranks that do not run and connects all, in a new job. How many descriptors each has open then."""
        launch: Any = importlib.import_module("collectives.launch._process")
        token = launch.new_token()
        try:
            with launch.listen_for_ranks() as listener:
                for r in range(self.size):
                    own = launch.rank_environment(r, self.size, listener, token, self.transport, self._timeout)
                    own.update(self._variables)
                    inherits = own["COLLECTIVES_RENDEZVOUS_FD"] != ""
                    old = self.ranks[r] if r < len(self.ranks) else None
                    if old is not None and old.process.poll() is None and not old.lost:
                        old.number = r
                        old.tell((None, own))
                        if inherits:
                            reduction.send_handle(old.link, listener.fileno(), old.pid)
                        continue
                    inherited = listener if inherits else None
                    fresh = self.rank_class(r, own, inherited, self._limits, self.prefix(r), bool(self._variables))
                    if old is not None:
                        old.process.kill()
                        old.close()
                    self.ranks[r : r + 1] = [fresh]
            end = time.monotonic() + LIMIT
            descriptors = []
            for rank in self.ranks:
                held, open_now = rank.next("ready", end)
                rank.held.append(held)
                descriptors.append(open_now)
        except BaseException:
            self.broken = True
            self.close()
            raise
        self.broken = False
        return descriptors

    def prefix(self, rank: int) -> tuple[str, ...]:
        """A command that starts the interpreter of a rank."""
        return ()

    def start(self, fn: Callable[..., Any], *args: Any) -> None:
        self.broken = True  # until all have answered
        for rank in self.ranks:
            rank.call(fn, *args)

    def collect(self, limit: float = LIMIT) -> list[Outcome]:
        end = time.monotonic() + limit
        outcomes = []
        for rank in self.ranks:
            try:
                outcomes.append(rank.outcome(end))
            except TestTimeout as error:
                rank.signal(signal.SIGUSR1)  # its threads go to stderr
                outcomes.append(Outcome(error=error))
                end = time.monotonic() + 0.5
        self.broken = not all(o.usable for o in outcomes)
        return outcomes

    def close(self) -> None:
        if self.broken:
            # Half of the ranks may hang; those that do not leave at once.
            for rank in self.ranks:
                rank.process.kill()
        for rank in self.ranks:
            rank.link.close()  # all at once, so that they leave together
        for rank in self.ranks:
            rank.close()


class ThreadGroup(Group):
    """Ranks as threads of this process."""

    def __init__(self, size: int, *, limits: dict[str, int] | None = None, timeout: float = LIMIT) -> None:
        super().__init__(size, "local")
        collectives: Any = importlib.import_module("collectives")
        world = importlib.import_module("collectives._world")
        self._options = {**world._options(timeout), **(limits or {})}
        self._collectives = collectives
        self.comms: list[Any] = []
        self.connect()
        self._tasks: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(size)]
        self._outcomes: list[queue.SimpleQueue[Outcome]] = [queue.SimpleQueue() for _ in range(size)]
        self._threads = [threading.Thread(target=self._serve, args=(r,), daemon=True) for r in range(size)]
        for thread in self._threads:
            thread.start()

    def connect(self) -> list[int]:
        """New communicators for the threads."""
        for comm in self.comms:
            comm.close()
        handles = self._collectives._core.local_group(self.size, self._options)
        self.comms[:] = [self._collectives.Communicator(h) for h in handles]
        self.broken = False
        return [open_descriptors()]

    def _serve(self, rank: int) -> None:
        while (task := self._tasks[rank].get()) is not None:
            self._outcomes[rank].put(execute(self.comms[rank], *task))
            del task

    def start(self, fn: Callable[..., Any], *args: Any) -> None:
        self.broken = True  # until all have answered
        for tasks in self._tasks:
            tasks.put((fn, args))

    def collect(self, limit: float = LIMIT) -> list[Outcome]:
        end = time.monotonic() + limit
        outcomes = []
        for results in self._outcomes:
            try:
                outcomes.append(results.get(timeout=max(0.01, end - time.monotonic())))
            except queue.Empty:
                faulthandler.dump_traceback(all_threads=True)
                outcomes.append(Outcome(error=TestTimeout("a rank gave no answer in time")))
        self.broken = not all(o.usable for o in outcomes)
        return outcomes

    def close(self) -> None:
        for tasks in self._tasks:
            tasks.put(None)
        for comm in self.comms if self.broken else ():
            comm.close()
        for thread in self._threads:
            thread.join(10)
        for comm in self.comms:
            comm.close()
        self.comms.clear()


def make_group(size: int, transport: str, **settings: Any) -> Any:
    """A `Group` of its own; close it."""
    if transport == "local":
        return ThreadGroup(size, **settings)
    return ProcessGroup(size, transport, **settings)


class Pools:
    """One group per (size, transport, limits), made when it is first needed and again when it has failed."""

    MOST_RANKS = 16  # processes at a time; those not used for longest go first

    def __init__(self) -> None:
        self._groups: dict[Any, Any] = {}

    def get(self, size: int, transport: str, **limits: int) -> Any:
        key = (size, transport, *sorted(limits.items()))
        group = self._groups.pop(key, None)
        if group is not None and group.broken:
            group.connect()
        if group is None:
            while self._groups and sum(g.size for g in self._groups.values()) + size > self.MOST_RANKS:
                self._groups.pop(next(iter(self._groups))).close()
            group = make_group(size, transport, limits=limits)
        self._groups[key] = group  # at the end: the most recent
        return group

    def close(self) -> None:
        while self._groups:
            self._groups.popitem()[1].close()
