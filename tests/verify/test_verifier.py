"""Proves every registered algorithm, for every size and root, with the verifier of csrc/verify/.

The tests walk the registry: a new algorithm is tested without a change here. Only the table of closed forms names
algorithms.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest
import tiers
from collectives import _core

PARTS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
PREFIX = ("scan", "exscan")
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "barrier", *PREFIX, *PARTS)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
ALGORITHMS = [(c, a["name"]) for c in COLLECTIVES for a in _core._algorithms(c)]
CANONICAL = {(c, a["name"]) for c in COLLECTIVES for a in _core._algorithms(c) if a["determinism"] == "canonical"}

# So small that short buffers have many chunks and slots are reused inside one collective.
TINY = {"slots": 2, "slot_bytes": 64, "segment_bytes": 64, "inline_bytes": 16}
# For large groups: parts of a chunk should not be empty.
SMALL = {"slots": 2, "slot_bytes": 1024, "segment_bytes": 512, "inline_bytes": 16}
# Ranks choose whether they read each other: both ways are proven. The header has room for what they offer.
READING = {**TINY, "read_bytes": 12}
COUNTS = (0, 1, 3, 5, 16, 33, 80, 100, 161)  # float32: nothing, inline, one chunk, even and odd numbers of chunks

# Of 9 to 64 ranks, in the short tier: around powers of two, primes, and what divides by three and five.
SIZES = (9, 15, 16, 17, 23, 30, 31, 32, 33, 45, 63, 64)


def placements(size: int) -> list[list[int]]:
    """One host; hosts of equal, of unequal and of single ranks; hosts whose ranks are not neighbours."""
    unequal = [0] + [1] * (size // 2) + [2] * size
    every = [[0] * size, [r % 2 for r in range(size)], [0] * (size - 1) + [1], list(range(size)), unequal[:size]]
    return [p for i, p in enumerate(every) if p not in every[:i]]


def roots(collective: str, size: int) -> range:
    return range(size if collective in ROOTED else 1)


def counts(collective: str) -> tuple[int, ...]:
    return (0,) if collective == "barrier" else COUNTS


def places(collective: str) -> tuple[bool, ...]:
    """Out of place and in place; the parts of an all_to_all have no place of their own."""
    return (False,) if collective == "all_to_all" else (False, True)


def uneven(collective: str, size: int) -> Iterator[list[int]]:
    """Lengths of parts that differ: empty ones, one long one, rising ones, only one that is not empty."""
    parts = size * size if collective == "all_to_all" else size
    yield [(7 * i) % 5 * 9 for i in range(parts)]
    yield [3 + 40 * (i == parts // 2) for i in range(parts)]
    yield list(range(parts))
    yield [70 * (i == parts - 1) for i in range(parts)]


def check(collective: str, algorithm: str, size: int, **case: Any) -> None:
    verdict = _core._verify(collective, algorithm, size, **case)
    assert verdict["ok"], (size, case, verdict["problem"])
    if (collective, algorithm) in CANONICAL and collective in ("all_reduce", "reduce", "reduce_scatter", *PREFIX):
        assert verdict["canonical"], f"{algorithm} promises canonical order and breaks it: {size}, {case}"


def supported(collective: str, algorithm: str, size: int, root: int, count: int, memory: str, hosts: list[int]) -> bool:
    if collective in PARTS and memory == "symmetric":
        return False  # symmetric arrays take part like others there
    return not _core._unsupported(
        collective, algorithm, size, root=root, count=count, memory=memory, hosts=hosts, **TINY
    )


def small_cases(collective: str, algorithm: str, sizes: range, of_counts: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    for size in sizes:
        for root, hosts, memory, count in itertools.product(
            roots(collective, size), placements(size), ("private", "symmetric"), of_counts
        ):
            if supported(collective, algorithm, size, root, count, memory, hosts):
                yield {"size": size, "root": root, "hosts": hosts, "memory": memory, "count": count}


@pytest.mark.parametrize("slots", [2, 4])  # with four, two_shot is a pipeline
@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_small_groups_are_right_in_every_setting(collective: str, algorithm: str, slots: int) -> None:
    for case in small_cases(collective, algorithm, range(1, 9), counts(collective)):
        for in_place in places(collective):
            check(collective, algorithm, **case, **{**TINY, "slots": slots}, in_place=in_place, dtype="float32")


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_large_groups_are_right_for_every_root(collective: str, algorithm: str) -> None:
    """The settings rotate, so that over all sizes and roots each combination occurs many times."""
    for size in range(9, 65) if tiers.full() else SIZES:
        # The parts of an all_to_all are n x n.
        lengths = (1, 5, 17) if collective in PARTS else (1, 16 * size, 300)
        settings = [
            (hosts, memory, count, in_place)
            for hosts, memory, count, in_place in itertools.product(
                placements(size), ("private", "symmetric"), lengths, places(collective)
            )
            if supported(collective, algorithm, size, 0, count, memory, hosts)
        ]
        for i in range(max(4, len(roots(collective, size)))):
            hosts, memory, count, in_place = settings[(size * 7 + i * 5) % len(settings)]
            case = {"root": i % len(roots(collective, size)), "hosts": hosts, "memory": memory, "in_place": in_place}
            check(collective, algorithm, size, **case, count=0 if collective == "barrier" else count, **SMALL)


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_halves_and_back_to_back_calls_are_right(collective: str, algorithm: str) -> None:
    """Canonical order also where partial results are rounded; more calls than there are header lines."""
    for case in small_cases(collective, algorithm, range(1, 6), counts(collective)[:8:3]):
        check(collective, algorithm, **case, **TINY, dtype="bfloat16", repeats=19, in_place=places(collective)[-1])
        check(collective, algorithm, **case, **{**TINY, "slots": 4}, dtype="int8", repeats=5, in_place=False)


@pytest.mark.parametrize(("collective", "algorithm"), [a for a in ALGORITHMS if a[0] in PARTS])
def test_parts_of_different_lengths_are_right(collective: str, algorithm: str) -> None:
    for size in range(2, 9):
        for hosts, lengths, root in itertools.product(placements(size), uneven(collective, size), range(size)):
            if root in roots(collective, size) and supported(collective, algorithm, size, root, 1, "private", hosts):
                case = {"hosts": hosts, "lengths": lengths, "root": root, "repeats": 3}
                for in_place, slots in itertools.product(places(collective), (2, 4)):
                    check(collective, algorithm, size, **case, **{**TINY, "slots": slots}, in_place=in_place)


READ = ("all_gather", "all_to_all", "gather", "scatter")


@pytest.mark.parametrize("slots", [2, 4])
@pytest.mark.parametrize("collective", READ)
def test_parts_that_are_read_are_right(collective: str, slots: int) -> None:
    """Even parts of up to so many chunks that the pipeline has a loop, and uneven ones."""
    limits = {**READING, "slots": slots}
    chosen = 0
    for size in range(2, 7):
        parts = size * size if collective == "all_to_all" else size
        for root, in_place in itertools.product(roots(collective, size), places(collective)):
            for lengths in ([17] * parts, [117] * parts, *uneven(collective, size)):
                for repeats in (3, 18) if size < 4 else (2,):
                    case = {"lengths": lengths, "root": root, **limits}
                    check(collective, "one_shot", size, **case, in_place=in_place, repeats=repeats)
                    chosen += "choose" in _core._schedule_text(collective, "one_shot", size, **case)
    assert chosen > 30


@pytest.mark.parametrize("collective", READ)
def test_every_mutant_of_parts_that_are_read_is_rejected(collective: str) -> None:
    slots = (2,) if collective in ROOTED else (2, 4)  # four: the pipeline
    for size, slot, count in itertools.product((2, 3), slots, (33, 117)):
        case = {"size": size, "count": count, **READING, "slots": slot}
        case["root"] = size - 1 if collective in ROOTED else 0
        texts = [_core._schedule_text(collective, "one_shot", **case, rank=rank) for rank in range(size)]
        assert all("choose" in text for text in texts) and any("read " in text for text in texts)
        passed, total = _core._survivors(collective, "one_shot", **case)
        assert total > 0 and not passed, passed


def test_rounded_partial_results_break_the_canonical_order() -> None:
    """Of every type that is narrower than float32, and of no other."""
    exact, narrow = ("float32", "float64", "complex64", "int8"), ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    found = set()
    for collective, algorithm in ALGORITHMS:
        case = {"size": 3, "count": 100, "hosts": [0, 0, 1]}
        if collective == "all_reduce" and not _core._unsupported(collective, algorithm, **case):
            canonical = {d: _core._verify(collective, algorithm, **case, dtype=d)["canonical"] for d in exact + narrow}
            verdicts = {canonical[d] for d in exact}, {canonical[d] for d in narrow}
            assert [len(v) for v in verdicts] == [1, 1], (algorithm, canonical)
            found.add((canonical[exact[0]], canonical[narrow[0]]))
    assert (True, False) in found


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_every_mutant_is_rejected(collective: str, algorithm: str) -> None:
    """No wait, signal, await, flush, send or receive is there for nothing, and none is missed by the verifier."""
    total = 0
    lengths = {"barrier": (0,), **dict.fromkeys(("all_reduce", "broadcast", "reduce"), (3, 117, 241))}
    lengths |= dict.fromkeys(PREFIX, (3, 16, 20, 37, 117))
    for case in small_cases(collective, algorithm, range(1, 6), lengths.get(collective, (1, 37, 81))):
        survivors, mutants = _core._survivors(collective, algorithm, **case, **TINY, repeats=3)
        assert not survivors, (case, survivors[:3])
        total += mutants
    assert total > 0


def test_every_mutant_of_the_pipeline_is_rejected() -> None:
    """The same for two_shot with as many slots as it has outside tests, over several loops of its chunks."""
    total = 0
    for size, count in itertools.product((2, 3, 4), (117, 161, 200)):
        limits = {**TINY, "slots": 4}
        survivors, mutants = _core._survivors("all_reduce", "two_shot", size, count=count, **limits, repeats=3)
        assert not survivors, (size, count, survivors[:3])
        total += mutants
    assert total > 0


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all"])
def test_every_mutant_of_the_pipeline_of_parts_is_rejected(collective: str) -> None:
    total = 0
    limits = {**TINY, "slots": 4}
    for size, count in itertools.product((2, 3), (37, 81, 117)):
        lengths = [count] * (size * size if collective == "all_to_all" else size)
        survivors, mutants = _core._survivors(collective, "one_shot", size, lengths=lengths, **limits, repeats=3)
        assert not survivors, (size, lengths, survivors[:3])
        total += mutants
    assert total > 0


def chunks_over_links(size: int) -> Iterator[int]:
    """Numbers of float32 for which two_shot over links, with TINY, has full chunks in its loop and others around it."""
    chunk = 2 * TINY["segment_bytes"] // 4 * size
    for chunks in (4, 5, 8):
        yield from (chunk * chunks - 1, chunk * chunks, chunk * chunks + 5)


def two_shot_over_links(sizes: Iterable[int]) -> Iterator[dict[str, Any]]:
    for size in sizes:
        for hosts in (list(range(size)), [r % 2 for r in range(size)]):
            if len(set(hosts)) > 1:
                yield from ({"size": size, "hosts": hosts, "count": count} for count in chunks_over_links(size))


def test_the_pipeline_over_links_is_right() -> None:
    for case in two_shot_over_links((2, 3, 4, 5, 8)):
        for in_place in (False, True):
            check("all_reduce", "two_shot", **case, **TINY, in_place=in_place, dtype="float32")


def test_every_mutant_of_the_pipeline_over_links_is_rejected() -> None:
    total = 0
    for case in two_shot_over_links((2, 3, 4)):
        survivors, mutants = _core._survivors("all_reduce", "two_shot", **case, **TINY, repeats=2)
        assert not survivors, (case, survivors[:3])
        total += mutants
    assert total > 0


def test_a_mutant_is_reported_with_rank_and_step() -> None:
    collective, algorithm = ALGORITHMS[0]
    case = {"size": 3, "count": 100, "hosts": [0, 1, 2], **TINY}
    names = _core._mutations(collective, algorithm, **case, rank=1)
    assert names
    verdict = _core._verify(collective, algorithm, **case, mutate_rank=1, mutation=0)
    assert not verdict["ok"]
    assert verdict["mutation"] == names[0]
    assert "rank" in verdict["problem"]
    assert "step" in verdict["problem"]


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_two_ranks_that_do_not_swap_buffers_are_right(collective: str) -> None:
    """As between GPUs; elsewhere they do."""
    total = 0
    for case, slots in itertools.product(small_cases(collective, "one_shot", (2,), (37, 81, 161)), (2, 4)):
        limits = {**TINY, "slots": slots, "swap_buffers": False}
        for in_place in places(collective):
            check(collective, "one_shot", **case, **limits, in_place=in_place, dtype="float32")
        survivors, mutants = _core._survivors(collective, "one_shot", **case, **limits, repeats=3)
        assert not survivors, (case, survivors[:3])
        total += mutants
        text = _core._schedule_text(collective, "one_shot", **case, **{**limits, "swap_buffers": True})
        assert ("bounce[0|1]" in text) == (len(set(case["hosts"])) == 1)
    assert total > 0


# ---- Closed forms ----

Links = dict[tuple[int, int], int]


class Form(NamedTuple):
    """What the literature says an algorithm moves."""

    links: Callable[[int, int, int], Links]  # (size, bytes, root) -> bytes of every link that is used
    hops: Callable[[int], int]  # size -> links that a contribution crosses one after the other


def everyone(share: Callable[[int, int], int]) -> Callable[[int, int, int], Links]:
    return lambda n, s, _: {(i, j): share(n, s) for i in range(n) for j in range(n) if i != j}


def around(share: Callable[[int, int], int]) -> Callable[[int, int, int], Links]:
    return lambda n, s, _: {(i, (i + 1) % n): share(n, s) for i in range(n)} if n > 1 else {}


def chain(n: int, s: int, root: int) -> Links:
    return {((root + i) % n, (root + i + 1) % n): s for i in range(n - 1)}


def chain_to_root(n: int, s: int, root: int) -> Links:
    return {(j, i): s for i, j in chain(n, s, root)}


def from_root(n: int, s: int, root: int) -> Links:
    return {(root, r): s for r in range(n) if r != root}


def to_root(n: int, s: int, root: int) -> Links:
    return {(r, root): s for r in range(n) if r != root}


def through(root: int) -> Callable[[int, int, int], Links]:
    return lambda n, s, _: {**from_root(n, s, root), **to_root(n, s, root)}


def two_mains(n: int, s: int, _: int) -> Links:
    half = (n + 1) // 2
    edges = [(0 if r < half else half, r) for r in range(n) if r not in (0, half)] + ([(0, half)] if n > 1 else [])
    return {link: s for a, b in edges for link in ((a, b), (b, a))}


def binomial(n: int, s: int, root: int) -> Links:
    """Counted from the root, v gets its data from v without its lowest set bit."""
    return {((root + (v & (v - 1))) % n, (root + v) % n): s for v in range(1, n)}


def upwards(n: int, s: int, _: int) -> Links:
    return {(i, j): s for i in range(n) for j in range(i + 1, n)}


def doubling(n: int, s: int, _: int) -> Links:
    return {(i, j): s for i in range(n) for j in range(i + 1, n) if (j - i).bit_count() == 1}


def most_bits(n: int) -> int:
    return max(v.bit_count() for v in range(n))


FORMS: dict[tuple[str, str], Form] = {
    ("all_reduce", "one_shot"): Form(everyone(lambda n, s: s), lambda n: min(n - 1, 1)),
    ("all_reduce", "two_shot"): Form(everyone(lambda n, s: 2 * s // n), lambda n: min(n - 1, 1) * 2),
    ("all_reduce", "ring"): Form(around(lambda n, s: 2 * (n - 1) * s // n), lambda n: 2 * (n - 1)),
    ("all_reduce", "reduce_to_one"): Form(through(0), lambda n: min(n - 1, 1) * 2),
    ("all_reduce", "hierarchical_copy"): Form(two_mains, lambda n: 4 if n > 3 else min(n - 1, 1) * 2),
    ("broadcast", "one_shot"): Form(from_root, lambda n: min(n - 1, 1)),
    ("broadcast", "ring"): Form(chain, lambda n: n - 1),
    ("broadcast", "tree"): Form(binomial, most_bits),
    ("reduce", "one_shot"): Form(to_root, lambda n: min(n - 1, 1)),
    ("reduce", "reduce_to_one"): Form(to_root, lambda n: min(n - 1, 1)),
    ("reduce", "ring"): Form(chain_to_root, lambda n: n - 1),
    ("scan", "one_shot"): Form(upwards, lambda n: min(n - 1, 1)),
    ("scan", "pipeline"): Form(chain, lambda n: n - 1),
    ("scan", "recursive_doubling"): Form(doubling, most_bits),
    ("exscan", "one_shot"): Form(upwards, lambda n: min(n - 1, 1)),
    ("exscan", "recursive_doubling"): Form(doubling, most_bits),
    ("barrier", "one_shot"): Form(lambda n, s, root: {}, lambda n: 0),
    ("barrier", "tree"): Form(lambda n, s, root: {}, lambda n: 0),
}


def used_links(verdict: dict[str, Any]) -> Links:
    rows = enumerate(verdict["link_bytes"])
    return {(i, j): moved for i, row in rows for j, moved in enumerate(row) if moved}


@pytest.mark.parametrize(("collective", "algorithm"), list(FORMS))
def test_bytes_and_hops_follow_the_closed_form(collective: str, algorithm: str) -> None:
    form = FORMS[collective, algorithm]
    for size, memory in itertools.product((1, 2, 3, 4, 5, 8, 13, 16, 64), ("private", "symmetric")):
        # Parts of whole cache lines, several chunks and segments to each.
        count = 0 if collective == "barrier" else 16 * size * 3
        for hosts, root in itertools.product(([0] * size, list(range(size))), {0, size // 2, size - 1}):
            root = root if collective in ROOTED else 0
            if not supported(collective, algorithm, size, root, count, memory, hosts):
                continue
            segment = 64 if size <= 8 else 64 * size  # few segments in large groups, to be quick
            limits = {"slots": 2, "slot_bytes": 64 * size, "segment_bytes": segment, "inline_bytes": 16}
            verdict = _core._verify(
                collective, algorithm, size, root=root, count=count, memory=memory, hosts=hosts, **limits
            )
            assert verdict["ok"], verdict["problem"]
            assert used_links(verdict) == form.links(size, 4 * count, root), (size, memory, hosts)
            assert verdict["hops"] == form.hops(size), (size, memory, hosts)


def test_ring_steps() -> None:
    """2 (n-1) sends and as many receives on every rank for each segment of a part; half of them reduce."""
    for size, segments in itertools.product((2, 3, 8, 64), (1, 3)):
        verdict = _core._verify("all_reduce", "ring", size, count=16 * size * segments, segment_bytes=64)
        assert verdict["sends"] == [2 * (size - 1) * segments] * size
        assert verdict["receives"] == [2 * (size - 1) * segments] * size
        assert verdict["reductions"] == [(size - 1) * segments] * size


def test_hierarchical_sends_each_share_once_between_hosts() -> None:
    """2 (h-1)/h of a share from each carrier to the next, and a share between a carrier and each rank of its host."""
    for hosts in ([0, 0, 1, 1], [0, 1, 1, 2, 2, 2], [0, 1, 0, 1, 2], [3, 3, 3, 1], [0, 0, 1, 1, 2, 2, 1]):
        local = [[r for r, host in enumerate(hosts) if host == h] for h in dict.fromkeys(hosts)]
        between, carriers, bytes_ = len(local), min(map(len, local)), 64 * 12
        share = bytes_ // carriers
        expected = Counter[tuple[int, int]]()
        for place in range(carriers):
            for here, there in zip(local, local[1:] + local[:1], strict=True):
                expected[here[place], there[place]] += 2 * (between - 1) * share // between
                for rank in here:
                    if rank != here[place]:
                        expected[rank, here[place]] += share
                        expected[here[place], rank] += share
        verdict = _core._verify("all_reduce", "hierarchical", len(hosts), count=bytes_ // 4, hosts=hosts)
        assert verdict["ok"], verdict["problem"]
        assert used_links(verdict) == expected
        assert verdict["hops"] == 2 * (between - 1) + 2


def test_tree_is_shallow() -> None:
    for size in range(2, 65):
        assert FORMS["broadcast", "tree"].hops(size) <= math.ceil(math.log2(size))


@pytest.mark.parametrize("hosts", [[0, 1, 2, 3], [0, 0, 1, 1]])
@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("lengths", [[4096] * 4, [5000, 0, 4096, 3000], [9000, 4095, 5000, 1]])
def test_the_root_of_a_long_scatter_waits_for_the_others_with_the_ends_of_parts_only(
    hosts: list[int], root: int, lengths: list[int]
) -> None:
    case = {"size": 4, "hosts": hosts, "root": root, "lengths": lengths}
    verdict = _core._verify("scatter", "one_shot", **case)
    assert verdict["ok"], verdict["problem"]
    survivors, mutants = _core._survivors("scatter", "one_shot", **case)
    assert mutants >= 18
    assert survivors == []
    before, after = _core._schedule_text("scatter", "one_shot", **case, rank=root).split("await", 1)
    long = sum(4 * length >= 16 << 10 for rank, length in enumerate(lengths) if rank != root)
    assert before.count("send ") == long
    assert after.count("send ") == 3
