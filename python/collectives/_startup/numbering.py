"""Partitions the processes into hosts and numbers the ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def partition(size: int, pairs: Collection[tuple[int, int]]) -> list[int]:
    """The host index of each process, from the pairs of processes that have each other's memory.

    Processes of one host must all have each other's memory. Where a pair lacks it (a process ran out of descriptors,
    say), each process joins the first group in which it shares memory with all members; pairs in different groups use
    TCP. The result depends only on the arguments, so every process computes the same.
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

    When no process has asked for replicas, the rank of each is its process number, whatever its host.

    Args:
        host: the host index of each process.
        replicas: how many ranks each process has asked for; ``None`` is one.
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


def machines(infos: Sequence[Mapping[str, Any]], ranks: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """For each rank the index of its machine, and for each machine how many cores its ranks may use.

    The cores of ranks that are bound to cores add up.

    Args:
        infos: for each process its "machine" and "cores" (their numbers).
        ranks: of each process.
    """
    cores: dict[str, set[int]] = {}
    for info in infos:
        cores.setdefault(info["machine"], set()).update(info["cores"])
    index = {name: number for number, name in enumerate(cores)}
    machine = [0] * sum(map(len, ranks))
    for info, numbers in zip(infos, ranks, strict=True):
        for rank in numbers:
            machine[rank] = index[info["machine"]]
    return machine, [len(found) for found in cores.values()]


def ranks_per_core(machine: Sequence[int], cores: Sequence[int]) -> int:
    """How many ranks share a core, rounded up, on the machine where that are most.

    Arguments as `machines` returns them: ``ranks_per_core([0, 0, 0, 1], [2, 4])`` is 2.
    """
    return max(-(-count // cores[index]) for index, count in Counter(machine).items())
