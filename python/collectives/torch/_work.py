"""The handles of calls, and the futures of torch that they complete."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from .. import errors
from ._errors import WaitTimeoutError, translated
from ._futures import Completions, GroupFuture


class Finished(Work):
    """A blocking call that has returned: one object stands for all of them, as nobody keeps it."""

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def wait(self, timeout: Any = None) -> bool:
        return True

    def synchronize(self) -> None:
        """It is over."""

    def result(self) -> list[Tensor]:
        return []

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result([])
        return future


class Pending(Work):
    """A call in flight.

    Attributes:
        engine: the engine's handle, or one with its methods.
        tensors: the result, which is kept until the call is over.
        ordered: whether its future is completed in the order of calls; messages are not, which may never end.
    """

    def __init__(
        self,
        engine: Any,
        tensors: Sequence[Any],
        completions: Completions,
        after: Callable[[], object] | None = None,
        ordered: bool = True,
    ) -> None:
        """
        Args:
            engine, tensors, ordered: see the attributes.
            completions: of the group.
            after: called once when the call is over, before anybody learns that.
        """
        super().__init__()
        self.engine = engine
        self.ordered = ordered
        self.tensors = tensors
        self._completions = completions
        self._after = after
        self._lock = threading.Lock()
        self._future: GroupFuture | None = None

    def is_completed(self) -> bool:
        return bool(self.engine.done())

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Any:
        """The error of a call that is over; None where it has none."""
        if not self.engine.done():
            return None
        try:
            self._finish(None)
        except Exception as error:
            return error
        return None

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Waits for the end of the call.

        Args:
            timeout: how long, or seconds; none, or 0, for as long as the call's own deadline allows.

        Raises:
            WaitTimeoutError: it is not over yet.
            CollectivesError: it failed; each is also a ``DistBackendError``.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        try:
            self._finish(seconds if seconds and seconds > 0 else None)
        finally:
            if self._future is not None and self.engine.done():
                self._future.settle(self._value)
        return True

    def synchronize(self) -> None:
        """As ``wait``."""
        self.wait()

    def result(self) -> Sequence[Any]:
        """The tensors that the call has filled."""
        self.wait()
        return self.tensors

    def source_rank(self) -> int:
        """The rank that sent what was received."""
        return int(self.engine.result().source)

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A future that gets the list of tensors, or the error, when the call is over.

        It is done when ``wait`` has returned. What hangs on it runs on threads of the library (``docs/torch.md``),
        in the inference and gradient mode of the thread that has hung it there.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            devices = {tensor.device for tensor in self.tensors if isinstance(tensor, Tensor) and tensor.is_cuda}
            future = self._future = GroupFuture(self._completions, self.engine, sorted(devices, key=str))
        if devices:  # such a call ends in the order of the current stream
            future.settle(self._value)

        def complete() -> None:
            future.settle(self._value)
            future.run()

        self._completions.add(self.engine, complete, self.ordered)
        return future

    def _value(self) -> Sequence[Any]:
        self._finish(None)
        return self.tensors

    def _finish(self, seconds: float | None) -> None:
        """Waits, and does once what is left to do then."""
        try:
            self.engine.wait(seconds)
        except errors.CollectivesError as error:
            raise translated(error) from error.__cause__
        except TimeoutError as error:
            raise WaitTimeoutError(str(error)) from None
        if self._after is not None:
            with self._lock:  # no thread returns before it has been done
                after, self._after = self._after, None
                if after is not None:
                    after()


class Together:
    """Several calls as one: with the methods of the engine's handle that are used here."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = list(works)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all are over; raises the error of the first that failed."""
        end = None if timeout is None else time.monotonic() + timeout
        first: Exception | None = None
        for work in self._works:
            try:
                work.wait(None if end is None else max(0.0, end - time.monotonic()))
            except errors.CollectivesError as error:
                first = first or error
        if first is not None:
            raise first

    def done(self) -> bool:
        return all(work.done() for work in self._works)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Calls ``fn(self)`` when all are over."""
        left = [len(self._works)]
        lock = threading.Lock()

        def one_ended(_: Any) -> None:
            with lock:
                left[0] -= 1
                last = left[0] == 0
            if last:
                fn(self)

        for work in self._works:
            work.add_done_callback(one_ended)
