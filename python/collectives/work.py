"""The handle of a collective in flight."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

Result = TypeVar("Result")


class Begun(Protocol):
    """What a ``Work`` is the handle of: a call of the engine (``_core.Work``), or one that is queued in a stream."""

    @property
    def algorithm(self) -> str:
        """The name of the algorithm in use."""

    def wait(self, timeout: float) -> bool:
        """Waits for the end and raises its error. False after ``timeout`` seconds, never where that is negative."""

    def done(self) -> bool:
        """Whether it is over."""

    def add_done_callback(self, handle: object, function: object) -> None:
        """Calls function(handle) when it is over."""


class Work(Generic[Result]):
    """An operation in flight, from a call with ``async_op=True``. Leave its arrays alone until it is over.

    Wait for it (``wait``, ``result``, ``wait_all``), ``await`` it, or be told (``add_done_callback``, ``future``).
    """

    def __init__(self, work: Begun, finish: Callable[[], Result] | None, result: Any = None) -> None:
        """Internal; the compiled module calls it, too.

        Args:
            work: the call.
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
        _check_timeout(timeout)
        if not self._work.wait(-1.0 if timeout is None else timeout):
            raise TimeoutError(f"the collective is not over after {timeout} s; it goes on and can be waited for again")
        with self._finishing:
            if self._finish is not None:
                self._result = self._finish()
                self._finish = None

    def done(self) -> bool:
        """True when the collective has finished or failed."""
        return self._work.done()

    def result(self, timeout: float | None = None) -> Result:
        """Waits as ``wait`` does and returns what the blocking call would have returned."""
        self.wait(timeout)
        return self._result  # type: ignore[no-any-return]

    def add_done_callback(self, fn: Callable[[Work[Result]], object]) -> None:
        """Has ``fn(work)`` called when the operation has finished or failed; ``work.result()`` then does not wait.

        >>> comm.all_reduce(x, async_op=True).add_done_callback(lambda work: print(work.result()))

        A thread of the library calls it, also where the operation is over already: never the thread that adds it, and
        never one that is inside a call of this library. Callbacks run one after the other, as their operations end.
        One may make calls, wait and block; then the next gets another thread. An exception that it raises goes to
        ``sys.unraisablehook``, which prints it, and has no other effect.

        You need not keep the handle. ``close`` waits for operations with callbacks, and until the callbacks have
        returned; so does the end of the program. None runs later.

        Collectives that callbacks call need the same order on all ranks, as any others. Operations may end in another
        order on another rank, so let one callback call collectives at a time, or give each a communicator (``dup``).

        Args:
            fn: what is called, with this handle.

        Raises:
            TypeError: ``fn`` cannot be called.
            ClosedError: the communicator is closed.
            OSError: no thread can be started for callbacks.
            NotImplementedError: the call is on arrays of a device and ends in stream order (``docs/gpu.md``).
        """
        if not callable(fn):
            raise TypeError(f"fn is {fn!r}; pass a function of one argument, the work")
        self._work.add_done_callback(self, fn)

    def future(self) -> Future[Result]:
        """A future that gets the result, or the error, of this operation.

        >>> sums = [comm.all_reduce(x, async_op=True).future() for x in gradients]
        >>> for future in concurrent.futures.as_completed(sums): print(future.result())

        It cannot be cancelled. Its callbacks run as those of ``add_done_callback``.
        """
        from concurrent.futures import Future  # takes a while to import

        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()

        def end(work: Work[Result]) -> None:
            try:
                result = work.result()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        if self.done():
            end(self)
        else:
            self.add_done_callback(end)
        return future

    def __await__(self) -> Generator[Any, None, Result]:
        """The result, in a coroutine: ``await comm.all_reduce(x, async_op=True)``.

        The event loop serves other tasks meanwhile. Where the task is cancelled the operation continues.
        """
        if not self.done():
            import asyncio  # takes a while to import

            yield from asyncio.wrap_future(self.future())
        return self.result()

    @property
    def algorithm(self) -> str:
        """The name of the algorithm in use."""
        return self._work.algorithm


def wait_all(works: Iterable[Work[Any]], timeout: float | None = None) -> list[Any]:
    """Waits until all of these operations are over, and returns their results in the order of ``works``.

    >>> sums = collectives.wait_all([comm.all_reduce(x, async_op=True) for x in gradients])

    Args:
        works: any number, also of several communicators.
        timeout: seconds for all of them together; ``None`` waits as long as their own deadlines allow.

    Raises:
        TimeoutError: one is not over yet. They continue, and you can wait again.
        CollectivesError: that of the first in ``works`` that has failed, when all are over; so their arrays are yours
            again.
    """
    _check_timeout(timeout)
    end = None if timeout is None else time.monotonic() + timeout
    results = []
    first: Exception | None = None
    for work in list(works):
        try:
            results.append(work.result(None if end is None else max(0.0, end - time.monotonic())))
        except TimeoutError:
            raise
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
    return results


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout is {timeout!r}; seconds, at least 0, are accepted")
