"""From a launch environment to connected, authenticated descriptors, which the core takes over.

A process has one rank, or several, its replicas. Up to step 3 numbers are those of processes.

1. All processes meet (`_startup.rendezvous`).
2. Every process says who it is and how many ranks it has; pairs that can reach each other hand over the memory of all
   their ranks (`_startup.handover`).
3. Every process says with whom that worked. From this all compute the same partition into hosts, and the same numbers
   of the ranks (`_startup.numbering`).
4. Pairs of ranks that do not share memory are connected by TCP (`_startup.mesh`).
5. A last round: everybody is connected."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from .. import _core
from ..errors import CollectivesError, DeadlineError, MismatchError, PeerError
from . import address_space, recorder, rendezvous
from .environment import Environment
from .handover import Exchanger, Handover
from .meeting import Fault, Rendezvous, own_place
from .mesh import Mesh, Reach
from .numbering import is_crowded, number_ranks, partition
from .say import say
from .wire import Deadline

_log = logging.getLogger("collectives")
_MOST_ROUTES = 16  # hosts whose interfaces are printed

Provide = Callable[[int, int | None], tuple[int, int]]


@dataclass
class Process:
    """A process of the job and the connections to it. Descriptors are closed on exec; connections are non-blocking.

    Attributes:
        ranks: of its replicas.
        host_name: the name of its machine, for messages only.
        pid: its process number, as seen here if it is on this host and else as seen there; for messages only.
        memory_fds: the memory segment of each of its ranks (same host).
        doorbell_fds: the eventfd of each of its ranks (same host).
        control_fds: the Unix stream connection to it (same host), once for each rank of the own process; it ends when
            the other process has closed all of its own, or dies.
        pid_fds: refers to it (same host, where the kernel can say), once for each rank of the own process.
        stack_place: how it shows where its Python code is, for the core.
    """

    ranks: list[int]
    host_name: str
    pid: int
    memory_fds: list[int] = field(default_factory=list)
    doorbell_fds: list[int] = field(default_factory=list)
    control_fds: list[int] = field(default_factory=list)
    pid_fds: list[int] = field(default_factory=list)
    stack_place: str = ""

    def close(self) -> None:
        """Closes all descriptors, for the case that nobody took them over."""
        for descriptors in (self.memory_fds, self.doorbell_fds, self.control_fds, self.pid_fds):
            while descriptors:
                os.close(descriptors.pop())


@dataclass
class World:
    """All ranks of a job as one process sees them.

    Attributes:
        process: the number of the own process.
        processes: all processes, by number; the own one without descriptors.
        host: for each rank the index of its host; ranks with the same index have each other's memory. Hosts are
            numbered in the order of their lowest rank, on every rank alike.
        crowded: some machine has more ranks than cores that they may use.
        tcp_fds: for each rank of the own process the TCP connections to other ranks, by rank: those of another host,
            or all with transport "tcp".
    """

    process: int
    processes: list[Process]
    host: list[int]
    crowded: bool
    tcp_fds: list[dict[int, int]]

    @property
    def ranks(self) -> list[int]:
        """The ranks of the own process."""
        return self.processes[self.process].ranks

    def close(self) -> None:
        """Closes all descriptors, for the case that nobody took them over."""
        for process in self.processes:
            process.close()
        for connections in self.tcp_fds:
            while connections:
                os.close(connections.popitem()[1])


def connect(environment: Environment, provide: Provide, *, shares: bool = True) -> World:
    """Connects this process with the other processes of its job.

    Args:
        environment: from `read_environment`.
        provide: makes the memory segment and the eventfd of one rank, given the size of the world and the bytes of
            address space that a segment may have (None: any); called once for each replica. The other processes of this
            host get copies; these belong to the caller.
        shares: whether this process can have memory for others of its host; else it uses TCP only, as with "tcp".

    Returns:
        the connections, whose descriptors belong to the caller.

    Raises:
        DeadlineError: processes did not come or could not be reached within ``environment.start_timeout`` seconds.
        MismatchError: processes were started differently.
        PeerError: another process failed or died.
        CollectivesError: transport "shm" was asked for and two processes do not share memory.
        ValueError: the rendezvous address cannot be used.
    """
    deadline = environment.deadline or Deadline(environment.start_timeout)
    handovers: dict[int, Handover] = {}
    world: World | None = None
    try:
        with rendezvous.join(environment, deadline) as meeting:
            pairs, people = _hand_over(meeting, provide, handovers, shares)
            world = _world(meeting.rank, people, pairs)
            _take(world, handovers)
            used = _connect_mesh(meeting, world)
            told = meeting.exchange(used, "word that all connections are made", _are_texts)
        _say_routes(world, told)
        names = ", ".join(f"{process.ranks}: {process.host_name}" for process in world.processes)
        routes = ", ".join(used) or "shared memory only"
        _log.info("ranks %s of %d: hosts %s (%s), over %s", world.ranks, len(world.host), world.host, names, routes)
    except BaseException:
        for handover in handovers.values():
            handover.close()
        if world is not None:
            world.close()
        raise
    return world


def _hand_over(
    meeting: Rendezvous, provide: Provide, handovers: dict[int, Handover], shares: bool
) -> tuple[list[tuple[int, int]], list[dict[str, Any]]]:
    """Rounds one and two. Fills `handovers`; returns the pairs of processes that share memory, and who is who."""
    environment = meeting.environment
    exchanger: Exchanger | None = None
    try:
        if shares and environment.transport != "tcp":
            exchanger = Exchanger(
                meeting.loop, meeting.rank, meeting.size, meeting.job, environment.token, done=handovers
            )
        person = {
            **own_place(),
            "machine": recorder.machine(),
            "stack": _core._stack_place(),
            "address_space": address_space.available(),
            "cores": sorted(os.sched_getaffinity(0)),
            "transport": environment.transport,
            "compare_shapes": environment.compare_shapes,
            "replicas": environment.replicas,
            "name": exchanger.name if exchanger is not None else "",
        }
        people = meeting.exchange(person, "introductions", _is_person)
        for process, introduced in enumerate(people):
            meeting.heard(process, introduced)
        _check_settings(meeting, people)
        counts = [person["replicas"] or 1 for person in people]
        spaces = [
            (person["machine"], count, person["address_space"]) for person, count in zip(people, counts, strict=True)
        ]
        room = address_space.room_for_segment(spaces)
        own = [provide(sum(counts), room) for _ in range(counts[meeting.rank])]
        if exchanger is not None:
            names = {p: str(people[p]["name"]) for p in range(meeting.rank) if people[p]["name"]}
            exchanger.start(names, [segment for segment, _ in own], [doorbell for _, doorbell in own], counts)
            if not meeting.loop.run(exchanger.settled, meeting.deadline):
                waiting = [p for p in names if p not in handovers and p not in exchanger.reasons]
                raise DeadlineError(
                    f"rank {meeting.rank} waited for {', '.join(map(meeting.show, waiting))} to hand over memory, for "
                    f"{meeting.deadline.seconds:g} s after the start. Look at what that rank does",
                    rank=meeting.rank,
                    **meeting.blame(waiting[0]),
                )
        reasons = exchanger.reasons if exchanger is not None else {}
        mine = {"mapped": [p for p in handovers if p < meeting.rank], "reasons": sorted(reasons.items())}
        # While this round goes on, higher processes may still be connecting: the loop of the meeting serves them.
        views = meeting.exchange(mine, "view of who shares memory", _is_view)
    finally:
        if exchanger is not None:
            exchanger.close()
    pairs = [(lower, process) for process, view in enumerate(views) for lower in view["mapped"]]
    if any(p not in handovers for p in (_other(pair, meeting.rank) for pair in pairs) if p is not None):
        raise PeerError(
            f"another rank has memory of rank {meeting.rank} that this rank did not give", rank=meeting.rank
        )
    if environment.transport == "shm":
        _check_all_mapped(meeting, pairs, views)
    return pairs, people


def _is_list_of(value: Any, accepted: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and all(map(accepted, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_texts(_: int, value: Any) -> bool:
    return _is_list_of(value, lambda text: isinstance(text, str))


def _is_person(_: int, value: Any) -> bool:
    """What every process says of itself. More of it than here is only shown, or compared."""
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(key), str) for key in ("hostname", "machine", "stack", "transport", "name"))
        and isinstance(value.get("compare_shapes"), bool)
        and _is_number(value.get("pid"))
        and (value.get("address_space", "") is None or _is_number(value.get("address_space")))
        and _is_list_of(value.get("cores"), _is_number)
        and (value.get("replicas", 0) is None or (_is_number(value.get("replicas")) and value["replicas"] > 0))
    )


def _is_view(process: int, value: Any) -> bool:
    def is_lower(number: Any) -> bool:
        return _is_number(number) and 0 <= number < process

    def is_reason(pair: Any) -> bool:
        return isinstance(pair, (list, tuple)) and len(pair) == 2 and is_lower(pair[0])

    return (
        isinstance(value, dict)
        and _is_list_of(value.get("mapped"), is_lower)
        and _is_list_of(value.get("reasons"), is_reason)
    )


def _are_addresses(value: Any, replicas: int) -> bool:
    """Of each replica, those that it offers."""

    def is_address(pair: Any) -> bool:
        return isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) and _is_number(pair[1])

    return _is_list_of(value, lambda offered: _is_list_of(offered, is_address)) and len(value) == replicas


def _other(pair: tuple[int, int], process: int) -> int | None:
    return pair[1] if pair[0] == process else pair[0] if pair[1] == process else None


def _blame(world: World, rank: int) -> Fault:
    process = next(process for process in world.processes if rank in process.ranks)
    return {"peer": rank, "host": process.host_name, "pid": process.pid}


def _check_settings(meeting: Rendezvous, people: list[dict[str, Any]]) -> None:
    for (other, person), name in itertools.product(enumerate(people), ("transport", "compare_shapes")):
        if person[name] != people[0][name]:
            raise MismatchError(
                f"rank 0 was started with {name} {people[0][name]!r} and rank {other} with {person[name]!r}; give "
                f"every rank the same COLLECTIVES_{name.upper()} or {name}=",
                rank=meeting.rank,
                **meeting.blame(other if meeting.rank != other else 0),
            )


def _check_all_mapped(meeting: Rendezvous, pairs: Collection[tuple[int, int]], views: list[dict[str, Any]]) -> None:
    mapped = set(pairs)
    for high, view in enumerate(views):
        for low in range(high):
            if (low, high) not in mapped:
                why = dict(map(tuple, view["reasons"])).get(low, "unknown")
                raise CollectivesError(
                    f"transport 'shm' was asked for, but {meeting.show(low)} and {meeting.show(high)} do not "
                    f"share memory: {why}. Use transport 'auto', or start these ranks on one host, in one container "
                    "and as one user",
                    rank=meeting.rank,
                    **meeting.blame(low if meeting.rank == high else high),
                )


def _world(process: int, people: list[dict[str, Any]], pairs: Collection[tuple[int, int]]) -> World:
    """Who is where, without connections."""
    host = partition(len(people), pairs)
    ranks = number_ranks(host, [person["replicas"] for person in people])
    size = sum(map(len, ranks))
    groups = [(0, 0)] * size  # of ranks that share memory; where a process has none to share, each is one of its own
    for index, numbers in enumerate(ranks):
        for rank in numbers:
            groups[rank] = (host[index], -1 if people[index]["name"] else rank)
    indices = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    places = [indices[group] for group in groups]
    processes = [
        Process(numbers, str(person["hostname"]), int(person["pid"]), stack_place=str(person["stack"]))
        for numbers, person in zip(ranks, people, strict=True)
    ]
    return World(process, processes, places, is_crowded(people), [{} for _ in ranks[process]])


def _take(world: World, handovers: dict[int, Handover]) -> None:
    """Moves what was handed over into `world`, where the other process is on this host, and closes the rest."""
    own = world.host[world.ranks[0]]
    while handovers:
        number, handover = handovers.popitem()
        process = world.processes[number]
        try:
            if world.host[process.ranks[0]] == own:
                process.pid = handover.pid or process.pid
                process.memory_fds, handover.memory_fds = handover.memory_fds, []
                process.doorbell_fds, handover.doorbell_fds = handover.doorbell_fds, []
                process.control_fds.append(handover.control_fd)
                handover.control_fd = -1
                if handover.pid_fd >= 0:
                    process.pid_fds.append(handover.pid_fd)
                    handover.pid_fd = -1
                for _ in world.ranks[1:]:
                    for descriptors in (process.control_fds, process.pid_fds):
                        descriptors.extend(map(os.dup, descriptors[:1]))
        finally:
            handover.close()


def _say_routes(world: World, told: list[list[str]]) -> None:
    """One line on rank 0, unless all goes over loopback or shared memory: which interfaces data between hosts take.

    When they are slow, that is the first thing to look at.
    """
    if world.process != 0 or all(name.startswith("loopback ") for used in told for name in used):
        return
    pairs = zip(world.processes, told, strict=True)
    routes = list(dict.fromkeys(f"{process.host_name} {' and '.join(used)}" for process, used in pairs))
    rest = f" and {len(routes) - _MOST_ROUTES} more" if len(routes) > _MOST_ROUTES else ""
    text = f"{len(world.host)} ranks, TCP between hosts over {', '.join(routes[:_MOST_ROUTES])}{rest}"
    say(f"collectives: {text}")


def _connect_mesh(meeting: Rendezvous, world: World) -> list[str]:
    """The TCP connections of the ranks of this process; a round of the rendezvous, unless no pair needs one.

    Returns:
        the interfaces and own addresses over which they go.
    """
    if len(set(world.host)) == 1:
        return []
    remote = [[r for r, host in enumerate(world.host) if host != world.host[own]] for own in world.ranks]
    reach = Reach(meeting.loopback, meeting.local_address, meeting.environment.interfaces, len(world.ranks))
    meshes: list[Mesh] = []
    try:
        for own, others in zip(world.ranks, remote, strict=True):
            mesh = Mesh(
                meeting.loop,
                own,
                meeting.job,
                meeting.environment.token,
                accept=[rank for rank in others if rank > own],
                reach=reach,
            )
            meshes.append(mesh)
        told = meeting.exchange(
            [mesh.offered for mesh in meshes],
            "addresses",
            lambda process, value: _are_addresses(value, len(world.processes[process].ranks)),
        )
        offers = {
            rank: [(str(host), int(port)) for host, port in offered]
            for process, told_by_process in zip(world.processes, told, strict=True)
            for rank, offered in zip(process.ranks, told_by_process, strict=True)
        }
        for own, others, mesh in zip(world.ranks, remote, meshes, strict=True):
            mesh.start({rank: offers[rank] for rank in others if rank < own})
        # Not to the very end: who cannot be reached is to be told before rank 0 gives up, who does not know why.
        remaining = meeting.deadline.remaining()
        limit = Deadline(remaining - min(1.0, 0.2 * remaining))
        if not meeting.loop.run(lambda: all(mesh.finished() for mesh in meshes), limit):
            own, mesh = next((own, mesh) for own, mesh in zip(world.ranks, meshes, strict=True) if not mesh.finished())
            raise DeadlineError(
                f"rank {own} is not connected with all others {meeting.deadline.seconds:g} s after the start: "
                f"{mesh.missing()}. Check that no firewall is between these hosts, or allow more time by "
                "COLLECTIVES_TIMEOUT (seconds)",
                rank=own,
                **_blame(world, min(set(remote[world.ranks.index(own)]) - mesh.connections.keys())),
            )
        used = sorted({name for mesh in meshes for name in mesh.used()})
        for mesh, connections in zip(meshes, world.tcp_fds, strict=True):
            while mesh.connections:
                rank, sock = mesh.connections.popitem()
                connections[rank] = sock.detach()
        return used
    finally:
        for mesh in meshes:
            mesh.close()
