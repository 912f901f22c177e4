"""Uses an installed package: 2 ranks over each transport, an error that crosses our libraries, and 8 threads.

    python tools/check_ranks.py

It needs no test tools, so that a wheel can be tried in an environment with nothing else. Prints what it did, one line
each; the exit code is 0 where all is right.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import threading

import collectives
import numpy as np

RANKS, THREADS, WORKS = 2, 8, 60
ELEMENTS = (1, 1000, 1 << 20)
TRANSPORTS = ("auto", "shm", "tcp")
SECONDS = 120


def all_reduces(comm: collectives.Communicator) -> None:
    """Sums of each length, and an error that the engine throws and the module catches."""
    for elements in ELEMENTS:
        x = np.full(elements, comm.rank + 1, np.float32)
        comm.all_reduce(x)
        wanted = comm.size * (comm.size + 1) / 2
        assert (x == wanted).all(), f"rank {comm.rank}: {x[0]} instead of {wanted}"
    try:
        comm.all_reduce(np.zeros(10 + comm.rank, np.float32), timeout=30)
    except collectives.MismatchError:
        return
    raise AssertionError("arrays of different lengths were reduced")


def shared_works(comm: collectives.Communicator) -> None:
    """Works of which every other handle is dropped, and for the rest of which two threads wait at once."""
    arrays = [np.full(1000, comm.rank + 1, np.float32) for _ in range(WORKS)]
    works = [work for i, x in enumerate(arrays) if (work := comm.all_reduce(x, async_op=True)) and i % 2]
    waiting = [threading.Thread(target=lambda: [work.wait() for work in works]) for _ in range(2)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    comm.barrier()  # after all that was started before
    wanted = comm.size * (comm.size + 1) / 2
    assert all((x == wanted).all() for x in arrays), f"rank {comm.rank}: wrong sums"


def rank() -> None:
    """One of the processes."""
    comm = collectives.init(timeout=30)
    shared_works(comm)
    all_reduces(comm)


def threads() -> bool:
    """Ranks that are threads. Returns whether they ran without the interpreter's lock."""
    failed: list[BaseException] = []

    def run(comm: collectives.Communicator) -> None:
        try:
            shared_works(comm)
            all_reduces(comm)
        except BaseException as error:
            failed.append(error)

    ranks = [threading.Thread(target=run, args=(comm,)) for comm in collectives.local_group(THREADS, timeout=30)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    if failed:
        raise failed[0]
    return not getattr(sys, "_is_gil_enabled", lambda: True)()


def main() -> int:
    """All of it."""
    print(f"Python {sys.version.split()[0]}, NumPy {np.__version__}, collectives {collectives.__version__}")
    assert importlib.metadata.version("collectives-comm") == collectives.__version__
    for transport in TRANSPORTS:
        command = [sys.executable, "-m", "collectives", "run", "-n", str(RANKS), sys.executable, __file__, "--rank"]
        variables = {**os.environ, "COLLECTIVES_TRANSPORT": transport}
        subprocess.run(command, env=variables, check=True, timeout=SECONDS)
        print(f"{RANKS} ranks, transport {transport}: right")
    without = threads()
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert without, "the module made Python take its global lock again"
    print(f"{THREADS} threads{' without the global lock' if without else ''}: right")
    return 0


if __name__ == "__main__":
    sys.exit(rank() if sys.argv[1:] == ["--rank"] else main())
