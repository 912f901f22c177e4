"""What strangers may take of a process that accepts connections, and who is dropped when they want more."""

import contextlib
import logging
import socket
import struct

import pytest
from collectives._startup import wire
from collectives._startup.acceptor import Acceptor, _source
from collectives._startup.loop import Loop
from collectives._startup.wire import Deadline

LIMIT = 30.0  # seconds that nothing here may reach
TOKEN = b"the token of this test"


@pytest.fixture
def place():
    """A loop, a listening socket and an acceptor with room for ten, and what it accepted."""
    loop, accepted = Loop(), []
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(4096)
        listener.setblocking(False)

        def greet(sock):
            hello = yield from wire.authenticate_listening(sock, TOKEN, lambda hello: None)
            acceptor.trust(sock)
            if hello.get("waits"):
                yield from wire.receive(sock)
            return hello

        def done(sock, hello):
            stack.enter_context(sock)
            accepted.append(hello["rank"])

        acceptor = Acceptor(loop, [listener], greet, done, what="test", capacity=10)
        stack.callback(loop.close)
        stack.callback(acceptor.close)
        yield loop, listener.getsockname(), acceptor, accepted


def flood(stack, address, source, count):
    for _ in range(count):
        sock = stack.enter_context(socket.socket())
        sock.bind((source, 0))
        sock.connect(address)


def test_a_flood_drops_itself_and_not_the_slow_rank_of_another_machine(place):
    loop, address, acceptor, accepted = place
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection(address))  # from 127.0.0.1
        sock.setblocking(False)
        honest = wire.authenticate_connecting(sock, TOKEN, {"rank": 5})
        next(honest)  # it has said hello, and now it takes its time
        flood(stack, address, "127.0.0.2", 200)
        assert loop.run(lambda: acceptor.refused == 191, Deadline(LIMIT))
        assert len(acceptor._pending) == 10
        ended = []
        loop.start(sock, honest, lambda result, error: ended.append(error))
        assert loop.run(lambda: bool(ended and accepted), Deadline(LIMIT))
        assert (ended, accepted) == ([None], [5])


def test_among_one_source_the_oldest_is_dropped(place, caplog):
    caplog.set_level(logging.INFO, logger="collectives")
    loop, address, acceptor, _ = place
    with contextlib.ExitStack() as stack:
        flood(stack, address, "127.0.0.3", 15)
        assert loop.run(lambda: acceptor.refused == 5, Deadline(LIMIT))
        assert "127.0.0.3" in acceptor.last_refusal
        assert "too many connections were pending" in acceptor.last_refusal
    assert loop.run(lambda: acceptor.refused == 15, Deadline(LIMIT))
    acceptor.close()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2  # the first, and how many there were
    assert messages[1].startswith("15 connections to the test were refused, the last: 127.0.0.3:")


def proven(stack, loop, address):
    """A connection that both sides have authenticated and that has not said that it is kept."""
    sock = stack.enter_context(socket.create_connection(address))
    sock.setblocking(False)
    ended = []
    loop.start(
        sock,
        wire.authenticate_connecting(sock, TOKEN, {"rank": 5, "waits": True}),
        lambda result, error: ended.append(error),
    )
    assert loop.run(lambda: bool(ended), Deadline(LIMIT))
    assert ended == [None]
    return sock


def test_who_has_proven_itself_is_not_dropped(place):
    loop, address, acceptor, accepted = place
    with contextlib.ExitStack() as stack:
        sock = proven(stack, loop, address)
        flood(stack, address, "127.0.0.1", 50)  # which is its own source
        assert loop.run(lambda: acceptor.refused == 40, Deadline(LIMIT))
        sock.sendall(wire.encode({"keep": True}))
        assert loop.run(lambda: bool(accepted), Deadline(LIMIT))
        assert accepted == [5]


def test_who_has_proven_itself_has_all_the_time(place):
    """What it says last may be lost on the way, and it counts on the connection already."""
    loop, address, acceptor, accepted = place
    acceptor._limit = 2.0
    with contextlib.ExitStack() as stack:
        sock = proven(stack, loop, address)
        flood(stack, address, "127.0.0.1", 1)  # a stranger that says nothing, and came later
        assert loop.run(lambda: acceptor.refused == 1, Deadline(LIMIT))
        sock.sendall(wire.encode({"keep": True}))
        assert loop.run(lambda: bool(accepted), Deadline(LIMIT))
        assert accepted == [5]


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_who_has_proven_itself_and_goes_is_no_stranger(place, how):
    loop, address, acceptor, accepted = place
    with contextlib.ExitStack() as stack:
        sock = proven(stack, loop, address)
        assert len(acceptor._trusted) == 1
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        assert loop.run(lambda: not acceptor._trusted, Deadline(LIMIT))
    assert (acceptor.refused, accepted) == (0, [])


def test_closing_ends_those_that_have_proven_themselves_too(place):
    loop, address, acceptor, _ = place
    with contextlib.ExitStack() as stack:
        sock = proven(stack, loop, address)
        acceptor.close()
        sock.settimeout(LIMIT)
        assert sock.recv(1) == b""


def test_what_counts_as_one_source():
    assert _source(("10.0.0.1", 5)) == _source(("10.0.0.1", 6)) != _source(("10.0.0.2", 5))
    # A whole network of IPv6 is one machine's.
    assert _source(("2001:db8::1", 5, 0, 0)) == _source(("2001:db8::ffff:1", 5, 0, 0))
    assert _source(("2001:db8::1", 5, 0, 0)) != _source(("2001:db8:0:1::1", 5, 0, 0))
    assert _source(("fe80::1", 5, 0, 2)) != _source(("fe80::2", 5, 0, 2))
    assert _source(("::ffff:10.0.0.1", 5, 0, 0)) != _source(("::ffff:10.0.0.2", 5, 0, 0))
    assert _source(b"") == _source("")


def test_what_a_stranger_says_is_shortened(place, caplog):
    loop, address, acceptor, _ = place
    with socket.create_connection(address) as sock:
        sock.sendall(wire.encode({"rank": 1, "nonce": "0" * 64, "protocol": "\n" * 1500}))
        assert loop.run(lambda: acceptor.refused == 1, Deadline(LIMIT))
    assert len(acceptor.last_refusal) < 400
    assert "\n" not in caplog.text.rstrip("\n")


def test_timers_of_tasks_that_have_ended_take_no_memory():
    loop = Loop()
    kept = []
    loop.later(0.05, lambda: kept.append("called"))
    with contextlib.ExitStack() as stack:
        for _ in range(2000):
            one, two = socket.socketpair()
            with one, two:
                one.setblocking(False)
                loop.start(one, wire.receive(one), lambda result, error: None, LIMIT)
                loop.cancel(one)
        assert len(loop._timers) < 200
        stack.callback(loop.close)
        assert loop.run(lambda: bool(kept), Deadline(LIMIT))
