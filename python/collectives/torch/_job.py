"""The world in which the groups of torch.distributed are made, and its communicators.

The first group makes the world, over the store that torch.distributed gives it, or takes that of the process. Each
group, the default one too, is a communicator of its own, made by its members alone. When the last group has been
destroyed, a world that was made here is closed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from .. import _core, _world
from .._startup.by_store import Meeting
from .._startup.environment import read_environment, read_token
from .._startup.wire import Deadline
from ..communicator import Communicator
from ..errors import CollectivesError
from . import _store

_CALLER = "torch.distributed.init_process_group"
_KEY = "collectives/rendezvous"


@dataclass(frozen=True, eq=False)
class Opened:
    """A group that is open.

    Attributes:
        comm: its communicator.
        name: of the group, as torch.distributed or this package calls it.
        members: its ranks, as ranks of torch.distributed.
    """

    comm: Communicator
    name: str
    members: list[int]


@dataclass(eq=False)
class Job:
    """A world.

    Attributes:
        world: its communicator.
        ranks: the ranks of torch.distributed that are in it, by its own ranks.
        made: whether it was made here.
        groups: those that are open.
    """

    world: Communicator
    ranks: list[int]
    made: bool
    groups: list[Opened] = field(default_factory=list)


_lock = threading.Lock()
_jobs: list[Job] = []  # at most one whose world is open


def join(store: Any, rank: int, size: int, timeout: float, name: str, ranks: list[int]) -> Communicator:
    """A communicator of a new group.

    Args:
        store: of the group.
        rank, size: of this process in the group.
        timeout: seconds that the members may be late, and that each collective may take.
        name: of the group, the same on its members.
        ranks: its members, as ranks of torch.distributed, in the order of their ranks in the group.

    Raises:
        CollectivesError: the group has ranks that are not in the world of this process; or the world has failed.
        DeadlineError: a member did not come.
    """
    with _lock:
        _jobs[:] = [job for job in _jobs if not job.world.closed]
        if not _jobs:
            existing = _world.existing(rank, size)
            world = _connect(store, rank, size, timeout) if existing is None else existing
            _jobs.append(Job(world, ranks, existing is None))
        job = _jobs[0]
    outside = [member for member in ranks if member not in job.ranks]
    if outside:
        raise CollectivesError(
            f"the group of ranks {ranks} has ranks {outside}, which are not in the world of this process, of ranks "
            f"{job.ranks}: its first group of the backend decides that. Name the backend in init_process_group, for "
            'example "cpu:collectives,cuda:nccl", so that all ranks are in it',
            rank=rank,
        )
    try:
        return split(job.world, [job.ranks.index(member) for member in ranks], name, timeout)
    except BaseException:
        with _lock:
            _close_unused()
        raise


def timeout_of(communicator: Communicator) -> float:
    """Seconds that its collectives may take."""
    return float(_core._describe(communicator)["timeout"])


def split(parent: Communicator, ranks: list[int], name: str, timeout: float) -> Communicator:
    """A communicator of some ranks of `parent`, made by these alone."""
    made = parent.new_group(ranks, tag=f"torch.distributed {name}", members_only=True, timeout=timeout)
    assert made is not None  # this rank is a member
    with _lock:
        if _jobs:
            job = _jobs[0]
            of = next((group.members for group in job.groups if group.comm is parent), job.ranks)
            job.groups.append(Opened(made, name, [of[member] for member in ranks]))
    return made


def opened() -> list[Opened]:
    """The groups that this process has open, the oldest first."""
    with _lock:
        return [group for job in _jobs for group in job.groups if not group.comm.closed]


def leave(communicator: Communicator) -> None:
    """Closes the communicator of a group, and the world if it was the last one."""
    communicator.close()
    with _lock:
        _close_unused()


def _close_unused() -> None:
    for job in list(_jobs):
        job.groups[:] = [group for group in job.groups if not group.comm.closed]
        if not job.groups:
            _jobs.remove(job)
            if job.made:
                job.world.close()


def _connect(store: Any, rank: int, size: int, timeout: float) -> Communicator:
    """Makes the world."""
    if size == 1:
        return _world.join(_CALLER, read_environment(rank=0, size=1), timeout)
    deadline = Deadline(timeout)
    own = read_token()
    host, port = _store.address(store, _KEY, rank, size, deadline)
    meeting = Meeting(
        rank,
        size,
        host,
        port,
        key=_KEY,
        place=f"the store of torch.distributed ({_kind(store)})",
        caller=f"{_CALLER}()",
        is_lost=_store.is_lost,
    )
    with _store.timeout_kept(store), meeting.meet(store, deadline, own, timeout, {}) as environment:
        return _world.join(_CALLER, environment, timeout)


def _kind(store: Any) -> str:
    base = _store.base(store)
    where = f" at {base.host}:{base.port}" if hasattr(base, "host") and hasattr(base, "port") else ""
    return f"{type(base).__name__}{where}"
