"""Drives many tasks of `_startup.wire` at once, in one thread."""

from __future__ import annotations

import errno
import heapq
import itertools
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from . import wire
from .wire import Deadline, Task, WireError

_ACCEPT_PAUSE = 0.1  # seconds without accepting when the process is out of descriptors
_ACCEPT_PATIENCE = 20  # pauses in a row until it raises an error


class Timer:
    """A callback that is due at some time, unless it is cancelled before."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback


class _Job:
    def __init__(self, sock: socket.socket, task: Task[Any], done: Callable[[Any, Exception | None], None]) -> None:
        self.sock = sock
        self.task = task
        self.done = done
        self.event = 0
        self.timer: Timer | None = None


class Loop:
    """One selector, the tasks that wait on it, and timers. An error in a callback propagates out of `run`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._forgotten = 0
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

        After `limit` seconds the task fails with ``TimeoutError``. The socket stays open; `done` decides what to do.
        """
        job = _Job(sock, task, done)
        self._jobs[sock] = job
        if limit is not None:
            job.timer = self.later(limit, lambda: self._expire(job, limit))
        self._step(job)

    def lift_limit(self, sock: socket.socket) -> None:
        """Removes the time limit of the task on `sock`."""
        job = self._jobs[sock]
        if job.timer is not None:
            self.forget(job.timer)
            job.timer = None

    def cancel(self, sock: socket.socket) -> None:
        """Ends the task on `sock`, if there is one, without calling its `done`."""
        job = self._jobs.pop(sock, None)
        if job is not None:
            if job.event:
                self._selector.unregister(sock)
            job.task.close()
            if job.timer is not None:
                self.forget(job.timer)

    def listen(self, sock: socket.socket, accepted: Callable[[socket.socket, Any], None]) -> None:
        """Calls `accepted(connection, address)` for every connection to `sock`."""
        self._listeners[sock] = accepted
        self._selector.register(sock, selectors.EVENT_READ)

    def unlisten(self, sock: socket.socket) -> None:
        """Stops accepting from `sock`."""
        if self._listeners.pop(sock, None) is not None and sock in self._selector.get_map():
            self._selector.unregister(sock)

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Calls `callback` after `seconds`."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), timer))
        return timer

    def forget(self, timer: Timer) -> None:
        """Cancels a timer, if its callback was not called yet.

        Cancelled timers are removed from the heap when they are many: thousands of connections may come and go within
        the time limit of one.
        """
        if timer.callback is None:
            return
        timer.callback = None
        self._forgotten += 1
        if self._forgotten > 64 and 2 * self._forgotten > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._forgotten = 0

    def run(self, finished: Callable[[], bool], deadline: Deadline) -> bool:
        """Runs tasks and timers until `finished()`; False when the deadline passed first."""
        while not finished():
            remaining = deadline.remaining()
            if remaining == 0:
                return False
            if self._timers:
                remaining = min(remaining, max(0.0, self._timers[0][0] - time.monotonic()))
            for key, _ in self._selector.select(min(remaining, wire.LONGEST_WAIT)):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock in self._listeners:
                    self._accept(sock)
                elif sock in self._jobs:
                    self._step(self._jobs[sock])
            while self._timers and self._timers[0][0] <= time.monotonic():
                timer = heapq.heappop(self._timers)[2]
                callback, timer.callback = timer.callback, None
                if callback is None:
                    self._forgotten -= 1
                else:
                    callback()
        return True

    def close(self) -> None:
        """Cancels all tasks, closes their sockets, and stops listening."""
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
            # Most likely out of descriptors. The listener stays readable, so without a pause this would spin.
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
