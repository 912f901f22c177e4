"""The communicators that are open, so that a process that ends leaves them in good order."""

from __future__ import annotations

import atexit
import itertools
import sys
import traceback
import weakref
from typing import TYPE_CHECKING

from . import _core

if TYPE_CHECKING:
    from .communicator import Communicator

_MOST = 500  # characters of an exception that the others are told

_numbers = itertools.count()
_open: weakref.WeakValueDictionary[int, Communicator] = weakref.WeakValueDictionary()


def register(communicator: Communicator) -> None:
    """Has it closed when the process ends."""
    _open[next(_numbers)] = communicator


@atexit.register
def _leave() -> None:
    # So that the peers know this end from a crash. Groups before what they were made of.
    why = _uncaught()
    for _, communicator in sorted(_open.items(), reverse=True):
        if why:
            _core._abandon(communicator, why)
        communicator.close()


def _has_ended_the_program(error: BaseException) -> bool:
    """Whether nothing has caught it: it went through the outermost frame of the main module."""
    if error.__traceback__ is None:
        return False
    code = error.__traceback__.tb_frame.f_code
    return code.co_name in ("<module>", "_run_module_as_main") and not code.co_filename.startswith("<ipython")


def _uncaught() -> str:
    """The exception by which the program ends, empty when it ends in another way."""
    error = getattr(sys, "last_value", None)  # where the interpreter leaves it, and test runners and consoles, too
    if error is None or hasattr(sys, "ps1") or not _has_ended_the_program(error):  # at a prompt it went on after that
        return ""
    text = "".join(traceback.format_exception_only(error)).strip()
    return text if len(text) <= _MOST else text[:_MOST] + "..."
