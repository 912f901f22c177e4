"""The jobs of launchers that give each process its rank and the size, and how their ranks meet.

- `Launched`: nowhere. The user has to name a rendezvous.
- `AtAddress`: at an address that all ranks know, where rank 0 listens. It needs a token, unless it is on loopback.
- `ByBroadcast`: by something that gives all ranks what rank 0 says, such as the store of an MPI launcher.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import CollectivesError, DeadlineError
from .environment import Environment, format_address, read_environment, read_token
from .interfaces import choose, interfaces
from .published import publish, read_published
from .wire import Deadline, is_loopback

HOW_TO_SHARE = (
    "set COLLECTIVES_TOKEN to the same secret on every rank before they are started, for example by "
    "`export COLLECTIVES_TOKEN=$(openssl rand -hex 32)`, or COLLECTIVES_TOKEN_FILE to a file that has it"
)


@dataclass(frozen=True)
class Launched:
    """A job whose ranks get no place to meet.

    Attributes:
        launcher: its name.
        rank, size: of this process.
        RANK_VARIABLE, SIZE_VARIABLE: where the launcher says so, for errors.
        why: why the ranks have no place to meet, as a clause; "" where the launcher has none.
        agents: how many processes the launcher has started that start the ranks in turn; 0: it starts them itself.
    """

    launcher: str
    rank: int
    size: int
    RANK_VARIABLE: str
    SIZE_VARIABLE: str
    why: str = field(default="", kw_only=True)
    agents: int = field(default=0, kw_only=True)

    @property
    def found(self) -> str:
        """What was found, as a sentence without its full stop."""
        return (
            f"{self.launcher} has started this process as rank {self.rank} of {self.size} ({self.RANK_VARIABLE}, "
            f"{self.SIZE_VARIABLE})"
        )

    @property
    def place(self) -> str:
        """Where the ranks meet, for the line that rank 0 prints."""
        return ""

    @contextlib.contextmanager
    def meet(self, *, token: str | bytes | None, timeout: float | None, **arguments: Any) -> Iterator[Environment]:
        """The launch environment, agreed with the other ranks; a context manager to be left when all have connected.

        Args:
            token, timeout, arguments: as for `read_environment`.

        Raises:
            ValueError: the ranks cannot meet; the text says what to set.
        """
        raise self.no_place()
        yield  # a generator

    def no_place(self, why: str = "") -> ValueError:
        """The error that names the variable to set."""
        why = why or self.why or "it gives ranks no place to meet"
        return ValueError(
            f"{self.found}, but {why}. Set COLLECTIVES_RENDEZVOUS to host:port, an address of the host of rank 0 and a "
            f"port that is free there, and unless it is on loopback COLLECTIVES_TOKEN (docs/running.md); or call "
            "init(size=1) where a world of one is meant"
        )


@dataclass(frozen=True)
class AtAddress(Launched):
    """A job whose ranks all know an address of rank 0.

    Attributes:
        host, port: of it.
        source: where it comes from, for errors.
        shared: whether hosts have other users, so that a token is needed on loopback, too.
    """

    host: str
    port: int
    source: str
    shared: bool = False

    @property
    def place(self) -> str:
        return f"{format_address(self.host, self.port)}, from {self.source}"

    @contextlib.contextmanager
    def meet(self, *, token: str | bytes | None, timeout: float | None, **arguments: Any) -> Iterator[Environment]:
        if not read_token(token) and (self.shared or not self._on_loopback()):
            raise ValueError(
                f"{self.found}, and its ranks can meet at {self.place}, but it gives them no secret, and without one "
                f"anyone who reaches that address could join the job: {HOW_TO_SHARE} (docs/running.md); or call "
                "init(size=1) where a world of one is meant"
            )
        yield read_environment(
            rank=self.rank,
            size=self.size,
            rendezvous=format_address(self.host, self.port),
            token=token,
            timeout=timeout,
            **arguments,
        )

    def _on_loopback(self) -> bool:
        with contextlib.suppress(OSError):
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            return all(is_loopback(str(entry[4][0])) for entry in found)
        return False


@dataclass(frozen=True)
class ByBroadcast(Launched):
    """A job whose ranks can all learn what rank 0 says, once.

    Attributes:
        store: what carries that, for errors and the line that rank 0 prints.
        local: whether all ranks are on one host.
        broadcast: is called once on every rank, on rank 0 with a text of letters, digits, "-" and "_", else with None;
            returns that text. It gets the deadline of the start, too, which most stores know nothing of. It may raise
            ``RuntimeError``, and ``ValueError`` where it cannot be used.
        name: of this host, as the launcher knows it; "" where it does not say.
    """

    store: str
    local: bool
    broadcast: Callable[[str | None, Deadline], str] = field(repr=False, compare=False)
    name: str = ""

    @property
    def place(self) -> str:
        return self.store

    @contextlib.contextmanager
    def meet(self, *, token: str | bytes | None, timeout: float | None, **arguments: Any) -> Iterator[Environment]:
        own = read_token(token)
        settings = read_environment(rank=0, size=1, timeout=timeout)
        deadline = Deadline(settings.start_timeout)
        key = os.getpid(), self.store  # what a forked child inherits is not its own
        if (said := _said.get(key)) is None:
            said = _said.setdefault(key, _Said(self, own, settings.interfaces, deadline))
        where, secret = read_published(self._wait(said, deadline), own)
        environment = read_environment(
            rank=self.rank, size=self.size, rendezvous=where, token=secret, timeout=timeout, **arguments
        )
        # The listener stays open for a later start in this process, which uses the same address again.
        descriptor = said.listener.fileno() if said.listener is not None else -1
        yield replace(environment, deadline=deadline, rendezvous_fd=descriptor)

    def _wait(self, said: _Said, deadline: Deadline) -> str:
        said.done.wait(min(deadline.remaining(), threading.TIMEOUT_MAX))
        if not said.done.is_set():
            raise DeadlineError(
                f"rank {self.rank} waited {deadline.seconds:g} s at {self.store} for the other ranks to come. Look at "
                "their output: every rank must call collectives.init(). Or allow more time by "
                "COLLECTIVES_START_TIMEOUT (seconds)",
                rank=self.rank,
            )
        if isinstance(said.error, ValueError):
            raise self.no_place(str(said.error)) from said.error
        if said.error is not None:
            raise CollectivesError(
                f"rank {self.rank} could not start the job by {self.store}: {said.error}. Look at the output of the "
                "launcher and of the other ranks, or set COLLECTIVES_RENDEZVOUS and COLLECTIVES_TOKEN "
                "(docs/running.md)",
                rank=self.rank,
            ) from said.error
        return bytes.fromhex(said.text).decode()


class _Said:
    """The broadcast of a job, which is made once in the life of a process.

    It takes part in a thread: the stores of launchers know no deadlines, and cannot be asked again while a call waits.
    """

    def __init__(self, job: ByBroadcast, own: bytes, pattern: str, deadline: Deadline) -> None:
        self.text = ""
        self.error: BaseException | None = None
        self.listener: socket.socket | None = None
        self.done = threading.Event()
        text: str | None = None
        if job.rank == 0:
            host = "127.0.0.1" if job.local else own_address(pattern, job.name)
            try:
                self.listener, _, _, published = publish(host, 0, own)
            except OSError as error:
                raise ValueError(f"rank 0 cannot listen at {host}: {error}") from error
            text = published.encode().hex()
        threading.Thread(
            target=self._run, args=[job.broadcast, text, deadline], daemon=True, name="collectives-start"
        ).start()

    def _run(self, broadcast: Callable[[str | None, Deadline], str], text: str | None, deadline: Deadline) -> None:
        try:
            self.text = broadcast(text, deadline)
            bytes.fromhex(self.text)
        except Exception as error:
            self.error = error
        self.done.set()


_said: dict[tuple[int, str], _Said] = {}


def own_address(pattern: str, name: str = "") -> str:
    """An address of this host by which ranks on others reach it most likely.

    That of its name, where it is one of an interface; else that of the default route; else of its first interface.

    Args:
        pattern: of COLLECTIVES_SOCKET_IFNAME: then the address of the first interface that it chooses.
        name: another name of this host, which is tried first.

    Raises:
        ValueError: no interface matches the pattern.
    """
    found = interfaces()
    chosen = [entry for entry in choose(pattern, found) if not entry.link_local] if found else []
    # What others have on their loopback interface as well leads to themselves.
    usable = [entry.address for entry in chosen if pattern or entry.name != "lo"]
    if pattern and usable:
        return usable[0]
    for own in filter(None, (name, socket.gethostname())):
        with contextlib.suppress(OSError):
            named = [str(entry[4][0]) for entry in socket.getaddrinfo(own, None, type=socket.SOCK_STREAM)]
            if there := [address for address in named if address in usable]:
                return there[0]
    for family, outside in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # nothing is sent there
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((outside, 9))
            if (address := str(sock.getsockname()[0])) in usable:
                return address
    return usable[0] if usable else socket.gethostname()
