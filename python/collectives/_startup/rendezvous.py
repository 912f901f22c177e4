"""The rendezvous: rank 0 listens, every other rank connects, and then they exchange values in rounds.

One round gives every rank the values of all ranks. A failure of one rank (it raises, it dies, it was started with
another size) is reported to all others over the same connections, so that every rank raises an error that names the
rank at fault instead of waiting for its own deadline."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
from typing import TYPE_CHECKING, Any

from .. import _distribution, errors
from . import wire
from .acceptor import Acceptor
from .environment import Environment, format_address
from .race import Race, Target
from .rendezvous_base import Rendezvous, ReportedError, describe, name_ranks, own_location, read_all
from .sockets import rendezvous_listeners
from .wire import Deadline, Message, RefusedError, Task, UntrustedError, WireError

if TYPE_CHECKING:
    from .tls import Tls

__all__ = ["Rendezvous", "join"]

_log = logging.getLogger("collectives")
_RETRY = (0.01, 0.25)  # seconds between attempts to reach rank 0: the first, and at most
_ABORT_LIMIT = 1.0  # seconds spent on reporting a failure to the others
_DRAIN = 0.1  # seconds to read messages that arrived before the end of a connection
_LOOKUP_PAUSE = 0.5  # seconds between lookups of the address of rank 0, where it may change


def join(environment: Environment, deadline: Deadline) -> Rendezvous:
    """Connects with the other ranks; returns when all are there.

    Raises:
        DeadlineError: rank 0 did not answer, or (on every rank that is there) some ranks did not come.
        MismatchError: ranks differ in token, size, version or TLS, or two have the same number.
        PeerError: a rank came and failed.
        ValueError: the address is not loopback and there is no token; or rank 0 cannot listen on it; or a file for TLS
            cannot be used.
    """
    if environment.size == 1:
        alone = Rendezvous(environment, deadline)
        alone.job = secrets.token_hex(16)
        return alone
    kind = _Hub if environment.rank == 0 else _Spoke
    rendezvous = kind(environment, deadline, _load_tls(environment))
    try:
        rendezvous.gather()
    except BaseException as error:
        rendezvous.__exit__(type(error), error, None)
        raise
    return rendezvous


def _load_tls(environment: Environment) -> Tls | None:
    if environment.tls is None:
        return None
    from .tls import Tls  # imports OpenSSL, which most jobs do not need

    return Tls(environment.tls)


class _Hub(Rendezvous):
    """Rank 0."""

    def __init__(self, environment: Environment, deadline: Deadline, tls: Tls | None) -> None:
        super().__init__(environment, deadline)
        self._tls = tls
        assert environment.rendezvous is not None
        self.address = format_address(*environment.rendezvous)
        self.job = secrets.token_hex(16)
        self._version = _distribution.library_version()
        self._members: dict[int, socket.socket] = {}
        self._instances: dict[int, Any] = {}
        self._inbox: dict[int, list[Message]] = {rank: [] for rank in range(1, self.size)}
        self._acceptor: Acceptor | None = None

    def gather(self) -> None:
        if not self.environment.token and self._tls is None:
            _log.warning(
                "no token: any user of this machine can join this job at %s, and so run code in it. Set "
                "COLLECTIVES_TOKEN or COLLECTIVES_TOKEN_FILE, or start the ranks by `collectives run`, which makes one",
                self.address,
            )
        listeners = rendezvous_listeners(self.environment, self.deadline)
        self._acceptor = Acceptor(
            self.loop,
            listeners,
            self._handshake,
            self._joined,
            what="rendezvous",
            capacity=max(256, 2 * self.size),
            wrap=None if self._tls is None else self._tls.wrap_listening,
        )
        self.monitor_launcher(self._members)
        if not self.loop.run(lambda: len(self._members) == self.size - 1, self.deadline):
            missing = [rank for rank in range(1, self.size) if rank not in self._members]
            refused = self._acceptor.refused
            seconds = f"{self.deadline.seconds:g} s"
            text = f"{name_ranks(missing)} did not come to the rendezvous {self.address} within {seconds}"
            if refused:
                text += f"; {refused} connections were refused there, the last: {self._acceptor.last_refusal}"
            raise errors.DeadlineError(
                f"{text}. Look at the output of these ranks, or allow more time by COLLECTIVES_START_TIMEOUT (seconds)",
                rank=0,
                peer=missing[0],
            )
        self.stop_monitoring()
        addresses = [str(sock.getsockname()[0]) for sock in self._members.values()]
        beyond = [address for address in addresses if not wire.is_loopback(address)]
        self.loopback = not beyond
        self.local_address = (beyond or addresses)[0]
        self._send_to_all({"job": self.job, "loopback": self.loopback, **own_location()})

    def _round(self, value: Any, what: str) -> list[Any]:
        if not self.loop.run(lambda: all(self._inbox.values()), self.deadline):
            missing = [rank for rank, messages in self._inbox.items() if not messages]
            who = self.show(missing[0]) if len(missing) == 1 else name_ranks(missing)
            raise errors.DeadlineError(
                f"{who} did not send their {what} to rank 0 within {self.deadline.seconds:g} s after the start. Look "
                "at the output of these ranks, or allow more time by COLLECTIVES_START_TIMEOUT (seconds)",
                rank=0,
                **self.fault_of(missing[0]),
            )
        received = {rank: messages.pop(0) for rank, messages in self._inbox.items()}
        values = [value, *(received[rank].get("value") for rank in range(1, self.size))]
        self._send_to_all({"values": values})
        return values

    def abort(self, error: BaseException) -> None:
        deadline = Deadline(_ABORT_LIMIT)
        for sock in self._members.values():
            with contextlib.suppress(OSError, WireError):
                wire.run(wire.send(sock, {"error": describe(error, 0)}), sock, deadline)

    def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        super().close()
        for sock in self._members.values():
            sock.close()
        self._members.clear()

    def _handshake(self, sock: socket.socket) -> Task[Message]:
        binding = b"" if self._tls is None else (yield from self._tls.accept(sock))
        hello = yield from wire.authenticate_listening(sock, self.environment.token, self._check, binding)
        assert self._acceptor is not None
        self._acceptor.trust(sock)
        # The rank may have connected by several addresses; this message tells which connection it keeps.
        yield from wire.receive(sock, wire.STRANGER_LIMIT)
        return hello

    def _check(self, hello: Message) -> str | None:
        if hello.get("purpose") != "rendezvous":
            return f"this is a rendezvous, not a place for {hello.get('purpose')!r}"
        return None

    def _joined(self, sock: socket.socket, hello: Message) -> None:
        """Adds an authenticated rank. If anything is wrong with it, the start of the whole job fails."""
        rank, instance = hello["rank"], hello.get("instance")
        if rank not in self._members:
            self.note_location(rank, hello)
        problem = None
        if hello.get("size") != self.size:
            problem = f"rank {rank} was started with size {hello.get('size')} and rank 0 with size {self.size}"
        elif hello.get("version") != self._version:
            problem = f"rank {rank} runs collectives {hello.get('version')} and rank 0 runs {self._version}"
        elif not 0 < rank < self.size:
            problem = f"a process calls itself rank {rank} in a job of size {self.size}"
        elif rank in self._members and self._instances[rank] != instance:
            problem = f"two processes call themselves rank {rank}"
        if problem is not None:
            error = errors.MismatchError(
                f"{problem}; start every rank of a job with its own number, the same size and the same version",
                rank=0,
                **self.fault_of(rank),
            )
            with contextlib.closing(sock), contextlib.suppress(OSError, WireError):
                wire.run(wire.send(sock, {"error": describe(error, 0)}), sock, Deadline(_ABORT_LIMIT))
            raise error
        if rank in self._members:  # the same process, which lost its first connection
            self.loop.cancel(self._members[rank])
            self._members[rank].close()
        patience = hello.get("patience")
        if isinstance(patience, (int, float)):
            # Give up before the first rank does, so that all of them learn which ranks are missing, on busy hosts too.
            self.deadline.tighten(max(0.0, patience - min(2.0, 0.15 * patience)))
        self._members[rank] = sock
        self._instances[rank] = instance
        self.loop.start(sock, read_all(sock, self._inbox[rank].append), lambda _, error: self._lost(rank, error))

    def _lost(self, rank: int, error: Exception | None) -> None:
        if isinstance(error, ReportedError):
            raise error.rebuild(0) from None
        self.ask_launcher(self._members.keys() - {rank})
        raise errors.PeerError(
            f"{self.show(rank)} went away while the job was starting ({error}). Look at its output for the reason",
            rank=0,
            **self.fault_of(rank),
        )

    def _send_to_all(self, message: Message) -> None:
        data = wire.encode(message)
        for rank, sock in self._members.items():
            try:
                wire.run(wire.send_bytes(sock, data), sock, self.deadline)
            except OSError as error:
                if isinstance(error, TimeoutError) and error.errno is None:  # the deadline, not the network
                    raise errors.DeadlineError(
                        f"{self.show(rank)} did not read what rank 0 sent within {self.deadline.seconds:g} s after the "
                        "start: it is stopped, or cut off. Look at what that rank does, or allow more time by "
                        "COLLECTIVES_START_TIMEOUT (seconds)",
                        rank=0,
                        **self.fault_of(rank),
                    ) from error
                # The rank may have reported why before it closed the connection.
                self.loop.run(lambda: False, Deadline(_DRAIN))
                self._lost(rank, error)


class _Spoke(Rendezvous):
    """Any rank but 0."""

    def __init__(self, environment: Environment, deadline: Deadline, tls: Tls | None) -> None:
        super().__init__(environment, deadline)
        self._tls = tls
        self._lookup = environment.lookup
        self._set_address(environment)
        self._socket: socket.socket | None = None
        self._inbox: list[Message] = []
        self._failure: errors.CollectivesError | None = None
        self._instance = secrets.token_hex(8)

    def gather(self) -> None:
        self.monitor_launcher(())
        self._socket = self._connect()
        self.local_address = self._socket.getsockname()[0]
        self.loop.start(self._socket, read_all(self._socket, self._inbox.append), self._lost)
        welcome = self._next("other ranks to come")
        self.stop_monitoring()
        self.note_location(0, welcome)
        self.job = str(welcome.get("job"))
        self.loopback = welcome.get("loopback") is True

    def _round(self, value: Any, what: str) -> list[Any]:
        assert self._socket is not None
        try:
            wire.run(wire.send(self._socket, {"value": value}), self._socket, self.deadline)
        except TimeoutError as error:
            self._raise_timeout(what, error)
        except OSError as error:
            # Rank 0 may have reported why before it closed the connection.
            self._drain()
            self._lost(None, error)
        values = self._next(what).get("values")
        if not isinstance(values, list) or len(values) != self.size:
            text = f"{self.show(0)} sent something that is not a round of values"
            raise errors.PeerError(text, rank=self.rank, **self.fault_of(0))
        return values

    def abort(self, error: BaseException) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError, WireError):
                wire.run(
                    wire.send(self._socket, {"error": describe(error, self.rank)}), self._socket, Deadline(_ABORT_LIMIT)
                )

    def close(self) -> None:
        super().close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _next(self, what: str) -> Message:
        if not self._inbox and self._failure is not None:
            raise self._failure
        if not self.loop.run(lambda: bool(self._inbox), self.deadline):
            self._raise_timeout(what, None)
        return self._inbox.pop(0)

    def _drain(self) -> None:
        self.loop.run(lambda: False, Deadline(_DRAIN))

    def _raise_timeout(self, what: str, error: Exception | None) -> None:
        raise errors.DeadlineError(
            f"rank {self.rank} waited for the {what}, but rank 0 at {self.address} said nothing more within "
            f"{self.deadline.seconds:g} s after the start. Look at the output of rank 0, or allow more time by "
            "COLLECTIVES_START_TIMEOUT (seconds)",
            rank=self.rank,
            **self.fault_of(0),
        ) from error

    def _lost(self, result: Any, error: Exception | None) -> None:
        failure: errors.CollectivesError
        if isinstance(error, ReportedError):
            failure = error.rebuild(self.rank)
        else:
            if not self._inbox:
                self.ask_launcher(())
            failure = errors.PeerError(
                f"rank 0 at {self.address} went away while the job was starting ({error}). Look at its output for the "
                "reason",
                rank=self.rank,
                **self.fault_of(0),
            )
        if not self._inbox:
            raise failure
        self._failure = failure  # raised after the messages in the inbox: after the last round rank 0 just closes

    def _connect(self) -> socket.socket:
        """Tries all addresses of rank 0 until one answers."""
        wrap = None if self._tls is None else self._tls.wrap_connecting
        while True:
            race = Race(
                self.loop, self._find, self._handshake, lambda _: None, pauses=_RETRY, wrap=wrap, refused=self._refused
            )
            try:
                race.start()
                self._drive(race)
            finally:
                race.stop()
            if race.winner is not None:
                return race.winner
            if self.deadline.remaining() == 0:
                break
        here = ", which on every host is that host itself" if self._on_loopback() else ""
        raise errors.DeadlineError(
            f"nobody answered at the rendezvous {self.address}{here} within {self.deadline.seconds:g} s "
            f"({race.describe() or 'no attempt was made'}). Check that rank 0 runs, that {self._source()} is its "
            "address and that no firewall is between, or allow more time by COLLECTIVES_START_TIMEOUT (seconds)",
            rank=self.rank,
            peer=0,
        )

    def _drive(self, race: Race) -> None:
        """Runs the race until it is won, the deadline passes, or rank 0 has published another address or token."""
        if self._lookup is None:
            self.loop.run(lambda: race.winner is not None, self.deadline)
            return
        while (
            not self.loop.run(lambda: race.winner is not None, Deadline(min(_LOOKUP_PAUSE, self.deadline.remaining())))
            and self.deadline.remaining()
        ):
            found = self._lookup.look()
            if found is not None and found != self.environment:
                self._set_address(found)
                return

    def _set_address(self, environment: Environment) -> None:
        assert environment.rendezvous is not None
        self.environment = environment
        self.host, self.port = environment.rendezvous
        self.address = format_address(self.host, self.port)

    def _source(self) -> str:
        return "COLLECTIVES_RENDEZVOUS" if self._lookup is None else "what it left in the launcher's store"

    def _on_loopback(self) -> bool:
        return self.host == "localhost" or wire.is_loopback(self.host)

    def _find(self) -> list[Target]:
        targets = []
        for family, _, _, _, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            wire.require_token(self.environment.token, str(address[0]))
            targets.append(Target(family, address, format_address(str(address[0]), self.port)))
        return targets

    def _handshake(self, sock: socket.socket) -> Task[None]:
        binding = b"" if self._tls is None else (yield from self._tls.connect(sock))
        hello = {
            "purpose": "rendezvous",
            "rank": self.rank,
            "to": 0,
            "size": self.size,
            "version": _distribution.library_version(),
            "instance": self._instance,
            "patience": self.deadline.remaining(),
            **own_location(),
        }
        yield from wire.authenticate_connecting(sock, self.environment.token, hello, binding)

    def _refused(self, error: RefusedError) -> None:
        if error.reason == "token":
            if self._lookup is not None and self._lookup.token_made:
                return  # the token is from an earlier start; the lookup will find that of this start
            text = (
                f"rank {self.rank} and rank 0 at {self.address} have different tokens: start every rank of a job with "
                "the same COLLECTIVES_TOKEN or COLLECTIVES_TOKEN_FILE, and give each job a rendezvous address of its "
                "own"
            )
        elif isinstance(error, UntrustedError):
            text = f"rank {self.rank} cannot speak to rank 0 at {self.address}: {error}"
        else:
            text = f"rank 0 at {self.address} refused rank {self.rank}: {error}"
        raise errors.MismatchError(text, rank=self.rank, peer=0)
