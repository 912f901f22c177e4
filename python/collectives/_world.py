"""Makes communicators: for the job that this process belongs to, or for threads of this process.

A process has one world. ``init`` makes it or returns it, and so do the doors, the parts of the library that serve a
framework and need a communicator: they call ``take``, or ``existing`` and ``join`` where they find the other ranks by
other means, and use a ``dup`` of it, so that their calls are not mixed with those of the program.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import threading
from typing import Any, overload

from . import _core
from ._startup import address_space, at_exit, joined, log, recorder, same_world, start
from ._startup import bootstrap as connecting
from ._startup.environment import (
    Environment,
    read_compare_shapes,
    read_overrides,
    read_profile,
    read_symmetric_heap,
    warn_of_unknown_variables,
)
from ._startup.profile import Profile
from ._startup.settings import needs_shared_memory, rules_out_shared_memory
from ._startup.sockets import out_of_files
from ._startup.system import eventfd, memfd_refusal
from .communicator import Communicator
from .errors import CollectivesError

_log = logging.getLogger("collectives")
DEFAULT_TIMEOUT = 600.0  # seconds: chiefs write checkpoints, graphs get traced
WARN_AFTER = 60.0

_lock = threading.Lock()  # held while a world is made


def _options(
    timeout: float | None, compare_shapes: bool | None = None, profile: Profile | None = None
) -> dict[str, Any]:
    """What the core is told. `profile`: by default that of the environment."""
    found = read_profile() if profile is None else profile
    seconds = DEFAULT_TIMEOUT if timeout is None else timeout
    return {
        "timeout": seconds,
        "warn": min(WARN_AFTER, seconds / 2),
        "heap_bytes": read_symmetric_heap(),
        "compare_shapes": read_compare_shapes(compare_shapes),
        "overrides": [
            *((*override, 0, False) for override in read_overrides()),
            *((*override, ranks, True) for override, ranks in found.overrides),
        ],
        "costs": dict(found.costs),
        "profile": str(found),
    }


@overload
def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    token: str | bytes | None = None,
    transport: str | None = None,
    timeout: float | None = None,
    replicas: None = None,
    compare_shapes: bool | None = None,
    bootstrap: Any = None,
) -> Communicator: ...


@overload
def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    token: str | bytes | None = None,
    transport: str | None = None,
    timeout: float | None = None,
    replicas: int,
    compare_shapes: bool | None = None,
    bootstrap: Any = None,
) -> list[Communicator]: ...


def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    token: str | bytes | None = None,
    transport: str | None = None,
    timeout: float | None = None,
    replicas: int | None = None,
    compare_shapes: bool | None = None,
    bootstrap: Any = None,
) -> Communicator | list[Communicator]:
    """Joins the job of this process and returns its communicator, or one for each of its replicas.

    A process has one world. If something has made it before, such as another library that called ``init``, or
    ``collectives.tensorflow``, this returns the same communicator: whoever closes it, closes it for all. What you say
    then, by arguments or by the variables of rank and size, must be true of that world. When it is closed, the next
    call makes another one.

    An argument that you leave out comes from the environment variable of its name (``COLLECTIVES_RANK`` and so on).
    Without arguments and variables, a process that a launcher started with others (torchrun, mpirun, srun, ...) takes
    rank and size from that, and meets the others through the store of the launcher, where it has one; else the error
    says which variable to set. docs/running.md has them all. Any other process is a world of one rank. An unknown
    variable that begins with ``COLLECTIVES_`` gives a RuntimeWarning.

    With ``replicas=k`` this process has k ranks, each for one thread, and the replicas of all processes form one world.
    If any process passes ``replicas``, ranks are numbered host by host, within a host process by process, within a
    process by replica, so a rank is not the number of its process. Errors while the job starts name numbers of
    processes.

    Args:
        rank, size: the number of this process and how many there are.
        rendezvous: ``host:port`` on which rank 0 listens, the same on every rank.
        token: secret of the job, the same on every rank; needed when the rendezvous is not on loopback.
        transport: "auto" (shared memory inside a host, TCP between hosts, NCCL for device arrays where every rank has a
            device of its own), "shm", "tcp", or "nccl": as "auto", and an error where NCCL cannot carry device arrays.
        timeout: seconds that starting (default 300, and ``COLLECTIVES_START_TIMEOUT`` wins) and each collective
            (default 600) may take.
        replicas: how many ranks this process has, at least 1; may differ between processes. ``bytes_by_transport``
            counts what passes between them as "local" when the job has one process, as "tcp" with transport "tcp",
            else as "shm".
        compare_shapes: whether all_reduce, reduce and broadcast raise MismatchError when ranks pass arrays of equal
            length but different shapes, such as (2, 3) and (3, 2); the same on every rank, True by default.
        bootstrap: in place of rendezvous and token, something by which the ranks can talk already: a communicator of
            mpi4py, a store of torch.distributed (with rank and size), or the distributed client of JAX.

    Returns:
        The communicator of this process; with ``replicas`` a list, by replica, that is by rank.

    Raises:
        CollectivesError: the world of this process is another one; the text says who made it. Or it has failed.
        ForkedError: this process was forked from one that has a communicator, and no argument names another job.
        DeadlineError: some ranks did not join in time.
        MismatchError: ranks were started with different settings.
        ValueError, TypeError: an argument or variable is not acceptable; or a launcher has started several processes
            and they cannot meet by what it says (pass ``size=1`` if each is to be alone), or two launchers disagree.
    """
    warn_of_unknown_variables(stacklevel=2)  # first: it may explain the errors below
    asked = {
        "rank": rank,
        "size": size,
        "rendezvous": rendezvous,
        "token": token,
        "transport": transport,
        "timeout": timeout,
        "replicas": replicas,
        "compare_shapes": compare_shapes,
    }
    communicators = _take("collectives.init()", asked, bootstrap)[0]
    return communicators[0] if replicas is None else communicators


def world() -> Communicator:
    """The communicator of the world of this process, which ``init`` made, or a part of this library for a framework.

    All who call it get the same one, so keep what you do there in one order on all ranks, or use a ``dup`` of it. It is
    that of ``init`` until it is closed, also after it has failed.

    Raises:
        CollectivesError: there is none, or this process has several ranks of it (``init(replicas=k)``).
        ForkedError: it belongs to the parent of this process.

    Example:
        >>> collectives.init()
        >>> collectives.world().rank
        0
    """
    record = joined.current()
    if record is None:
        raise CollectivesError(
            "this process is in no world: none was made, or it was closed. collectives.init() makes one"
        )
    same_world.refuse_parents(record)
    if len(record.communicators) > 1:
        raise CollectivesError(
            f"{record.describe()}; world() returns the communicator of a process that is one rank. Use those that "
            "init(replicas=) returned",
            rank=record.communicators[0].rank,
        )
    return record.communicators[0]


def take(maker: str) -> tuple[Communicator, bool]:
    """For a door: as ``init()``, by the environment alone.

    Args:
        maker: the function that the program has called, for errors.

    Returns:
        the communicator of the world, and whether this call has made it; who has made it closes it.

    Raises:
        As ``init``.
    """
    warn_of_unknown_variables(stacklevel=2)
    communicators, made = _take(maker, {})
    return communicators[0], made


def existing(rank: int, size: int) -> Communicator | None:
    """For a door: the communicator of the world, in which this process is to be this rank; None where there is none.

    Raises:
        CollectivesError: the world of this process is another one, or has failed.
    """
    record = joined.current()
    if record is None or record.pid != os.getpid():
        return None
    first = record.communicators[0]
    if len(record.communicators) > 1 or (first.rank, first.size) != (rank, size):
        raise same_world.another(record, f"and is to be rank {rank} of {size}")
    same_world.refuse_failed(record)
    return first


def join(maker: str, environment: Environment, timeout: float | None) -> Communicator:
    """For a door whose ranks found each other by other means: makes the world.

    Args:
        maker: as for ``take``.
        environment: how this process was started, without replicas; its ``timeout`` is that for starting.
        timeout: seconds that each collective may take, 600 by default.

    Raises:
        CollectivesError: as ``init``, or there is a world already.
    """
    at_exit.mark_as_rank()
    recorder.prepare()
    with _lock:
        record = joined.current()
        if record is not None and record.pid == os.getpid():
            raise same_world.another(record, "and another world was to be made")
        options = _options(timeout, environment.compare_shapes, environment.profile)
        return _make(maker, environment, options)[0]


def _take(maker: str, asked: dict[str, Any], bootstrap: Any = None) -> tuple[list[Communicator], bool]:
    """The communicators of this process in its world, and whether this call has made them.

    `asked`: the arguments of ``init``; those that are left out or None were not given. `bootstrap`: that one of them.
    """
    at_exit.mark_as_rank()
    log.prepare()
    recorder.prepare()
    at_place = {name: asked.get(name) for name in ("rank", "size", "rendezvous")}
    others = {name: asked.get(name) for name in ("token", "transport", "timeout", "replicas", "compare_shapes")}
    same_place = all(said is None for said in at_place.values())
    with _lock, contextlib.ExitStack() as stack:
        record = joined.current()
        if record is not None:
            if same_place and record.communicators[0].size > 1:
                same_world.refuse_parents(record)
            if record.pid == os.getpid():
                same_world.refuse_other(record, asked)
                return list(record.communicators), False
        environment = stack.enter_context(start.meet(at_place, bootstrap, others))
        options = _options(environment.timeout, environment.compare_shapes, environment.profile)
        return _make(maker, environment, options), True


def _make(maker: str, environment: Environment, options: dict[str, Any]) -> list[Communicator]:
    count = environment.replicas or 1
    if environment.size == 1 and (count == 1 or not rules_out_shared_memory(environment.transport)):
        environment.profile.refuse_problem()
        handles = _local_handles(count, options)
    else:
        handles = _connect(environment, options)
    communicators = [Communicator(handle, transport=environment.transport) for handle in handles]
    joined.keep(maker, environment, communicators)
    for communicator in communicators:
        at_exit.register(communicator)
    return communicators


def _connect(environment: Environment, options: dict[str, Any]) -> list[object]:
    segments: list[int] = []
    doorbells: list[int] = []
    may_share = not rules_out_shared_memory(environment.transport)
    # Where sharing is asked for, its failure is an error.
    refusal = memfd_refusal() if may_share and not needs_shared_memory(environment.transport) else ""
    shares = may_share and not refusal
    if refusal:
        _log.warning("no shared memory, so rank %d uses TCP also within its host: %s", environment.rank, refusal)

    def provide(size: int, room: int | None) -> tuple[int, int]:
        address_space.fit(options, size, room)
        segments.append(_core.create_segment(size, options) if shares else -1)
        doorbells.append(eventfd())
        return segments[-1], doorbells[-1]

    world: connecting.World | None = None
    try:
        world = connecting.connect(environment, provide, shares=shares)
        processes = [
            (p.ranks, p.host_name, p.pid, p.memory_fds, p.doorbell_fds, p.control_fds, p.pid_fds, p.stack_place)
            for p in world.processes
        ]
        sockets = [[connections.get(rank, -1) for rank in range(len(world.host))] for connections in world.sockets]
        return _core.connect(
            world.process,
            world.host,
            (world.ranks_per_core, world.machine, world.cores, *world.network),
            segments,
            doorbells,
            processes,
            sockets,
            environment.transport,
            options,
        )
    except BaseException as error:
        if world is not None:
            world.close()
        for descriptor in (*segments, *doorbells):
            if descriptor >= 0:
                os.close(descriptor)
        if out_of_files(error):
            raise OSError(error.errno, _out_of_files(environment, error)) from error
        raise


def _local_handles(count: int, options: dict[str, Any]) -> list[object]:
    room = address_space.room_for_segment([("", count, address_space.available())])
    address_space.fit(options, count, room)
    return _core.local_group(count, options)


def _out_of_files(environment: Environment, error: OSError) -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"rank {environment.rank} of {environment.size} ran out of file descriptors while the job started; it may have "
        f"{limit} ({error.strerror or error}) and needs about four for each other rank. Raise the limit (`ulimit -n`, "
        "LimitNOFILE= of systemd)"
    )


def local_group(n: int, *, timeout: float | None = None, compare_shapes: bool | None = None) -> list[Communicator]:
    """Communicators for `n` threads of this process, by rank.

    Args:
        n: number of ranks, at least 1.
        timeout: seconds that each collective may take, 600 by default.
        compare_shapes: see ``init``.

    Raises:
        ValueError: `n` is not positive, or the profile of the environment cannot be used.
    """
    if n < 1:
        raise ValueError(f"n is {n}; a group has at least one rank")
    recorder.prepare()
    profile = read_profile()
    profile.refuse_problem()
    group = [Communicator(handle) for handle in _local_handles(n, _options(timeout, compare_shapes, profile))]
    for communicator in group:
        at_exit.register(communicator)
    return group
