"""``shrink``: a communicator of the surviving ranks.

The core agrees on the survivors and makes the communicator. A barrier on it then confirms that all members have it.
When a member has died meanwhile, the barrier fails and the others shrink the new communicator in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core
from .._startup import at_exit
from ..errors import DeadlineError, PeerError
from .arguments import patience_of

if TYPE_CHECKING:
    from ..communicator import Communicator


def shrink(parent: Communicator, timeout: float | None) -> Communicator:
    """See ``Communicator.shrink``."""
    patience = patience_of(parent, timeout)
    made = parent
    while True:
        made = type(parent)(_core._shrink(made, patience), transport=parent._nccl.transport)
        at_exit.register(made)
        try:
            made.barrier(timeout=patience, name="shrink")
            return made
        except (PeerError, DeadlineError):
            continue
