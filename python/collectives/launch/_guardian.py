"""A process between the command ``collectives run`` and its ranks, which ends the ranks even if the command is killed.

The command (the front) forks the guardian. The guardian starts the ranks and adopts their orphans
(PR_SET_CHILD_SUBREAPER). When the front is killed, the guardian sees the end of a pipe and ends all descendants; when
the guardian is killed, the front adopts its children and ends them. In case both are killed, the kernel kills each rank
when the guardian ends (`die_with_parent`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator

from .._startup.say import say
from ._descendants import adopt_orphans, end_descendants, reap
from ._process import signal_name

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def guarded(run: Callable[[int], int], grace: float) -> int:
    """Runs `run` in a guardian and returns its exit code, 128 + n where the guardian died of signal n.

    Args:
        run: called in the guardian with a descriptor that becomes readable when the front ends. The signals `FORWARDED`
            are blocked until it unblocks them. If it returns another code than 0, descendants that still run are ended.
        grace: seconds between SIGTERM and SIGKILL for these descendants.

    Raises:
        OSError: the process cannot be forked, or no descriptor is left.
    """
    adopt_orphans()
    _flush()
    with _signals() as numbers:
        front_gone, alive = os.pipe2(os.O_CLOEXEC)
        try:
            guardian = os.fork()
        except OSError as error:
            os.close(front_gone)
            os.close(alive)
            raise OSError(error.errno, f"cannot fork the process that guards the ranks: {error.strerror}") from error
        if guardian == 0:
            os.close(alive)
            _guard(lambda: run(front_gone), grace)
        os.close(front_gone)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        status = _wait(guardian, numbers)
        os.close(alive)
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
        died_of = os.WTERMSIG(status)
        end_descendants(grace)
        say(f"collectives run: its guardian was killed by {signal_name(died_of)}; all ranks were ended")
        return 128 + died_of


def _guard(run: Callable[[], int], grace: float) -> None:
    """The main function of the guardian; does not return."""
    code = 1
    crash = ""
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()  # so that Ctrl-C arrives only once, from the front
        adopt_orphans()
        code = run()
    except BaseException:
        crash = traceback.format_exc()
    finally:
        try:
            if code != 0:
                end_descendants(grace)  # before output, which may block when it is not read
            if crash:
                say(crash)
            _flush()
        finally:
            os._exit(code)


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """Yields a descriptor from which the numbers of arriving signals can be read. Blocks `FORWARDED` at first."""
    before = {}
    numbers, waker = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(waker, False)
    held = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    # The interpreter's C handler writes the number. A handler in Python could run too late: not before the end of a
    # wait that began after the signal arrived.
    outer = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (*FORWARDED, signal.SIGCHLD):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            before[number] = signal.signal(number, lambda *_: None)
    try:
        yield numbers
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(outer)
        os.close(numbers)
        os.close(waker)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _wait(guardian: int, numbers: int) -> int:
    """Forwards signals to the guardian until it ends; returns its status. Reaps all other children, since this process
    may be process 1 of a container."""
    while True:
        for number in os.read(numbers, 64):
            if number != signal.SIGCHLD:
                os.kill(guardian, number)  # its number is valid: it is not reaped yet
            elif guardian in (statuses := reap()):
                return statuses[guardian]


def _flush() -> None:
    """Flushes stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
