"""The rendezvous: ranks that meet, ranks that do not, and strangers."""

import contextlib
import json
import logging
import os
import pickle
import random
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from collectives._distribution import library_version
from collectives._startup import rendezvous, wire
from collectives._startup.environment import Environment
from collectives._startup.wire import Deadline, RefusedError, WireError
from collectives.errors import DeadlineError, MismatchError, PeerError

LIMIT = 30.0  # seconds that nothing here may reach
TOKEN = b"the token of this test"


def environment(listener, rank, size, **changes):
    values = {
        "rank": rank,
        "size": size,
        "rendezvous": listener.getsockname()[:2],
        "token": TOKEN,
        "timeout": LIMIT,
        "rendezvous_fd": listener.fileno() if rank == 0 else -1,
    }
    return Environment(**{**values, **changes})


@pytest.fixture
def listener():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(128)
        yield sock


class Rank(threading.Thread):
    """One rank as a thread: this part of the library has no state per process."""

    def __init__(self, surroundings, body=None):
        super().__init__(daemon=True)
        self.surroundings = surroundings
        self.body = body or (lambda meeting: meeting.exchange(meeting.rank))
        self.result = self.error = self.seconds = None
        self.start()

    def run(self):
        begin = time.monotonic()
        try:
            with rendezvous.join(self.surroundings, Deadline(self.surroundings.start_timeout)) as meeting:
                self.result = self.body(meeting)
        except BaseException as error:
            self.error = error
        self.seconds = time.monotonic() - begin


def finish(*ranks):
    for rank in ranks:
        rank.join(LIMIT)
        assert not rank.is_alive(), "a rank hangs"
    return ranks


def client(listener):
    return socket.create_connection(listener.getsockname(), timeout=LIMIT)


def greet(sock, token, hello):
    """The connecting side of the authentication, on a socket of a test."""
    sock.setblocking(False)
    wire.run(wire.authenticate_connecting(sock, token, hello), sock, Deadline(LIMIT))
    wire.run(wire.send(sock, {"keep": True}), sock, Deadline(LIMIT))


def hello(rank, size=2, **changes):
    values = {"purpose": "rendezvous", "rank": rank, "to": 0, "size": size, "version": library_version()}
    return {**values, "instance": secrets.token_hex(4), "patience": LIMIT, **changes}


@pytest.mark.parametrize("size", [2, 5, 16])
def test_rounds(listener, size):
    def body(meeting):
        first = meeting.exchange({"rank": meeting.rank, "text": "ü" * meeting.rank})
        return first, meeting.exchange([meeting.rank] * 3), meeting.job, meeting.loopback

    ranks = finish(*(Rank(environment(listener, rank, size), body) for rank in range(size)))
    assert [rank.error for rank in ranks] == [None] * size
    assert all(rank.result == ranks[0].result for rank in ranks)
    first, second, job, loopback = ranks[0].result
    assert [value["rank"] for value in first] == list(range(size))
    assert second == [[rank] * 3 for rank in range(size)]
    assert job and loopback


def test_a_world_of_one():
    with rendezvous.join(Environment(), Deadline(1)) as meeting:
        assert meeting.exchange("x") == ["x"]


def test_large_values(listener):
    text = "x" * 3_000_000
    ranks = finish(*(Rank(environment(listener, rank, 3), lambda meeting: meeting.exchange(text)) for rank in range(3)))
    assert all(rank.result == [text] * 3 for rank in ranks)


def test_ranks_may_come_before_rank_0():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound but not listening: connects are refused
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        early = Rank(environment(reserved, 1, 2))
        early.join(0.3)
        assert early.is_alive()
        reserved.listen()
        ranks = finish(Rank(environment(reserved, 0, 2)), early)
    assert [rank.result for rank in ranks] == [[0, 1], [0, 1]]


def test_rank_0_binds_the_address_itself(listener):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    ranks = [Rank(environment(listener, rank, 2, rendezvous=address, rendezvous_fd=-1)) for rank in range(2)]
    assert [rank.result for rank in finish(*ranks)] == [[0, 1], [0, 1]]


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="no IPv6 in this kernel")
def test_ipv6(listener):
    with socket.socket(socket.AF_INET6) as free:
        free.bind(("::1", 0))
        address = free.getsockname()[:2]
    ranks = [Rank(environment(listener, rank, 3, rendezvous=address, rendezvous_fd=-1)) for rank in range(3)]
    assert [rank.result for rank in finish(*ranks)] == [[0, 1, 2]] * 3


def test_nobody_answers():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        (rank,) = finish(Rank(environment(reserved, 1, 2, timeout=0.5)))
        port = reserved.getsockname()[1]
    assert isinstance(rank.error, DeadlineError)
    assert f"127.0.0.1:{port}" in str(rank.error)
    assert "0.5 s" in str(rank.error)
    assert (rank.error.rank, rank.error.peer) == (1, 0)
    assert rank.seconds < 5


def test_something_listens_but_says_nothing(listener):
    (rank,) = finish(Rank(environment(listener, 1, 2, timeout=0.5)))
    assert isinstance(rank.error, DeadlineError)
    assert f"127.0.0.1:{listener.getsockname()[1]}" in str(rank.error)


def test_missing_ranks_are_named_to_all(listener):
    ranks = finish(*(Rank(environment(listener, rank, 5, timeout=1.0)) for rank in (0, 1, 3)))
    for rank in ranks:
        assert isinstance(rank.error, DeadlineError), rank.error
        assert "ranks 2, 4 did not come" in str(rank.error)
        assert rank.error.peer == 2


def test_a_rank_that_misses_a_round_is_named_to_all(listener):
    release = threading.Event()
    idle = Rank(environment(listener, 2, 3, timeout=LIMIT), lambda meeting: release.wait(LIMIT))
    ranks = finish(*(Rank(environment(listener, rank, 3, timeout=1.0)) for rank in (0, 1)))
    release.set()
    finish(idle)
    for rank in ranks:
        assert isinstance(rank.error, DeadlineError)
        assert f"rank 2 (host {socket.gethostname()}, pid {os.getpid()}) did not send" in str(rank.error)
        assert (rank.error.peer, rank.error.host, rank.error.pid) == (2, socket.gethostname(), os.getpid())


def big_round(listener):
    """Rank 0 as a thread, in a round with a value that fits no buffer, and rank 1 as a socket that has read the
    beginning of it."""
    zero = Rank(environment(listener, 0, 2, timeout=3), lambda meeting: meeting.exchange("x" * (32 << 20)))
    sock = client(listener)
    greet(sock, TOKEN, hello(1, hostname="there", pid=7))
    sock.settimeout(LIMIT)
    for message in ({"keep": True}, {"value": 1}):
        sock.sendall(wire.encode(message))
    got = b""
    while b"xxxx" not in got:
        got += sock.recv(4096)
    return zero, sock


def test_a_rank_that_takes_nothing_is_late_and_not_gone(listener):
    zero, sock = big_round(listener)
    with sock:
        finish(zero)
    assert isinstance(zero.error, DeadlineError), zero.error
    assert "rank 1 (host there, pid 7) did not read what rank 0 sent within 3 s" in str(zero.error)
    assert (zero.error.rank, zero.error.peer, zero.error.host, zero.error.pid) == (0, 1, "there", 7)


def test_the_reason_of_a_rank_that_goes_while_rank_0_sends_to_it(listener):
    zero, sock = big_round(listener)
    with sock:
        sock.sendall(wire.encode({"error": {"type": "PeerError", "text": "its own reason", "peer": 1}}))
    finish(zero)
    assert isinstance(zero.error, PeerError)
    assert "its own reason" in str(zero.error)


def test_a_rank_that_raises_is_named_to_all(listener):
    def body(meeting):
        if meeting.rank == 2:
            raise RuntimeError("out of luck")
        return meeting.exchange(None)

    ranks = finish(*(Rank(environment(listener, rank, 4), body) for rank in range(4)))
    assert isinstance(ranks[2].error, RuntimeError)
    for rank in (ranks[0], ranks[1], ranks[3]):
        assert isinstance(rank.error, PeerError)
        assert "RuntimeError: out of luck" in str(rank.error)
        assert (rank.error.peer, rank.error.host, rank.error.pid) == (2, socket.gethostname(), os.getpid())


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_is_noticed_at_once(listener, victim):
    """A real process, killed between two rounds."""
    surroundings = environment(listener, victim, 3)
    program = (
        "import pickle, sys; from collectives._startup import rendezvous\n"
        "from collectives._startup.wire import Deadline\n"
        "meeting = rendezvous.join(pickle.loads(bytes.fromhex(sys.stdin.readline())), Deadline(30))\n"
        "meeting.exchange(1); print('met', flush=True); sys.stdin.readline()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[listener.fileno()],
    )
    with process:
        print(pickle.dumps(surroundings).hex(), file=process.stdin, flush=True)
        others = [
            Rank(environment(listener, rank, 3), lambda meeting: (meeting.exchange(1), meeting.exchange(2)))
            for rank in range(3)
            if rank != victim
        ]
        assert process.stdout.readline() == "met\n"
        process.kill()
        begin = time.monotonic()
        finish(*others)
        assert time.monotonic() - begin < 5
    for rank in others:
        assert isinstance(rank.error, PeerError)
        assert f"rank {victim}" in str(rank.error)
        assert (rank.error.peer, rank.error.host, rank.error.pid) == (victim, socket.gethostname(), process.pid)


def test_size_mismatch(listener):
    zero = Rank(environment(listener, 0, 3))
    with client(listener) as one:
        greet(one, TOKEN, hello(1, size=3))
        two = Rank(environment(listener, 2, 4))
        told = wire.run(wire.receive(one), one, Deadline(LIMIT))
    finish(zero, two)
    text = "rank 2 was started with size 4 and rank 0 with size 3"
    assert isinstance(zero.error, MismatchError)
    assert isinstance(two.error, MismatchError)
    assert text in str(zero.error)
    assert text in str(two.error)
    assert text in told["error"]["text"]


def test_duplicate_rank(listener):
    ranks = finish(*(Rank(environment(listener, rank, 3)) for rank in (0, 1, 1)))
    for rank in ranks:
        assert isinstance(rank.error, MismatchError)
        assert "two processes call themselves rank 1" in str(rank.error)


def test_version_mismatch(listener):
    zero = Rank(environment(listener, 0, 2))
    with client(listener) as sock:
        greet(sock, TOKEN, hello(1, version="0.0.0-other"))
        reply = wire.run(wire.receive(sock), sock, Deadline(LIMIT))
    finish(zero)
    assert "collectives 0.0.0-other" in reply["error"]["text"]
    assert isinstance(zero.error, MismatchError)


def test_protocol_mismatch(listener, monkeypatch):
    zero = Rank(environment(listener, 0, 2))
    with client(listener) as sock:
        sock.sendall(wire.encode({**hello(1), "protocol": 99, "nonce": "0" * 64}))
        reply = wire.run(wire.receive(sock), sock, Deadline(LIMIT))
    assert "protocol 99" in reply["refused"]
    assert f"speaks {wire.PROTOCOL}" in reply["refused"]
    finish(zero, Rank(environment(listener, 1, 2)))
    assert zero.result == [0, 1]


def test_wrong_token(listener):
    zero = Rank(environment(listener, 0, 2))
    (wrong,) = finish(Rank(environment(listener, 1, 2, token=b"another token")))
    assert isinstance(wrong.error, MismatchError)
    assert "COLLECTIVES_TOKEN" in str(wrong.error)
    assert "another" not in str(wrong.error)
    assert zero.is_alive(), "a wrong token must not disturb the job"
    finish(zero, Rank(environment(listener, 1, 2)))
    assert zero.result == [0, 1]


def test_an_impostor_of_rank_0_is_not_trusted(listener):
    """It does not know the token, so it cannot prove itself, whatever it answers."""
    rank = Rank(environment(listener, 1, 2))
    sock, _ = listener.accept()
    with sock:
        sock.setblocking(False)
        wire.run(wire.receive(sock), sock, Deadline(LIMIT))
        wire.run(wire.send(sock, {"nonce": "0" * 64}), sock, Deadline(LIMIT))
        proof = wire.run(wire.receive(sock), sock, Deadline(LIMIT))
        wire.run(wire.send(sock, proof), sock, Deadline(LIMIT))  # its own proof, reflected
        finish(rank)
    assert isinstance(rank.error, MismatchError)


def test_strangers_do_not_disturb(listener):
    zero = Rank(environment(listener, 0, 2))
    generator = random.Random(7)
    with contextlib.ExitStack() as stack:
        for number in range(200):
            sock = stack.enter_context(client(listener))
            kind = number % 6
            with contextlib.suppress(OSError):
                if kind == 0:
                    sock.close()  # a port scan
                elif kind == 1:
                    sock.sendall(generator.randbytes(generator.randrange(1, 5000)))
                elif kind == 2:
                    sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                elif kind == 3:
                    sock.sendall(struct.pack(">4sI", wire.MAGIC, 0xFFFFFFFF) + b"x" * 100)  # would be 4 GiB
                elif kind == 4:
                    payload = b"[" * 4000 if number % 12 == 4 else json.dumps({"rank": True, "nonce": 5}).encode()
                    sock.sendall(struct.pack(">4sI", wire.MAGIC, len(payload)) + payload)
                else:
                    sock.sendall(wire.MAGIC)  # and then nothing: a slow client
        one = Rank(environment(listener, 1, 2))
        finish(zero, one)
    assert zero.result == one.result == [0, 1]


def test_a_stranger_may_not_say_much(listener, caplog):
    """The limit is looked at when the length is known, not when the bytes have come."""
    caplog.set_level(logging.WARNING, logger="collectives")
    zero = Rank(environment(listener, 0, 2))
    with client(listener) as sock:
        sock.sendall(struct.pack(">4sI", wire.MAGIC, wire.STRANGER_LIMIT + 1))
        assert sock.recv(1) == b""
    finish(zero, Rank(environment(listener, 1, 2)))
    assert zero.result == [0, 1]
    assert "a message of 4097 bytes, more than the 4096 that are accepted here" in caplog.text


def test_slow_clients_do_not_block_others(listener):
    """More silent connections than may be pending: an honest rank still gets in, long before they time out."""
    zero = Rank(environment(listener, 0, 2))
    with contextlib.ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(client(listener)).sendall(wire.MAGIC[:2])
        one = Rank(environment(listener, 1, 2))
        finish(zero, one)
    assert zero.result == one.result == [0, 1]
    assert one.seconds < 8  # the time limit of a pending connection is 10 s


def test_replay(listener):
    """All bytes of an honest rank's authentication, sent again, are refused: the challenge is another one."""
    zero = Rank(environment(listener, 0, 3))
    recorded = []
    with client(listener) as sock:
        sock.setblocking(False)

        class Recorder:
            """Passes everything on to the socket and keeps what is sent."""

            def send(self, data, flags=0):
                count = sock.send(data, flags)
                recorded.append(bytes(data[:count]))
                return count

            def __getattr__(self, name):
                return getattr(sock, name)

        greet(Recorder(), TOKEN, hello(1, size=3))
        with client(listener) as thief:
            thief.sendall(b"".join(recorded))
            thief.setblocking(False)
            assert "nonce" in wire.run(wire.receive(thief), thief, Deadline(LIMIT))
            assert wire.run(wire.receive(thief), thief, Deadline(LIMIT)) == {"refused": "token"}
        assert zero.is_alive()
    finish(zero)
    assert isinstance(zero.error, PeerError)  # the recorded rank went away


def test_the_proof_is_bound_to_rank_and_role():
    opening, challenge = wire.encode({"rank": 1}), wire.encode({"nonce": "0" * 64})
    proof = wire._proof(TOKEN, "connecting", opening, challenge)
    assert proof != wire._proof(TOKEN, "listening", opening, challenge)
    assert proof != wire._proof(TOKEN, "connecting", wire.encode({"rank": 2}), challenge)
    # The border between the parts counts too.
    assert wire._proof(TOKEN, "connecting", b"ab", b"c") != wire._proof(TOKEN, "connecting", b"a", b"bc")


def test_the_token_never_travels():
    ours, theirs = socket.socketpair()
    sent = []
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        one = wire.authenticate_connecting(ours, TOKEN, {"rank": 1})
        two = wire.authenticate_listening(theirs, TOKEN, lambda hello: None)
        pending = {ours: one, theirs: two}
        while pending:
            for sock, task in list(pending.items()):
                try:
                    next(task)
                except StopIteration:
                    del pending[sock]
                for end in (ours, theirs):
                    with contextlib.suppress(BlockingIOError):
                        sent.append(end.recv(1 << 16, socket.MSG_PEEK))
    everything = b"".join(sent)
    assert b"proof" in everything
    assert TOKEN not in everything
    assert TOKEN.hex().encode() not in everything


def test_a_listener_of_another_rank_refuses():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        connecting = wire.authenticate_connecting(ours, TOKEN, {"rank": 1, "to": 3})
        listening = wire.authenticate_listening(theirs, TOKEN, lambda hello: f"this is 4, not {hello['to']}")
        next(connecting)
        with pytest.raises(WireError, match="this is 4, not 3"):
            next(listening)
        with pytest.raises(RefusedError, match="this is 4, not 3"):
            next(connecting)


@pytest.mark.parametrize("rank", [0, 1])
def test_no_token_beyond_loopback(listener, rank):
    surroundings = environment(listener, rank, 2, token=b"", rendezvous=("192.0.2.1", 9), rendezvous_fd=-1)
    (result,) = finish(Rank(surroundings))  # refused before anything is sent
    assert isinstance(result.error, ValueError)
    assert "COLLECTIVES_TOKEN" in str(result.error)
    assert "192.0.2.1" in str(result.error)


@pytest.mark.parametrize("token", [b"", TOKEN])
def test_no_token_on_loopback(listener, token, caplog):
    """It is allowed, and rank 0 says what it means."""
    caplog.set_level(logging.WARNING, logger="collectives")
    ranks = finish(*(Rank(environment(listener, rank, 2, token=token)) for rank in range(2)))
    assert [rank.result for rank in ranks] == [[0, 1]] * 2
    warned = [record.getMessage() for record in caplog.records if "no token" in record.getMessage()]
    assert len(warned) == (0 if token else 1)
    assert all("any user of this machine can join this job at 127.0.0.1:" in text for text in warned)


def test_rank_0_cannot_listen(listener):
    (rank,) = finish(Rank(environment(listener, 0, 2, rendezvous_fd=-1, timeout=0.5)))
    assert isinstance(rank.error, ValueError)
    assert f"127.0.0.1:{listener.getsockname()[1]}" in str(rank.error)


@pytest.mark.parametrize("what", ["closed", "pipe", "not listening"])
def test_bad_descriptor(listener, what):
    with socket.socket() as plain:
        read, write = os.pipe()
        fd = {"closed": 1 << 20, "pipe": read, "not listening": plain.fileno()}[what]
        (rank,) = finish(Rank(environment(listener, 0, 2, rendezvous_fd=fd)))
        os.close(read)
        os.close(write)
    assert isinstance(rank.error, ValueError)
    assert "COLLECTIVES_RENDEZVOUS_FD" in str(rank.error)
    assert str(fd) in str(rank.error)
