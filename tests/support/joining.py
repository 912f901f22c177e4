"""Ranks as processes that join, from the environment to connected descriptors, and say what they found."""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys

LIMIT = 30.0  # seconds that nothing here may reach

# A rank: connects and reports; then answers commands until its input ends.
PROGRAM = r"""
import fcntl, json, os, resource, select, signal, socket, sys
from collectives._startup.bootstrap import connect
from collectives._startup.environment import read_environment

options = json.loads(sys.stdin.readline())
if "files" in options:
    resource.setrlimit(resource.RLIMIT_NOFILE, (options["files"], options["files"]))
segment = os.memfd_create("segment", os.MFD_CLOEXEC)
environment = read_environment()
os.write(segment, b"memory of rank %d" % environment.rank)
doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if hasattr(os, "eventfd") else os.memfd_create("bell")
before = len(os.listdir("/proc/self/fd"))

if "garbage" in options:
    # Says something else in one round of the rendezvous.
    from collectives._startup import rendezvous as _rendezvous
    honest, rounds = _rendezvous._Spoke._round, []

    def lie(self, value, what):
        rounds.append(what)
        number, garbage = options["garbage"]
        return honest(self, garbage if len(rounds) == number else value, what)

    _rendezvous._Spoke._round = lie

def say(**what):
    print(json.dumps(what), flush=True)

try:
    world = connect(environment, lambda size, room: (segment, doorbell))
except Exception as error:
    say(error=type(error).__name__, text=str(error), peer=getattr(error, "peer", None),
        leaked=len(os.listdir("/proc/self/fd")) - before)
    sys.exit(3)

def wait_for(fd, event):
    poll = select.poll()
    poll.register(fd, event)
    assert poll.poll(20000), "nothing came"

class Peer:
    # Another process; all have one rank.

    def __init__(self, process):
        [self.rank] = process.ranks
        self.host_name, self.pid = process.host_name, process.pid
        self.tcp_fd = world.sockets[0].get(self.rank, -1)
        for name in ("memory_fd", "doorbell_fd", "control_fd", "pid_fd"):
            [descriptor] = getattr(process, name + "s") or [-1]
            setattr(self, name, descriptor)

[rank], size = world.ranks, len(world.host)
others = [Peer(process) for process in world.processes if process.ranks != world.ranks]
peers = {}
for peer in others:
    fds = {name: getattr(peer, name) for name in ("memory_fd", "doorbell_fd", "control_fd", "pid_fd", "tcp_fd")}
    used = [fd for fd in fds.values() if fd >= 0]
    assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in used), "open across exec"
    seen = {"pid": peer.pid, "host_name": peer.host_name, "has": sorted(n for n, fd in fds.items() if fd >= 0)}
    if peer.memory_fd >= 0:
        seen["memory"] = os.pread(peer.memory_fd, 100, 0).decode()
    for name in ("control_fd", "tcp_fd"):
        if fds[name] >= 0:
            assert not os.get_blocking(fds[name])
            os.write(fds[name], bytes([rank]))
    peers[peer.rank] = seen
for peer in others:
    for fd in (peer.control_fd, peer.tcp_fd):
        if fd >= 0:
            wait_for(fd, select.POLLIN)
            assert os.read(fd, 10) == bytes([peer.rank]), "a byte of another rank"
    if peer.tcp_fd >= 0:
        sock = socket.socket(fileno=os.dup(peer.tcp_fd))
        peers[peer.rank]["nodelay"] = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        peers[peer.rank]["address"] = sock.getpeername()[0]
        sock.close()
say(rank=rank, size=size, host=world.host, peers=peers,
    descriptors=len(os.listdir("/proc/self/fd")) - before)

for line in sys.stdin:
    command, _, argument = line.strip().partition(" ")
    peer = next((p for p in others if p.rank == int(argument or -1)), None)
    if command == "death":  # that a peer died shows on its descriptors
        if peer.pid_fd >= 0:
            wait_for(peer.pid_fd, select.POLLIN)
        fd = peer.control_fd if peer.control_fd >= 0 else peer.tcp_fd
        wait_for(fd, select.POLLIN)
        try:
            data = os.read(fd, 10)
        except ConnectionResetError:
            data = b""
        say(dead=data == b"")
    elif command == "close":
        world.close()
        say(left=len(os.listdir("/proc/self/fd")) - before)
"""


class Rank:
    """One rank in a process of its own."""

    def __init__(self, variables, options=None, prefix=(), pass_fds=()):
        environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", PROGRAM],
            env={**environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=pass_fds,
        )
        self.tell(json.dumps(options or {}))

    def tell(self, line):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def hear(self, limit=LIMIT):
        ready, _, _ = select.select([self.process.stdout], [], [], limit)
        assert ready, "a rank says nothing"
        line = self.process.stdout.readline()
        assert line, f"a rank ended with {self.process.wait(LIMIT)} and said nothing"
        return json.loads(line)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(LIMIT)


@contextlib.contextmanager
def job(size, address="127.0.0.1", options=None, prefixes=None, told_size=None, **variables):
    """Ranks as processes. `options` and `prefixes` are per rank; None as a value of a variable leaves it out."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.bind((address, 0))
        listener.listen(64)
        port = listener.getsockname()[1]
        ranks = []
        for rank in range(size):
            own = {
                "COLLECTIVES_RANK": str(rank),
                "COLLECTIVES_SIZE": told_size or str(size),
                "COLLECTIVES_RENDEZVOUS": f"[{address}]:{port}" if ":" in address else f"{address}:{port}",
                "COLLECTIVES_TOKEN": "x" * 64,
                "COLLECTIVES_TIMEOUT": str(LIMIT),
                "COLLECTIVES_RENDEZVOUS_FD": str(listener.fileno()) if rank == 0 else "",
            }
            for name, value in variables.items():
                own[f"COLLECTIVES_{name.upper()}"] = value[rank] if isinstance(value, list) else value
            ranks.append(
                Rank(
                    own,
                    (options or {}).get(rank),
                    (prefixes or {}).get(rank, ()),
                    [listener.fileno()] if rank == 0 else [],
                )
            )
            stack.callback(ranks[-1].close)
        yield ranks


MAPPED = ["control_fd", "doorbell_fd", "memory_fd", "pid_fd"]
