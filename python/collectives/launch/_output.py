"""Forwards the output of ranks line by line."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_LINE_LIMIT = 1 << 16  # bytes of an unfinished line that are kept
_PIECE = 1 << 16  # bytes that are read at a time
_ATOMIC = 4096  # bytes that a writable pipe accepts without blocking (PIPE_BUF)
_F_GETPIPE_SZ = 1032  # fcntl.F_GETPIPE_SZ, which some builds of Python lack


class Sink:
    """An output of this process, written only when its reader makes room, so that a write never blocks.

    Args:
        stream: ``sys.stdout`` or ``sys.stderr``; None in a process that was started with it closed.
        until_writable: called with the descriptor before each piece; waits until it is writable. False: stop writing.
    """

    def __init__(self, stream: Any, until_writable: Callable[[int], bool]) -> None:
        self._stream = stream
        self._until_writable = until_writable
        self._fd = -1  # -1: the stream is no file, as in a notebook or a test
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self._fd = stream.fileno()

    def write(self, data: bytes) -> None:
        """Writes all data. If the reader is gone, drops them: the ranks continue without output."""
        with contextlib.suppress(OSError, ValueError):
            if self._stream is None:
                return
            if self._fd < 0:
                self._stream.write(data.decode(errors="replace"))
                self._stream.flush()
                return
            self._stream.flush()
            view = memoryview(data)
            while view and self._until_writable(self._fd):
                view = view[os.write(self._fd, view[:_ATOMIC]) :]


@dataclass(frozen=True)
class Printing:
    """How the lines of ranks are shown.

    Attributes:
        prefix: each begins with ``[rank] ``.
        folder: where each rank's output also goes into files, ``rank-N.out`` and ``rank-N.err``; None: nowhere.
    """

    prefix: bool = True
    folder: Path | None = None


class Printer:
    """Shows the lines of ranks: on stdout and stderr of this process, and in files.

    Args:
        out, err: for what ranks print to stdout and to stderr.
    """

    def __init__(self, out: Sink, err: Sink, printing: Printing) -> None:
        self._sinks = (out, err)
        self._printing = printing

    def prepare(self, ranks: int) -> None:
        """Makes the folder and an empty file for each output.

        Raises:
            ValueError: one cannot be written.
        """
        folder = self._printing.folder
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                for rank in range(ranks):
                    for is_error in (False, True):
                        self._file(rank, is_error).write_bytes(b"")
            except OSError as error:
                raise ValueError(f"--log-dir {str(folder)!r} cannot be written: {error.strerror}") from None

    def lines(self, rank: int, is_error: bool, lines: list[bytes]) -> None:
        """Shows lines of one rank, given without their ends."""
        if not lines:
            return
        if self._printing.folder is not None:
            # Not kept open: two files for each rank may be more than a process may have. A full disk ends no job.
            with contextlib.suppress(OSError), self._file(rank, is_error).open("ab") as file:
                file.write(b"".join(line + b"\n" for line in lines))
        prefix = f"[{rank}] ".encode() if self._printing.prefix else b""
        self._sinks[is_error].write(b"".join(prefix + line + b"\n" for line in lines))

    def _file(self, rank: int, is_error: bool) -> Path:
        assert self._printing.folder is not None
        return self._printing.folder / f"rank-{rank}.{'err' if is_error else 'out'}"


class Stream:
    """One output of a process, taken apart into lines.

    Args:
        source: the pipe from the process, which does not block.
        deliver: called with lines, without their ends.
    """

    def __init__(self, source: IO[bytes], deliver: Callable[[list[bytes]], None]) -> None:
        self.source = source
        self._deliver = deliver
        self._line = bytearray()

    def pump(self) -> bool:
        """Forwards the output that is there; False at the end of the stream."""
        try:
            data = os.read(self.source.fileno(), _PIECE)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self._line += data
        *lines, rest = bytes(self._line).split(b"\n")
        if rest and (not data or len(rest) > _LINE_LIMIT):
            lines, rest = [*lines, rest], b""
        self._line = bytearray(rest)
        if lines:
            self._deliver(lines)
        return bool(data)

    def pump_all(self) -> None:
        """Forwards the output that is there now, not what arrives meanwhile."""
        left = fcntl.fcntl(self.source.fileno(), _F_GETPIPE_SZ)
        while left > 0 and self.pump():
            left -= _PIECE
        if self._line:
            self._deliver([bytes(self._line)])
        self._line = bytearray()
