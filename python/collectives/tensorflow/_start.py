"""How the workers meet before TensorFlow's server starts in any of them.

TensorFlow takes whoever listens at the address of a worker for that worker, and its rank 0 then waits for it: for an
hour, in a call that no signal and no thread of Python gets through. So the workers meet first, at the same addresses:
each takes its port, which shows that nobody else has it, and tells rank 0, which tells all when everybody is there, or
what is wrong. Then they leave the ports to TensorFlow's servers.

Strangers can join in, as they can connect to these servers. Nothing that they could use is told, and the worst that
they achieve is that rank 0 goes on to the next wait, which is bounded.
"""

from __future__ import annotations

import errno
import socket
import time
from typing import Any

from .._startup import wire
from .._startup.acceptor import Acceptor
from .._startup.loop import Loop
from .._startup.sockets import listen_anywhere
from .._startup.wire import Deadline, Message, Task, WireError, printable
from ._tf_config import TFConfig

__all__ = ["LateError", "StartError", "meet", "name_of", "no_answer"]

_VERSION = 1
_PROBE = 1.0  # seconds for a connection, to see who is there
_PAUSE = 0.05  # seconds between two attempts
_BIND_PATIENCE = 2.0  # seconds in which a port may become free: an earlier worker may be about to end
_FAREWELL = 5.0  # seconds for the others to leave their ports when all are there


class StartError(Exception):
    """The workers cannot start together; the text says why."""


class LateError(StartError):
    """Not all came in time; the text says which are missing."""


def name_of(config: TFConfig, rank: int) -> str:
    """How texts call a worker: its job, index and address."""
    job, index, address = config.members[rank]
    return f"{job} {index} at {address}"


def no_answer(config: TFConfig, rank: int) -> str:
    """Why nobody can be reached at the address of a worker; "" when somebody can be."""
    try:
        _connect(config, rank, _PROBE).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def meet(config: TFConfig, deadline: Deadline) -> None:
    """Returns when all workers are there and have left their ports.

    Raises:
        LateError: not all are there at the deadline.
        StartError: the port of a worker is taken.
    """
    listeners: list[socket.socket] = []
    problem = ""
    try:
        try:
            listeners = _take_port(config, deadline)
        except OSError as error:
            problem = (
                f"{name_of(config, config.rank)} cannot take its port: {error.strerror or error}. Is it held by "
                "another job, or by a worker of an earlier start that has not ended? End that, or choose other ports "
                "in the cluster"
            )
        if config.rank > 0:
            _visit(config, listeners, problem, deadline)
        elif problem:
            raise StartError(problem)
        else:
            _Hub(config, listeners, deadline).run()
    finally:
        for listener in listeners:
            listener.close()


def _take_port(config: TFConfig, deadline: Deadline) -> list[socket.socket]:
    """Listens where TensorFlow's server will, on all addresses. Raises ``OSError``."""
    _, port = _place(config, config.rank)
    patience = Deadline(min(_BIND_PATIENCE, deadline.remaining() / 2))
    while True:
        try:
            return listen_anywhere(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or patience.remaining() == 0:
                raise
            time.sleep(_PAUSE)


class _Hub:
    """What rank 0 does."""

    def __init__(self, config: TFConfig, listeners: list[socket.socket], deadline: Deadline) -> None:
        self._config = config
        self._listeners = listeners
        self._deadline = deadline
        self._loop = Loop()
        self._there: dict[int, socket.socket] = {}
        self._problem = ""

    def run(self) -> None:
        acceptor = Acceptor(
            self._loop, self._listeners, lambda sock: _greeted(sock, self._config), self._welcome, what="start"
        )
        try:
            others = self._config.size - 1
            in_time = self._loop.run(lambda: bool(self._problem) or len(self._there) == others, self._deadline)
            if self._problem:
                self._tell({"failed": self._problem})
                raise StartError(self._problem)
            if not in_time:
                text = self._late()
                self._tell({"failed": text, "late": True})
                raise LateError(text)
            self._tell({"go": True})
            # What they do not close in time shows when their servers do not answer.
            self._loop.run(lambda: not self._there, Deadline(min(_FAREWELL, self._deadline.remaining())))
        finally:
            acceptor.close()
            self._loop.close()

    def _welcome(self, sock: socket.socket, hello: Message) -> None:
        rank = int(hello["rank"])
        if before := self._there.pop(rank, None):  # it has started again
            self._loop.cancel(before)
            before.close()
        self._problem = self._problem or printable(hello["problem"])
        self._there[rank] = sock
        self._loop.start(sock, wire.receive_bytes(sock, 1), lambda *_: self._lose(rank, sock))
        self._tell({"waiting": self._missing()})

    def _lose(self, rank: int, sock: socket.socket) -> None:
        """It has ended; or it has left its port, when all are there."""
        sock.close()
        if self._there.get(rank) is sock:
            del self._there[rank]
            self._tell({"waiting": self._missing()})

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._config.size) if rank not in self._there]

    def _tell(self, message: Message) -> None:
        """Short texts, which fit into the buffers; who has gone is noticed elsewhere."""
        data = wire.encode(message)
        for sock in self._there.values():
            try:
                sock.send(data, socket.MSG_NOSIGNAL)
            except OSError:
                continue

    def _late(self) -> str:
        found = []
        for rank in self._missing():
            why = no_answer(self._config, rank) or "somebody listens there who has not come to worker 0 of this job"
            found.append(f"{name_of(self._config, rank)} ({why})")
        return f"{name_of(self._config, 0)} has not heard of {', '.join(found)}"


def _greeted(sock: socket.socket, config: TFConfig) -> Task[Message]:
    """The hello of a worker that has come to rank 0."""
    hello = yield from wire.receive(sock, wire.STRANGER_LIMIT)
    expected = _hello(config, 0, "")
    if any(hello.get(key) != expected[key] for key in ("start", "jobs")):
        text = (
            f"{name_of(config, 0)} is of a job with {expected['jobs']}, not with {printable(repr(hello.get('jobs')))}"
        )
        yield from wire.send(sock, {"failed": text})
        raise WireError(text)
    rank, problem = hello.get("rank"), hello.get("problem")
    if type(rank) is not int or not 0 < rank < config.size or not isinstance(problem, str):
        raise WireError("a hello without a rank or a problem")
    return hello


def _hello(config: TFConfig, rank: int, problem: str) -> Message:
    jobs = [job for job, _, _ in config.members]
    return {"start": _VERSION, "jobs": {job: jobs.count(job) for job in jobs}, "rank": rank, "problem": problem}


def _visit(config: TFConfig, listeners: list[socket.socket], problem: str, deadline: Deadline) -> None:
    """What the others do: they come to rank 0 until they hear that all are there."""
    found = problem  # why it goes no further
    while deadline.remaining() > 0:
        try:
            with _connect(config, 0, min(_PROBE, deadline.remaining())) as sock:
                sock.setblocking(False)
                wire.run(wire.send(sock, _hello(config, config.rank, problem)), sock, deadline)
                found = "whoever listens there says nothing, so it is not that worker, or a stopped one"
                while True:
                    answer = wire.run(wire.receive(sock, wire.STRANGER_LIMIT), sock, deadline)
                    if "failed" in answer:
                        raise (LateError if answer.get("late") else StartError)(printable(str(answer["failed"])))
                    if "go" in answer:
                        for listener in listeners:
                            listener.close()
                        return  # closes the connection, which rank 0 waits for
                    found = _waits_for(config, answer.get("waiting"))
        except TimeoutError:
            if deadline.remaining() == 0:
                break
            found = "it cannot be reached: no answer to a connection"
        except WireError as error:
            found = f"whoever listens there is not that worker: {printable(str(error))}"
        except OSError as error:
            found = error.strerror or str(error)
        time.sleep(min(_PAUSE, deadline.remaining()))
    if problem:
        raise StartError(problem)
    raise LateError(f"{name_of(config, 0)} has not started the job: {found}")


def _waits_for(config: TFConfig, ranks: Any) -> str:
    known = [rank for rank in ranks if type(rank) is int and 0 < rank < config.size] if isinstance(ranks, list) else []
    return "it waits for " + (", ".join(name_of(config, rank) for rank in known) or "nobody")


def _place(config: TFConfig, rank: int) -> tuple[str, int]:
    host, _, port = config.members[rank][2].rpartition(":")
    return host.strip("[]"), int(port)


def _connect(config: TFConfig, rank: int, seconds: float) -> socket.socket:
    return socket.create_connection(_place(config, rank), timeout=max(seconds, 0.01))
