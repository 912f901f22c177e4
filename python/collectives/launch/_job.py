"""A job of several ranks as its launcher sees it: signals, output, who failed first, and the end of all of them.

`local` has the ranks of one host, `hosts` those of several; `_remote` is what `hosts` starts on each.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from .._startup.ended import EndedRanks
from ._guardian import FORWARDED
from ._output import Printer, Printing, Sink
from ._process import signal_name

POLL = 0.1  # seconds between checks of processes for which the selector has no descriptor


class Rank(Protocol):
    """One process of a job, on this host or on another.

    Attributes:
        number: of the rank.
        pid: its process number on its host.
        returncode: as of `subprocess.Popen`; None while it runs.
        is_watched: whether the selector notices its end.
        may_be_signalled: False: it has become a process of another user.
    """

    number: int
    may_be_signalled: bool

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    @property
    def is_watched(self) -> bool: ...
    def signal(self, number: int) -> None: ...
    def ended(self, patient: bool) -> bool: ...


def exit_code(rank: Rank) -> int:
    """Of a rank that has ended; 128 + n for death by signal n."""
    code = rank.returncode or 0
    return code if code >= 0 else 128 - code


def how(rank: Rank) -> str:
    """How a rank has ended, for a message."""
    code = rank.returncode or 0
    return f"ended with exit code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"


class Job:
    """The processes of one job.

    Args:
        grace: seconds between SIGTERM and SIGKILL.
        keep_going: the others continue when one fails.
        front_gone: in a guardian (`_guardian`) a descriptor; when it becomes readable the ranks are ended.
        printing: how the lines of ranks are shown.
    """

    def __init__(self, grace: float, keep_going: bool, front_gone: int = -1, printing: Printing | None = None) -> None:
        self.ranks: list[Any] = []  # of Rank
        self._grace = grace
        self._keep_going = keep_going
        self._selector = selectors.DefaultSelector()  # whose data are functions to call
        self._wake, self._waker = socket.socketpair()
        self._code: int | None = None  # what to return; None while nothing failed
        self._kill_at: float | None = None
        self._asked = 0  # how many signals asked this process to end
        self._ended: EndedRanks | None = None
        self._killed = False  # whether SIGKILL was sent; further output may be dropped
        out, self._err = (Sink(stream, self._until_writable) for stream in (sys.stdout, sys.stderr))
        self.printer = Printer(out, self._err, printing or Printing())
        self.outer_waker = -1  # the wakeup descriptor that was set before ours, for signals that are not for us
        for sock in (self._wake, self._waker):
            sock.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, self._take_signals)
        self.is_guardian = front_gone >= 0
        self._front_gone = front_gone
        if self.is_guardian:
            self._selector.register(front_gone, selectors.EVENT_READ, self._end_without_front)

    def waker(self) -> int:
        """Descriptor to which signal handlers write."""
        return self._waker.fileno()

    def wait(self) -> int:
        """Waits until all ranks have ended and forwards their output; returns the exit code."""
        while running := [rank for rank in self.ranks if rank.returncode is None]:
            self._poll(self._limit(running))
            self._collect_ended(running)
            if self.is_guardian:
                self._reap_orphans()
            self._tick()
            if self._killed and not all(rank.may_be_signalled for rank in running):
                break
        self._drain()
        return self._verdict()

    def _verdict(self) -> int:
        """The exit code, when all ranks have ended."""
        if self._keep_going and not self._asked and any(rank.returncode == 0 for rank in self.ranks):
            return 0
        return self._code or 0

    def close(self) -> None:
        """Closes every descriptor."""
        if self._ended is not None:
            self._ended.close()
        self._selector.close()
        self._wake.close()
        self._waker.close()

    def _drain(self) -> None:
        """Forwards the last output, of ranks that have ended."""

    def _limit(self, running: Sequence[Rank]) -> float | None:
        """Seconds that one wait may take."""
        limit = None if all(rank.is_watched for rank in running) else POLL
        if self._kill_at is not None:  # polls, since no descriptor tells the end of a process group
            limit = min(POLL, max(0.0, self._kill_at - time.monotonic()))
        return limit

    def _tick(self) -> None:
        """What is due after a wait."""
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill()

    def _tick_while_blocked(self) -> None:
        """What is due while the output of this process is not read."""
        Job._tick(self)

    def _poll(self, limit: float | None) -> None:
        for key, _ in self._selector.select(limit):
            if self._selector.get_map().get(key.fd) is key:  # else the call before has unregistered it
                key.data()

    def _until_writable(self, fd: int) -> bool:
        """Waits until the reader of our output makes room, and handles signals meanwhile. False: stop writing."""
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        if poll.poll(0):
            return True
        poll.register(self._wake, select.POLLIN)
        if self._front_gone >= 0:
            poll.register(self._front_gone, select.POLLIN)
        while not (self._killed and self._asked):
            limit = self._limit(())
            ready = dict(poll.poll(None if limit is None else 1000 * limit))
            if fd in ready:
                return True
            if self._wake.fileno() in ready:
                self._take_signals()
            if self._front_gone in ready:
                poll.unregister(self._front_gone)
                self._end_without_front()
            self._tick_while_blocked()
        return False

    def _take_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):  # they were read already
            for number in self._wake.recv(64):
                if number in FORWARDED:
                    self._forward(number)
                else:
                    self._pass_on(number)

    def _end_without_front(self) -> None:
        if self._front_gone >= 0:
            self._selector.unregister(self._front_gone)
            self._front_gone = -1
            self._asked += 1
            self._code = 128 + signal.SIGKILL
            self._end(signal.SIGTERM)
            self._say("the command was killed: ending all ranks")

    def _pass_on(self, number: int) -> None:
        """Writes the number of a signal that is not for us to the outer wakeup descriptor."""
        if self.outer_waker >= 0:
            with contextlib.suppress(OSError):
                os.write(self.outer_waker, bytes([number]))

    def pass_on_the_last(self) -> None:
        """Passes on the signals that arrived after the last wait."""
        with contextlib.suppress(BlockingIOError):
            while True:
                for number in self._wake.recv(64):
                    if number not in FORWARDED:
                        self._pass_on(number)

    def _children(self) -> Iterable[int]:
        """The numbers of the processes that this one has started and reaps by itself."""
        return (rank.pid for rank in self.ranks)

    def _reap_orphans(self) -> None:
        """Reaps the children that this process has adopted, up to the first ended one of its own, reaped soon."""
        own = set(self._children())
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in own:
                os.waitpid(ended.si_pid, 0)

    def _collect_ended(self, running: Sequence[Rank]) -> None:
        """Reaps ranks that have ended; the first that failed decides the exit code."""
        ended = [rank for rank in running if rank.ended(patient=self._kill_at is not None)]
        for rank in ended:
            if self._ended is not None:
                self._ended.add(rank.number, rank.pid, how(rank))
        self._judge([rank for rank in ended if rank.returncode != 0])

    def _judge(self, failed: Sequence[Rank]) -> None:
        if self._keep_going and not self._asked:
            for rank in failed:
                self._say(f"{self._name(rank)} {how(rank)}; the others go on")
                self._code = exit_code(rank) if self._code is None else self._code
            return
        if not failed or self._code is not None:
            return
        # Of several that ended at once, one that was killed is more likely the cause than one that exited.
        first = min(failed, key=lambda rank: ((rank.returncode or 0) > 0, rank.number))
        self._code = exit_code(first)
        rest = self._ending_the_rest()
        self._end(signal.SIGTERM)
        self._say(f"{self._name(first)} {how(first)}{rest}")

    def _name(self, rank: Rank) -> str:
        return f"rank {rank.number} (pid {rank.pid})"

    def _ending_the_rest(self) -> str:
        left = sum(rank.returncode is None for rank in self.ranks)
        return f"; ending the other {left}" if left else ""

    def _forward(self, number: int) -> None:
        """Forwards a signal to the ranks: as it is at first, then SIGTERM, the third time SIGKILL."""
        self._asked += 1
        # With keep_going, a rank that failed before has not ended the job, and does not decide the exit code.
        if self._code is None or (self._keep_going and self._asked == 1):
            self._code = 128 + number
        if self._asked >= 3:
            self._kill()
        else:
            self._end(number if self._asked == 1 else signal.SIGTERM)
            self._say(f"{signal_name(number)}: ending all ranks")

    def _end(self, number: int) -> None:
        self._signal_all(number)
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace

    def _kill(self) -> None:
        self._kill_at = None
        self._killed = True
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for rank in self.ranks:
            rank.signal(number)

    def _say(self, text: str) -> None:
        self._err.write(f"collectives run: {text}\n".encode(errors="replace"))


@contextlib.contextmanager
def forwarding(job: Job) -> Iterator[None]:
    """While inside, the signals `FORWARDED` go to the job, also where the caller has blocked them."""
    before = {}
    held = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    # The interpreter's C handler writes the number. A handler in Python could run too late: not before the end of a
    # wait that began after the signal arrived.
    job.outer_waker = signal.set_wakeup_fd(job.waker(), warn_on_full_buffer=False)
    for number in (*FORWARDED, signal.SIGCHLD) if job.is_guardian else FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            before[number] = signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(job.outer_waker)
        job.pass_on_the_last()
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
