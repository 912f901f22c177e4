"""The communicators that are open, so that a process that ends leaves them in good order."""

from __future__ import annotations

import atexit
import itertools
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .communicator import Communicator

_numbers = itertools.count()
_open: weakref.WeakValueDictionary[int, Communicator] = weakref.WeakValueDictionary()


def register(communicator: Communicator) -> None:
    """Has it closed when the process ends."""
    _open[next(_numbers)] = communicator


@atexit.register
def _leave() -> None:
    # So that the peers know this end from a crash. Groups before what they were made of.
    for _, communicator in sorted(_open.items(), reverse=True):
        communicator.close()
