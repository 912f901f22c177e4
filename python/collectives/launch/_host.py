"""One of the hosts of ``collectives run --hosts``, as the launcher sees it."""

from __future__ import annotations

import os
import re
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from ._channel import GREETING, Channel, Kind
from ._hostlist import Place
from ._output import Stream
from ._process import die_with_parent, signal_name

MODULE = "collectives.launch._remote"
_PATIENCE = 1.0  # seconds for the program that reaches a host to end after its output has
_PLAIN = re.compile(r"[\w@%+=:,./~-]+", re.ASCII)  # what no shell changes
_SAID = 20  # lines to repeat in an error


class RemoteRank:
    """A rank on another host."""

    is_watched = True
    may_be_signalled = True

    def __init__(self, number: int, host: Host) -> None:
        self.number = number
        self.host = host
        self.pid = 0
        self.returncode: int | None = None
        self.is_lost = False  # with its host

    def signal(self, number: int) -> None:
        """Does nothing: the host signals all its ranks."""

    def ended(self, patient: bool) -> bool:
        """Whether it has ended."""
        return self.returncode is not None


def words(rsh: Sequence[str], host: str, python: str) -> list[str]:
    """The command that starts our part on a host. ssh gives it to a shell there, others execute it as it is, so it has
    only words that mean the same to both.

    Raises:
        ValueError: the path of the interpreter has characters that a shell changes.
    """
    if not _PLAIN.fullmatch(python):
        raise ValueError(
            f"--python {python!r} has characters that a shell on the other host would change; accepted are letters, "
            "digits and @%+=:,./~-_: give it a link with such a name there"
        )
    found = os.environ.get("PYTHONPATH", "")
    path = ["env", f"PYTHONPATH={found}"] if _PLAIN.fullmatch(found) else []
    return [*rsh, host, *path, python, "-m", MODULE]


class Host:
    """A host, and the connection to it.

    Args:
        place: its name and ranks.
        command: from `words`.
        on_frame: called with this host and each frame from there.
        on_end: called with this host when its connection has ended.
        on_noise: called with this host and lines of the program that reaches it, or of our part there.
    """

    def __init__(
        self,
        place: Place,
        command: Sequence[str],
        selector: selectors.BaseSelector,
        on_frame: Callable[[Host, Kind, Any], None],
        on_end: Callable[[Host], None],
        on_noise: Callable[[Host, list[bytes]], None],
    ) -> None:
        self.name = place.host
        self.command = command
        self.ranks = [RemoteRank(number, self) for number in place.ranks]
        self.is_known = False  # whether our part there has said hello
        self.is_started = False  # whether its ranks have started
        self.is_over = False  # whether it has told everything
        self.has_failed = False
        self.has_answered = False  # what all hosts are asked at the moment
        self.answer: Any = None
        self.said: list[bytes] = []  # until it was known
        self._selector = selector
        self._on_frame = on_frame
        self._on_end = on_end
        self._on_noise = on_noise
        parent = os.getpid()
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                # Safe: this process has no other threads, and the function only makes system calls.
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
            )
        except OSError as error:
            text = f"cannot start {command[0]!r}, by which host {self.name} is reached: {error.strerror}"
            raise type(error)(error.errno, text) from None
        assert self.process.stdin is not None and self.process.stdout is not None and self.process.stderr is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self._errors = Stream(self.process.stderr, self._noise)
        os.set_blocking(self.process.stderr.fileno(), False)
        self.channel = Channel(self._stdout.fileno(), self._stdin.fileno(), GREETING)
        self.channel.attach(selector, self._read)
        selector.register(self.process.stderr, selectors.EVENT_READ, self._read_errors)
        self.is_open = True

    def why(self) -> str:
        """How the connection has ended, with what was said if our part there never started."""
        code = self.process.returncode
        shown = shlex.join(self.command)
        end = "" if code is None else f"ended with exit code {code}" if code >= 0 else f"died of {signal_name(-code)}"
        if self.is_known:
            return f"the connection has ended ({self.command[0]} {end})"
        said = [line.decode(errors="replace") for line in self.said[-_SAID:]]
        return f"it cannot be used: `{shown}` {end} and said" + ("\n  ".join([":", *said]) if said else " nothing")

    def pump_errors(self) -> None:
        """Forwards what was written to stderr so far."""
        if self.is_open:
            self._errors.pump_all()

    def drop(self) -> None:
        """Ends the connection, whereupon our part there ends its ranks."""
        if not self.is_open:
            return
        self.pump_errors()
        self.is_open = False
        self.channel.detach()
        if self._errors.source in self._selector.get_map():
            self._selector.unregister(self._errors.source)
        self._stdin.close()
        self._stdout.close()
        self._errors.source.close()
        self.process.poll()
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()
        for rank in self.ranks:
            if rank.returncode is None:
                rank.returncode = -signal.SIGKILL
                rank.is_lost = True

    def _read(self) -> None:
        frames = self.channel.read()
        for kind, contents in frames:
            if self.is_open:
                self._on_frame(self, kind, contents)
        if self.is_open and not self.channel.is_open:
            self._ended()

    def _ended(self) -> None:
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if not self.is_known:
            self.said += [line for line in self.channel.noise.splitlines() if line.strip()]
        self.drop()
        self._on_end(self)

    def _read_errors(self) -> None:
        if not self._errors.pump():
            self._selector.unregister(self._errors.source)

    def _noise(self, lines: list[bytes]) -> None:
        if self.is_known:
            self._on_noise(self, lines)
        else:
            self.said += lines

    def silent_for(self) -> float:
        """Seconds since it said something."""
        return time.monotonic() - self.channel.heard
