"""Ten times as much costs about ten times as much: every list, queue and registry of the library, at n and at 10 n.

What is compared is processor time, in which other programs do not count, and of several rounds the least. A cost
that grows as a square makes the ratio a hundred; the bound is in the middle.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import collectives
import numpy as np
import pytest
from threaded import in_threads

BOUND = 30  # between 10 and 100
ROUNDS = 8  # at most; noise makes single rounds dear, and never cheap

Pair = list[Any]


@pytest.fixture(scope="module", params=["local", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two ranks of this process: by the same code as over shm, or by sockets."""
    over_tcp = request.param == "tcp"
    comms: Pair = collectives.init(replicas=2, transport="tcp") if over_tcp else collectives.local_group(2)
    yield comms
    while comms:
        comms.pop().close()


def both(pair: Pair, work: Callable[[Any], None]) -> None:
    in_threads([lambda comm=comm: work(comm) for comm in pair])  # type: ignore[misc]


def wait_for(works: list[Any]) -> None:
    for work in works:
        work.wait()


def arrays(n: int, length: int = 4) -> list[Any]:
    return [np.zeros(length, np.float32) for _ in range(n)]


def sends_first(pair: Pair, n: int) -> None:
    sent = [pair[0].send(x, 1, async_op=True) for x in arrays(n)]
    for x in arrays(n):
        pair[1].recv(x, 0)
    wait_for(sent)


def sends_of_many_tags(pair: Pair, n: int) -> None:
    sent = [pair[0].send(x, 1, tag, async_op=True) for tag, x in enumerate(arrays(n))]
    for tag, x in enumerate(arrays(n)):
        pair[1].recv(x, 0, tag)
    wait_for(sent)


def receives_first(pair: Pair, n: int) -> None:
    received = [pair[1].recv(x, 0, async_op=True) for x in arrays(n)]
    for x in arrays(n):
        pair[0].send(x, 1)
    wait_for(received)


def receives_of_many_tags(pair: Pair, n: int) -> None:
    received = [pair[1].recv(x, 0, tag, async_op=True) for tag, x in enumerate(arrays(n))]
    for tag, x in enumerate(arrays(n)):
        pair[0].send(x, 1, tag)
    wait_for(received)


def receives_from_any(pair: Pair, n: int) -> None:
    received = [pair[1].recv(x, async_op=True) for x in arrays(n)]
    for x in arrays(n):
        pair[0].send(x, 1)
    wait_for(received)


def receives_from_any_of_many_tags(pair: Pair, n: int) -> None:
    received = [pair[1].recv(x, None, tag, async_op=True) for tag, x in enumerate(arrays(n))]
    for tag, x in enumerate(arrays(n)):
        pair[0].send(x, 1, tag)
    wait_for(received)


def messages_to_oneself(pair: Pair, n: int) -> None:
    sent = [pair[0].send(x, 0, async_op=True) for x in arrays(n)]
    for x in arrays(n):
        pair[0].recv(x, 0)
    wait_for(sent)


def long_messages(pair: Pair, n: int) -> None:
    """Which do not go ahead of their receives."""
    given = np.zeros(20_000, np.float32)
    sent = [pair[0].send(given, 1, async_op=True) for _ in range(n)]
    taken = np.zeros_like(given)
    for _ in range(n):
        pair[1].recv(taken, 0)
    wait_for(sent)


def calls_in_flight(pair: Pair, n: int) -> None:
    wait_for([comm.all_reduce(x, async_op=True) for comm in pair for x in arrays(n)])


def dropped_handles(pair: Pair, n: int) -> None:
    for comm in pair:
        for x in arrays(n):
            comm.all_reduce(x, async_op=True)
    both(pair, lambda comm: comm.barrier())


def symmetric_arrays(pair: Pair, n: int) -> None:
    """Made, and made again where others were freed."""

    def work(comm: Any) -> None:
        some = [comm.empty(16) for _ in range(n)]
        del some[::2]
        some += [comm.empty(16) for _ in range(n)]

    both(pair, work)


def failing_together(pair: Pair, n: int) -> None:
    """Calls in flight that all end by one error."""
    group: Pair = [None, None]

    def make(comm: Any) -> None:
        group[comm.rank] = comm.dup()

    both(pair, make)
    works = [group[1].recv(x, 0, async_op=True) for x in arrays(n)]
    works += [group[1].recv(x, None, i % 2, async_op=True) for i, x in enumerate(arrays(n))]
    works += [group[1].all_reduce(x, async_op=True) for x in arrays(n)]
    group[0].close()
    for work in works:
        with pytest.raises(collectives.PeerError):
            work.wait()
    group[1].close()


# How many at first.
CASES: dict[Callable[[Pair, int], None], int] = {
    sends_first: 1000,
    sends_of_many_tags: 1000,
    receives_first: 1000,
    receives_of_many_tags: 1000,
    receives_from_any: 1000,
    receives_from_any_of_many_tags: 1000,
    messages_to_oneself: 1000,
    long_messages: 400,
    calls_in_flight: 1000,
    dropped_handles: 1000,
    symmetric_arrays: 100,
    failing_together: 500,
}


def seconds(case: Callable[[], None]) -> float:
    gc.collect()
    before = time.process_time()
    case()
    return time.process_time() - before


def ratio(few: Callable[[], None], many: Callable[[], None], bound: float) -> float:
    """How much more `many` takes, by the least of several rounds: as many as it takes to be below the bound."""
    least = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        least = [min(least[0], seconds(few)), min(least[1], seconds(many))]
        if least[1] / least[0] < bound:
            break
    return least[1] / least[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_many_cost_no_more_each(pair: Pair, case: Callable[[Pair, int], None]) -> None:
    n = CASES[case]
    assert ratio(lambda: case(pair, n), lambda: case(pair, 10 * n), BOUND) < BOUND


def test_calls_beside_open_groups(pair: Pair) -> None:
    """Groups in which nothing is in flight cost the calls of others nothing."""
    groups: list[Any] = []

    def calls() -> None:
        for _ in range(300):
            wait_for([comm.all_reduce(np.zeros(4), async_op=True) for comm in pair])

    def make(comm: Any) -> None:
        groups.extend([comm.dup() for _ in range(1000)])

    alone = min(seconds(calls) for _ in range(ROUNDS))
    both(pair, make)
    beside = [seconds(calls)]
    while min(beside) > 1.6 * alone and len(beside) < ROUNDS:
        beside.append(seconds(calls))
    for group in groups:
        group.close()
    assert min(beside) < 1.6 * alone


def test_the_recorder_holds_no_more_than_it_says(pair: Pair) -> None:
    both(pair, lambda comm: [comm.barrier() for _ in range(3000)])  # type: ignore[arg-type]
    assert len(pair[0].recorder()) == 1000
