"""Lets the workers meet before TensorFlow's server starts in any of them.

TensorFlow assumes that a process that listens at the address of a worker is that worker, and its rank 0 waits for it:
up to an hour, without serving signals or other Python threads. So the workers first meet at the same addresses: each
binds its port, which proves that no other process has it, and connects to rank 0, which tells all when everyone is
there, or what is wrong. Then they release the ports for TensorFlow's servers.

Strangers can take part, as they can connect to these servers. They learn nothing of use, and at worst make rank 0
continue to the next wait, which has a limit.
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
_PROBE = 1.0  # seconds for an attempt to connect
_PAUSE = 0.05  # seconds between two attempts
_BIND_PATIENCE = 2.0  # seconds to wait for a port in use: an earlier worker may be about to end
_LEAVE_LIMIT = 5.0  # seconds for the others to release their ports when all are there


class StartError(Exception):
    """The workers cannot start together; the text says why."""


class LateError(StartError):
    """Not all workers came in time; the text says which are missing."""


def name_of(config: TFConfig, rank: int) -> str:
    """The name of a worker in errors: its job, index and address."""
    job, index, address = config.members[rank]
    return f"{job} {index} at {address}"


def no_answer(config: TFConfig, rank: int) -> str:
    """Why no process can be reached at the address of a worker; "" when one can."""
    try:
        _connect(config, rank, _PROBE).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def meet(config: TFConfig, deadline: Deadline) -> None:
    """Returns when all workers are there and have released their ports.

    Raises:
        LateError: a worker is missing at the deadline.
        StartError: the port of a worker is in use.
    """
    listeners: list[socket.socket] = []
    problem = ""
    try:
        try:
            listeners = _bind_port(config, deadline)
        except OSError as error:
            problem = (
                f"{name_of(config, config.rank)} cannot listen on its port: {error.strerror or error}. Is it used by "
                "another job, or by a worker of an earlier start that has not ended? End that, or choose other ports "
                "in the cluster"
            )
        if config.rank > 0:
            _join(config, listeners, problem, deadline)
        elif problem:
            raise StartError(problem)
        else:
            _Hub(config, listeners, deadline).run()
    finally:
        for listener in listeners:
            listener.close()


def _bind_port(config: TFConfig, deadline: Deadline) -> list[socket.socket]:
    """Listens on the port of TensorFlow's server, on all addresses. Raises ``OSError``."""
    _, port = _address(config, config.rank)
    patience = Deadline(min(_BIND_PATIENCE, deadline.remaining() / 2))
    while True:
        try:
            return listen_anywhere(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or patience.remaining() == 0:
                raise
            time.sleep(_PAUSE)


class _Hub:
    """The part of rank 0."""

    def __init__(self, config: TFConfig, listeners: list[socket.socket], deadline: Deadline) -> None:
        self._config = config
        self._listeners = listeners
        self._deadline = deadline
        self._loop = Loop()
        self._joined: dict[int, socket.socket] = {}
        self._problem = ""

    def run(self) -> None:
        acceptor = Acceptor(
            self._loop, self._listeners, lambda sock: _receive_hello(sock, self._config), self._add, what="start"
        )
        try:
            others = self._config.size - 1
            in_time = self._loop.run(lambda: bool(self._problem) or len(self._joined) == others, self._deadline)
            if self._problem:
                self._send_to_all({"failed": self._problem})
                raise StartError(self._problem)
            if not in_time:
                text = self._describe_missing()
                self._send_to_all({"failed": text, "late": True})
                raise LateError(text)
            self._send_to_all({"go": True})
            # A worker that does not close in time is noticed later, when its server does not answer.
            self._loop.run(lambda: not self._joined, Deadline(min(_LEAVE_LIMIT, self._deadline.remaining())))
        finally:
            acceptor.close()
            self._loop.close()

    def _add(self, sock: socket.socket, hello: Message) -> None:
        rank = int(hello["rank"])
        if before := self._joined.pop(rank, None):  # the worker was started again
            self._loop.cancel(before)
            before.close()
        self._problem = self._problem or printable(hello["problem"])
        self._joined[rank] = sock
        self._loop.start(sock, wire.receive_bytes(sock, 1), lambda *_: self._remove(rank, sock))
        self._send_to_all({"waiting": self._missing()})

    def _remove(self, rank: int, sock: socket.socket) -> None:
        """Called at the end of a connection: the worker has ended, or, when all are there, has released its port."""
        sock.close()
        if self._joined.get(rank) is sock:
            del self._joined[rank]
            self._send_to_all({"waiting": self._missing()})

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._config.size) if rank not in self._joined]

    def _send_to_all(self, message: Message) -> None:
        """Sends a short message, which fits into the socket buffers; `_remove` notices workers that have ended."""
        data = wire.encode(message)
        for sock in self._joined.values():
            try:
                sock.send(data, socket.MSG_NOSIGNAL)
            except OSError:
                continue

    def _describe_missing(self) -> str:
        found = []
        for rank in self._missing():
            why = no_answer(self._config, rank) or "the process that listens there has not come to worker 0 of this job"
            found.append(f"{name_of(self._config, rank)} ({why})")
        return f"{name_of(self._config, 0)} has no message from {', '.join(found)}"


def _receive_hello(sock: socket.socket, config: TFConfig) -> Task[Message]:
    """Receives the hello of a worker on rank 0. Refuses one of another job."""
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


def _join(config: TFConfig, listeners: list[socket.socket], problem: str, deadline: Deadline) -> None:
    """The part of the other workers: they connect to rank 0 until it tells that all are there."""
    found = problem  # why the start does not proceed
    while deadline.remaining() > 0:
        try:
            with _connect(config, 0, min(_PROBE, deadline.remaining())) as sock:
                sock.setblocking(False)
                wire.run(wire.send(sock, _hello(config, config.rank, problem)), sock, deadline)
                found = "the process that listens there sends nothing: it is not that worker, or it is stopped"
                while True:
                    answer = wire.run(wire.receive(sock, wire.STRANGER_LIMIT), sock, deadline)
                    if "failed" in answer:
                        raise (LateError if answer.get("late") else StartError)(printable(str(answer["failed"])))
                    if "go" in answer:
                        for listener in listeners:
                            listener.close()
                        return  # closes the connection; rank 0 waits for that
                    found = _waits_for(config, answer.get("waiting"))
        except TimeoutError:
            if deadline.remaining() == 0:
                break
            found = "it cannot be reached: no answer to a connection"
        except WireError as error:
            found = f"the process that listens there is not that worker: {printable(str(error))}"
        except OSError as error:
            found = error.strerror or str(error)
        time.sleep(min(_PAUSE, deadline.remaining()))
    if problem:
        raise StartError(problem)
    raise LateError(f"{name_of(config, 0)} has not started the job: {found}")


def _waits_for(config: TFConfig, ranks: Any) -> str:
    known = [rank for rank in ranks if type(rank) is int and 0 < rank < config.size] if isinstance(ranks, list) else []
    return "it waits for " + (", ".join(name_of(config, rank) for rank in known) or "no other")


def _address(config: TFConfig, rank: int) -> tuple[str, int]:
    host, _, port = config.members[rank][2].rpartition(":")
    return host.strip("[]"), int(port)


def _connect(config: TFConfig, rank: int, seconds: float) -> socket.socket:
    return socket.create_connection(_address(config, rank), timeout=max(seconds, 0.01))
