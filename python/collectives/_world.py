"""Where communicators come from: the job of this process, or a group of threads."""

from __future__ import annotations

import os
import threading
import weakref

from . import _bootstrap, _core, _leaving
from ._environment import Environment, read_environment, read_symmetric_heap, warn_of_unknown_variables
from .communicator import Communicator
from .errors import CollectivesError

DEFAULT_TIMEOUT = 600.0  # seconds: chiefs write checkpoints, graphs get traced
WARN_AFTER = 60.0

_lock = threading.Lock()
_world: weakref.ref[Communicator] | None = None


def _options(timeout: float | None) -> dict[str, float | int]:
    seconds = DEFAULT_TIMEOUT if timeout is None else timeout
    return {"timeout": seconds, "warn": min(WARN_AFTER, seconds / 2), "heap_bytes": read_symmetric_heap()}


def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    token: str | bytes | None = None,
    transport: str | None = None,
    timeout: float | None = None,
) -> Communicator:
    """Joins the job of this process and returns its communicator.

    Every argument left out is taken from the environment variable of its name (``COLLECTIVES_RANK`` and so on); when
    nothing is said at all, the world is this process alone. A variable that begins with ``COLLECTIVES_`` and is unknown
    gives a RuntimeWarning.

    Args:
        rank, size: the number of this process and how many there are.
        rendezvous: ``host:port`` on which rank 0 listens, the same on every rank.
        token: secret of the job, the same on every rank; needed when the rendezvous is not on loopback.
        transport: "auto" (shared memory inside a host, TCP between hosts), "shm" or "tcp".
        timeout: seconds that starting (default 60) and each collective (default 600) may take.

    Raises:
        CollectivesError: this process has an open communicator already.
        DeadlineError: not all ranks came in time.
        MismatchError: ranks were started differently.
        ValueError, TypeError: an argument or variable is not acceptable.
    """
    global _world  # noqa: PLW0603
    warn_of_unknown_variables(stacklevel=2)  # first, since it may explain the errors below
    environment = read_environment(
        rank=rank, size=size, rendezvous=rendezvous, token=token, transport=transport, timeout=timeout
    )
    with _lock:
        existing = None if _world is None else _world()
        if existing is not None and not existing.closed:
            raise CollectivesError(
                f"init() was called before: this process is rank {existing.rank} of {existing.size}; use that "
                "communicator, or close() it first",
                rank=existing.rank,
            )
        options = _options(environment.timeout)
        if environment.size == 1:
            communicator = Communicator(_core.local_group(1, options)[0])
        else:
            communicator = Communicator(_connect(environment, options))
        _world = weakref.ref(communicator)
        _leaving.register(communicator)
    return communicator


def _connect(environment: Environment, options: dict[str, float | int]) -> object:
    segment = _core.create_segment(environment.size, options)
    doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        world = _bootstrap.connect(environment, segment, doorbell)
    except BaseException:
        os.close(segment)
        os.close(doorbell)
        raise
    peers = [
        (p.rank, p.host_name, p.pid, p.memory_fd, p.doorbell_fd, p.control_fd, p.pid_fd, p.tcp_fd) for p in world.peers
    ]
    try:
        return _core.connect(world.rank, world.host, segment, doorbell, peers, options)
    except BaseException:
        world.close()
        os.close(segment)
        os.close(doorbell)
        raise


def local_group(n: int, *, timeout: float | None = None) -> list[Communicator]:
    """Communicators for `n` threads of this process, by rank.

    Args:
        n: number of ranks, at least 1.
        timeout: seconds that each collective may take, 600 by default.

    Raises:
        ValueError: `n` is not positive.
    """
    if n < 1:
        raise ValueError(f"n is {n}; a group has at least one rank")
    group = [Communicator(handle) for handle in _core.local_group(n, _options(timeout))]
    for communicator in group:
        _leaving.register(communicator)
    return group
