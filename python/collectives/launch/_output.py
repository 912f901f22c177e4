"""What ranks print, passed on line by line."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import IO, Any

_LINE_LIMIT = 1 << 16  # bytes of one line that are held back
_PIECE = 1 << 16  # bytes that are read at a time
_ATOMIC = 4096  # bytes for which a pipe has room when it says that it has (PIPE_BUF)
_F_GETPIPE_SZ = 1032  # fcntl.F_GETPIPE_SZ, which Python lacks where its C library did


class Sink:
    """Output of this process, which is not written before somebody makes room for it.

    Args:
        stream: ``sys.stdout`` or ``sys.stderr``; None in a process that was started with it closed.
        until_writable: called with the descriptor of the stream before each piece; False: nothing more is written.
    """

    def __init__(self, stream: Any, until_writable: Callable[[int], bool]) -> None:
        self._stream = stream
        self._until_writable = until_writable
        self._fd = -1  # where the stream is no file: in a notebook, or a test
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self._fd = stream.fileno()

    def write(self, data: bytes) -> None:
        """Writes all of it, unless nobody listens any more: the ranks go on all the same."""
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
        """Passes on what is there; False at the end."""
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
        """Passes on what is there now, and not what comes meanwhile."""
        left = fcntl.fcntl(self.source.fileno(), _F_GETPIPE_SZ)
        while left > 0 and self.pump():
            left -= _PIECE
        self._pass_on([bytes(self._line)] if self._line else [])
        self._line = bytearray()

    def _pass_on(self, lines: list[bytes]) -> None:
        if lines:
            self._sink.write(b"".join(self._prefix + line + b"\n" for line in lines))
