"""Forwards the output of ranks line by line."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
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


class Stream:
    """One output of one rank.

    Args:
        rank: shown before each line.
        source: the pipe of the rank, which does not block.
        sink: gets the lines.
    """

    def __init__(self, rank: int, source: IO[bytes], sink: Sink) -> None:
        self.source = source
        self._prefix = f"[{rank}] ".encode()
        self._sink = sink
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
        self._pass_on(lines)
        return bool(data)

    def pump_all(self) -> None:
        """Forwards the output that is there now, not what arrives meanwhile."""
        left = fcntl.fcntl(self.source.fileno(), _F_GETPIPE_SZ)
        while left > 0 and self.pump():
            left -= _PIECE
        self._pass_on([bytes(self._line)] if self._line else [])
        self._line = bytearray()

    def _pass_on(self, lines: list[bytes]) -> None:
        if lines:
            self._sink.write(b"".join(self._prefix + line + b"\n" for line in lines))
