"""Runs a command as several ranks on this host and makes sure that all of them end."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from .._startup.ended import EndedRanks
from .._startup.system import pidfd_open
from ._descendants import group_lives
from ._guardian import FORWARDED
from ._output import Sink, Stream
from ._process import die_with_parent, listen_for_ranks, new_token, rank_environment, share_of_cores, signal_name

_DRAIN = 1.0  # seconds to read the last output of ranks that have ended
_POLL = 0.1  # seconds between checks of processes for which the selector has no descriptor


def run_local(
    command: Sequence[str],
    ranks: int,
    *,
    transport: str | None = None,
    timeout: float | None = None,
    grace: float = 5.0,
    keep_going: bool = False,
    environ: Mapping[str, str] | None = None,
    front_gone: int = -1,
) -> int:
    """Runs `command` as `ranks` processes and waits for all of them. Call it from the main thread.

    Every line that a rank prints is forwarded with ``[rank] `` before it. When one rank fails, the others get SIGTERM,
    and SIGKILL `grace` seconds later, each with the processes it started. SIGINT, SIGTERM and SIGHUP are forwarded to
    the ranks, which then have the same time to end. The ranks die with this process, even if it is killed. Where
    ``OMP_NUM_THREADS`` is not set, it is set to a rank's share of the cores, and a line on stderr says so.

    Args:
        command: program and arguments.
        ranks: number of processes, at least 1.
        transport, timeout: for ``COLLECTIVES_TRANSPORT`` and ``COLLECTIVES_TIMEOUT``; ``None`` leaves them as they are.
        grace: seconds.
        keep_going: the other ranks continue when one fails, for programs that use ``shrink``.
        environ: the environment of the ranks, ``os.environ`` by default.
        front_gone: in a guardian (`_guardian`) a descriptor; when it becomes readable the ranks are ended.

    Returns:
        0 when all ranks ended with 0, or with `keep_going` any of them;
        else the exit code of the first that failed, 128 + n for death by signal n; and
        128 + n when this process received signal n, unless a rank had failed before and so ended the job.

    Raises:
        OSError: the command cannot be started.
        ValueError: `ranks` is less than 1.
    """
    if ranks < 1:
        raise ValueError(f"the number of ranks is {ranks}; at least 1 is accepted")
    job = _Job(grace, keep_going, front_gone)
    try:
        with _forwarding(job):
            job.start(command, ranks, transport, timeout, os.environ if environ is None else environ)
            return job.wait()
    finally:
        job.close()


class _Rank:
    """One process of the job."""

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.process = process
        self.pid_fd = -1
        self.may_be_signalled = True
        with contextlib.suppress(OSError):
            self.pid_fd = pidfd_open(process.pid)

    def signal(self, number: int) -> None:
        """Sends a signal to the process and to what it started (its process group)."""
        # After the process was reaped, its number may belong to another one.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                try:
                    os.killpg(self.process.pid, number)
                except PermissionError:  # it runs as another user now
                    self.may_be_signalled = False

    def ended(self, patient: bool) -> bool:
        """Whether the process has ended; if so, kills what still runs in its process group and reaps it.

        Args:
            patient: wait for the group, since it has been signalled: a shell ends before the program that it waits for.
        """
        if self.process.returncode is None:
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            if patient and group_lives(self.process.pid):
                return False
            self.signal(signal.SIGKILL)
            self.process.wait()
        return True


def _exit_code(rank: _Rank) -> int:
    code: int = rank.process.returncode
    return code if code > 0 else 128 - code


def _how(rank: _Rank) -> str:
    code: int = rank.process.returncode
    return f"ended with exit code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"


class _Job:
    def __init__(self, grace: float, keep_going: bool, front_gone: int = -1) -> None:
        self.ranks: list[_Rank] = []
        self._grace = grace
        self._keep_going = keep_going
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._code: int | None = None  # what to return; None while nothing failed
        self._kill_at: float | None = None
        self._asked = 0  # how many signals asked this process to end
        self._ended: EndedRanks | None = None
        self._killed = False  # whether SIGKILL was sent; further output may be dropped
        self._out, self._err = (Sink(stream, self._until_writable) for stream in (sys.stdout, sys.stderr))
        self.outer_waker = -1  # the wakeup descriptor that was set before ours, for signals that are not for us
        for sock in (self._wake, self._waker):
            sock.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self.is_guardian = front_gone >= 0
        self._front_gone = front_gone
        if self.is_guardian:
            self._selector.register(front_gone, selectors.EVENT_READ, self)

    def waker(self) -> int:
        """Descriptor to which signal handlers write."""
        return self._waker.fileno()

    def start(
        self,
        command: Sequence[str],
        ranks: int,
        transport: str | None,
        timeout: float | None,
        environ: Mapping[str, str],
    ) -> None:
        token = new_token()
        self._ended = EndedRanks(ranks, token)
        parent = os.getpid()
        lines: list[str] = []  # printed when all ranks have started, since printing may block
        environ = {**environ, **share_of_cores(ranks, environ, lines.append)}
        with listen_for_ranks() as listener:
            for number in range(ranks):
                variables = rank_environment(number, ranks, listener, token, transport, timeout, self._ended.fd)
                # PYTHONUNBUFFERED: lines appear at once, and those of a rank that is killed are not lost.
                process = subprocess.Popen(
                    command,
                    env={"PYTHONUNBUFFERED": "1", **environ, **variables},
                    stdin=None if number == 0 and not _reads_terminal() else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=[fd for fd in (self._ended.fd, listener.fileno() if number == 0 else -1) if fd >= 0],
                    # A session of its own: a process group to signal, and Ctrl-C reaches the ranks only through us.
                    start_new_session=True,
                    # Safe: this process has no other threads, and the function only calls prctl and getppid.
                    preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
                )
                rank = _Rank(number, process)
                self.ranks.append(rank)
                if rank.pid_fd >= 0:
                    self._selector.register(rank.pid_fd, selectors.EVENT_READ, rank)
                for source, sink in ((process.stdout, self._out), (process.stderr, self._err)):
                    assert source is not None
                    os.set_blocking(source.fileno(), False)
                    self._selector.register(source, selectors.EVENT_READ, Stream(number, source, sink))
        for line in lines:
            self._say(line)

    def wait(self) -> int:
        """Waits until all ranks have ended and forwards their output; returns the exit code."""
        while running := [rank for rank in self.ranks if rank.process.returncode is None]:
            limit = None if all(rank.pid_fd >= 0 for rank in running) else _POLL
            if self._kill_at is not None:  # polls, since no descriptor tells the end of a process group
                limit = min(_POLL, max(0.0, self._kill_at - time.monotonic()))
            self._poll(limit)
            self._collect_ended(running)
            if self.is_guardian:
                self._reap_orphans()
            self._kill_when_due()
            if self._killed and not all(rank.may_be_signalled for rank in running):
                break
        end = time.monotonic() + _DRAIN
        while self._streams() and time.monotonic() < end:
            self._poll(end - time.monotonic())
        # A process that still has the pipes open may go on writing. The output of the ranks is in the pipes by now.
        for stream in self._streams():
            stream.pump_all()
        if self._keep_going and not self._asked and any(rank.process.returncode == 0 for rank in self.ranks):
            return 0
        return self._code or 0

    def close(self) -> None:
        """Kills the ranks that still run and closes every descriptor."""
        self._signal_all(signal.SIGKILL)
        for rank in self.ranks:
            if rank.may_be_signalled:
                rank.process.wait()  # at once: it was killed
            if rank.pid_fd >= 0:
                os.close(rank.pid_fd)
            for source in (rank.process.stdout, rank.process.stderr):
                if source is not None:
                    source.close()
        if self._ended is not None:
            self._ended.close()
        self._selector.close()
        self._wake.close()
        self._waker.close()

    def _streams(self) -> list[Stream]:
        return [key.data for key in self._selector.get_map().values() if isinstance(key.data, Stream)]

    def _poll(self, limit: float | None) -> None:
        for key, _ in self._selector.select(limit):
            if key.fileobj is self._wake:
                self._take_signals()
            elif isinstance(key.data, Stream):
                if not key.data.pump():
                    self._selector.unregister(key.fileobj)
            elif key.data is self:
                self._end_without_front()
            else:  # a process ended; `_collect_ended` reaps it
                self._selector.unregister(key.fileobj)

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
            limit = None if self._kill_at is None else 1000 * max(0.0, self._kill_at - time.monotonic())
            ready = dict(poll.poll(limit))
            if fd in ready:
                return True
            if self._wake.fileno() in ready:
                self._take_signals()
            if self._front_gone in ready:
                poll.unregister(self._front_gone)
                self._end_without_front()
            self._kill_when_due()
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

    def _reap_orphans(self) -> None:
        """Reaps the children that this process has adopted, up to the first ended rank, which is reaped soon."""
        ranks = {rank.process.pid for rank in self.ranks}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in ranks:
                os.waitpid(ended.si_pid, 0)

    def _collect_ended(self, running: list[_Rank]) -> None:
        """Reaps ranks that have ended; the first that failed decides the exit code."""
        ended = [rank for rank in running if rank.ended(patient=self._kill_at is not None)]
        failed = [rank for rank in ended if rank.process.returncode != 0]
        for rank in ended:
            if self._ended is not None:
                self._ended.add(rank.number, rank.process.pid, _how(rank))
        if self._keep_going and not self._asked:
            for rank in failed:
                self._say(f"rank {rank.number} (pid {rank.process.pid}) {_how(rank)}; the others go on")
                self._code = _exit_code(rank) if self._code is None else self._code
            return
        if not failed or self._code is not None:
            return
        # Of several that ended at once, one that was killed is more likely the cause than one that exited.
        first = min(failed, key=lambda rank: (rank.process.returncode > 0, rank.number))
        self._code = _exit_code(first)
        left = sum(rank.process.returncode is None for rank in self.ranks)
        rest = f"; ending the other {left}" if left else ""
        self._end(signal.SIGTERM)
        self._say(f"rank {first.number} (pid {first.process.pid}) {_how(first)}{rest}")

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

    def _kill_when_due(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill()

    def _kill(self) -> None:
        self._kill_at = None
        self._killed = True
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for rank in self.ranks:
            rank.signal(number)

    def _say(self, text: str) -> None:
        self._err.write(f"collectives run: {text}\n".encode())


@contextlib.contextmanager
def _forwarding(job: _Job) -> Iterator[None]:
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


def _reads_terminal() -> bool:
    """Whether standard input is a terminal, or closed: a background process cannot read it."""
    try:
        return os.isatty(0)
    except OSError:
        return True
