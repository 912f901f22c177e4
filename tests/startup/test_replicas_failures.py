"""Processes with several ranks: how they end, and that nothing is left open when they are started again."""

import os
import signal
import time

import pytest
from namespaces import REASON
from pool import NOTICED
from replicas import finish, job

FAILING = r"""
import json, os, sys
import collectives

collectives._startup.recorder.prepare()  # a process has a page for its Python stack once, whatever becomes of the start
before = len(os.listdir("/proc/self/fd"))
try:
    collectives.init(replicas=json.loads(sys.argv[1]))
except Exception as error:
    after = len(os.listdir("/proc/self/fd"))
    print(json.dumps({"error": type(error).__name__, "text": str(error), "before": before, "after": after}))
"""

DEATH = r"""
import time
victim, left_out = int(sys.argv[2]), int(sys.argv[3])
def ready(comm, replica):
    return comm.split(None if comm.rank == left_out else 0)
groups = in_threads(ready)
if process == victim and os.fork() == 0:
    os.read(0, 1)  # a child lives on and is none of the ranks
    os._exit(0)
say(ready=os.getpid())
def work(comm, replica):
    try:
        while True:
            groups[replica].all_reduce(np.ones(10))
    except collectives.PeerError as error:
        return {"peer": error.peer, "text": str(error), "at": time.monotonic()}
if process == victim:
    threading.Event().wait()
say(results=in_threads(work))
"""

AGAIN = r"""
import gc
def work(comm, replica):
    assert comm.all_reduce(np.ones(1))[0] == comm.size
def finish():
    in_threads(work)
    while comms:
        comms.pop().close()
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
before = finish()
for _ in range(5):
    comms.extend(collectives.init(replicas=count))
    assert finish() == before
say(done=True)
"""

LEAVING = r"""
def without_the_first(comm, replica):
    group = comm.split(None if comm.rank == 0 else 0)
    return group
groups = in_threads(without_the_first)
# The thread of rank 0 is over, and its communicator stays open.
def work(comm, replica):
    if groups[replica] is not None:
        for _ in range(100):
            assert groups[replica].all_reduce(np.ones(1))[0] == comm.size - 1
        return "went on"
say(results=in_threads(work))
if process == 0:
    comms[0].close()
def call(comm, replica):
    try:
        comm.barrier()
    except collectives.CollectivesError as error:
        return {"type": type(error).__name__, "text": str(error)}
say(results=in_threads(call))
def still(comm, replica):
    if groups[replica] is not None:
        return int(groups[replica].all_reduce(np.ones(1, np.int64))[0])
say(results=in_threads(still))
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("left_out", [-1, 2, 3])
def test_the_death_of_a_process_is_that_of_its_replicas(transport, left_out):
    """Ranks 2 and 3 die; one of them may not be in the group that fails."""
    victim = 1
    with job(DEATH, [2, 2, 1], transport, arguments=[victim, left_out]) as processes:
        ready = [process.hear()["ready"] for process in processes]
        since = time.monotonic()
        os.kill(ready[victim], signal.SIGKILL)
        survivors = [processes[0], processes[2]]
        for result in [result for process in survivors for result in process.hear()["results"]]:
            peer, text = result["peer"], result["text"]
            assert peer in ((2, 3) if left_out < 0 else (2,)), text  # a group of ranks 0, 1, 3, 4 calls 3 its rank 2
            assert f"pid {ready[victim]}) is gone" in text
            assert (f"; rank {5 - peer} is in the same process;" in text) == (left_out < 0), text
            assert result["at"] - since < NOTICED, text
        finish(survivors)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_end_of_a_thread_is_no_death(transport):
    with job(LEAVING, [2, 2], transport) as processes:
        reports = [[process.hear() for _ in range(3)] for process in processes]
        finish(processes)
    went_on, called, still = [[report[i]["results"] for report in reports] for i in range(3)]
    assert went_on == [[None, "went on"], ["went on", "went on"]]
    assert called[0][0]["type"] == "ClosedError"
    for failure in (called[0][1], *called[1]):
        assert failure["type"] == "PeerError"
        assert "rank 0" in failure["text"]
        assert "has left the group" in failure["text"]
    assert still == [[None, 3], [3, 3]]


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("replicas", [[3], [2, 3]], ids=str)
def test_start_again_and_leave_nothing_open(transport, replicas):
    with job(AGAIN, replicas, transport) as processes:
        assert [process.hear() for process in processes] == [{"done": True}] * len(replicas)
        finish(processes)


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_a_failed_start_leaves_nothing_open(hosts):
    with job("", [2, 2], "shm", hosts=hosts, places=[0, 1], start=FAILING) as processes:
        for process in processes:
            report = process.hear()
            assert report["error"] == "CollectivesError"
            assert "do not share memory" in report["text"]
            assert report["after"] == report["before"]
