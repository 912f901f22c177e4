"""Collective communication for data-parallel training.

>>> import numpy as np, collectives
>>> comm = collectives.init()
>>> gradient = np.ones(1000, np.float32)
>>> comm.all_reduce(gradient, op="avg")

``init`` joins the job that this process was started in (by ``collectives run``, or with the variables
``COLLECTIVES_RANK``, ``COLLECTIVES_SIZE``, ``COLLECTIVES_RENDEZVOUS`` and ``COLLECTIVES_TOKEN``); ``world`` returns the
same communicator anywhere in the process. ``spawn`` runs a function in new processes. ``local_group`` makes
communicators for threads of one process, ``init(replicas=k)`` for threads of several processes.
"""

from __future__ import annotations

from ._startup import interpreter  # noqa: F401 (first: later imports hang in a subinterpreter)

# isort: split
from ._arrays.per_rank import PerRank
from ._calls.messages import Incoming, Received
from ._devices.cuda import cuda_available
from ._distribution import library_version
from ._startup.recorder import dump_recorder
from ._world import init, local_group, world
from .communicator import Communicator, Work
from .errors import BackendError, ClosedError, CollectivesError, DeadlineError, ForkedError, MismatchError, PeerError
from .launch.info import info
from .launch.spawn import spawn
from .work import wait_all

__version__ = library_version()

__all__ = [
    "BackendError",
    "ClosedError",
    "CollectivesError",
    "Communicator",
    "DeadlineError",
    "ForkedError",
    "Incoming",
    "MismatchError",
    "PeerError",
    "PerRank",
    "Received",
    "Work",
    "cuda_available",
    "dump_recorder",
    "info",
    "init",
    "local_group",
    "spawn",
    "wait_all",
    "world",
]
