"""Processes that begin with everything imported: most of what a short test of ranks would take is the start of Python.

A nursery is a process that has imported modules and done nothing else. `Nursery.start` has it fork; the new process
gets descriptors, an environment and a function to run. It begins in the folder of the caller and is a child of it,
like one that was started by `subprocess`. Where a test is about how processes start, or needs a command before the
interpreter, use `subprocess`.
"""

from __future__ import annotations

import array
import ctypes
import functools
import importlib
import mmap
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
LIMIT = 60.0  # seconds for a nursery to answer; the first answer comes when it has imported everything
MOST_DESCRIPTORS = 8
STANDARD = (1, 2)  # of the caller at this moment: pytest changes what they are


class Process:
    """A process of a nursery, as `subprocess.Popen` would show it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None as long as it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end. Raises ``subprocess.TimeoutExpired``."""
        if timeout is None and self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        end = time.monotonic() + (timeout or 0)
        pause = 0.0005
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(pause)  # a poll, as in subprocess: waitpid() knows no deadline
            pause = min(2 * pause, 0.02)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """One nursery.

    Args:
        modules: what its processes find imported.
        variables: of its environment, for modules that read it when they are imported.
    """

    def __init__(self, modules: Sequence[str], variables: dict[str, str] | None = None) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = [str(Path(__file__).parent), *sys.path]
        program = f"import sys; sys.path[:] = {path!r}; import nursery; "
        program += f"nursery.live({theirs.fileno()}, {list(modules)!r})()"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**environ, **(variables or {})},
            )
        self._link.settimeout(LIMIT)

    def start(self, fn: Callable[..., Any], descriptors: Sequence[int], environ: dict[str, str]) -> Process:
        """A process that runs ``fn(*descriptors)``, with its own numbers for the descriptors, and then ends."""
        request = pickle.dumps((fn.__module__, fn.__qualname__, environ, os.getcwd()))
        # Whose parent ends becomes a child of the nearest process above that has asked for that; only while it is
        # needed, since the orphans of a test are to stay orphans.
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [*STANDARD, *descriptors]))
            self._link.sendmsg([request], [rights])
            answer = self._link.recv(100)
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise RuntimeError(f"the nursery ended with code {self._process.wait(LIMIT)}")
        return Process(int(answer))

    def close(self) -> None:
        """Ends the nursery; its processes go on."""
        self._link.close()
        try:
            self._process.wait(LIMIT)
        finally:
            self._process.kill()


_nurseries: dict[tuple[str, ...], Nursery] = {}


def nursery(*modules: str, **variables: str) -> Nursery:
    """The nursery of this process with these modules, made when it is first needed."""
    if modules not in _nurseries:
        _nurseries[modules] = Nursery(modules, variables)
    return _nurseries[modules]


def close_all() -> None:
    while _nurseries:
        _nurseries.popitem()[1].close()


# --- in the nursery -------------------------------------------------------------------------------------------------


def live(descriptor: int, modules: Sequence[str]) -> Callable[[], Any]:
    """Forks until the caller goes. Returns in each new process, with what that one is to run, and in the nursery."""
    parent = os.getppid()
    for module in modules:
        importlib.import_module(module)
    with socket.socket(fileno=descriptor) as link:
        size = socket.CMSG_SPACE(array.array("i").itemsize * (len(STANDARD) + MOST_DESCRIPTORS))
        while True:
            request, rights, _, _ = link.recvmsg(1 << 20, size)
            if not request:
                return lambda: None
            received = array.array("i")
            for _, _, data in rights:
                received.frombytes(data)
            read, write = os.pipe()
            middle = os.fork()
            if middle == 0:
                if pid := os.fork():
                    os.write(write, str(pid).encode())
                    os._exit(0)
                os.close(read)
                os.close(write)
                link.close()
                return functools.partial(_begin, parent, request, list(received))
            os.waitpid(middle, 0)  # from now on the new process is a child of the caller
            link.send(os.read(read, 100))
            for number in (read, write, *received):
                os.close(number)


def _begin(parent: int, request: bytes, received: Sequence[int]) -> None:
    end = time.monotonic() + LIMIT
    while os.getppid() != parent:
        if time.monotonic() > end:
            raise RuntimeError("the process that asked for this one is not its parent")
        time.sleep(0.0002)  # a poll: until the process in the middle has ended
    standard, rest = received[: len(STANDARD)], received[len(STANDARD) :]
    for number, target in zip(standard, STANDARD, strict=True):
        os.dup2(number, target)
        os.close(number)
    module, name, environ, folder = pickle.loads(request)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    _shift_addresses()
    function = getattr(importlib.import_module(module), name)
    function(*rest)


_shift: list[mmap.mmap] = []


def _shift_addresses() -> None:
    """What is mapped from now on lies elsewhere than in the other processes of the nursery."""
    random.seed()
    pages = random.randrange(1, 1 << 18)
    _shift.append(mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
