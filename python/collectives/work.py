"""The handle of a collective in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from . import _core


class Work:
    """An operation in flight, from a call with ``async_op=True``. Leave its arrays alone until it is over."""

    def __init__(self, work: _core.Work, finish: Callable[[], Any] | None, result: Any = None) -> None:
        """Internal; the compiled module calls it, too.

        Args:
            work: the handle of the engine.
            finish: called once when the operation is over; it returns the result.
            result: the result where `finish` is None.
        """
        self._work = work
        self._result = result
        self._finish = finish
        self._finishing = threading.Lock()  # several threads may wait

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end of the collective.

        Args:
            timeout: seconds; ``None`` waits as long as the collective's own deadline allows.

        Raises:
            TimeoutError: it is not over yet; it continues, and you can wait again.
            CollectivesError: it failed.
        """
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is {timeout!r}; seconds, at least 0, are accepted")
        if not self._work.wait(-1.0 if timeout is None else timeout):
            raise TimeoutError(f"the collective is not over after {timeout} s; it goes on and can be waited for again")
        with self._finishing:
            if self._finish is not None:
                self._result = self._finish()
                self._finish = None

    def done(self) -> bool:
        """True when the collective has finished or failed."""
        return self._work.done()

    def result(self, timeout: float | None = None) -> Any:
        """Waits as ``wait`` does and returns what the blocking call would have returned."""
        self.wait(timeout)
        return self._result

    @property
    def algorithm(self) -> str:
        """The name of the algorithm in use."""
        return self._work.algorithm
