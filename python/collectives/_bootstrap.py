"""From a launch environment to connected, authenticated descriptors, which the core takes over.

1. All ranks meet (`_rendezvous`).
2. Every rank says who it is; pairs that can reach each other hand over their memory (`_handover`).
3. Every rank says with whom that worked. From this all ranks compute the same partition into hosts.
4. Pairs on different hosts are connected by TCP (`_mesh`).
5. A last round: everybody is connected.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from . import _rendezvous
from ._environment import Environment
from ._handover import Exchanger, Handover
from ._mesh import Mesh
from ._wire import Deadline
from .errors import CollectivesError, DeadlineError, MismatchError, PeerError

_log = logging.getLogger("collectives")


@dataclass
class PeerChannel:
    """The connections to one other rank. Descriptors are non-blocking and closed on exec; -1 where there is none.

    Attributes:
        rank: the other rank.
        host_name: the name of its machine, for messages only.
        pid: its process number, as seen here if it is on this host and else as seen there; for messages only.
        memory_fd: its memory segment (same host).
        doorbell_fd: its eventfd (same host).
        control_fd: Unix stream connection to it (same host); it ends when the other side dies.
        pid_fd: refers to its process (same host, where the kernel can say).
        tcp_fd: TCP connection to it (another host, or transport "tcp").
    """

    rank: int
    host_name: str
    pid: int
    memory_fd: int = -1
    doorbell_fd: int = -1
    control_fd: int = -1
    pid_fd: int = -1
    tcp_fd: int = -1

    def close(self) -> None:
        """Closes all descriptors, for the case that nobody took them over."""
        for name in ("memory_fd", "doorbell_fd", "control_fd", "pid_fd", "tcp_fd"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


@dataclass
class World:
    """All ranks of a job as one of them sees them.

    Attributes:
        rank: the own rank.
        size: number of ranks.
        host: for each rank the index of its host; ranks with the same index have each other's memory. Hosts are
            numbered in the order of their lowest rank, on every rank alike.
        peers: the other ranks, in rank order.
    """

    rank: int
    size: int
    host: list[int]
    peers: list[PeerChannel] = field(default_factory=list)

    def close(self) -> None:
        """Closes all descriptors, for the case that nobody took them over."""
        for peer in self.peers:
            peer.close()


def connect(environment: Environment, segment_fd: int, doorbell_fd: int) -> World:
    """Connects this process with the other ranks of its job.

    Args:
        environment: from `read_environment`.
        segment_fd, doorbell_fd: this rank's memory segment and eventfd. The peers on this host get copies; the caller
            keeps these.

    Returns:
        the connections, whose descriptors belong to the caller.

    Raises:
        DeadlineError: ranks did not come or could not be reached within ``environment.start_timeout`` seconds.
        MismatchError: ranks were started differently.
        PeerError: another rank failed or died.
        CollectivesError: transport "shm" was asked for and two ranks do not share memory.
        ValueError: the rendezvous address cannot be used.
    """
    if environment.size == 1:
        return World(0, 1, [0])
    deadline = Deadline(environment.start_timeout)
    handovers: dict[int, Handover] = {}
    world: World | None = None
    try:
        with _rendezvous.join(environment, deadline) as meeting:
            pairs, hosts, people = _hand_over(meeting, segment_fd, doorbell_fd, handovers)
            host = partition(environment.size, pairs)
            for rank in list(handovers):
                if host[rank] != host[environment.rank]:
                    handovers.pop(rank).close()
            sockets = _connect_mesh(meeting, host)
            world = World(environment.rank, environment.size, host)
            for rank in range(environment.size):
                if rank != environment.rank:
                    world.peers.append(_channel(rank, people[rank], handovers.pop(rank, None), sockets.pop(rank, None)))
            meeting.exchange(None, "word that all connections are made")
        _log.info("rank %d of %d: hosts %s (%s)", world.rank, world.size, host, hosts)
    except BaseException:
        for handover in handovers.values():
            handover.close()
        if world is not None:
            world.close()
        raise
    return world


def partition(size: int, pairs: Collection[tuple[int, int]]) -> list[int]:
    """The host index of each rank, from the pairs of ranks that have each other's memory.

    Ranks of one host must all have each other's memory. Where this is not so for the pairs as they came out (some rank
    was out of descriptors, say), each rank joins the first group with all of whose members it works; pairs in different
    groups use TCP. This depends on nothing but the arguments, so every rank computes the same.
    """
    connected = {frozenset(pair) for pair in pairs}
    groups: list[list[int]] = []
    host = []
    for rank in range(size):
        for index, members in enumerate(groups):
            if all(frozenset((rank, member)) in connected for member in members):
                members.append(rank)
                host.append(index)
                break
        else:
            host.append(len(groups))
            groups.append([rank])
    return host


def _hand_over(
    meeting: _rendezvous.Rendezvous, segment_fd: int, doorbell_fd: int, handovers: dict[int, Handover]
) -> tuple[list[tuple[int, int]], str, list[dict[str, Any]]]:
    """Rounds one and two. Fills `handovers`; returns the mapped pairs, a summary for the log, and who is who."""
    environment = meeting.environment
    exchanger: Exchanger | None = None
    try:
        if environment.transport != "tcp":
            exchanger = Exchanger(
                meeting.loop,
                meeting.rank,
                meeting.size,
                meeting.job,
                environment.token,
                segment_fd,
                doorbell_fd,
                done=handovers,
            )
        person = {
            "pid": os.getpid(),
            "hostname": socket.gethostname(),
            "transport": environment.transport,
            "name": exchanger.name if exchanger is not None else "",
        }
        people = meeting.exchange(person, "introductions")
        _check_transports(meeting.rank, people)
        if exchanger is not None:
            exchanger.start({rank: str(people[rank]["name"]) for rank in range(meeting.rank)})
            if not meeting.loop.run(exchanger.settled, meeting.deadline):
                waiting = [r for r in range(meeting.rank) if r not in handovers and r not in exchanger.reasons]
                raise DeadlineError(
                    f"rank {meeting.rank} waited for rank {', '.join(map(str, waiting))} to hand over memory, for "
                    f"{meeting.deadline.seconds:g} s after the start. Look at what that rank does",
                    rank=meeting.rank,
                    peer=waiting[0],
                )
        reasons = exchanger.reasons if exchanger is not None else {}
        mine = {"mapped": [r for r in handovers if r < meeting.rank], "reasons": sorted(reasons.items())}
        # While this round goes on, higher ranks may still be connecting: the loop of the meeting serves them.
        views = meeting.exchange(mine, "view of who shares memory")
    finally:
        if exchanger is not None:
            exchanger.close()
    pairs = [(lower, rank) for rank, view in enumerate(views) for lower in view["mapped"]]
    if any(rank not in handovers for rank in (_other(pair, meeting.rank) for pair in pairs) if rank is not None):
        raise PeerError(
            f"another rank has memory of rank {meeting.rank} that this rank did not give", rank=meeting.rank
        )
    if environment.transport == "shm":
        _check_all_mapped(meeting.rank, people, pairs, views)
    return pairs, ", ".join(f"{rank}: {p['hostname']}" for rank, p in enumerate(people)), people


def _other(pair: tuple[int, int], rank: int) -> int | None:
    return pair[1] if pair[0] == rank else pair[0] if pair[1] == rank else None


def _check_transports(rank: int, people: list[dict[str, Any]]) -> None:
    for other, person in enumerate(people):
        if person["transport"] != people[0]["transport"]:
            raise MismatchError(
                f"rank 0 was started with transport {people[0]['transport']!r} and rank {other} with "
                f"{person['transport']!r}; give every rank the same COLLECTIVES_TRANSPORT or transport=",
                rank=rank,
                peer=other if rank != other else 0,
            )


def _check_all_mapped(
    rank: int, people: list[dict[str, Any]], pairs: Collection[tuple[int, int]], views: list[dict[str, Any]]
) -> None:
    mapped = set(pairs)
    for high, view in enumerate(views):
        for low in range(high):
            if (low, high) not in mapped:
                why = dict(map(tuple, view["reasons"])).get(low, "unknown")
                raise CollectivesError(
                    f"transport 'shm' was asked for, but {_where(low, people)} and {_where(high, people)} do not "
                    f"share memory: {why}. Use transport 'auto', or start these ranks on one host, in one container "
                    "and as one user",
                    rank=rank,
                    peer=low if rank == high else high,
                )


def _where(rank: int, people: list[dict[str, Any]]) -> str:
    return f"rank {rank} (host {people[rank]['hostname']}, pid {people[rank]['pid']})"


def _connect_mesh(meeting: _rendezvous.Rendezvous, host: list[int]) -> dict[int, socket.socket]:
    """The TCP connections of this rank; a round of the rendezvous, unless no pair needs one."""
    if len(set(host)) == 1:
        return {}
    own = meeting.rank
    remote = [rank for rank in range(meeting.size) if host[rank] != host[own]]
    mesh = Mesh(
        meeting.loop,
        own,
        meeting.job,
        meeting.environment.token,
        accept=[rank for rank in remote if rank > own],
        loopback=meeting.loopback,
        local=meeting.local_address,
    )
    try:
        offers = meeting.exchange(mesh.offered, "addresses")
        mesh.start({rank: [(str(h), int(p)) for h, p in offers[rank]] for rank in remote if rank < own})
        if not meeting.loop.run(mesh.finished, meeting.deadline):
            raise DeadlineError(
                f"rank {own} is not connected with all others {meeting.deadline.seconds:g} s after the start: "
                f"{mesh.missing()}. Check that no firewall is between these hosts, or allow more time by "
                "COLLECTIVES_TIMEOUT (seconds)",
                rank=own,
            )
        sockets, mesh.connections = mesh.connections, {}
    finally:
        mesh.close()
    return sockets


def _channel(rank: int, person: dict[str, Any], handover: Handover | None, sock: socket.socket | None) -> PeerChannel:
    channel = PeerChannel(rank, str(person["hostname"]), int(person["pid"]))
    if handover is not None:
        channel.memory_fd, channel.doorbell_fd = handover.memory_fd, handover.doorbell_fd
        channel.control_fd, channel.pid_fd = handover.control_fd, handover.pid_fd
        channel.pid = handover.pid or channel.pid
    if sock is not None:
        channel.tcp_fd = sock.detach()
    return channel
