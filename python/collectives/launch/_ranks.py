"""The ranks of a job that run on this host: how they are started, signalled and reaped."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from .._startup.ended import EndedRanks
from .._startup.system import pidfd_open
from ._binding import cores_of_ranks
from ._descendants import group_lives
from ._job import Job
from ._output import Stream
from ._process import die_with_parent, share_of_cores

_DRAIN = 1.0  # seconds to read the last output of ranks that have ended


class LocalRank:
    """One process of the job, on this host."""

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.process = process
        self.pid_fd = -1
        self.may_be_signalled = True
        with contextlib.suppress(OSError):
            self.pid_fd = pidfd_open(process.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    @property
    def is_watched(self) -> bool:
        return self.pid_fd >= 0

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


class JobOfThisHost(Job):
    """A job, or its part on this host, whose ranks are children of this process."""

    def start_ranks(
        self,
        command: Sequence[str],
        numbers: range,
        environ: Mapping[str, str],
        variables: Callable[[int, int], Mapping[str, str]],
        *,
        ended: EndedRanks,
        listener: int,
        stdin: int | None = subprocess.DEVNULL,
        bind: str = "none",
    ) -> None:
        """Starts the ranks with these numbers.

        Args:
            command: program and arguments.
            environ: the environment of all ranks.
            variables: called with the number of a rank and the descriptor of `ended`, for its own variables.
            ended: the ranks that have ended, closed with the job.
            listener: the descriptor of the rendezvous, for rank 0 to inherit; -1: none.
            stdin: of rank 0, as for `subprocess.Popen`.
            bind: as in `_binding`.

        Raises:
            OSError: the command cannot be started.
        """
        self._ended = ended
        parent = os.getpid()
        lines: list[str] = []  # printed when all ranks have started, since printing may block
        environ = {**environ, **share_of_cores(len(numbers), environ, lines.append)}
        places = cores_of_ranks(bind, len(numbers))
        if bind != "none":
            lines.append(_bound(numbers, places))
        for number in numbers:
            rank = self._start_rank(
                number,
                subprocess.Popen(
                    command,
                    # PYTHONUNBUFFERED: lines appear at once, and those of a rank that is killed are not lost.
                    env={"PYTHONUNBUFFERED": "1", **environ, **variables(number, ended.fd)},
                    stdin=stdin if number == 0 else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=[fd for fd in (ended.fd, listener if number == 0 else -1) if fd >= 0],
                    # A session of its own: a process group to signal, and Ctrl-C reaches the ranks only through us.
                    start_new_session=True,
                    # Safe: this process has no other threads, and the function only makes system calls.
                    preexec_fn=_preparation(parent, places[number - numbers.start]),  # noqa: PLW1509
                ),
            )
            self.ranks.append(rank)
        for line in lines:
            self._say(line)

    def close(self) -> None:
        """Kills the ranks that still run and closes every descriptor."""
        for rank in self.ranks:
            rank.signal(signal.SIGKILL)
        for rank in self.ranks:
            if rank.may_be_signalled:
                rank.process.wait()  # at once: it was killed
            if rank.pid_fd >= 0:
                os.close(rank.pid_fd)
            for source in (rank.process.stdout, rank.process.stderr):
                if source is not None:
                    source.close()
        super().close()

    def _start_rank(self, number: int, process: subprocess.Popen[bytes]) -> LocalRank:
        rank = LocalRank(number, process)
        if rank.pid_fd >= 0:
            # Only wakes the selector: `_collect_ended` reaps the process.
            self._selector.register(rank.pid_fd, selectors.EVENT_READ, partial(self._unregister, rank.pid_fd))
        for source, is_error in ((process.stdout, False), (process.stderr, True)):
            assert source is not None
            os.set_blocking(source.fileno(), False)
            stream = Stream(source, self._deliver_to(number, is_error))
            self._selector.register(source, selectors.EVENT_READ, Pump(self._selector, stream))
        return rank

    def _unregister(self, fd: int) -> None:
        self._selector.unregister(fd)

    def _deliver_to(self, rank: int, is_error: bool) -> Callable[[list[bytes]], None]:
        """The function that takes the lines of one output of a rank."""
        return lambda lines: self.printer.lines(rank, is_error, lines)

    def _streams(self) -> list[Stream]:
        return [key.data.stream for key in self._selector.get_map().values() if isinstance(key.data, Pump)]

    def _drain(self) -> None:
        end = time.monotonic() + _DRAIN
        while self._streams() and time.monotonic() < end:
            self._poll(end - time.monotonic())
        # A process that still has the pipes open may go on writing. The output of the ranks is in the pipes by now.
        for stream in self._streams():
            stream.pump_all()


class Pump:
    """Forwards what a stream has, and forgets it at its end."""

    def __init__(self, selector: selectors.BaseSelector, stream: Stream) -> None:
        self.stream = stream
        self._selector = selector

    def __call__(self) -> None:
        if not self.stream.pump():
            self._selector.unregister(self.stream.source)


def _preparation(parent: int, cores: Sequence[int]) -> Callable[[], None]:
    """What a new process does before it executes the program."""

    def prepare() -> None:
        die_with_parent(parent)
        if cores:
            os.sched_setaffinity(0, cores)

    return prepare


def _bound(numbers: range, places: Sequence[Sequence[int]]) -> str:
    shown = (f"rank {number} to {_ranges(cores)}" for number, cores in zip(numbers, places, strict=True))
    return f"bound to CPUs: {', '.join(shown)}"


def _ranges(cores: Sequence[int]) -> str:
    """``0-3,8``."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1][1:] = [core]
        else:
            parts.append([core])
    return ",".join("-".join(map(str, part)) for part in parts)
