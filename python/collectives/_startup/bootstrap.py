"""Turns a launch environment into connected, authenticated descriptors for the core.

A process has one rank, or several, its replicas. Up to step 3 numbers are those of processes.

1. All processes meet at the rendezvous (`_startup.rendezvous`).
2. Every process sends its description, with its number of ranks; pairs that can reach each other hand over the memory
   of all their ranks (`_startup.handover`).
3. Every process sends with which others that worked. From this all compute the same partition into hosts and the same
   numbers of the ranks (`_startup.numbering`).
4. Pairs of ranks that do not share memory connect by TCP (`_startup.mesh`).
5. A last round tells all processes that all connections are made."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from .. import _core
from ..errors import CollectivesError, DeadlineError, MismatchError, PeerError
from . import address_space, network, profile, recorder
from .environment import Environment
from .handover import Exchanger, Handover
from .mesh import Mesh, Reach
from .network import Network, agreed
from .numbering import machines, number_ranks, partition, ranks_per_core
from .received import are_addresses, are_texts, is_info, is_view
from .rendezvous import join
from .rendezvous_base import Fault, Rendezvous, own_location
from .say import say
from .settings import needs_shared_memory, rules_out_shared_memory
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
        pid_fds: its pidfd (same host, where the kernel has pidfds), once for each rank of the own process.
        stack_place: where it writes its Python stack, for the core.
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
        ranks_per_core: how many ranks share a core, rounded up, on the machine where that are most.
        machine: for each rank the index of its machine, whose cores it shares with others of that index.
        cores: for each machine how many cores its ranks may use.
        network: what the choice of algorithms takes the network between hosts to be.
        sockets: for each rank of the own process the TCP connections to other ranks, by rank: those that share no
            memory with it.
    """

    process: int
    processes: list[Process]
    host: list[int]
    ranks_per_core: int
    machine: list[int]
    cores: list[int]
    network: Network
    sockets: list[dict[int, int]]

    @property
    def ranks(self) -> list[int]:
        """The ranks of the own process."""
        return self.processes[self.process].ranks

    def close(self) -> None:
        """Closes all descriptors, for the case that nobody took them over."""
        for process in self.processes:
            process.close()
        for connections in self.sockets:
            while connections:
                os.close(connections.popitem()[1])


def connect(environment: Environment, provide: Provide, *, shares: bool = True) -> World:
    """Connects this process with the other processes of its job.

    Args:
        environment: from `read_environment`.
        provide: makes the memory segment and the eventfd of one rank, given the size of the world and the bytes of
            address space that a segment may have (None: any); called once for each replica. The other processes of this
            host get copies; these belong to the caller.
        shares: whether this process can share memory with others of its host; if not, it uses TCP only.

    Returns:
        the connections, whose descriptors belong to the caller.

    Raises:
        DeadlineError: a process did not come or could not be reached within ``environment.start_timeout`` seconds.
        MismatchError: processes were started with different settings.
        PeerError: another process failed or died.
        CollectivesError: shared memory was asked for and two processes do not share memory.
        ValueError: the rendezvous address cannot be used.
    """
    deadline = environment.deadline or Deadline(environment.start_timeout)
    handovers: dict[int, Handover] = {}
    world: World | None = None
    try:
        with join(environment, deadline) as rendezvous:
            pairs, infos = _exchange_memory(rendezvous, provide, handovers, shares)
            world = _make_world(rendezvous.rank, infos, pairs)
            _adopt_handovers(world, handovers)
            used = _connect_mesh(rendezvous, world)
            all_used = rendezvous.exchange(used, "word that all connections are made", are_texts)
        _print_routes(world, all_used)
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


def _exchange_memory(
    rendezvous: Rendezvous, provide: Provide, handovers: dict[int, Handover], shares: bool
) -> tuple[list[tuple[int, int]], list[dict[str, Any]]]:
    """Steps 2 and 3. Fills `handovers`; returns the pairs of processes that share memory, and all descriptions."""
    environment = rendezvous.environment
    exchanger: Exchanger | None = None
    try:
        if shares and not rules_out_shared_memory(environment.transport):
            exchanger = Exchanger(
                rendezvous.loop, rendezvous.rank, rendezvous.size, rendezvous.job, environment.token, done=handovers
            )
        info = {
            **own_location(),
            "machine": recorder.machine(),
            "stack": _core._stack_place(),
            "address_space": address_space.available(),
            "cores": sorted(os.sched_getaffinity(0)),
            "transport": environment.transport,
            "compare_shapes": environment.compare_shapes,
            "replicas": environment.replicas,
            "network": environment.network,
            "algorithm": environment.algorithm,
            **environment.profile.introduction(),
            "port_speed": network.port_speed(environment.interfaces),
            "algorithms": _core._algorithms_digest(),
            "name": exchanger.name if exchanger is not None else "",
        }
        infos = rendezvous.exchange(info, "introductions", is_info)
        for process, introduced in enumerate(infos):
            rendezvous.note_location(process, introduced)
        _check_settings(rendezvous, infos)
        counts = [info["replicas"] or 1 for info in infos]
        spaces = [(info["machine"], count, info["address_space"]) for info, count in zip(infos, counts, strict=True)]
        room = address_space.room_for_segment(spaces)
        own = [provide(sum(counts), room) for _ in range(counts[rendezvous.rank])]
        if exchanger is not None:
            names = {p: str(infos[p]["name"]) for p in range(rendezvous.rank) if infos[p]["name"]}
            exchanger.start(names, [segment for segment, _ in own], [doorbell for _, doorbell in own], counts)
            if not rendezvous.loop.run(exchanger.settled, rendezvous.deadline):
                waiting = [p for p in names if p not in handovers and p not in exchanger.reasons]
                raise DeadlineError(
                    f"rank {rendezvous.rank} waited for {', '.join(map(rendezvous.show, waiting))} to hand over "
                    f"memory, for {rendezvous.deadline.seconds:g} s after the start. Look at what that rank does",
                    rank=rendezvous.rank,
                    **rendezvous.fault_of(waiting[0]),
                )
        reasons = exchanger.reasons if exchanger is not None else {}
        mine = {"mapped": [p for p in handovers if p < rendezvous.rank], "reasons": sorted(reasons.items())}
        # During this round higher processes may still connect; the loop of the rendezvous serves them.
        views = rendezvous.exchange(mine, "view of who shares memory", is_view)
    finally:
        if exchanger is not None:
            exchanger.close()
    pairs = [(lower, process) for process, view in enumerate(views) for lower in view["mapped"]]
    if any(p not in handovers for p in (_other(pair, rendezvous.rank) for pair in pairs) if p is not None):
        raise PeerError(
            f"another rank claims memory of rank {rendezvous.rank} that this rank did not hand over. Is another "
            "program in this job?",
            rank=rendezvous.rank,
        )
    if needs_shared_memory(environment.transport):
        _check_all_mapped(rendezvous, pairs, views)
    return pairs, infos


def _other(pair: tuple[int, int], process: int) -> int | None:
    return pair[1] if pair[0] == process else pair[0] if pair[1] == process else None


def _fault_of(world: World, rank: int) -> Fault:
    process = next(process for process in world.processes if rank in process.ranks)
    return {"peer": rank, "host": process.host_name, "pid": process.pid}


def _check_settings(rendezvous: Rendezvous, infos: list[dict[str, Any]]) -> None:
    for other, info in enumerate(infos):
        if info["algorithms"] != infos[0]["algorithms"]:
            raise MismatchError(
                f"the collectives-comm of rank 0 has other algorithms than that of rank {other}, so ranks would not "
                "choose alike; install the same version for all ranks",
                rank=rendezvous.rank,
                **rendezvous.fault_of(other if rendezvous.rank != other else 0),
            )
    names = ("transport", "compare_shapes", "network", "algorithm")
    for (other, info), name in itertools.product(enumerate(infos), names):
        if info[name] != infos[0][name]:
            argument = "" if name in ("network", "algorithm") else f" or {name}="
            raise MismatchError(
                f"rank 0 was started with {name} {infos[0][name]!r} and rank {other} with {info[name]!r}; give "
                f"every rank the same COLLECTIVES_{name.upper()}{argument}",
                rank=rendezvous.rank,
                **rendezvous.fault_of(other if rendezvous.rank != other else 0),
            )
    profile.refuse_differences(infos)


def _check_all_mapped(rendezvous: Rendezvous, pairs: Collection[tuple[int, int]], views: list[dict[str, Any]]) -> None:
    mapped = set(pairs)
    for high, view in enumerate(views):
        for low in range(high):
            if (low, high) not in mapped:
                why = dict(map(tuple, view["reasons"])).get(low, "unknown")
                raise CollectivesError(
                    f"transport {rendezvous.environment.transport!r} was asked for, but {rendezvous.show(low)} and "
                    f"{rendezvous.show(high)} do not share memory: {why}. Use transport 'auto', or start these ranks "
                    "on one host, in one container and as one user",
                    rank=rendezvous.rank,
                    **rendezvous.fault_of(low if rendezvous.rank == high else high),
                )


def _make_world(process: int, infos: list[dict[str, Any]], pairs: Collection[tuple[int, int]]) -> World:
    """The world, still without connections."""
    host = partition(len(infos), pairs)
    ranks = number_ranks(host, [info["replicas"] for info in infos])
    size = sum(map(len, ranks))
    groups = [(0, 0)] * size  # equal for ranks that share memory; a process without it has a group for each rank
    for index, numbers in enumerate(ranks):
        for rank in numbers:
            groups[rank] = (host[index], -1 if infos[index]["name"] else rank)
    indices = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    places = [indices[group] for group in groups]
    processes = [
        Process(numbers, str(info["hostname"]), int(info["pid"]), stack_place=str(info["stack"]))
        for numbers, info in zip(ranks, infos, strict=True)
    ]
    machine, cores = machines(infos, ranks)
    sharing = ranks_per_core(machine, cores)
    return World(process, processes, places, sharing, machine, cores, agreed(infos), [{} for _ in ranks[process]])


def _adopt_handovers(world: World, handovers: dict[int, Handover]) -> None:
    """Moves the descriptors of processes on this host into `world` and closes all others."""
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


def _print_routes(world: World, used_by_process: list[list[str]]) -> None:
    """On rank 0, prints over which interfaces data between hosts go, if any: the first thing to check if it is slow."""
    if world.process != 0 or all(name.startswith("loopback ") for used in used_by_process for name in used):
        return
    pairs = zip(world.processes, used_by_process, strict=True)
    routes = list(dict.fromkeys(f"{process.host_name} {' and '.join(used)}" for process, used in pairs))
    rest = f" and {len(routes) - _MOST_ROUTES} more" if len(routes) > _MOST_ROUTES else ""
    text = f"{len(world.host)} ranks, TCP between hosts over {', '.join(routes[:_MOST_ROUTES])}{rest}"
    say(f"collectives: {text}")


def _connect_mesh(rendezvous: Rendezvous, world: World) -> list[str]:
    """The TCP connections of the ranks of this process; a round of the rendezvous, unless no pair needs one.

    Returns:
        the interfaces and own addresses over which they go.
    """
    if len(set(world.host)) == 1:
        return []
    remote = [[r for r, host in enumerate(world.host) if host != world.host[own]] for own in world.ranks]
    reach = Reach(rendezvous.loopback, rendezvous.local_address, rendezvous.environment.interfaces, len(world.ranks))
    meshes: list[Mesh] = []
    try:
        for own, others in zip(world.ranks, remote, strict=True):
            mesh = Mesh(
                rendezvous.loop,
                own,
                rendezvous.job,
                rendezvous.environment.token,
                accept=[rank for rank in others if rank > own],
                reach=reach,
            )
            meshes.append(mesh)
        all_offered = rendezvous.exchange(
            [mesh.offered for mesh in meshes],
            "addresses",
            lambda process, value: are_addresses(value, len(world.processes[process].ranks)),
        )
        offers = {
            rank: [(str(host), int(port)) for host, port in offered]
            for process, offered_by_process in zip(world.processes, all_offered, strict=True)
            for rank, offered in zip(process.ranks, offered_by_process, strict=True)
        }
        for own, others, mesh in zip(world.ranks, remote, meshes, strict=True):
            mesh.start({rank: offers[rank] for rank in others if rank < own})
        # Ends before the deadline of the rendezvous: this error names the ranks that cannot be reached, while rank 0,
        # which knows nothing of that, would only report a timeout.
        remaining = rendezvous.deadline.remaining()
        limit = Deadline(remaining - min(1.0, 0.2 * remaining))
        if not rendezvous.loop.run(lambda: all(mesh.finished() for mesh in meshes), limit):
            own, mesh = next((own, mesh) for own, mesh in zip(world.ranks, meshes, strict=True) if not mesh.finished())
            raise DeadlineError(
                f"rank {own} is not connected with all others {rendezvous.deadline.seconds:g} s after the start: "
                f"{mesh.missing()}. Check that no firewall is between these hosts, or allow more time by "
                "COLLECTIVES_START_TIMEOUT (seconds)",
                rank=own,
                **_fault_of(world, min(set(remote[world.ranks.index(own)]) - mesh.connections.keys())),
            )
        used = sorted({name for mesh in meshes for name in mesh.used()})
        for mesh, connections in zip(meshes, world.sockets, strict=True):
            while mesh.connections:
                rank, sock = mesh.connections.popitem()
                connections[rank] = sock.detach()
        return used
    finally:
        for mesh in meshes:
            mesh.close()
