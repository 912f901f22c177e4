"""The futures of torch that calls complete, and the order in which what hangs on them runs."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import CollectivesError

_PATIENCE = 0.2  # seconds that what hangs on one future may keep that of the next waiting


class Failed:
    """The value of a future whose call has failed. C++ knows no errors of Python's futures, and takes them for values:
    it then asks for the tensors of the value, by pickling it, or converts and prints it. Each raises the error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self.error

    def __str__(self) -> str:
        raise self.error


class GroupFuture(torch.futures.Future):
    """A future of a group.

    It is done when its call is over, or somebody has waited for that. What hangs on it, by ``then`` or
    ``add_done_callback``, is run in the order of the group's calls, never by the thread that hangs it there: see
    ``Completions``.
    """

    def __init__(self, completions: Completions, engine: Any, devices: list[Any]) -> None:
        """Internal.

        Args:
            completions: of the group.
            engine: the call.
            devices: of the tensors.
        """
        super().__init__(devices=devices)
        self._completions = completions
        self._engine = engine
        self._devices = devices
        self._lock = threading.Lock()
        self._settled = False
        self._hanging: list[Callable[[], None]] | None = []  # None when they have run

    def settle(self, value: Callable[[], Any]) -> None:
        """Makes it done, with the value or error of a function, which the first who comes calls."""
        with self._lock:
            first, self._settled = not self._settled, True
        if first:
            try:
                result = value()
            except Exception as error:
                result = Failed(error)
                self._set_unwrap_func(_reraise)
            self.set_result(result)
        elif not self.done():
            with contextlib.suppress(Exception):  # what it is does not matter here
                self.wait()

    def run(self) -> None:
        """Runs what hangs on it; it is done."""
        with self._lock:
            hanging, self._hanging = self._hanging or [], None
        for function in hanging:
            function()

    def then(self, callback: Callable[[Any], Any]) -> GroupFuture:
        """See ``torch.futures.Future``; the error of the callback is that of the new future."""
        child = GroupFuture(self._completions, self._engine, self._devices)

        def call() -> None:
            child.settle(lambda: callback(self))
            child.run()

        self._hang(call)
        return child

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """See ``torch.futures.Future``."""
        self._hang(lambda: callback(self))

    def _hang(self, function: Callable[[], None]) -> None:
        inference, gradient = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

        def call() -> None:
            with torch.inference_mode(inference), torch.set_grad_enabled(gradient):
                function()

        with self._lock:
            if self._hanging is not None:
                self._hanging.append(call)
                return
        self._completions.later(self._engine, call)


def _reraise(value: Failed) -> None:
    raise value.error


class Completions:
    """Runs what hangs on the futures of the collectives of a group: in the order of these calls, one after the other.

    It may call collectives (the hook PowerSGD does), which need one order on all ranks, while calls end in an order
    that may differ between ranks. What it calls runs on a communicator of its own, so that it needs no order with what
    the program calls meanwhile. Futures that it takes itself are completed at once, as it may wait for them. Where it
    waits for a future that was taken before, and nothing else goes on for a while, that one's turn comes as well.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # The next first: when its turn may come, and what runs then.
        self._queue: deque[tuple[Callable[[], bool], Callable[[], None]]] = deque()
        self._nested = 0  # futures taken by what runs, not yet completed
        self._watched = False
        self.runners: set[int] = set()  # threads in which something runs

    def inside(self) -> bool:
        """Whether this thread runs what hangs on a future."""
        return bool(self.runners) and threading.get_ident() in self.runners

    def add(self, engine: Any, run: Callable[[], None], ordered: bool) -> None:
        """Has `run` called when a call is over.

        Args:
            engine: the call.
            run: completes its future.
            ordered: whether it keeps the order; messages do not, which may never end.
        """
        if self.inside():
            with self._changed:
                self._nested += 1
            self._schedule(engine, lambda _: self._run_nested(run))
        elif ordered:
            with self._changed:
                self._queue.append((engine.done, run))
            self._schedule(engine, self._ended)
        else:
            self._schedule(engine, lambda _: run())

    def later(self, engine: Any, function: Callable[[], None]) -> None:
        """Has a function called in its turn; `engine` is a call that is over."""
        if self.inside():
            function()
            return
        with self._changed:
            self._queue.append((lambda: True, function))
        self._schedule(engine, self._ended)

    def _schedule(self, engine: Any, function: Callable[[Any], None]) -> None:
        try:
            engine.add_done_callback(function)
        except (
            CollectivesError,
            NotImplementedError,
        ):  # the group is closed; or the call ends in the order of a stream
            function(engine)

    def _run_nested(self, run: Callable[[], None]) -> None:
        try:
            with self._running():
                run()
        finally:
            with self._changed:
                self._nested -= 1
                self._changed.notify_all()

    def _ended(self, _: Any) -> None:
        """Something in the queue may have its turn; called on a thread of the library."""
        with self._changed:
            if self.runners:
                if self._watched:
                    return  # what runs now, or the one who watches it, will find it
                self._watched = True
                while self.runners and (self._changed.wait(_PATIENCE) or self._nested):
                    pass
                self._watched = False
            self.runners.add(threading.get_ident())
        with self._running():
            while (run := self._next()) is not None:
                run()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            if self._queue and self._queue[0][0]():
                return self._queue.popleft()[1]
            # Under the lock, so that none who adds something meanwhile takes this thread for one that will find it.
            self.runners.discard(threading.get_ident())
            self._changed.notify_all()
            return None

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        me = threading.get_ident()
        with self._changed:
            self.runners.add(me)
        try:
            yield
        finally:
            with self._changed:
                self.runners.discard(me)
                self._changed.notify_all()
