"""The functions that wait for messages while a job starts."""

import socket
import threading

import pytest
from collectives._startup import wire
from collectives._startup.loop import Loop
from collectives._startup.wire import Deadline

AGES = 1e10  # seconds, which are more milliseconds than poll takes


@pytest.fixture
def pair():
    one, two = socket.socketpair()
    with one, two:
        one.setblocking(False)
        yield one, two


def wait_alone(sock, deadline):
    return wire.run(wire.receive(sock), sock, deadline)


def wait_in_a_loop(sock, deadline):
    loop, got = Loop(), []
    loop.start(sock, wire.receive(sock), lambda result, error: got.append(result))
    if not loop.run(lambda: bool(got), deadline):
        raise TimeoutError
    loop.close()
    return got[0]


@pytest.mark.parametrize("wait", [wait_alone, wait_in_a_loop])
@pytest.mark.parametrize("longest", [None, 0.01])
def test_a_deadline_that_is_ages_away(pair, monkeypatch, wait, longest):
    if longest is not None:  # so that one wait is over long before there is anything
        monkeypatch.setattr(wire, "LONGEST_WAIT", longest)
    late = threading.Timer(0.2, lambda: pair[1].sendall(wire.encode({"a": 1})))
    late.start()
    assert wait(pair[0], Deadline(AGES)) == {"a": 1}
    late.join()


@pytest.mark.parametrize("wait", [wait_alone, wait_in_a_loop])
def test_the_deadline_ends_the_wait(pair, wait):
    with pytest.raises(TimeoutError):
        wait(pair[0], Deadline(0.05))


def test_what_a_listener_refuses_with_is_made_fit_to_print(pair):
    one, two = pair
    two.sendall(wire.encode({"refused": "\x1b[2J\r\nno\ud800\u202e" + "m\u00fcde" * 300}))
    with pytest.raises(wire.RefusedError) as caught:
        wire.run(wire.authenticate_connecting(one, b"", {"rank": 1}), one, Deadline(30))
    assert str(caught.value).startswith(r"\x1b[2J\r\nno\ud800\u202emüdemüde")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 310


def test_a_refused_token_is_told_as_one(pair):
    one, two = pair
    two.sendall(wire.encode({"refused": "token"}))
    with pytest.raises(wire.RefusedError) as caught:
        wire.run(wire.authenticate_connecting(one, b"", {"rank": 1}), one, Deadline(30))
    assert (caught.value.reason, str(caught.value)) == ("token", "the tokens differ")
