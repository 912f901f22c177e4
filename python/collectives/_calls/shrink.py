"""``shrink``: a communicator of the surviving ranks.

The core agrees on the survivors and makes the communicator. A barrier on it then confirms that all members have it.
When a member has died meanwhile, the barrier fails and the others shrink the new communicator in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core
from .._startup import at_exit
from ..errors import DeadlineError, PeerError
from .arguments import is_number

if TYPE_CHECKING:
    from ..communicator import Communicator

_FOREVER = 1e9  # seconds; the core counts nanoseconds in 64 bits, and infinity is an accepted time limit


def shrink(parent: Communicator, timeout: float | None) -> Communicator:
    """See ``Communicator.shrink``."""
    if timeout is not None and not (is_number(timeout) and timeout > 0):
        raise ValueError(f"timeout is {timeout!r}; a positive number of seconds is accepted")
    patience = _core._describe(parent)["timeout"] if timeout is None else float(timeout)
    made = parent
    while True:
        made = type(parent)(_core._shrink(made, min(patience, _FOREVER)), transport=parent._nccl.transport)
        at_exit.register(made)
        try:
            made.barrier(timeout=patience, name="shrink")
            return made
        except (PeerError, DeadlineError):
            continue
