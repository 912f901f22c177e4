"""10,000 connections that know no token, while a job starts and while it runs: they cost it nothing."""

import contextlib
import json
import os
import random
import re
import secrets
import select
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from collectives._distribution import library_version
from collectives._startup import wire
from collectives._startup.wire import Deadline

LIMIT = 240.0  # seconds that nothing here may reach
TOKEN = "s" * 64
RENDEZVOUS, DATA, AFTERWARDS = 4_000, 4_000, 2_000  # strangers in each phase
HELD = 400  # of them are open at once, of which more say nothing further than may be pending
GROWTH = 2 << 20  # bytes of memory; measured are 4 KiB
CAPACITY = 256  # connections that may be pending on each port

# A rank. It shows where its data port is, and a rank that shall wait does so before it connects to others.
PROGRAM = r"""
import json, logging, sys
import numpy as np
import collectives
from collectives._startup import mesh as _mesh

logging.basicConfig(level=logging.DEBUG)

def say(**what):
    print(json.dumps(what), flush=True)

class Mesh(_mesh.Mesh):
    def start(self, targets):
        say(ports=[port for host, port in self.offered if ":" not in host])
        if sys.argv[1] == "late":
            sys.stdin.readline()
        super().start(targets)

collectives._startup.bootstrap.Mesh = Mesh
comm = collectives.init()
say(rank=comm.rank)
for line in sys.stdin:
    total = 0.0
    for _ in range(50):
        x = comm.all_reduce(np.full(3000, comm.rank + 1.0))
        total += float(x.min() + x.max())
    say(total=total)
comm.close()
say(closed=True)
"""


class Rank:
    def __init__(self, rank: int, address: str, log: Path, mode: str, fd: int, more: dict[str, str]) -> None:
        self.log = log
        variables = {
            "COLLECTIVES_RANK": str(rank),
            "COLLECTIVES_SIZE": "3",
            "COLLECTIVES_RENDEZVOUS": address,
            "COLLECTIVES_TOKEN": TOKEN,
            "COLLECTIVES_TIMEOUT": str(LIMIT),
            "COLLECTIVES_TRANSPORT": "tcp",
            "COLLECTIVES_RENDEZVOUS_FD": str(fd) if fd >= 0 else "",
            **more,
        }
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, mode],
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                pass_fds=[fd] if fd >= 0 else [],
            )

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    def hear(self) -> dict[str, object]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        assert ready, "a rank says nothing"
        line = self.process.stdout.readline()
        assert line, f"a rank ended: {self.log.read_text()[-2000:]}"
        return json.loads(line)

    def memory(self) -> int:
        """Resident bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) << 10

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def listening(self) -> list[str]:
        """Local addresses of TCP sockets on which this process listens, in hexadecimal digits."""
        folder = f"/proc/{self.process.pid}/fd"
        links = []
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                links.append(os.readlink(f"{folder}/{name}"))
        found = []
        for table in ("tcp", "tcp6"):
            path = Path(f"/proc/{self.process.pid}/net/{table}")
            lines = path.read_text().splitlines()[1:] if path.exists() else []
            found += [
                words[1] for words in map(str.split, lines) if words[3] == "0A" and f"socket:[{words[9]}]" in links
            ]
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)
        for file in (self.process.stdin, self.process.stdout):
            assert file is not None
            file.close()


def old_proof(port: int) -> bytes:
    """All that an honest rank sends until it is authenticated, recorded where rank 0 is a stranger."""
    sent = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        hello = {"purpose": "rendezvous", "rank": 2, "to": 0, "size": 3, "version": library_version()}
        hello |= {"instance": "0" * 16, "patience": LIMIT}
        one = wire.authenticate_connecting(ours, TOKEN.encode(), hello)
        two = wire.authenticate_listening(theirs, TOKEN.encode(), lambda hello: None)
        pending = [one, two]
        while pending:
            for task in list(pending):
                try:
                    next(task)
                except StopIteration:
                    pending.remove(task)
                with contextlib.suppress(BlockingIOError):
                    sent.append(theirs.recv(1 << 16, socket.MSG_PEEK))
    return b"".join(dict.fromkeys(sent))


def tls_hello() -> bytes:
    """How a client of TLS begins."""
    sent = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def messages(port: int) -> list[bytes]:
    """What strangers say."""
    generator = random.Random(11)
    hello = {"purpose": "rendezvous", "rank": 1, "protocol": wire.PROTOCOL, "nonce": secrets.token_hex(32)}
    return [
        b"",  # a port scan
        b"",
        generator.randbytes(700),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + generator.randbytes(500),  # TLS
        # And then nothing:
        tls_hello(),
        tls_hello() + b"\x14\x03\x03\x00\x01\x01" + generator.randbytes(300),
        wire.MAGIC[:3],
        wire.MAGIC,
        wire.encode(hello)[:60],
        wire.encode(hello),
        wire.encode(hello) + wire.MAGIC + b"\x00\x00\x01\x00",
        wire.MAGIC + b"\xff\xff\xff\xff" + b"x" * 3000,  # 4 GiB are to follow
        wire.MAGIC + b"\x00\x00\x0f\xa0" + b"[" * 4000,
        wire.encode(hello) + wire.encode({"proof": "0" * 64}) + wire.encode({"keep": True}),
        wire.encode(hello | {"purpose": "data", "job": "x", "to": 0}),
        old_proof(port),
    ]


def visit(ports: list[int], count: int) -> Iterator[int]:
    """So many connections, round robin; the last HELD stay open. Yields how many there were, now and then."""
    said = messages(ports[0])
    held: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for number in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", ports[number % len(ports)]), LIMIT))
            text = said[number % len(said)]
            with contextlib.suppress(ConnectionError):
                sock.sendall(text)
            if number % len(said):
                held.append(sock)
            else:
                sock.close()
            if len(held) > HELD:
                held.pop(0).close()
            if number % 500 == 499:
                yield number + 1


def watch(ranks: list[Rank], visits: Iterator[int], ports: list[int]) -> None:
    """That the strangers cost bounded memory and descriptors: what 1,000 of them cost, the others do not cost again."""

    def sample() -> list[int]:
        for port in ports:
            reach(port)  # then all that came before have been accepted
        return [rank.memory() for rank in ranks]

    before = [rank.descriptors() for rank in ranks]
    memory: list[int] = []
    for count in visits:
        for rank, open_before in zip(ranks, before, strict=True):
            assert rank.process.poll() is None, rank.log.read_text()[-2000:]
            assert rank.descriptors() <= open_before + len(ports) * CAPACITY + 8
        if count == 1000:
            memory = sample()
    for start, end in zip(memory, sample(), strict=True):
        print(f"after 1,000 strangers {start} bytes, after all {end}")
        assert end - start < GROWTH, f"{start} bytes have become {end}"


def refusals(log: str, what: str) -> tuple[int, int]:
    """(how often a refusal was logged, how many were counted) at a port."""
    told = len(re.findall(rf"refused a connection to the {what} ", log))
    counted = re.findall(rf"(\d+) connections to the {what} were refused", log)
    return told, sum(map(int, counted))


def with_tls(folder: Path) -> dict[str, str]:
    cert, key, ca = Authority(folder, "authority").issue("rank")
    return {"COLLECTIVES_TLS_CERT": str(cert), "COLLECTIVES_TLS_KEY": str(key), "COLLECTIVES_TLS_CA": str(ca)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["own", "inherited", "tls"])
def test_ten_thousand_strangers(tmp_path: Path, kind: str) -> None:
    """With a port of rank 0's own, with that under TLS, and (half as many) with a socket inherited from a launcher."""
    inherited = kind == "inherited"
    part = 2 if inherited else 1
    more = with_tls(tmp_path) if kind == "tls" else {}
    with contextlib.ExitStack() as stack:
        reserved = stack.enter_context(socket.socket())
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        address = f"127.0.0.1:{port}"
        if inherited:
            reserved.listen(128)
        else:
            reserved.close()

        def start(rank: int, mode: str = "") -> Rank:
            fd = reserved.fileno() if inherited and rank == 0 else -1
            made = Rank(rank, address, tmp_path / f"log-{rank}", mode, fd, more)
            stack.callback(made.close)
            return made

        ranks = [start(0), start(1)]
        reach(port)
        # The rendezvous is open until rank 2 comes.
        watch(ranks[:1], visit([port], RENDEZVOUS // part), [port])
        ranks.append(start(2, "late"))
        ports = [port for rank in ranks for port in rank.hear()["ports"]]  # type: ignore[attr-defined]
        assert len(ports) == 2, "ranks 0 and 1 accept"
        # And the data ports until it connects.
        watch(ranks[:2], visit(ports, DATA // part), ports)
        ranks[2].tell()
        assert [rank.hear() for rank in ranks] == [{"rank": rank} for rank in range(3)]
        # Nothing listens any more, except what was inherited, which may be needed again.
        assert [rank.listening() for rank in ranks] == [[f"0100007F:{port:04X}"] if inherited else [], [], []]
        before = [(rank.descriptors(), rank.memory()) for rank in ranks]
        for rank in ranks:
            rank.tell()
        knock([port, *ports], AFTERWARDS // part)
        assert [rank.hear() for rank in ranks] == [{"total": 50 * 2 * 6.0}] * 3
        for rank, (descriptors, memory) in zip(ranks, before, strict=True):
            assert rank.descriptors() <= descriptors
            assert rank.memory() - memory < GROWTH
        for rank in ranks:
            assert rank.process.stdin is not None
            rank.process.stdin.close()
        assert [rank.hear() for rank in ranks] == [{"closed": True}] * 3
        assert [rank.process.wait(LIMIT) for rank in ranks] == [0, 0, 0]
        logs = [rank.log.read_text() for rank in ranks]
    # Refused, counted, logged once. Those that are open to the end are neither. A rank that comes in the middle of the
    # flood may be dropped and come again, which counts too.
    told, counted = refusals(logs[0], "rendezvous")
    assert told == 1
    assert RENDEZVOUS // part - HELD - CAPACITY <= counted <= RENDEZVOUS // part + 50
    data = [refusals(log, "data port") for log in logs[:2]]
    assert [told for told, _ in data] == [1, 1]
    assert DATA // part - HELD - 2 * CAPACITY <= sum(counted for _, counted in data) <= DATA // part + 50
    assert not any(TOKEN in log for log in logs)


def reach(port: int) -> None:
    """Waits until the rendezvous is open: until a stranger there is refused."""
    deadline = Deadline(LIMIT)
    while deadline.remaining() > 0:
        with contextlib.suppress(ConnectionRefusedError), socket.socket() as sock:
            sock.settimeout(LIMIT)
            sock.connect(("127.0.0.1", port))
            sock.sendall(b"a stranger")
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
            return
        time.sleep(0.02)  # a poll: the rank says nothing before it has met the others
    raise AssertionError("nothing listens")


def knock(ports: list[int], count: int) -> None:
    """Connections to ports that do not answer: refused, or for ever in the backlog of the kernel."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", ports[number % len(ports)]))
            if number % 500 == 499:
                stack.close()
