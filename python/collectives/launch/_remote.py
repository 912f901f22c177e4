"""``python -m collectives.launch._remote``: the part of ``collectives run --hosts`` on one of the hosts.

It reads from standard input what to start, so that no command line has the token or the environment of the ranks, and
writes to standard output what becomes of them (`_channel`). When the connection ends or the launcher is silent, it ends
the ranks. A guardian (`_guardian`) ends them when this process itself is killed.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._distribution import library_version
from .._startup.ended import EndedRanks
from .._startup.environment import format_address, variables_set
from .._startup.sockets import listen_at
from ._channel import BEATS, GREETING, Channel, Kind
from ._guardian import guarded
from ._job import Rank, forwarding, how
from ._process import exit_codes_are_kept, job_settings, listen_for_ranks, rank_variables, signal_name
from ._program import command_of, exit_code_of
from ._ranks import JobOfThisHost, Pump
from ._reach import Answering, Probing

_PATIENCE = 60.0  # seconds for the launcher to say what to start


def main() -> int:
    """Returns the exit code: that of the whole job, or 1 where it is not known."""
    source, sink = os.dup(0), os.dup(1)
    # What is printed by mistake must not get between the frames, and nobody else may read them.
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    channel = Channel(source, sink)
    channel.send_raw(GREETING)
    channel.send(Kind.HELLO, {"version": library_version(), "python": sys.executable, "host": socket.gethostname()})
    job = _await_job(channel)
    if job is None:
        return 1
    with exit_codes_are_kept():
        return guarded(lambda front_gone: _run(channel, job, front_gone), job["grace"])


def _await_job(channel: Channel) -> Mapping[str, Any] | None:
    end = time.monotonic() + _PATIENCE
    with selectors.DefaultSelector() as selector:
        found: list[tuple[Kind, Any]] = []
        channel.attach(selector, lambda: found.extend(channel.read()))
        while not found and channel.is_open and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                key.data()
        channel.detach()
    return next((contents for kind, contents in found if kind is Kind.JOB), None)


def _run(channel: Channel, job: Mapping[str, Any], front_gone: int) -> int:
    part = _Part(channel, job, front_gone)
    try:
        with forwarding(part):
            return part.run()
    finally:
        part.close()


class _Part(JobOfThisHost):
    """The ranks of a job on this host. What to do when one fails is decided by the launcher."""

    def __init__(self, channel: Channel, job: Mapping[str, Any], front_gone: int) -> None:
        super().__init__(job["grace"], False, front_gone)
        self._channel = channel
        self._job = job
        self._environ: dict[str, str] = {**os.environ, **job["environ"]}
        self._ranks = range(job["first"], job["last"])
        # From now on: ranks of other hosts may end before those of this one start.
        self._ended = self._record = EndedRanks(job["size"], job["token"])
        self._held: list[selectors.SelectorKey] = []
        self._answering: Answering | None = None
        self._probing: Probing | None = None
        self._listener: socket.socket | None = None
        self._start: Mapping[str, Any] | None = None
        self._is_ending = False
        self._final: int | None = None  # the exit code of the whole job
        channel.heard = time.monotonic()
        channel.attach(self._selector, self._read)

    def run(self) -> int:
        """Starts the ranks when the launcher says so and waits for them."""
        try:
            self._channel.send(Kind.READY, self._listen())
            while self._start is None and not self._is_ending:
                self._poll(self._limit(()))
                self._tick()
            if self._start is not None and not self._is_ending:
                self._start_all(self._start)
        except (OSError, ValueError) as error:
            self._fail(exit_code_of(error) if isinstance(error, OSError) else 2, _text(error))
            self._obey(signal.SIGTERM)
        self.wait()
        self._channel.send(Kind.OVER)
        # Ranks of other hosts may still run and fail, and then what those of this host have left running is ended.
        while self._channel.is_open and not self._killed:
            if not self._channel.unsent and (self._is_ending or self._final is not None):
                break
            self._poll(self._limit(()))
            self._tick()
        return 1 if self._is_ending or self._final is None else self._final

    def close(self) -> None:
        for opened in (self._answering, self._probing, self._listener):
            if opened is not None:
                opened.close()
        super().close()

    def _listen(self) -> object:
        """Where the first host listens: an address if it is known, else those to try."""
        if self._ranks.start != 0:
            return None
        if self._job["rendezvous"] is not None:
            host, port = self._job["rendezvous"]
            try:
                self._listener, *others = listen_at(host, port, self._job["token"].encode())
            except OSError as error:
                raise ValueError(f"cannot listen on --rendezvous {format_address(host, port)}: {error}") from None
            for other in others:
                other.close()
            return {"address": format_address(host, self._listener.getsockname()[1])}
        if self._ranks.stop == self._job["size"]:
            self._listener = listen_for_ranks()
            return {"address": format_address(*self._listener.getsockname()[:2])}
        pattern = variables_set(self._environ).get("COLLECTIVES_SOCKET_IFNAME", "")
        self._answering = Answering(self._selector, self._job["key"], pattern)
        return {"try": self._answering.addresses}

    def _start_all(self, start: Mapping[str, Any]) -> None:
        if self._answering is not None:
            self._listener, self._answering = self._answering.take(start["is_six"]), None
        job = self._job
        if not os.path.isdir(job["cwd"]):
            raise FileNotFoundError(2, f"there is no folder {job['cwd']!r}, in which the job was started")
        os.chdir(job["cwd"])
        try:
            command = command_of(job["program"], job["arguments"], job["module"], self._environ)
        except OSError as error:
            raise type(error)(error.errno, f"cannot start {job['program']!r}: {error.strerror}") from None
        settings = job_settings(job["transport"], job["timeout"])
        listener = -1 if self._listener is None else self._listener.fileno()

        def variables(rank: int, ended: int) -> Mapping[str, str]:
            own = rank_variables(rank, job["size"], start["rendezvous"], job["token"], listener, ended)
            return {**settings, **own}

        self.start_ranks(
            command,
            self._ranks,
            self._environ,
            variables,
            ended=self._record,
            listener=listener,
            bind=job["bind"],
        )
        if self._listener is not None:
            self._listener.close()  # rank 0 has it
        self._channel.send(Kind.STARTED, [rank.pid for rank in self.ranks])

    def _read(self) -> None:
        for kind, contents in self._channel.read():
            if kind is Kind.PROBE:
                self._probing = Probing(self._selector, self._job["key"], contents, self._reached)
            elif kind is Kind.START:
                self._start = contents
            elif kind is Kind.ENDED:
                self._record.add(*contents)
            elif kind is Kind.OVER:
                self._final = contents
            elif kind is Kind.SIGNAL:
                self._obey(contents)
        if not self._channel.is_open:
            self._channel.detach()
            self._end_without_launcher()

    def _reached(self, found: Mapping[str, str | None]) -> None:
        self._channel.send(Kind.REACHED, found)

    def _obey(self, number: int) -> None:
        self._is_ending = True
        if number == signal.SIGKILL:
            self._kill()
        else:
            self._end(number)

    def _end_without_launcher(self) -> None:
        if not self._asked:
            self._asked += 1
            self._is_ending = True
            self._release()
            self._end(signal.SIGTERM)

    def _fail(self, code: int, text: str) -> None:
        self._channel.send(Kind.FAILED, [code, text])

    def _end_without_front(self) -> None:
        if self._front_gone >= 0:
            self._selector.unregister(self._front_gone)
            self._front_gone = -1
            self._fail(128 + signal.SIGKILL, "what was started there was killed")
            self._obey(signal.SIGTERM)

    def _forward(self, number: int) -> None:
        self._fail(128 + number, f"what was started there was told to end by {signal_name(number)}")
        self._obey(number)

    def _judge(self, failed: Sequence[Rank]) -> None:
        pass

    def _collect_ended(self, running: Sequence[Rank]) -> None:
        super()._collect_ended(running)
        for rank in running:
            if rank.returncode is not None:
                self._channel.send(Kind.ENDED, [rank.number, rank.pid, how(rank), rank.returncode])

    def _limit(self, running: Sequence[Rank]) -> float | None:
        found = super()._limit(running)
        beat: float = self._job["silence"] / BEATS / 2
        return beat if found is None else min(found, beat)

    def _tick(self) -> None:
        super()._tick()
        silence = self._job["silence"]
        self._channel.beat(silence / BEATS)
        if time.monotonic() - self._channel.heard > silence:
            self._end_without_launcher()
        if self._probing is not None:
            self._probing.tick()
        if self._channel.is_crowded and not self._asked:
            self._hold()
        elif not self._channel.unsent:
            self._release()

    def _hold(self) -> None:
        """Stops reading what ranks print, until what they have printed is sent."""
        if not self._held:
            self._held = [key for key in self._selector.get_map().values() if isinstance(key.data, Pump)]
            for key in self._held:
                self._selector.unregister(key.fileobj)

    def _release(self) -> None:
        for key in self._held:
            self._selector.register(key.fileobj, key.events, key.data)
        self._held = []

    def _drain(self) -> None:
        self._release()
        super()._drain()

    def _deliver_to(self, rank: int, is_error: bool) -> Callable[[list[bytes]], None]:
        return lambda lines: self._channel.send_lines(rank, is_error, lines)

    def _say(self, text: str) -> None:
        self._channel.send(Kind.NOTE, text)


def _text(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


if __name__ == "__main__":
    sys.exit(main())
