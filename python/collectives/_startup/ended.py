"""A file in which a launcher notes the ranks that have ended, for the others to read while they wait for them.

All ranks inherit it. Its first line is a name that who does not know the token of the job cannot guess, so that a
descriptor which has become something else is not taken for it; the second is the size of the job; each further line has
the number of a rank, its process number, and how it has ended.
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

    def note(self, rank: int, pid: int, how: str) -> None:
        """Says that a rank has ended.

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
            with contextlib.suppress(OSError):  # the disk is full: the others wait, as long as they would without us
                # Not at the descriptor's own place, which is also the ranks'.
                self._length += os.pwrite(self.fd, text.encode(), self._length)


class EndedRanksReader:
    """A rank's side.

    Args:
        fd: what the launcher has told; -1: nothing.
        size: of the job, which is another than the launcher's where the program has a job of its own.
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
        """Number, process number and end of the ranks that have ended since the last look."""
        data = b""
        with contextlib.suppress(OSError):
            while piece := os.pread(self._fd, 1 << 16, self._read + len(data)):
                data += piece
        whole, newline, _ = data.rpartition(b"\n")  # the rest is being written
        self._read += len(whole) + len(newline)
        found = []
        for line in whole.decode(errors="replace").splitlines():
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
