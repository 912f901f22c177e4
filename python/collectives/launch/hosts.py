"""Runs a command as the ranks of several hosts and makes sure that all of them end."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._distribution import library_version
from .._startup.environment import format_address
from ._channel import BEATS, Kind
from ._host import Host, RemoteRank, words
from ._hostlist import Place
from ._job import Job, Rank, forwarding
from ._output import Printing
from ._process import new_token
from ._reach import new_key

_START = 120.0  # seconds to reach a host and to start our part there
_LAST = 3.0  # seconds for hosts to end their ranks after SIGKILL
_DRAIN = 5.0  # seconds without a word, besides the grace, in which the last output must come
# Variables that describe a host, a login or a terminal: each host has its own.
_OWN = ("HOME", "HOST", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TMPDIR", "TTY", "USER", "_")
_OWN_PREFIXES = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_")


@dataclass(frozen=True)
class HostsOptions:
    """How hosts are reached, and what runs there.

    Attributes:
        rsh: the words of the command that runs another one on a host, before its name.
        python: the interpreter on the hosts.
        rendezvous: host and port (0: any) at which rank 0 listens, None: an address that the other hosts reach.
        silence: seconds without a word after which a host counts as lost.
        transport, timeout, grace, keep_going, bind, printing: as of `run_local`.
    """

    rsh: Sequence[str]
    python: str
    rendezvous: tuple[str, int] | None = None
    silence: float = 30.0
    transport: str | None = None
    timeout: float | None = None
    grace: float = 5.0
    keep_going: bool = False
    bind: str = "none"
    printing: Printing = field(default_factory=Printing)


def run_hosts(
    places: Sequence[Place],
    program: str,
    arguments: Sequence[str],
    module: bool,
    options: HostsOptions,
    front_gone: int = -1,
) -> int:
    """Runs a program as the ranks of some hosts and waits for all of them; returns the exit code, as `run_local` does.

    Raises:
        OSError: the command that reaches a host cannot be started.
        ValueError: the path of the interpreter cannot be passed on, or the folder for output cannot be written.
    """
    job = _HostsJob(options, front_gone)
    try:
        with forwarding(job):
            job.start(places, program, arguments, module)
            return job.wait()
    finally:
        job.close()


def environment_to_send() -> dict[str, str]:
    """The environment of this process, without what describes this host."""
    return {
        name: value for name, value in os.environ.items() if name not in _OWN and not name.startswith(_OWN_PREFIXES)
    }


class _HostsJob(Job):
    """A job whose ranks are on hosts, each of which has a part of ours (`_remote`) that runs them."""

    def __init__(self, options: HostsOptions, front_gone: int) -> None:
        super().__init__(options.grace, options.keep_going, front_gone, options.printing)
        self._options = options
        self._hosts: list[Host] = []
        self._begin = time.monotonic()
        self._spec: dict[str, Any] = {}
        self._notes: set[str] = set()
        self._tried: list[tuple[str, int]] = []  # addresses and ports of the first host
        self._drop_at: float | None = None

    def start(self, places: Sequence[Place], program: str, arguments: Sequence[str], module: bool) -> None:
        """Has the hosts start their part. What follows happens as they answer."""
        options = self._options
        size = sum(len(place.ranks) for place in places)
        self.printer.prepare(size)
        self._spec = {
            "size": size,
            "token": new_token(),
            "key": new_key(),
            "program": program,
            "arguments": list(arguments),
            "module": module,
            "cwd": os.getcwd(),
            "environ": environment_to_send(),
            "transport": options.transport,
            "timeout": options.timeout,
            "grace": options.grace,
            "bind": options.bind,
            "rendezvous": options.rendezvous,
            "silence": options.silence,
        }
        commands = [words(options.rsh, place.host, options.python) for place in places]
        for place, command in zip(places, commands, strict=True):
            host = Host(place, command, self._selector, self._take, self._lost, self._noise)
            self._hosts.append(host)
            self.ranks += host.ranks

    def close(self) -> None:
        for host in self._hosts:
            host.drop()
        super().close()

    def _children(self) -> Iterable[int]:
        return (host.process.pid for host in self._hosts)

    def _take(self, host: Host, kind: Kind, contents: Any) -> None:
        """Handles a frame."""
        if kind is Kind.LINES:
            self.printer.lines(*contents)
        elif kind is Kind.HELLO:
            self._greet(host, contents)
        elif kind in (Kind.READY, Kind.REACHED):
            host.answer, host.has_answered = contents, True
            self._go_on(kind)
        elif kind is Kind.STARTED:
            host.is_started = True
            for rank, pid in zip(host.ranks, contents, strict=True):
                rank.pid = pid
        elif kind is Kind.ENDED:
            number, pid, _, code = contents
            rank = self.ranks[number]
            rank.pid, rank.returncode = pid, code
            self._tell_others(rank, contents[:3])
        elif kind is Kind.NOTE:
            if contents not in self._notes:  # hosts that are alike say the same
                self._notes.add(contents)
                self._say(f"{host.name}: {contents}")
        elif kind is Kind.FAILED:
            self._fail(host, contents[1], contents[0])
        elif kind is Kind.OVER:
            host.is_over = True

    def _greet(self, host: Host, hello: Any) -> None:
        host.is_known = True
        if host.said:
            self._noise(host, host.said)
        if hello["version"] != library_version():
            self._fail(
                host,
                f"{hello['python']} has release {hello['version']} of this package there, and here it is "
                f"{library_version()}; install the same, or name another interpreter by --python",
                1,
            )
            return
        numbers = [rank.number for rank in host.ranks]
        host.channel.send(Kind.JOB, {**self._spec, "first": numbers[0], "last": numbers[-1] + 1})

    def _go_on(self, kind: Kind) -> None:
        """The next step, when all hosts have answered."""
        first, *others = self._hosts
        if kind is Kind.READY:
            if not all(host.has_answered for host in self._hosts):
                return
            answer = first.answer
            if "address" in answer:
                for host in self._hosts:
                    host.channel.send(Kind.START, {"rendezvous": answer["address"], "is_six": False})
                return
            self._tried = answer["try"]
            for host in others:
                host.has_answered = False
                host.channel.send(Kind.PROBE, self._tried)
        elif all(host.has_answered for host in others):
            self._meet(first, others)

    def _meet(self, first: Host, others: Sequence[Host]) -> None:
        """Chooses where the ranks meet."""
        for family in ("4", "6"):
            reached = [host.answer[family] for host in others]
            if all(reached):
                port = next(port for address, port in self._tried if (":" in address) == (family == "6"))
                for host, address in zip(self._hosts, [reached[0], *reached], strict=True):
                    start = {"rendezvous": format_address(address, port), "is_six": family == "6"}
                    host.channel.send(Kind.START, start)
                return
        tried = ", ".join(address for address, _ in self._tried) or "none"
        cut_off = next((host for host in others if not any(host.answer.values())), others[0])
        self._fail(
            cut_off,
            f"it reaches none of the addresses of {first.name} that all others reach ({tried}); say by --rendezvous "
            "HOST:PORT which address and which port, open in the firewall, they are to use",
            1,
        )

    def _lost(self, host: Host) -> None:
        """A connection has ended."""
        if not host.is_over:
            self._fail(host, host.why(), 1)

    def _fail(self, host: Host, text: str, code: int) -> None:
        """Handles what ends all ranks of a host."""
        if host.has_failed:
            return
        host.has_failed = True
        was_started = all(other.is_started for other in self._hosts)
        running = [rank for rank in self.ranks if rank.returncode is None]
        if not was_started or not host.is_started:
            host.drop()
        if self._keep_going and not self._asked and was_started:
            self._say(f"host {host.name}: {text}; the ranks of other hosts go on")
            self._code = code if self._code is None else self._code
            if host.is_open:
                host.channel.send(Kind.SIGNAL, signal.SIGTERM)
        elif self._code is None:
            self._code = code
            rest = f"; ending the {len(running)} ranks that run" if was_started and running else ""
            self._end(signal.SIGTERM)
            self._say(f"host {host.name}: {text}{rest}")
        for rank in host.ranks:
            if rank.is_lost:
                self._tell_others(rank, [rank.number, rank.pid, f"was lost with its host {host.name}"])

    def _tell_others(self, rank: RemoteRank, ended: Sequence[Any]) -> None:
        for host in self._hosts:
            if host is not rank.host and host.is_open:
                host.channel.send(Kind.ENDED, ended)

    def _noise(self, host: Host, lines: list[bytes]) -> None:
        for line in lines:
            self._err.write(f"[{host.name}] ".encode() + line + b"\n")

    def _judge(self, failed: Sequence[Rank]) -> None:
        # Of those that were lost with their host, or that were not started any more, there is nothing to say.
        remote = [self.ranks[rank.number] for rank in failed]
        super()._judge([rank for rank in remote if not rank.is_lost and not rank.host.has_failed])

    def _name(self, rank: Rank) -> str:
        return f"rank {rank.number} (pid {rank.pid} on {self.ranks[rank.number].host.name})"

    def _signal_all(self, number: int) -> None:
        for host in self._hosts:
            if host.is_started and host.is_open:
                host.channel.send(Kind.SIGNAL, number)
            else:
                host.drop()

    def _kill(self) -> None:
        super()._kill()
        self._drop_at = time.monotonic() + _LAST

    def _limit(self, running: Sequence[Rank]) -> float | None:
        found = super()._limit(running)
        beat = self._options.silence / BEATS / 2
        return beat if found is None else min(found, beat)

    def _tick_while_blocked(self) -> None:
        super()._tick_while_blocked()
        for host in self._hosts:
            if host.is_open:
                host.channel.beat(self._options.silence / BEATS)
                host.channel.heard = time.monotonic()  # it is not this host that says nothing

    def _tick(self) -> None:
        super()._tick()
        now = time.monotonic()
        for host in self._hosts:
            if not host.is_open:
                continue
            if host.is_known:
                host.channel.beat(self._options.silence / BEATS)
                if host.silent_for() > self._options.silence:
                    host.drop()
                    self._fail(host, f"it said nothing for {self._options.silence:g} s; is it reachable?", 1)
            elif now - self._begin > _START:
                command = shlex.join(host.command)
                host.drop()
                self._fail(host, f"`{command}` did not start our part there within {_START:g} s", 1)
        if self._drop_at is not None and now >= self._drop_at:
            for host in self._hosts:
                host.drop()

    def _drain(self) -> None:
        for host in self._hosts:
            if host.is_open:
                host.channel.send(Kind.OVER, self._verdict())
        patience = _DRAIN + self._options.grace
        end = time.monotonic() + patience
        while any(host.is_open for host in self._hosts) and time.monotonic() < end:
            before = [host.channel.heard for host in self._hosts]
            self._poll(self._limit(()))
            self._tick()
            if before != [host.channel.heard for host in self._hosts]:
                end = time.monotonic() + patience
        for host in self._hosts:
            host.drop()
