"""The trees of double_tree, its pipeline over more chunks than other tests have, and the jobs that choose it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from collectives import _core

COLLECTIVES = ("all_reduce", "broadcast", "reduce")
ROOTED = ("broadcast", "reduce")
TINY = {"slots": 2, "slot_bytes": 64, "segment_bytes": 64, "inline_bytes": 16}
GBIT = 125_000  # bytes per ms

Edge = tuple[int, int]  # parent, child


def in_order(nodes: list[int]) -> tuple[int, list[Edge]]:
    """The root and the edges of a binary tree whose order from left to right is that of the nodes."""
    middle = (1 << (len(nodes).bit_length() - 1)) - 1
    root, edges = nodes[middle], []
    for side in (nodes[:middle], nodes[middle + 1 :]):
        if side:
            child, below = in_order(side)
            edges += [(root, child), *below]
    return root, edges


def two_trees(nodes: list[int]) -> list[tuple[int, list[Edge]]]:
    second = nodes[::-1] if len(nodes) % 2 == 0 else nodes[-1:] + nodes[:-1]
    return [in_order(nodes), in_order(second)]


def links(collective: str, size: int, nbytes: int, root: int) -> Counter[Edge]:
    """Bytes from rank to rank, each on a host of its own."""
    rooted = collective in ROOTED
    nodes = [(root + 1 + i) % size for i in range(size - 1)] if rooted else list(range(size))
    half = nbytes // 64 // 2 * 64
    moved = Counter[Edge]()
    for share, (top, edges) in zip((half, nbytes - half), two_trees(nodes), strict=True):
        for parent, child in [*edges, (root, top)] if rooted else edges:
            if collective != "reduce":
                moved[parent, child] += share
            if collective != "broadcast":
                moved[child, parent] += share
    return moved


@pytest.mark.parametrize("size", range(1, 70))
def test_nobody_is_an_inner_node_of_both_trees(size: int) -> None:
    first, second = ({parent for parent, _ in edges} for _, edges in two_trees(list(range(size))))
    assert not first & second
    assert first | second >= set(range(size - 1)) or size == 1


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 13, 16, 33, 64])
def test_half_of_the_data_passes_each_edge_of_both_trees(collective: str, size: int) -> None:
    for root in {0, size // 2, size - 1} if collective in ROOTED else {0}:
        nbytes = 64 * size * 3
        case = {"hosts": list(range(size)), "root": root, "count": nbytes // 4}
        verdict = _core._verify(collective, "double_tree", size, **case, segment_bytes=64)
        assert verdict["ok"], verdict["problem"]
        found = {(i, j): n for i, row in enumerate(verdict["link_bytes"]) for j, n in enumerate(row) if n}
        assert found == dict(links(collective, size, nbytes, root))
        times = 2 if collective == "all_reduce" else 1
        assert max(map(sum, verdict["link_bytes"])) <= times * (nbytes + 64)
        assert verdict["hops"] == (
            2 * (size.bit_length() - 1) if collective == "all_reduce" else (size - 1).bit_length()
        )


def long_cases(collective: str, sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """So many chunks that most rounds are in the loop; halves of equal and of different lengths."""
    for size in sizes:
        for hosts in (list(range(size)), [r // 2 for r in range(size)], [r % 2 for r in range(size)]):
            carriers = min(Counter(hosts).values())
            rounds = 4 * (2 * size.bit_length() + 2)
            for more in (0, 16, 21):
                count = 16 * 2 * carriers * rounds + more
                for root in {0, size - 1} if collective in ROOTED else {0}:
                    if len(set(hosts)) > 1:
                        yield {"size": size, "hosts": hosts, "count": count, "root": root}


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_long_arrays_are_right(collective: str) -> None:
    for case, in_place in itertools.product(long_cases(collective, (2, 3, 4, 5, 8)), (False, True)):
        text = _core._schedule_text(collective, "double_tree", **case, **TINY, rank=case["size"] - 1)
        assert "loop" in text
        verdict = _core._verify(collective, "double_tree", **case, **TINY, in_place=in_place)
        assert verdict["ok"], (case, verdict["problem"])


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_mutant_of_long_arrays_is_rejected(collective: str) -> None:
    total = 0
    for case in long_cases(collective, (2, 3)):
        survivors, mutants = _core._survivors(collective, "double_tree", **case, **TINY)
        assert not survivors, (case, survivors[:3])
        total += mutants
    assert total > 0


def test_a_longer_array_has_more_rounds_of_the_loop_and_no_more_steps() -> None:
    short, long = (
        _core._schedule_text("all_reduce", "double_tree", 7, hosts=list(range(7)), count=count, **TINY, rank=3)
        for count in (32 * 50, 32 * 5000)
    )
    assert short.count("\n") == long.count("\n")
    assert short != long


# ---- The choice ----


def predictions(collective: str, nbytes: int, hosts: list[int], **network: int) -> dict[str, float]:
    found = _core._predictions_for(collective, nbytes, hosts=hosts, **network)
    assert found["simulated"]
    return {c["algorithm"]: c["us"] for c in found["candidates"] if not c["unsupported"]}


@pytest.mark.parametrize("nbytes", [256 << 10, 512 << 10])
@pytest.mark.parametrize("hosts", [48, 63])
def test_many_hosts_that_are_no_power_of_two_choose_it(hosts: int, nbytes: int) -> None:
    """A ring has too many hops for that, halving_doubling sends all data twice more, two_shot too many messages."""
    found = predictions("all_reduce", nbytes, list(range(hosts)), bytes_per_ms=25 * GBIT)
    assert min(found, key=lambda name: found[name]) == "double_tree"
    assert found["ring"] > 2 * found["double_tree"]


def test_a_power_of_two_and_few_hosts_choose_others() -> None:
    for hosts, nbytes in ((64, 256 << 10), (8, 256 << 10), (8, 4 << 20), (4, 1 << 20)):
        found = predictions("all_reduce", nbytes, list(range(hosts)), bytes_per_ms=25 * GBIT)
        assert found["double_tree"] > 1.1 * min(found.values())
