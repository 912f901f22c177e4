"""Closes the open communicators when the process ends, and makes a rank that failed end before those that noticed it.

Launchers report the first rank that ends with an error as the cause. A rank that fails with an exception needs a second
to end, while the ranks that wait for it get their `PeerError` at once and could end first. So a rank that ends by
`PeerError` waits until its peer has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import select
import socket
import sys
import time
import traceback
import weakref
from typing import TYPE_CHECKING

from .. import _core
from ..errors import PeerError
from .system import pidfd_open

if TYPE_CHECKING:
    from ..communicator import Communicator

_MOST = 500  # characters of an exception that the other ranks get
_PATIENCE = 5.0  # seconds for a peer to end
_NOTICE = 1.0  # seconds for a launcher to notice its end; torchrun polls ten times a second

_numbers = itertools.count()
_open: weakref.WeakValueDictionary[int, Communicator] = weakref.WeakValueDictionary()
_ranks: set[int] = set()  # pids: this process if it is a rank, and the ranks that it was forked from


def mark_as_rank() -> None:
    """Records that this process is about to join a job."""
    _ranks.add(os.getpid())


def register(communicator: Communicator) -> None:
    """Closes the communicator when the process ends."""
    _open[next(_numbers)] = communicator


@atexit.register
def _close_all() -> None:
    # Closing tells the peers that this is no crash. Groups are closed before the communicators that they come from.
    error = _uncaught()
    peer = _peer_error(error) if os.getpid() in _ranks else None
    if error is not None and peer is None:
        _write_error_file(error)  # before other ranks learn of the error and end
    for _, communicator in sorted(_open.items(), reverse=True):
        if error is not None:
            _core._abandon(communicator, _shorten(error))
        communicator.close()
    _core._stop_callbacks()  # all have run; a thread of theirs must not meet an interpreter that is gone
    if error is not None and peer is not None:
        _wait_for_end(peer)
        _write_error_file(error)


def _wait_for_end(error: PeerError) -> None:
    """Waits until the process at fault has ended and its launcher has noticed, which may then end this process."""
    if error.pid is not None and error.host == socket.gethostname() and error.pid != os.getpid():
        with contextlib.suppress(OSError):  # it has ended already, or runs in another pid namespace
            descriptor = pidfd_open(error.pid)
            try:
                ended = select.poll()
                ended.register(descriptor, select.POLLIN)
                if not ended.poll(_PATIENCE * 1000):
                    return
            finally:
                os.close(descriptor)
    time.sleep(_NOTICE)


def _write_error_file(error: BaseException) -> None:
    """Writes the file from which torchrun reports a failed rank, as torch's ``record`` does, unless it exists."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.getpid() not in _ranks:  # a child of a rank inherits the variable, but is no rank
        return
    extra = {"py_callstack": "".join(traceback.format_exception(error)), "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    with contextlib.suppress(OSError), open(path, "x", encoding="utf-8") as file:
        json.dump({"message": message}, file)


def _peer_error(error: BaseException | None) -> PeerError | None:
    """The PeerError that this error is, or was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, PeerError):
            return error
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def _ended_program(error: BaseException) -> bool:
    """Whether the error was not caught: its traceback begins in the outermost frame of the main module."""
    if error.__traceback__ is None:
        return False
    code = error.__traceback__.tb_frame.f_code
    return code.co_name in ("<module>", "_run_module_as_main") and not code.co_filename.startswith("<ipython")


def _uncaught() -> BaseException | None:
    """The exception that ends the program, None when it ends in another way."""
    error = getattr(sys, "last_value", None)  # set by the interpreter, but also by test runners and consoles
    if error is None or hasattr(sys, "ps1") or not _ended_program(error):  # ps1: at a prompt an error ends nothing
        return None
    return error  # type: ignore[no-any-return]


def _shorten(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    return text if len(text) <= _MOST else text[:_MOST] + "..."
