"""What is fuzzed of the Python wire: bytes of strangers and of members, and what must come of them.

`run` takes any bytes. The first says which target gets the rest. It returns when all is well, whatever the bytes were;
anything that it raises is a finding.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator
from typing import Any

from collectives import errors
from collectives._distribution import library_version
from collectives._startup import rendezvous, wire
from collectives._startup.acceptor import Acceptor
from collectives._startup.environment import Environment
from collectives._startup.interfaces import check_pattern
from collectives._startup.published import read_published
from collectives._startup.rendezvous_base import ReportedError, read_all
from collectives._startup.settings import address
from collectives._startup.wire import Deadline, WireError

TOKEN = b"a token that the bytes do not know"
MOST = 1 << 16  # bytes of an input that are looked at


class Pieces:
    """A socket that gives an input in pieces, says now and then that there is nothing yet, and takes what is sent."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data = data
        self._step = step % 61 + 1
        self._pause = False
        self.sent = 0
        self.taken = 0

    def recv(self, count: int) -> bytes:
        self._pause = not self._pause
        if self._pause:
            raise BlockingIOError
        piece = self._data[: min(count, self._step)]
        self._data = self._data[len(piece) :]
        self.taken += len(piece)
        return piece

    def send(self, data: Any, flags: int = 0) -> int:
        self._pause = not self._pause
        if self._pause:
            raise BlockingIOError
        self.sent += min(len(data), self._step)
        return min(len(data), self._step)


def drive(task: Generator[int, None, Any], limit: int) -> Any:
    """Runs a task that must come to its end."""
    for _ in range(limit):
        try:
            next(task)
        except StopIteration as stop:
            return stop.value
    raise AssertionError("the task does not end")


def listening(data: bytes) -> None:
    """A stranger connects: it is never taken for a rank, and is told little."""
    sock: Any = Pieces(data[1:], data[0] if data else 0)
    try:
        drive(wire.authenticate_listening(sock, TOKEN, lambda hello: None), 4 * len(data) + 9000)
    except WireError:
        assert sock.sent < 2 * wire.STRANGER_LIMIT
        assert sock.taken <= 2 * (wire.STRANGER_LIMIT + 8)
        return
    raise AssertionError("a stranger was let in")


def connecting(data: bytes) -> None:
    """A stranger listens."""
    sock: Any = Pieces(data[1:], data[0] if data else 0)
    try:
        drive(wire.authenticate_connecting(sock, TOKEN, {"rank": 1, "to": 0}), 4 * len(data) + 9000)
    except WireError:
        return
    raise AssertionError("a stranger was taken for rank 0")


def member(data: bytes) -> None:
    """A rank that is authenticated says anything: an error that can be shown, and nothing else."""
    sock: Any = Pieces(data[1:], data[0] if data else 0)
    arrived: list[Any] = []
    try:
        drive(read_all(sock, arrived.append), 4 * len(data) + 9000)
    except ReportedError as error:
        assert isinstance(error.rebuild(1), errors.CollectivesError)
    except WireError as error:
        assert str(error)
    assert all(isinstance(message, dict) for message in arrived)


def texts(data: bytes) -> None:
    """What comes from variables and stores: ValueError or a value."""
    text = data.decode("utf-8", "surrogateescape")
    with contextlib.suppress(ValueError):
        host, port = address(text, "here")
        assert host and 0 < port < 65536
    with contextlib.suppress(ValueError):
        assert check_pattern(text) == text
    for own in (b"", b"own"):
        with contextlib.suppress(ValueError):
            where, token = read_published(text, own)
            assert isinstance(where, str) and isinstance(token, bytes)


class Caller:
    """One connection to the rendezvous, which may know the token."""

    def __init__(self, acceptor: Acceptor, number: int) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        theirs.setblocking(False)
        self.said = b""
        self.proven = False
        acceptor._incoming(theirs, ("127.0.0.1", number))

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.sock.send(data)

    def prove(self) -> None:
        """The right proof, if rank 0 has answered the hello and that was one message."""
        with contextlib.suppress(OSError):
            answer = self.sock.recv(1 << 16)
            length = int.from_bytes(self.said[4:8], "big")
            if answer[:4] == wire.MAGIC and len(self.said) == 8 + length:
                self.proven = True
                self.send(wire.encode({"proof": wire._proof(TOKEN, "connecting", self.said[8:], answer[8:])}))


def meeting(data: bytes) -> None:
    """A rendezvous of three ranks, as a program: each operation is a connection, a verb, a length and bytes."""
    hub = rendezvous._Hub(Environment(0, 3, ("127.0.0.1", 9), TOKEN), Deadline(60), None)
    acceptor = Acceptor(hub.loop, [], hub._handshake, hub._joined, what="rendezvous", capacity=8)
    hub._acceptor = acceptor
    callers: list[Caller] = []
    try:
        position = 0
        while position + 3 <= len(data) and len(callers) < 40:
            which, verb, length = data[position : position + 3]
            argument = data[position + 3 : position + 3 + length]
            position += 3 + length
            if not callers or which >= 0xF0:
                callers.append(Caller(acceptor, len(callers)))
            caller = callers[which % len(callers)]
            act(caller, verb % 6, argument)
            turn(hub)
            assert len(acceptor._pending) <= 8
    except errors.CollectivesError as error:
        assert str(error)
    finally:
        proven = sum(caller.proven for caller in callers)
        assert len(hub._members) <= proven, "a stranger was let in"
        for caller in callers:
            caller.sock.close()
        hub.close()


def act(caller: Caller, verb: int, argument: bytes) -> None:
    """Bytes as they are, a message with them, an honest hello, the proof, that the connection is kept, or the end."""
    if verb == 0:
        caller.said += argument
        caller.send(argument)
    elif verb == 1:
        message = wire.MAGIC + len(argument).to_bytes(4, "big") + argument
        caller.said += message
        caller.send(message)
    elif verb == 2:
        rank = argument[0] % 4 if argument else 1
        hello = {"purpose": "rendezvous", "rank": rank, "to": 0, "size": 3, "version": library_version()}
        hello |= {"instance": str(argument[1:2]), "patience": 50, "protocol": wire.PROTOCOL, "nonce": "0" * 64}
        message = wire.encode(hello)
        caller.said += message
        caller.send(message)
    elif verb == 3:
        caller.prove()
    elif verb == 4:
        caller.send(wire.encode({"keep": True}))
    else:
        with contextlib.suppress(OSError):  # done before
            caller.sock.shutdown(socket.SHUT_WR) if argument else caller.sock.close()


def turn(hub: Any) -> None:
    """Lets rank 0 do all that it can do now."""
    for _ in range(3):
        due: list[bool] = []
        hub.loop.later(0, lambda due=due: due.append(True))
        hub.loop.run(lambda due=due: bool(due), Deadline(60))


TARGETS = (listening, connecting, member, texts, meeting)


def run(data: bytes) -> None:
    """Gives one input to the target that its first byte names."""
    data = data[:MOST]
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


def descriptors() -> int:
    """How many are open."""
    return len(os.listdir("/proc/self/fd"))


def seeds() -> list[bytes]:
    """Inputs by hand, one for each thing that may come."""
    hello = {"purpose": "rendezvous", "rank": 1, "protocol": wire.PROTOCOL, "nonce": "0" * 64}
    greeting = wire.encode(hello) + wire.encode({"proof": "0" * 64}) + wire.encode({"keep": True})
    answer = wire.encode({"nonce": "0" * 64}) + wire.encode({"proof": "0" * 64})
    refusal = wire.encode({"refused": "token"})
    told = wire.encode({"error": {"type": "MismatchError", "text": "why", "peer": 2}})
    honest = [bytes([0xFF, 2, 2, rank, 7]) + bytes([rank - 1, 3, 0]) + bytes([rank - 1, 4, 0]) for rank in (1, 2)]
    value = b'{"value":[1,"x",null]}'
    report = told[8:]
    return [
        b"\x00\x05" + greeting,
        b"\x00\x05\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x05GET / HTTP/1.1\r\n\r\n",
        b"\x01\x05" + answer,
        b"\x01\x05" + refusal,
        b"\x01\x05\x15\x03\x03\x00\x02\x02\x28",
        b"\x02\x05" + wire.encode({"value": {"a": [1.5, None, "ü"]}}) + told,
        b"\x0310.0.0.1:29400",
        b"\x03[fe80::1%eth0]:80",
        b"\x03^=docker0,eth",
        b'\x03{"address": "node1:29400", "token": "x"}',
        b"\x04" + honest[0] + honest[1] + bytes([0, 1, len(value)]) + value + bytes([1, 1, len(value)]) + value,
        b"\x04" + honest[0] + honest[1] + bytes([1, 1, len(report)]) + report,
        b"\x04" + honest[0] + bytes([0xFF, 2, 2, 1, 8, 1, 3, 0, 1, 4, 0]),
        b"\x04" + honest[0] + honest[0] + bytes([0, 5, 0]),
        b"\x04" + b"".join(bytes([0xFF, 0, 3]) + b"CLV" for _ in range(12)),
    ]
