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
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from paths import SUPPORT

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
PATIENCE = float(os.environ.get("TESTS_PATIENCE", "1"))  # how many times as long, under an emulator
LIMIT = 120.0 * PATIENCE  # seconds for a nursery to answer; the first answer comes when it has imported everything
NONE = b"none"  # the answer when there is no new process
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
        if self.poll() is None:
            assert timeout is not None
            descriptor = os.pidfd_open(self.pid)
            ended, _, _ = select.select([descriptor], [], [], timeout)
            os.close(descriptor)
            if not ended:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        code = self.poll()
        assert code is not None
        return code

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
        path = [str(SUPPORT), *sys.path]
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
        if answer == NONE:
            raise RuntimeError("the nursery could not fork; what it wrote to stderr says why")
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
            number_read, number_write = os.pipe()
            begin_read, begin_write = os.pipe()
            middle = os.fork()
            if middle == 0:
                try:
                    pid = os.fork()
                except OSError:
                    traceback.print_exc()
                    os._exit(1)
                if pid:
                    os.write(number_write, str(pid).encode())
                    os._exit(0)
                for descriptor in (number_read, number_write, begin_write):
                    os.close(descriptor)
                link.close()
                return functools.partial(_begin, parent, begin_read, request, list(received))
            os.close(number_write)
            os.waitpid(middle, 0)  # from now on the new process is a child of the caller
            os.write(begin_write, b".")
            link.send(os.read(number_read, 100) or NONE)
            for descriptor in (number_read, begin_read, begin_write, *received):
                os.close(descriptor)


def _begin(parent: int, begin: int, request: bytes, received: Sequence[int]) -> None:
    os.read(begin, 1)  # until the process in the middle has ended
    os.close(begin)
    if os.getppid() != parent:
        raise RuntimeError(f"process {parent} asked for this one, and its parent is {os.getppid()}")
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
