"""The placement of the cores of ranks 0 and 1, measured by the latency of a flag between them.

Virtual processors move between physical cores every second or so, and a collective takes up to six times longer when
they share no cache. Blocks of measurements are therefore tagged by a probe before and one after.
"""

from __future__ import annotations

import socket
from typing import Any

import collectives
import numpy as np
from collectives import _core, _world
from collectives._startup import environment as _environment

# One-way latency in nanoseconds up to which a pair of cores counts as: two threads of one core, two cores with one
# level-3 cache, two cores without. Beyond the last, something else ran on one of the cores.
BORDERS = {"smt": 45.0, "near": 150.0, "far": 1000.0}
PLACEMENTS = (*BORDERS, "unknown")

_ROUNDS = 24
_REPEATS = 5


def classify(nanoseconds: float) -> str:
    """The placement for a latency."""
    return next((name for name, border in BORDERS.items() if nanoseconds < border), "unknown")


class Probe:
    """Measures the placement. Made by all ranks together."""

    def __init__(self, comm: collectives.Communicator, timeout: float) -> None:
        self._timeout = timeout
        self._comm: Any = None
        self._peer = 1 - comm.rank
        if comm.size < 2:
            return
        host = _core._describe(comm)["host"]
        if host[0] == host[1]:
            self._comm = comm if comm.rank < 2 else None
        else:
            self._comm = _mapped_pair(comm, timeout)

    def __call__(self) -> str:
        """The placement now. Ranks 0 and 1 call it together; on others it returns at once."""
        if self._comm is None:
            return "unknown"
        # The smallest of several short probes: a probe that was interrupted is too long, none can be too short.
        return classify(
            min(_core._flag_latency(self._comm, self._peer, _ROUNDS, self._timeout) for _ in range(_REPEATS))
        )

    def close(self) -> None:
        """Closes the communicator that was made for probing."""
        self._comm = None


def _mapped_pair(comm: collectives.Communicator, timeout: float) -> Any:
    """A communicator over shared memory between ranks 0 and 1, for groups that were told to use TCP.

    None when they share no memory. `init` makes one communicator per process, so this goes one level below it.
    """
    address = np.zeros(1, np.int64)
    variables = {}
    listener = None
    if comm.rank == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        address[0] = listener.getsockname()[1]
        variables["COLLECTIVES_RENDEZVOUS_FD"] = str(listener.detach())
    comm.broadcast(address)
    pair = None
    if comm.rank < 2:
        environment = _environment.read_environment(
            rank=comm.rank,
            size=2,
            rendezvous=f"127.0.0.1:{address[0]}",
            token="",
            transport="shm",
            timeout=min(timeout, 10.0),
            environ=variables,
        )
        try:
            (handle,) = _world._connect(environment, {**_world._options(timeout), "heap_bytes": 1 << 20})
            pair = collectives.Communicator(handle)
        except (collectives.CollectivesError, OSError):
            pair = None  # two hosts
    # Either both ranks have it, or neither uses it.
    both = np.array([pair is not None or comm.rank > 1], np.bool_)
    comm.all_reduce(both, "min")
    return pair if both[0] else None
