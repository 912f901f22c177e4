"""Jobs whose ranks are forked by a process that has used the library, as `multiprocessing` forks where it may."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A parent that has ranks of its own, as threads and with collectives of all kinds; it may close them. It forks two
# ranks of a job, each by a middle process, so that what a child inherits is inherited once more.
PARENT = """if True:
    import os, socket, sys, threading
    import collectives, numpy as np

    how = sys.argv[1]
    listener = socket.create_server(("127.0.0.1", 0))
    rendezvous = "127.0.0.1:%d" % listener.getsockname()[1]
    alone = collectives.init()
    alone.all_reduce(np.ones(3), async_op=True).wait()
    alone.dup().close()
    pair = collectives.local_group(2)

    def rank(comm):
        comm.all_reduce(np.ones(100_000), async_op=True).wait()
        comm.all_reduce(comm.empty(1000))
        comm.split(0).all_reduce(np.ones(3))
    threads = [threading.Thread(target=rank, args=[comm]) for comm in pair]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    if how == "closed":
        for comm in [alone, *pair]:
            comm.close()

    def joins(r):
        if r == 0:
            os.environ["COLLECTIVES_RENDEZVOUS_FD"] = str(listener.fileno())
        comm = collectives.init(rank=r, size=2, rendezvous=rendezvous, token="0123456789abcdef", timeout=60)
        x = np.full(5000, r + 1.0)
        comm.all_reduce(x, async_op=True).wait()
        assert x[0] == x[-1] == 3, x
        half = comm.split(0).all_reduce(np.ones(3))
        assert half[0] == 2
        try:
            alone.all_reduce(np.ones(3))
            raise AssertionError("the communicator of the parent can be used")
        except collectives.ForkedError:
            pass
        comm.close()
        collectives.init(size=1).close()

    children = []
    for r in range(2):
        child = os.fork()
        if child == 0:
            inner = os.fork()
            if inner == 0:
                joins(r)
                sys.exit(0)
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if how == "open":
        alone.all_reduce(np.ones(3))
    sys.exit(max(map(abs, codes)))
"""


@pytest.mark.parametrize("how", ["closed", "open"])
def test_forked_ranks_join_a_job_of_their_own(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", PARENT, how], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
