"""Which rank is where: the partition of the processes into hosts, and the numbers of the ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def partition(size: int, pairs: Collection[tuple[int, int]]) -> list[int]:
    """The host index of each process, from the pairs of processes that have each other's memory.

    Processes of one host must all have each other's memory. Where this is not so for the pairs as they came out (some
    process was out of descriptors, say), each process joins the first group with all of whose members it works; pairs
    in different groups use TCP. This depends on nothing but the arguments, so every process computes the same.
    """
    connected = {frozenset(pair) for pair in pairs}
    groups: list[list[int]] = []
    host = []
    for process in range(size):
        for index, members in enumerate(groups):
            if all(frozenset((process, member)) in connected for member in members):
                members.append(process)
                host.append(index)
                break
        else:
            host.append(len(groups))
            groups.append([process])
    return host


def number_ranks(host: Sequence[int], replicas: Sequence[int | None]) -> list[list[int]]:
    """The ranks of each process, by replica: host by host, in a host process by process, in a process by replica.

    When no process has asked for replicas, every process keeps its own number, whatever its host.

    Args:
        host: the host index of each process.
        replicas: how many ranks each process has; ``None`` where it did not say, which is one.
    """
    if all(count is None for count in replicas):
        return [[process] for process in range(len(host))]
    ranks: list[list[int]] = [[] for _ in host]
    first = 0
    for process in sorted(range(len(host)), key=lambda process: (host[process], process)):
        count = replicas[process] or 1
        ranks[process] = list(range(first, first + count))
        first += count
    return ranks


def is_crowded(people: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some machine has more ranks than cores. Ranks that are bound to a core each have all of theirs together.

    Args:
        people: of each process its "machine", "cores" (their numbers) and "replicas".
    """
    cores: dict[str, set[int]] = {}
    ranks: Counter[str] = Counter()
    for person in people:
        cores.setdefault(person["machine"], set()).update(person["cores"])
        ranks[person["machine"]] += person["replicas"] or 1
    return any(count > len(cores[name]) for name, count in ranks.items())
