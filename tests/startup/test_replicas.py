"""Several ranks in each of several processes: one world, with real processes and threads."""

import json
import subprocess
import sys

import collectives
import numpy as np
import pytest
from collectives._startup.environment import MAX_SIZE
from namespaces import REASON
from replicas import LIMIT, START, finish, in_order, job

COLLECTIVES = r"""
def work(comm, replica):
    wrong = []
    def check(what, right):
        if not right:
            wrong.append(what)
    def total(value):
        return sum(value(rank) for rank in range(comm.size))
    own = np.array([[process, replica]])
    for _ in range(50):  # without a barrier between them
        check("small all_reduce", comm.all_reduce(np.array([comm.rank + 1.0]))[0] == total(lambda r: r + 1))
    x = np.arange(300_007, dtype=np.float32) % 1000
    check("large all_reduce", np.array_equal(comm.all_reduce(x * (comm.rank + 1)), x * total(lambda r: r + 1)))
    works = [comm.all_reduce(np.full(1000 * i, comm.rank), async_op=True) for i in range(20)]
    for work in reversed(works):
        check("asynchronous", (work.result() == total(lambda r: r)).all())
    comm.barrier()
    places = comm.all_gather(own)
    same_process = comm.split(process, key=-comm.rank)
    members = same_process.all_gather(np.array([comm.rank]))
    shifted = np.empty(5)
    if comm.size > 1:
        sending = comm.send(np.full(5, comm.rank), (comm.rank + 1) % comm.size, async_op=True)
        comm.recv(shifted.view(np.int64), (comm.rank - 1) % comm.size)
        sending.wait()
        check("send", (shifted.view(np.int64) == (comm.rank - 1) % comm.size).all())
    shared = comm.empty(1000, np.int64)
    shared[...] = comm.rank
    check("symmetric", (comm.all_reduce(shared) == total(lambda r: r)).all())
    check("objects", comm.all_gather_object((process, replica)) == [tuple(row) for row in places.tolist()])
    return {"rank": comm.rank, "wrong": wrong, "places": places.tolist(), "members": members.tolist(),
            "host": comm._host, "local_rank": comm.local_rank, "local_size": comm.local_size,
            "carried": sorted(name for name, bytes in comm.bytes_by_transport().items() if bytes > 0)}

say(results=in_threads(work))
# Not closed: the end of the process does it.
"""


def assert_right(reports, places):
    """`places`: the process and the replica of each rank."""
    ranks = {result["rank"]: result for report in reports for result in report["results"]}
    assert sorted(ranks) == list(range(len(places)))
    for result in ranks.values():
        assert result["wrong"] == []
        assert result["places"] == [list(place) for place in places]
        process = places[result["rank"]][0]
        assert result["members"] == [rank for rank, place in enumerate(places) if place[0] == process][::-1]
    return [ranks[rank] for rank in range(len(places))]


@pytest.mark.parametrize("transport", ["auto", "shm", "tcp"])
@pytest.mark.parametrize("replicas", [[1], [3], [2, 2], [1, 3], [2, 2, 2], [3, None]], ids=str)
def test_one_world(replicas, transport):
    with job(COLLECTIVES, replicas, transport) as processes:
        ranks = assert_right([process.hear() for process in processes], in_order(replicas))
        finish(processes)
    size = len(ranks)
    for rank, result in enumerate(ranks):
        alone = transport == "tcp" and size > 1
        assert result["host"] == (list(range(size)) if alone else [0] * size)
        assert (result["local_rank"], result["local_size"]) == ((0, 1) if alone else (rank, size))
        if size > 1:
            assert result["carried"] == ["tcp" if alone else "local" if len(replicas) == 1 else "shm"]


def test_more_descriptors_than_fit_into_one_message():
    with job(COLLECTIVES.replace("say(results=in_threads(work))", "say(size=comms[0].size)"), [130, 1]) as processes:
        assert [process.hear() for process in processes] == [{"size": 131}] * 2
        finish(processes)


def test_run(tmp_path):
    """The launcher starts the processes, which differ in their replicas."""
    script = tmp_path / "script.py"
    script.write_text(START + COLLECTIVES)
    done = subprocess.run(
        [sys.executable, "-m", "collectives", "run", "-n", "2", str(script), "[1, 3]"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines()]
    assert_right(reports, in_order([1, 3]))


def _start_again(comm):
    """All ranks from one thread: each has an engine that goes on by itself."""
    comm.close()
    group = collectives.init(replicas=1 + comm.rank)
    works = [replica.all_reduce(np.array([replica.rank]), async_op=True) for replica in group]
    return [replica.rank for replica in group], [int(work.result()[0]) for work in works]


def test_spawn():
    assert collectives.spawn(_start_again, 2, timeout=LIMIT) == [([0], [3]), ([1, 2], [3, 3])]


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize(
    ("places", "replicas", "order"),
    [
        ([0, 1, 0], [2, 3, 1], [0, 2, 1]),
        ([0, 1, 1, 0], [1, 1, 1, 1], [0, 3, 1, 2]),
        ([0, 1, 0], [None, 2, None], [0, 2, 1]),
        ([0, 1, 0], [None, None, None], [0, 1, 2]),
    ],
    ids=str,
)
def test_hosts_come_first(hosts, places, replicas, order):
    """Processes that lie on the hosts in another order than their numbers: ranks are host by host all the same."""
    with job(COLLECTIVES, replicas, hosts=hosts, places=places) as processes:
        expected = [(process, replica) for process in order for replica in range(replicas[process] or 1)]
        ranks = assert_right([process.hear() for process in processes], expected)
        finish(processes)
    host = [places[process] for process, _ in expected]
    for rank, result in enumerate(ranks):
        assert result["host"] == host
        assert result["local_size"] == host.count(host[rank])
        assert result["local_rank"] == host[:rank].count(host[rank])
        # Algorithms may have one rank of a host speak for all.
        assert any("tcp" in other["carried"] for other, place in zip(ranks, host, strict=True) if place == host[rank])
        assert ("shm" in result["carried"]) == (result["local_size"] > 1)


def test_one_world_at_a_time():
    first = collectives.init(replicas=2)
    again = collectives.init(replicas=2)
    assert len(again) == 2 and all(one is other for one, other in zip(first, again, strict=True))
    ranks = r"this process has ranks 0, 1 of 2, by collectives\.init\(\) at test_replicas\.py:\d+ with .*replicas=2"
    for call, text in [
        (collectives.init, "replicas=None was asked for"),
        (lambda: collectives.init(replicas=3), "replicas=3 was asked for"),
        (collectives.world, r"init\(replicas=\) returned"),
    ]:
        with pytest.raises(collectives.CollectivesError, match=f"{ranks}.*{text}"):
            call()
    first[0].close()
    with pytest.raises(collectives.CollectivesError, match=r"this process is rank 1 of 2, .* ranks here are closed"):
        collectives.init(replicas=2)
    first[1].close()
    with collectives.init() as alone:
        assert alone.size == 1
    [only] = collectives.init(replicas=1)
    only.close()


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (MAX_SIZE + 1, ValueError),
        ("2", TypeError),
        (True, TypeError),
        (2.0, TypeError),
    ],
)
def test_bad_numbers(value, error):
    with pytest.raises(error, match=rf"replicas= is {value!r}.*; an integer from 1 to {MAX_SIZE} is accepted"):
        collectives.init(replicas=value)


def test_too_many_for_the_world():
    with pytest.raises(ValueError, match=f"an integer from 1 to {MAX_SIZE // 4} is accepted"):
        collectives.init(rank=1, size=4, rendezvous="127.0.0.1:1", replicas=MAX_SIZE // 4 + 1)
