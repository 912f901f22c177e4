"""The connection between ``collectives run`` and what it starts on another host: frames over two pipes.

A frame is its length (4 bytes), its kind (1 byte) and its contents: JSON, or lines of a rank. Before the first frame
comes `GREETING`, since the programs with which one reaches a host print things of their own.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import selectors
import struct
import time
from collections.abc import Callable
from typing import Any

GREETING = b"\ncollectives run, connection 1\n"
BEATS = 4  # frames that come at least, in the time after which a silent peer counts as lost

_HEAD = struct.Struct("!IB")
_LINES = struct.Struct("!I?")
_PIECE = 1 << 16  # bytes that are read at a time
_HIGH = 1 << 20  # bytes that wait to be sent: from then on nothing more should be produced


class Kind(enum.IntEnum):
    """What a frame says; in brackets who sends it: the host or the launcher."""

    HELLO = 1  # (host) its version
    JOB = 2  # (launcher) what to start
    READY = 3  # (host) all is there; where it listens, if it is the first host
    PROBE = 4  # (launcher) addresses of the first host to try
    REACHED = 5  # (host) those that it reaches
    START = 6  # (launcher) the rendezvous
    STARTED = 7  # (host) the process numbers of its ranks
    LINES = 8  # (host) output of a rank
    NOTE = 9  # (host) a line for the user
    ENDED = 10  # (both) a rank has ended, and how
    SIGNAL = 11  # (launcher) a signal for all ranks of the host
    FAILED = 12  # (host) why it cannot go on
    OVER = 13  # (host) nothing more comes; (launcher) all is over, with the exit code
    BEAT = 14  # (both) nothing


class Channel:
    """One end of the connection. It never blocks: what cannot be sent at once waits for the selector.

    Args:
        source, sink: descriptors to read and to write, which become non-blocking; they are closed by the caller.
        greeting: what to expect first, dropped with all that comes before it; empty: nothing.

    Attributes:
        heard: when something came last.
        is_open: False from the end of the source on, or when nothing can be written any more.
        noise: what came before the greeting.
    """

    def __init__(self, source: int, sink: int, greeting: bytes = b"") -> None:
        self.source = source
        self.heard = time.monotonic()
        self.is_open = True
        self.noise = b""
        self._sink = sink
        self._greeting = greeting
        self._received = bytearray()
        self._unsent = bytearray()
        self._sent_at = 0.0
        self._selector: selectors.BaseSelector | None = None
        self._is_watched = False
        for fd in (source, sink):
            os.set_blocking(fd, False)

    def attach(self, selector: selectors.BaseSelector, on_input: Callable[[], None]) -> None:
        """From now on the selector sends what waits, and calls `on_input`, which is to call `read`."""
        self._selector = selector
        selector.register(self.source, selectors.EVENT_READ, on_input)
        self._watch()

    def detach(self) -> None:
        """Undoes `attach`."""
        selector, self._selector = self._selector, None
        if selector is not None:
            selector.unregister(self.source)
            if self._is_watched:
                self._is_watched = False
                selector.unregister(self._sink)

    def send(self, kind: Kind, contents: object = None) -> None:
        """Sends a frame, now or later."""
        self._put(kind, b"" if contents is None else json.dumps(contents).encode())

    def send_lines(self, rank: int, is_error: bool, lines: list[bytes]) -> None:
        """Sends lines of a rank, given without their ends."""
        self._put(Kind.LINES, _LINES.pack(rank, is_error) + b"\n".join(lines))

    def send_raw(self, data: bytes) -> None:
        """Sends bytes that are no frame."""
        self._unsent += data
        self.flush()

    def beat(self, interval: float) -> None:
        """Sends a frame if none was sent for so many seconds."""
        if time.monotonic() - self._sent_at >= interval and not self._unsent:
            self.send(Kind.BEAT)
        self.flush()

    def flush(self) -> None:
        """Sends what can be sent now."""
        try:
            while self._unsent and self.is_open:
                del self._unsent[: os.write(self._sink, self._unsent[:_PIECE])]
                self._sent_at = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:  # the reader is gone; the end of the source says so, too
            self._unsent.clear()
        self._watch()

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return len(self._unsent)

    @property
    def is_crowded(self) -> bool:
        """Whether more waits to be sent than should."""
        return len(self._unsent) > _HIGH

    def read(self) -> list[tuple[Kind, Any]]:
        """The frames that have come, each with what its JSON says, or (rank, is_error, lines)."""
        try:
            data = os.read(self.source, _PIECE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.heard = time.monotonic()
        self.is_open = bool(data)
        self._received += data
        if self._greeting:
            before, found, rest = bytes(self._received).partition(self._greeting)
            self.noise = before
            if not found:
                return []
            self._greeting = b""
            self._received = bytearray(rest)
        frames = []
        while len(self._received) >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._received)
            if len(self._received) < _HEAD.size + length:
                break
            contents = bytes(self._received[_HEAD.size : _HEAD.size + length])
            del self._received[: _HEAD.size + length]
            frames.append((Kind(kind), _unpack(Kind(kind), contents)))
        return frames

    def _put(self, kind: Kind, contents: bytes) -> None:
        self._unsent += _HEAD.pack(len(contents), kind) + contents
        self.flush()

    def _watch(self) -> None:
        """Has the selector call `flush` while something waits."""
        wanted = bool(self._unsent) and self._selector is not None
        if wanted != self._is_watched and self._selector is not None:
            self._is_watched = wanted
            if wanted:
                self._selector.register(self._sink, selectors.EVENT_WRITE, self.flush)
            else:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(self._sink)


def _unpack(kind: Kind, contents: bytes) -> Any:
    if kind is Kind.LINES:
        rank, is_error = _LINES.unpack_from(contents)
        return rank, is_error, contents[_LINES.size :].split(b"\n")
    return json.loads(contents) if contents else None
