"""Runs a command as several ranks on this host and takes care that all of them end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from .._say import say
from .._system import pidfd_open
from ._process import die_with_parent, listen_for_ranks, new_token, rank_environment, share_of_cores, signal_name

_LINE_LIMIT = 1 << 16  # bytes of one line that are held back
_PIECE = 1 << 16  # bytes that are read at a time
_F_GETPIPE_SZ = 1032  # fcntl.F_GETPIPE_SZ, which Python lacks where its C library did
_DRAIN = 1.0  # seconds to read the last output of ranks that have ended
_POLL = 0.1  # seconds between looks at processes that the selector cannot watch
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_local(
    command: Sequence[str],
    ranks: int,
    *,
    transport: str | None = None,
    timeout: float | None = None,
    grace: float = 5.0,
    keep_going: bool = False,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Runs `command` as `ranks` processes and waits for all of them. Call it from the main thread.

    Every line that a rank prints is passed on with ``[rank] `` before it. When one rank fails, the others get SIGTERM,
    and SIGKILL `grace` seconds later, each with the processes it started. SIGINT, SIGTERM and SIGHUP are passed on to
    the ranks, which then have as long to end. The ranks die with this process, whatever becomes of it. Where
    ``OMP_NUM_THREADS`` is not set they share the cores, and a line on stderr says so.

    Args:
        command: program and arguments.
        ranks: number of processes, at least 1.
        transport, timeout: for ``COLLECTIVES_TRANSPORT`` and ``COLLECTIVES_TIMEOUT``; ``None`` leaves them as they are.
        grace: seconds.
        keep_going: the other ranks go on when one fails, for programs that use ``shrink``.
        environ: the environment of the ranks, ``os.environ`` by default.

    Returns:
        0 when all ranks ended with 0, or with `keep_going` any of them;
        else the exit code of the first that failed, 128 + n for death by signal n; and
        128 + n when this process was asked to end by signal n, unless a rank had failed and ended the others already.

    Raises:
        OSError: the command cannot be started.
        ValueError: `ranks` is less than 1.
    """
    if ranks < 1:
        raise ValueError(f"the number of ranks is {ranks}; at least 1 is accepted")
    job = _Job(grace, keep_going)
    try:
        with _forwarding(job):
            job.start(command, ranks, transport, timeout, os.environ if environ is None else environ)
            return job.wait()
    finally:
        job.close()


class _Rank:
    """One process, and what it printed of the line it has not finished."""

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.process = process
        self.pid_fd = -1
        with contextlib.suppress(OSError):
            self.pid_fd = pidfd_open(process.pid)

    def signal(self, number: int) -> None:
        """Sends a signal to the process and to what it started (its process group)."""
        # Once the exit code was fetched, the number may belong to somebody else.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def ended(self) -> bool:
        """Whether the process has ended; if so, ends what it left running in its group and fetches its exit code."""
        if self.process.returncode is None:
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            self.signal(signal.SIGKILL)
            self.process.wait()
        return True


class _Stream:
    """One output of one rank, passed on line by line."""

    def __init__(self, rank: int, source: IO[bytes], sink: Any) -> None:
        self.source = source
        self._prefix = f"[{rank}] ".encode()
        self._sink = sink
        self._line = bytearray()

    def pump(self) -> bool:
        """Passes on what is there; False at the end."""
        try:
            data = os.read(self.source.fileno(), _PIECE)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self._line += data
        *lines, rest = bytes(self._line).split(b"\n")
        if rest and (not data or len(rest) > _LINE_LIMIT):
            lines, rest = [*lines, rest], b""
        self._line = bytearray(rest)
        self._pass_on(lines)
        return bool(data)

    def pump_all(self) -> None:
        """Passes on what is there now, and not what comes meanwhile."""
        left = fcntl.fcntl(self.source.fileno(), _F_GETPIPE_SZ)
        while left > 0 and self.pump():
            left -= _PIECE
        self._pass_on([bytes(self._line)] if self._line else [])
        self._line = bytearray()

    def _pass_on(self, lines: list[bytes]) -> None:
        if lines:
            with contextlib.suppress(OSError, ValueError):  # nobody listens any more; the ranks go on all the same
                self._sink.write(b"".join(self._prefix + line + b"\n" for line in lines))
                self._sink.flush()


def _exit_code(rank: _Rank) -> int:
    code: int = rank.process.returncode
    return code if code > 0 else 128 - code


def _how(rank: _Rank) -> str:
    code: int = rank.process.returncode
    return f"ended with exit code {code}" if code > 0 else f"was killed by {signal_name(-code)}"


class _Job:
    def __init__(self, grace: float, keep_going: bool) -> None:
        self.ranks: list[_Rank] = []
        self._grace = grace
        self._keep_going = keep_going
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._code: int | None = None  # what to return; None while nothing failed
        self._kill_at: float | None = None
        self._asked = 0  # how often we were asked to end
        self.outer_waker = -1  # whom signals wake that are not for us
        for sock in (self._wake, self._waker):
            sock.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ)

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
        parent = os.getpid()
        environ = {**environ, **share_of_cores(ranks, environ, self._say)}
        with listen_for_ranks() as listener:
            for number in range(ranks):
                variables = rank_environment(number, ranks, listener, token, transport, timeout)
                # Lines should appear when they are printed, and those of a rank that is killed should not be lost.
                process = subprocess.Popen(
                    command,
                    env={"PYTHONUNBUFFERED": "1", **environ, **variables},
                    stdin=None if number == 0 and not _reads_terminal() else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=[listener.fileno()] if number == 0 else [],
                    # A session of its own: a group to signal, and a Ctrl-C that reaches the ranks through us only.
                    start_new_session=True,
                    # Safe here: nothing else runs in this process. It calls prctl and getppid.
                    preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
                )
                rank = _Rank(number, process)
                self.ranks.append(rank)
                if rank.pid_fd >= 0:
                    self._selector.register(rank.pid_fd, selectors.EVENT_READ, rank)
                for source, sink in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                    assert source is not None
                    os.set_blocking(source.fileno(), False)
                    self._selector.register(
                        source,
                        selectors.EVENT_READ,
                        _Stream(number, source, _sink(sink)),
                    )

    def wait(self) -> int:
        """Until all ranks have ended and their output is passed on."""
        while running := [rank for rank in self.ranks if rank.process.returncode is None]:
            limit = None if all(rank.pid_fd >= 0 for rank in running) else _POLL
            if self._kill_at is not None:
                left = max(0.0, self._kill_at - time.monotonic())
                limit = left if limit is None else min(limit, left)
            self._turn(limit)
            self._look(running)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                self._signal_all(signal.SIGKILL)
        end = time.monotonic() + _DRAIN
        while self._streams() and time.monotonic() < end:
            self._turn(end - time.monotonic())
        # Whoever still has them open may go on writing; what the ranks wrote is there, at most what a pipe holds.
        for stream in self._streams():
            stream.pump_all()
        if self._keep_going and not self._asked and any(rank.process.returncode == 0 for rank in self.ranks):
            return 0
        return self._code or 0

    def close(self) -> None:
        """Kills what still runs and closes every descriptor."""
        self._signal_all(signal.SIGKILL)
        for rank in self.ranks:
            rank.process.wait()  # at once: it was killed
            if rank.pid_fd >= 0:
                os.close(rank.pid_fd)
            for source in (rank.process.stdout, rank.process.stderr):
                if source is not None:
                    source.close()
        self._selector.close()
        self._wake.close()
        self._waker.close()

    def _streams(self) -> list[_Stream]:
        return [key.data for key in self._selector.get_map().values() if isinstance(key.data, _Stream)]

    def _turn(self, limit: float | None) -> None:
        for key, _ in self._selector.select(limit):
            if key.fileobj is self._wake:
                for number in self._wake.recv(64):
                    if number in _FORWARDED:
                        self._forward(number)
                    else:
                        self._pass_on(number)
            elif isinstance(key.data, _Stream):
                if not key.data.pump():
                    self._selector.unregister(key.fileobj)
            else:  # a process ended; `_look` fetches its exit code
                self._selector.unregister(key.fileobj)

    def _pass_on(self, number: int) -> None:
        """A signal that is not for us, to whom signals wake elsewhere."""
        if self.outer_waker >= 0:
            with contextlib.suppress(OSError):
                os.write(self.outer_waker, bytes([number]))

    def pass_on_the_last(self) -> None:
        """Those that came when nobody waited any more."""
        with contextlib.suppress(BlockingIOError):
            while True:
                for number in self._wake.recv(64):
                    if number not in _FORWARDED:
                        self._pass_on(number)

    def _look(self, running: list[_Rank]) -> None:
        """Takes note of ranks that ended; the first that failed decides about the exit code."""
        ended = [rank for rank in running if rank.ended()]
        failed = [rank for rank in ended if rank.process.returncode != 0]
        if self._keep_going and not self._asked:
            for rank in failed:
                self._say(f"rank {rank.number} (pid {rank.process.pid}) {_how(rank)}; the others go on")
                self._code = _exit_code(rank) if self._code is None else self._code
            return
        if not failed or self._code is not None:
            return
        # Of those that ended at once: one that was killed is rather the cause than one that exited.
        first = min(failed, key=lambda rank: (rank.process.returncode > 0, rank.number))
        self._code = _exit_code(first)
        left = sum(rank.process.returncode is None for rank in self.ranks)
        rest = f"; ending the other {left}" if left else ""
        self._say(f"rank {first.number} (pid {first.process.pid}) {_how(first)}{rest}")
        self._end(signal.SIGTERM)

    def _forward(self, number: int) -> None:
        """We were asked to end: so are the ranks, more firmly each time."""
        self._asked += 1
        # A rank that failed before and did not end the job does not decide about its code either.
        if self._code is None or (self._keep_going and self._asked == 1):
            self._code = 128 + number
        if self._asked >= 3:
            self._signal_all(signal.SIGKILL)
        else:
            self._say(f"{signal_name(number)}: ending all ranks")
            self._end(number if self._asked == 1 else signal.SIGTERM)

    def _end(self, number: int) -> None:
        self._signal_all(number)
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace

    def _signal_all(self, number: int) -> None:
        for rank in self.ranks:
            rank.signal(number)

    def _say(self, text: str) -> None:
        say(f"collectives run: {text}")


class _Text:
    """Bytes for a text stream that has no buffer below it, or for nobody."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def write(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.write(data.decode(errors="replace"))

    def flush(self) -> None:
        if self._sink is not None:
            self._sink.flush()


def _sink(stream: Any) -> Any:
    """Where the bytes of a rank go. A stream is None in a process that was started with it closed."""
    return getattr(stream, "buffer", None) or _Text(stream)


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """The signals that ask a process to end come when this is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _forwarding(job: _Job) -> Iterator[None]:
    """While inside, the signals that ask a process to end reach the job instead."""
    before = {}
    with _held_back():
        # The interpreter's own handler writes the number: one in Python would only run after a wait for events that
        # began between the signal's arrival and its turn.
        job.outer_waker = signal.set_wakeup_fd(job.waker(), warn_on_full_buffer=False)
        for number in _FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                before[number] = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        with _held_back():
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(job.outer_waker)
            job.pass_on_the_last()


def _reads_terminal() -> bool:
    """Whether standard input is a terminal (or nothing), which a background process cannot read from."""
    try:
        return os.isatty(0)
    except OSError:
        return True
