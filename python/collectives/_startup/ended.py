"""A file in which a launcher records the ranks that have ended, for the others that would wait for them.

All ranks inherit its descriptor. The first line is derived from the token of the job: a rank so detects a descriptor
that has become another file. The second line is the size of the job; each further line has the number of a rank, its
process number, and how it ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile

from .system import memfd_create


class EndedRanks:
    """The launcher's side.

    Args:
        size: of the job.
        token: of the job.

    Attributes:
        fd: the descriptor for the ranks; -1 where no file can be had, neither in memory nor on a disk.
    """

    def __init__(self, size: int, token: str) -> None:
        self.fd = _make()
        self._length = 0
        self._append(f"{_name(token.encode())}\n{size}\n")

    def add(self, rank: int, pid: int, how: str) -> None:
        """Records that a rank has ended.

        Args:
            how: such as ``"was killed by signal 9 (SIGKILL)"``.
        """
        self._append(f"{rank} {pid} {how}\n")

    def close(self) -> None:
        """Closes the launcher's descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _append(self, text: str) -> None:
        if self.fd >= 0:
            with contextlib.suppress(OSError):  # the disk is full: the others wait for their deadline
                # By pwrite: the ranks share the file position of the descriptor.
                self._length += os.pwrite(self.fd, text.encode(), self._length)


class EndedRanksReader:
    """A rank's side.

    Args:
        fd: the descriptor from the launcher; -1: none.
        size: of the job; differs from that in the file where the program has started a job of its own.
        token: of the job.
    """

    def __init__(self, fd: int, size: int, token: bytes) -> None:
        self._fd = fd
        self._read = 0
        try:
            head = f"{_name(token)}\n{size}\n".encode()
            if fd < 0 or os.pread(fd, len(head), 0) != head:
                self._fd = -1
                return
            self._read = len(head)
            os.set_inheritable(fd, False)
        except OSError:  # it is closed, or no file
            self._fd = -1

    @property
    def useful(self) -> bool:
        """Whether there is such a file."""
        return self._fd >= 0

    def new(self) -> list[tuple[int, int, str]]:
        """(rank, process number, how it ended) of the ranks that have ended since the last call."""
        data = b""
        with contextlib.suppress(OSError):
            while piece := os.pread(self._fd, 1 << 16, self._read + len(data)):
                data += piece
        lines, newline, _ = data.rpartition(b"\n")  # the rest is a line that is still being written
        self._read += len(lines) + len(newline)
        found = []
        for line in lines.decode(errors="replace").splitlines():
            rank, pid, how = line.split(" ", 2)
            found.append((int(rank), int(pid), how))
        return found


def _make() -> int:
    try:
        return memfd_create("collectives-ended")
    except OSError:
        with contextlib.suppress(OSError), tempfile.TemporaryFile(prefix="collectives-ended") as file:
            return os.dup(file.fileno())
        return -1


def _name(token: bytes) -> str:
    return "ranks that have ended " + hashlib.sha256(b"ended " + token).hexdigest()
