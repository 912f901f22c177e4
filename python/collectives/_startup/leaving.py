"""The communicators that are open, so that a process that ends leaves them in good order, and the cause is seen first.

Launchers call the first rank that ends with an error the cause. Often that is one that waited for another, which raised
an exception and needs a second to end, while the one that waits hears of it at once. So a rank that ends by `PeerError`
ends after its peer.
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

_MOST = 500  # characters of an exception that the others are told
_PATIENCE = 5.0  # seconds for a peer to end
_NOTICE = 1.0  # seconds for a launcher to see that it has ended; torchrun looks ten times a second

_numbers = itertools.count()
_open: weakref.WeakValueDictionary[int, Communicator] = weakref.WeakValueDictionary()
_ranks: set[int] = set()  # the process that is a rank; and those that it was forked from


def begin() -> None:
    """This process is about to join a job."""
    _ranks.add(os.getpid())


def register(communicator: Communicator) -> None:
    """Has it closed when the process ends."""
    _open[next(_numbers)] = communicator


@atexit.register
def _leave() -> None:
    # So that the peers know this end from a crash. Groups before what they were made of.
    error = _uncaught()
    peer = _peer_error(error) if os.getpid() in _ranks else None
    if error is not None and peer is None:
        _write_error_file(error)  # before others hear of it, and end
    for _, communicator in sorted(_open.items(), reverse=True):
        if error is not None:
            _core._abandon(communicator, _in_short(error))
        communicator.close()
    if error is not None and peer is not None:
        _let_end(peer)
        _write_error_file(error)


def _let_end(error: PeerError) -> None:
    """Waits until the process at fault has ended and its launcher has seen it, which may then end this process."""
    if error.pid is not None and error.host == socket.gethostname() and error.pid != os.getpid():
        with contextlib.suppress(OSError):  # it has ended already, or runs where it cannot be seen
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
    """What torchrun shows of a rank that has failed, as torch's own ``record`` writes it, where that has not."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.getpid() not in _ranks:  # a child of a rank has the variable, too
        return
    extra = {"py_callstack": "".join(traceback.format_exception(error)), "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    with contextlib.suppress(OSError), open(path, "x", encoding="utf-8") as file:
        json.dump({"message": message}, file)


def _peer_error(error: BaseException | None) -> PeerError | None:
    """The error about a peer that this one is, or has come from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, PeerError):
            return error
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def _has_ended_the_program(error: BaseException) -> bool:
    """Whether nothing has caught it: it went through the outermost frame of the main module."""
    if error.__traceback__ is None:
        return False
    code = error.__traceback__.tb_frame.f_code
    return code.co_name in ("<module>", "_run_module_as_main") and not code.co_filename.startswith("<ipython")


def _uncaught() -> BaseException | None:
    """The exception by which the program ends, None when it ends in another way."""
    error = getattr(sys, "last_value", None)  # where the interpreter leaves it, and test runners and consoles, too
    if error is None or hasattr(sys, "ps1") or not _has_ended_the_program(error):  # at a prompt it went on after that
        return None
    return error  # type: ignore[no-any-return]


def _in_short(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    return text if len(text) <= _MOST else text[:_MOST] + "..."
