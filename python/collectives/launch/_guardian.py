"""A process between the command ``collectives run`` and its ranks, which ends them whatever becomes of the command.

The command (the front) forks the guardian, which starts the ranks and becomes the parent of every process below them
that loses its own (PR_SET_CHILD_SUBREAPER). When the front is killed, the guardian sees the end of a pipe and ends all;
when the guardian is killed, its children fall to the front, which does the same. The kernel still kills each rank when
the guardian is gone (`die_with_parent`), for the case that both are.
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
        run: called in the guardian with a descriptor that is readable when the front is gone. `FORWARDED` are held back
            until it lets them come. What it leaves running is ended when it returns another code than 0.
        grace: seconds between SIGTERM and SIGKILL for processes that were left behind.

    Raises:
        OSError: there can be no further process, or no descriptor.
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
            raise OSError(error.errno, f"cannot start the process that guards the ranks: {error.strerror}") from error
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
    """The life of the guardian; does not return."""
    code = 1
    wrong = ""
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()  # so that Ctrl-C comes once, by the front
        adopt_orphans()
        code = run()
    except BaseException:
        wrong = traceback.format_exc()
    finally:
        try:
            if code != 0:
                end_descendants(grace)  # before anything is written that nobody may read
            if wrong:
                say(wrong)
            _flush()
        finally:
            os._exit(code)


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """While inside, a descriptor has the numbers of signals that have come, and `FORWARDED` are held back at first."""
    before = {}
    numbers, waker = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(waker, False)
    held = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    # The interpreter's own handler writes the number: one in Python would only run after a wait for the next signal
    # that began between the arrival of this one and its turn.
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
    """The status of the guardian, to which signals are passed on; reaps what else there is, as a process with the
    number 1 has to."""
    while True:
        for number in os.read(numbers, 64):
            if number != signal.SIGCHLD:
                os.kill(guardian, number)  # which is there, since nobody has fetched its status
            elif guardian in (statuses := reap()):
                return statuses[guardian]


def _flush() -> None:
    """What was printed and is still in this process."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
