"""Workers of a TF_CONFIG as real processes, which stay for many checks and leave by themselves.

The functions that they run are those of test modules; they get what `Workers.start` was given and use `strategy()`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing import connection
from typing import Any

import nursery
from pool import Outcome, RankDied, TestTimeout

LIMIT = 120.0  # seconds for one call; tracing on a busy machine takes many
# Seconds from the end of main to that of the process. What this finds is a process that waits for another. To unload
# TensorFlow alone takes the interpreter 1.6 to 2 s; where six did so on two cores, up to 10 were seen.
LEAVING = 60.0
TASKS = (("worker", 0), ("worker", 1))
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
IMPORTED = ("tensorflow", "collectives.tensorflow", "pytest", "tf_workers")

# --- in the process of a worker -------------------------------------------------------------------------------------

_parent: connection.Connection | None = None
_made: list[Any] = []
_devices: list[str] = []  # the logical CPUs, where a test has asked for several


def make(**options: Any) -> Any:
    """A new strategy of ours, on all devices; the first one is what `strategy` returns from then on."""
    tf: Any = importlib.import_module("tensorflow")
    ours: Any = importlib.import_module("collectives.tensorflow")
    ours_only = {name: options.pop(name) for name in ("cross_device_ops", "merge_indexed_slices") if name in options}
    ours_only["devices"] = options.pop("devices", _devices or None)
    options.setdefault("timeout_seconds", 60.0)
    made = ours.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(**options), **ours_only
    )
    _made.append(made)
    return made


def strategy() -> Any:
    """The strategy of this process."""
    return _made[0] if _made else make()


def forget() -> None:
    """Drops all strategies."""
    _made.clear()
    gc.collect()


def forget_all_but_latest() -> None:
    """Drops the strategies before the one that was made last."""
    del _made[:-1]
    gc.collect()


def group() -> Any:
    """The group of the engine in which this process is."""
    return importlib.import_module("collectives.tensorflow._job")._jobs[0][1]


def moved() -> int:
    """Bytes that the engine has carried for this process so far."""
    return sum(group().communicator.bytes_by_transport().values())


def starts(function: Any) -> int:
    """How many collectives a concrete function begins, in the functions that it calls too."""
    graphs = [function.graph.as_graph_def()]
    nodes = [*graphs[0].node, *(node for f in graphs[0].library.function for node in f.node_def)]
    return sum(node.op in ("CollectivesStart", "CollectivesStartParts") for node in nodes)


def say(what: Any) -> None:
    """From a function that goes on: tells the test something."""
    assert _parent is not None
    _parent.send_bytes(pickle.dumps(("event", what)))


def serve(descriptor: int) -> None:
    """The life of a worker: runs what comes until the pipe ends."""
    global _parent
    _parent = connection.Connection(descriptor)
    settings = pickle.loads(_parent.recv_bytes())
    sys.path[:] = settings["path"]
    importlib.import_module("collectives.launch._process").die_with_parent(settings["parent"])
    tf: Any = importlib.import_module("tensorflow")
    if settings["devices"] > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * settings["devices"])
        _devices[:] = [f"CPU:{i}" for i in range(settings["devices"])]
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
            outcome.error = _portable(error)
        outcome.ended = time.monotonic()
        _parent.send_bytes(pickle.dumps(("outcome", outcome)))


def _portable(error: BaseException) -> BaseException:
    """Errors of TensorFlow hold ops, which cannot be pickled; their class and their text can."""
    tf: Any = importlib.import_module("tensorflow")
    if isinstance(error, tf.errors.OpError):
        return type(error)(None, None, error.message)
    with contextlib.suppress(Exception):
        pickle.loads(pickle.dumps(error))
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


# --- in the test ----------------------------------------------------------------------------------------------------


def free_ports(n: int) -> list[int]:
    """Ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def _config(cluster: dict[str, list[str]], job: str, index: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


class Worker:
    """One process. `task` is what it is called; `variables` of its environment say which part of a job it is."""

    def __init__(self, task: tuple[str, int], devices: int, variables: dict[str, str]):
        ours, theirs = socket.socketpair()
        # A whole run of the tests may be made with few threads.
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("COLLECTIVES_", "TF_")) or name == "TF_NUM_INTEROP_THREADS"
        }
        environ.update(QUIET, **variables)
        with theirs:
            self.process = nursery.nursery(*IMPORTED, **QUIET).start(serve, [theirs.fileno()], environ)
        self.task = task
        self.link = connection.Connection(ours.detach())
        self.tell({"path": sys.path, "parent": os.getpid(), "devices": devices})

    def tell(self, what: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.link.send_bytes(pickle.dumps(what))

    def next(self, kind: str, end: float) -> Any:
        if not self.link.poll(max(0.0, end - time.monotonic())):
            raise TestTimeout(f"{self.task} gave no answer in time")
        try:
            got, what = pickle.loads(self.link.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise RankDied(f"{self.task} ended with code {self.process.wait(LIMIT)}") from None
        assert got == kind, f"{got} {what!r} instead of {kind}: {getattr(what, 'text', '')}"
        return what

    def outcome(self, limit: float = LIMIT) -> Outcome:
        try:
            what: Outcome = self.next("outcome", time.monotonic() + limit)
            return what
        except RankDied as died:
            return Outcome(error=died)

    def event(self, limit: float = LIMIT) -> Any:
        return self.next("event", time.monotonic() + limit)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)


class Workers:
    """The processes of one cluster.

    Args:
        tasks: those that there are.
        started: those of them that are started; all by default.
        devices: logical CPUs of each.
        variables: of the environment.
    """

    def __init__(
        self,
        tasks: Iterable[tuple[str, int]] = TASKS,
        *,
        started: Iterable[tuple[str, int]] | None = None,
        devices: int = 1,
        variables: dict[str, str] | None = None,
    ) -> None:
        tasks = list(tasks)
        self.ports = free_ports(len(tasks))
        cluster: dict[str, list[str]] = {}
        for (job, _), port in zip(tasks, self.ports, strict=True):
            cluster.setdefault(job, []).append(f"localhost:{port}")
        self.workers = [
            Worker((job, index), devices, {"TF_CONFIG": _config(cluster, job, index), **(variables or {})})
            for job, index in (tasks if started is None else started)
        ]

    def start(self, fn: Callable[..., Any], *args: Any) -> None:
        for worker in self.workers:
            worker.tell((fn, args))

    def outcomes(self, fn: Callable[..., Any], *args: Any, limit: float = LIMIT) -> list[Outcome]:
        self.start(fn, *args)
        return [worker.outcome(limit) for worker in self.workers]

    def run(self, fn: Callable[..., Any], *args: Any, limit: float = LIMIT) -> list[Any]:
        """The results by worker; raises what one has raised."""
        outcomes = self.outcomes(fn, *args, limit=limit)
        for worker, outcome in zip(self.workers, outcomes, strict=True):
            if outcome.error is not None:
                outcome.error.add_note(f"in {worker.task}:\n{outcome.text}")
                raise outcome.error
        return [outcome.value for outcome in outcomes]

    def leave(self) -> list[int | str]:
        """Ends main in all processes; their exit codes, or how late they were."""
        for worker in self.workers:
            worker.link.close()
        began = time.monotonic()
        codes: list[int | str] = []
        for worker in self.workers:
            try:
                codes.append(worker.process.wait(max(0.01, began + LEAVING - time.monotonic())))
            except subprocess.TimeoutExpired:
                worker.process.send_signal(signal.SIGABRT)  # so that it says where its threads are
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(LEAVING)
                codes.append(f"{worker.task} did not leave in {LEAVING:g} s")
        self.destroy()
        return codes

    def destroy(self) -> None:
        for worker in self.workers:
            worker.link.close()
            worker.process.kill()
            worker.process.wait()
