"""Drives many tasks of `_wire` at once, in one thread, and accepts connections of which some may be a stranger's."""

from __future__ import annotations

import errno
import heapq
import itertools
import logging
import resource
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from ._wire import Deadline, Task, WireError

_log = logging.getLogger("collectives")
_ACCEPT_PAUSE = 0.1  # seconds without accepting when the process is out of descriptors
_ACCEPT_PATIENCE = 20  # such pauses in a row until it is an error


class _Job:
    def __init__(self, sock: socket.socket, task: Task[Any], done: Callable[[Any, Exception | None], None]) -> None:
        self.sock = sock
        self.task = task
        self.done = done
        self.event = 0


class Loop:
    """One selector, the tasks that wait on it, and timers. What a callback raises comes out of `run`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._jobs: dict[socket.socket, _Job] = {}
        self._starved = 0
        self._listeners: dict[socket.socket, Callable[[socket.socket, Any], None]] = {}

    def start(
        self,
        sock: socket.socket,
        task: Task[Any],
        done: Callable[[Any, Exception | None], None],
        limit: float | None = None,
    ) -> None:
        """Begins a task on `sock`, which has no other one; `done(result, error)` is called once at its end.

        After `limit` seconds the task fails with ``TimeoutError``. The socket stays open: its fate is up to `done`.
        """
        job = _Job(sock, task, done)
        self._jobs[sock] = job
        if limit is not None:
            self.later(limit, lambda: self._expire(job, limit))
        self._step(job)

    def cancel(self, sock: socket.socket) -> None:
        """Ends the task on `sock`, if there is one, without calling its `done`."""
        job = self._jobs.pop(sock, None)
        if job is not None:
            if job.event:
                self._selector.unregister(sock)
            job.task.close()

    def listen(self, sock: socket.socket, accepted: Callable[[socket.socket, Any], None]) -> None:
        """Calls `accepted(connection, address)` for every connection to `sock`."""
        self._listeners[sock] = accepted
        self._selector.register(sock, selectors.EVENT_READ)

    def unlisten(self, sock: socket.socket) -> None:
        """Stops accepting from `sock`."""
        if self._listeners.pop(sock, None) is not None and sock in self._selector.get_map():
            self._selector.unregister(sock)

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Calls `callback` after `seconds`."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), callback))

    def run(self, finished: Callable[[], bool], deadline: Deadline) -> bool:
        """Drives everything until `finished()`; False when the deadline came first."""
        while not finished():
            remaining = deadline.remaining()
            if remaining == 0:
                return False
            if self._timers:
                remaining = min(remaining, max(0.0, self._timers[0][0] - time.monotonic()))
            for key, _ in self._selector.select(remaining):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock in self._listeners:
                    self._accept(sock)
                elif sock in self._jobs:
                    self._step(self._jobs[sock])
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()
        return True

    def close(self) -> None:
        """Forgets all tasks, closing their sockets, and all listeners."""
        for sock in list(self._jobs):
            self.cancel(sock)
            sock.close()
        for sock in list(self._listeners):
            self.unlisten(sock)
        self._timers.clear()
        self._selector.close()

    def _step(self, job: _Job) -> None:
        try:
            event = next(job.task)
        except StopIteration as stop:
            self._end(job, stop.value, None)
        except (OSError, WireError) as error:
            self._end(job, None, error)
        else:
            self._wait(job, event)

    def _wait(self, job: _Job, event: int) -> None:
        if not job.event:
            self._selector.register(job.sock, event)
        elif job.event != event:
            self._selector.modify(job.sock, event)
        job.event = event

    def _end(self, job: _Job, result: Any, error: Exception | None) -> None:
        self.cancel(job.sock)
        job.done(result, error)

    def _expire(self, job: _Job, limit: float) -> None:
        if self._jobs.get(job.sock) is job:
            self._end(job, None, TimeoutError(f"it said nothing sensible within {limit:g} s"))

    def _accept(self, sock: socket.socket) -> None:
        try:
            connection, address = sock.accept()
        except (BlockingIOError, ConnectionError, InterruptedError):
            return
        except OSError as error:
            # Most likely out of descriptors. The listener stays readable, so it must rest or this would spin.
            self._starved += 1
            if self._starved == _ACCEPT_PATIENCE:
                advice = "; raise the limit of open files (`ulimit -n`)" if error.errno == errno.EMFILE else ""
                raise OSError(error.errno, f"cannot accept connections: {error.strerror}{advice}") from None
            self._selector.unregister(sock)
            self.later(_ACCEPT_PAUSE, lambda: self._resume(sock))
            return
        self._starved = 0
        connection.setblocking(False)
        self._listeners[sock](connection, address)

    def _resume(self, sock: socket.socket) -> None:
        if sock in self._listeners:
            self._selector.register(sock, selectors.EVENT_READ)


class Acceptor:
    """Accepts on some listeners, lets each connection prove itself, and refuses the rest without being held up.

    At most `capacity` connections are pending; a further one drops the oldest, which is never an honest one unless more
    than `capacity` connections arrive within one round trip. A dropped rank tries again.

    Attributes:
        refused: number of connections that were refused.
        last_refusal: address and reason of the last one, ``""`` if there was none.
    """

    def __init__(
        self,
        loop: Loop,
        listeners: Sequence[socket.socket],
        greet: Callable[[socket.socket], Task[Any]],
        accepted: Callable[[socket.socket, Any], None],
        *,
        what: str,
        capacity: int = 256,
        limit: float | None = 10.0,
    ) -> None:
        self.refused = 0
        self.last_refusal = ""
        self._loop = loop
        self._listeners = list(listeners)
        self._greet = greet
        self._accepted = accepted
        self._what = what
        # Strangers may take a part of the descriptors of this process, not all of them.
        limit_of_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._capacity = capacity if limit_of_files < 0 else max(8, min(capacity, limit_of_files // 4))
        self._limit = limit
        self._pending: dict[socket.socket, Any] = {}
        for sock in self._listeners:
            loop.listen(sock, self._incoming)

    def close(self) -> None:
        """Closes the listeners and the connections that are pending."""
        for sock in self._listeners:
            self._loop.unlisten(sock)
            sock.close()
        for sock in list(self._pending):
            self._loop.cancel(sock)
            sock.close()
        self._pending.clear()

    def _incoming(self, sock: socket.socket, address: Any) -> None:
        while len(self._pending) >= self._capacity:
            oldest = next(iter(self._pending))
            self._loop.cancel(oldest)
            self._refuse(oldest, "dropped, too many connections were pending")
        self._pending[sock] = address
        self._loop.start(sock, self._greet(sock), lambda result, error: self._settled(sock, result, error), self._limit)

    def _settled(self, sock: socket.socket, result: Any, error: Exception | None) -> None:
        if error is not None:
            self._refuse(sock, str(error))
            return
        del self._pending[sock]
        self._accepted(sock, result)

    def _refuse(self, sock: socket.socket, reason: str) -> None:
        address = self._pending.pop(sock)
        sock.close()
        self.refused += 1
        peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a local process"
        self.last_refusal = f"{peer}: {reason}"
        if self.refused == 1:
            _log.warning(
                "refused a connection to the %s from %s; further ones are only counted", self._what, self.last_refusal
            )
