"""Makes communicators: for the job that this process belongs to, or for threads of this process."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import threading
import weakref
from typing import Any, overload

from . import _core
from ._startup import address_space, at_exit, bootstrap, recorder, torchrun
from ._startup.environment import (
    Environment,
    read_compare_shapes,
    read_environment,
    read_symmetric_heap,
    warn_of_unknown_variables,
)
from ._startup.sockets import out_of_files
from ._startup.system import eventfd, memfd_refusal
from .communicator import Communicator
from .errors import CollectivesError, ForkedError

_log = logging.getLogger("collectives")
DEFAULT_TIMEOUT = 600.0  # seconds: chiefs write checkpoints, graphs get traced
WARN_AFTER = 60.0

_lock = threading.Lock()
_world: list[weakref.ref[Communicator]] = []  # the communicators that init() has made


def _options(timeout: float | None, compare_shapes: bool | None = None) -> dict[str, float | int]:
    seconds = DEFAULT_TIMEOUT if timeout is None else timeout
    return {
        "timeout": seconds,
        "warn": min(WARN_AFTER, seconds / 2),
        "heap_bytes": read_symmetric_heap(),
        "compare_shapes": read_compare_shapes(compare_shapes),
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
) -> Communicator | list[Communicator]:
    """Joins the job of this process and returns its communicator, or one for each of its replicas.

    An argument that you leave out comes from the environment variable of its name (``COLLECTIVES_RANK`` and so on).
    Without arguments and variables, a process that torchrun started takes rank and size from torchrun and meets the
    others through torchrun's store; any other process is a world of one rank, unless another launcher (mpirun, srun,
    ...) has started it with others, which is an error. An unknown variable that begins with ``COLLECTIVES_`` gives a
    RuntimeWarning.

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
        timeout: seconds that starting (default 60) and each collective (default 600) may take.
        replicas: how many ranks this process has, at least 1; may differ between processes. ``bytes_by_transport``
            counts what passes between them as "local" when the job has one process, as "tcp" with transport "tcp",
            else as "shm".
        compare_shapes: whether all_reduce, reduce and broadcast raise MismatchError when ranks pass arrays of equal
            length but different shapes, such as (2, 3) and (3, 2); the same on every rank, True by default.

    Returns:
        The communicator of this process; with ``replicas`` a list, by replica, that is by rank.

    Raises:
        CollectivesError: this process has an open communicator already.
        ForkedError: this process was forked from one that has a communicator, and no argument names another job.
        DeadlineError: some ranks did not join in time.
        MismatchError: ranks were started with different settings.
        ValueError, TypeError: an argument or variable is not acceptable; or another launcher has started several
            processes and nothing says which rank this one is (pass ``size=1`` if it is to be alone).
    """
    warn_of_unknown_variables(stacklevel=2)  # first: it may explain the errors below
    others: dict[str, Any] = {
        "token": token,
        "transport": transport,
        "timeout": timeout,
        "replicas": replicas,
        "compare_shapes": compare_shapes,
    }
    at_exit.mark_as_rank()
    recorder.prepare()
    with _lock, contextlib.ExitStack() as stack:
        _refuse_second_world(all(said is None for said in (rank, size, rendezvous)))
        job = torchrun.find_job() if rank is None and size is None and rendezvous is None else None
        if job is None:
            environment = read_environment(rank=rank, size=size, rendezvous=rendezvous, **others)
        else:
            environment = stack.enter_context(torchrun.meet(job, **others))
        options = _options(environment.timeout, environment.compare_shapes)
        count = environment.replicas or 1
        if environment.size == 1 and (count == 1 or environment.transport != "tcp"):
            handles = _local_handles(count, options)
        else:
            handles = _connect(environment, options)
        communicators = [Communicator(handle, transport=environment.transport) for handle in handles]
        _world[:] = map(weakref.ref, communicators)
        for communicator in communicators:
            at_exit.register(communicator)
    return communicators[0] if replicas is None else communicators


def join(environment: Environment, timeout: float | None) -> Communicator:
    """Joins a job of its own, independent of the world of ``init``; for members that found each other by other means.

    Args:
        environment: how this process was started, without replicas; its ``timeout`` is that for starting.
        timeout: seconds that each collective may take, 600 by default.

    Raises:
        CollectivesError: as ``init``.
    """
    at_exit.mark_as_rank()
    recorder.prepare()
    options = _options(timeout, environment.compare_shapes)
    handles = _local_handles(1, options) if environment.size == 1 else _connect(environment, options)
    communicator = Communicator(handles[0], transport=environment.transport)
    at_exit.register(communicator)
    return communicator


def _refuse_second_world(same_place: bool) -> None:
    existing = [communicator for reference in _world if (communicator := reference()) is not None]
    existing = [communicator for communicator in existing if not communicator.closed]
    if not existing:
        return
    first = existing[0]
    if first._pid != os.getpid():
        if same_place and first.size > 1:
            raise ForkedError(
                f"this process was forked from rank {first.rank} of {first.size}, and cannot be that rank as well; say "
                "which job it joins: init(rank=, size=, rendezvous=), or init(size=1) for none",
                rank=first.rank,
            )
        return
    if len(existing) == 1:
        text = f"this process is rank {first.rank} of {first.size}; use that communicator, or close() it first"
    else:
        ranks = ", ".join(str(communicator.rank) for communicator in existing)
        text = f"this process has ranks {ranks} of {first.size}; use those communicators, or close() them all first"
    raise CollectivesError(f"init() was called before: {text}", rank=first.rank)


def _connect(environment: Environment, options: dict[str, float | int]) -> list[object]:
    segments: list[int] = []
    doorbells: list[int] = []
    refusal = memfd_refusal() if environment.transport in ("auto", "nccl") else ""  # "shm" raises an error instead
    shares = environment.transport != "tcp" and not refusal
    if refusal:
        _log.warning("no shared memory, so rank %d uses TCP also within its host: %s", environment.rank, refusal)

    def provide(size: int, room: int | None) -> tuple[int, int]:
        address_space.fit(options, size, room)
        segments.append(_core.create_segment(size, options) if shares else -1)
        doorbells.append(eventfd())
        return segments[-1], doorbells[-1]

    world: bootstrap.World | None = None
    try:
        world = bootstrap.connect(environment, provide, shares=shares)
        processes = [
            (p.ranks, p.host_name, p.pid, p.memory_fds, p.doorbell_fds, p.control_fds, p.pid_fds, p.stack_place)
            for p in world.processes
        ]
        tcp = [[connections.get(rank, -1) for rank in range(len(world.host))] for connections in world.tcp_fds]
        return _core.connect(world.process, world.host, world.crowded, segments, doorbells, processes, tcp, options)
    except BaseException as error:
        if world is not None:
            world.close()
        for descriptor in (*segments, *doorbells):
            if descriptor >= 0:
                os.close(descriptor)
        if out_of_files(error):
            raise OSError(error.errno, _out_of_files(environment, error)) from error
        raise


def _local_handles(count: int, options: dict[str, float | int]) -> list[object]:
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
        ValueError: `n` is not positive.
    """
    if n < 1:
        raise ValueError(f"n is {n}; a group has at least one rank")
    recorder.prepare()
    group = [Communicator(handle) for handle in _local_handles(n, _options(timeout, compare_shapes))]
    for communicator in group:
        at_exit.register(communicator)
    return group
