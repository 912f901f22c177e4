"""Ranks that are threads, all in the same code at once, and threads that share a communicator or a work.

A free-threaded Python keeps them in no order of its own; `tools/sanitized_python.py --python` runs this file in one.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from typing import Any

import collectives
import numpy as np
from paths import python_path
from threaded import in_threads, on_ranks

RANKS = 8
ROUNDS = 20
LIMIT = 300.0  # seconds for a process, which ThreadSanitizer makes slow


def ones(*shape: int) -> Any:
    return np.ones(shape or 4, np.float32)


# --- everything for the first time ------------------------------------------------------------------------------------


def dense(comm: Any) -> None:
    assert (comm.all_reduce(ones()) == comm.size).all()
    assert (comm.all_reduce([ones(), ones(2, 3)], out=[ones(), ones(2, 3)])[1] == comm.size).all()
    assert comm.all_reduce(np.array(1, np.int64)) == comm.size
    assert (comm.broadcast(np.full(3, comm.rank), 2) == 2).all()
    comm.reduce(ones(), root=1, op="max")
    assert (comm.scan(ones()) == comm.rank + 1).all()
    comm.exscan(ones(), op="prod")
    comm.barrier()


def vector(comm: Any) -> None:
    assert comm.all_gather(ones()).size == 4 * comm.size
    assert comm.reduce_scatter(ones(2 * comm.size)).size == 2
    assert comm.all_to_all(ones(2 * comm.size)).size == 2 * comm.size
    comm.gather(ones(), root=3)
    assert comm.scatter(ones(comm.size) if comm.rank == 1 else None, root=1).size == 1
    assert comm.all_gather(ones(comm.rank)).size == comm.size * (comm.size - 1) // 2


def objects(comm: Any) -> None:
    assert comm.all_gather_object(comm.rank) == list(range(comm.size))
    assert comm.broadcast_object({"of": comm.rank}, root=4) == {"of": 4}
    comm.gather_object("x" * comm.rank)
    assert comm.scatter_object([[r] for r in range(comm.size)] if comm.rank == 0 else None) == [comm.rank]


def messages(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.send(ones(), right)
    assert comm.probe(left).elements == 4
    assert (comm.recv(np.zeros(4, np.float32), left) == 1).all()
    coming = comm.recv(np.zeros(4, np.float32), tag=7, async_op=True)
    comm.send(ones(), left, tag=7, async_op=True).wait()
    assert coming.result().source == right
    assert comm.sendrecv(np.full(2, comm.rank), right, left)[0] == left


def works(comm: Any) -> None:
    called = threading.Event()
    work = comm.all_reduce(ones(), async_op=True, name="called")
    work.add_done_callback(lambda work: called.set())
    assert called.wait(60)
    assert work.done()
    assert work.algorithm
    assert (comm.all_reduce(ones(), async_op=True).future().result(60) == comm.size).all()
    comm.all_reduce(ones(), async_op=True)  # whose handle is dropped
    collectives.wait_all([comm.all_reduce(ones(), async_op=True), comm.all_gather(ones(), async_op=True)])


def groups(comm: Any) -> None:
    with comm.split(comm.rank % 2, key=-comm.rank) as half:
        assert (half.all_reduce(ones()) == half.size).all()
    copy = comm.dup()
    assert (copy.all_reduce(copy.empty(8)).size) == 8
    pair = copy.new_group([comm.rank - comm.rank % 2, comm.rank - comm.rank % 2 + 1], members_only=True)
    assert (pair.all_reduce(ones()) == 2).all()
    copy.close()


def inquiries(comm: Any) -> None:
    assert str(comm.rank) in repr(comm)
    assert comm.recorder()
    assert comm.bytes_by_transport()
    assert comm.explain("all_reduce", nbytes=1000).chosen


def refusals(comm: Any) -> None:
    """The errors of Python, and one of the engine, after which the communicator cannot be used."""
    for wrong in (
        lambda: comm.all_reduce("text"),
        lambda: comm.all_reduce(ones(), op="median"),
        lambda: comm.broadcast(ones(), 99),
        lambda: comm.all_reduce(ones(), no_option=1),
        lambda: comm.send(ones(), 99),
    ):
        try:
            wrong()
        except (TypeError, ValueError):
            continue
        raise AssertionError("it was accepted")
    try:
        comm.all_reduce(ones(10 + comm.rank % 2))
    except collectives.MismatchError as error:
        assert "elements" in str(error)
    else:
        raise AssertionError("arrays of different lengths were reduced")


STEPS = (dense, vector, objects, messages, works, groups, inquiries, refusals)


def everything(first: int) -> None:
    """All steps, in the same order on each rank, which ends in the error; `first` is the one that comes first."""
    meeting = threading.Barrier(RANKS)
    steps = [*STEPS[first:-1], *STEPS[:first], STEPS[-1]]

    def run(comm: Any) -> None:
        try:
            for step in steps:
                meeting.wait(LIMIT)
                step(comm)
        except threading.BrokenBarrierError:
            return  # another thread says why
        except BaseException:
            meeting.abort()  # so that the others do not wait for it
            raise

    on_ranks(RANKS, run, timeout=LIMIT)


def test_everything_for_the_first_time_in_all_threads() -> None:
    """What is made at its first use is made in several threads at once, so each process does it once."""
    folder = os.path.dirname(__file__)
    for first in (0, 3):
        program = f"import sys; sys.path.insert(0, {folder!r}); import test_threads; test_threads.everything({first})"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": python_path()},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
        assert done.returncode == 0, done.stderr


# --- threads that share something -------------------------------------------------------------------------------------


def test_two_threads_of_each_rank_share_its_communicator() -> None:
    """Calls that are alike, so that any order of them is the same on all ranks."""

    def run(comm: Any) -> None:
        def reduce(async_op: bool) -> None:
            for _ in range(ROUNDS):
                x = ones(1000)
                work = comm.all_reduce(x, async_op=async_op)
                if async_op:
                    work.wait()
                assert (x == comm.size).all()

        in_threads([functools.partial(reduce, False), functools.partial(reduce, True)])

    on_ranks(4, run)


def test_asking_about_a_communicator_while_it_works_and_closes() -> None:
    def run(comm: Any) -> None:
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                for question in (comm.recorder, comm.bytes_by_transport, lambda: repr(comm), lambda: comm.closed):
                    question()

        def work() -> None:
            try:
                for _ in range(ROUNDS // 4):
                    comm.all_reduce(ones(1000))
                comm.close()
            finally:
                over.set()

        in_threads([ask, work], (collectives.ClosedError,))

    on_ranks(4, run)


def test_threads_share_a_work() -> None:
    """All ask it, and wait for it; each callback is called once, and once more than one is added when it is over."""

    def run(comm: Any) -> None:
        for _ in range(ROUNDS):
            work = comm.all_reduce(ones(1000), async_op=True)
            calls: list[int] = []
            called = threading.Semaphore(0)

            def call(i: int, calls: list[int], called: threading.Semaphore, work: Any) -> None:
                calls.append(i)
                called.release()

            def share(i: int, work: Any, calls: list[int], called: threading.Semaphore) -> None:
                work.add_done_callback(functools.partial(call, i, calls, called))
                work.done()
                assert (work.result() == comm.size).all()
                work.add_done_callback(functools.partial(call, i, calls, called))

            in_threads([functools.partial(share, i, work, calls, called) for i in range(3)])
            for _ in range(6):
                assert called.acquire(timeout=60)
            assert sorted(calls) == [0, 0, 1, 1, 2, 2]

    on_ranks(2, run)


def test_groups_are_made_and_dropped_in_several_threads() -> None:
    """Each thread of a rank makes groups of its own; some are closed, and the others are forgotten."""

    def run(comm: Any) -> None:
        def make(tag: int) -> None:
            for i in range(ROUNDS // 4):
                group = comm.new_group(range(comm.size), tag, members_only=True)
                assert (group.all_reduce(ones()) == comm.size).all()
                if i % 2:
                    group.close()

        in_threads([functools.partial(make, tag) for tag in range(3)])

    on_ranks(2, run)
