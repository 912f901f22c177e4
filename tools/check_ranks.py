"""Uses an installed package: 2 ranks over each transport, an error that crosses our libraries, and 8 threads.

    python tools/check_ranks.py

It needs no test tools, so that a wheel can be tried in an environment with nothing else. Prints what it did, one line
each; the exit code is 0 where all is right. With --patience N, for emulators, all may take N times as long.
"""

from __future__ import annotations

import argparse
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
SECONDS, TIMEOUT = 120, 30  # for a job, and for a collective


def all_reduces(comm: collectives.Communicator, patience: float) -> None:
    """Sums of each length, and an error that the engine throws and the module catches."""
    for elements in ELEMENTS:
        x = np.full(elements, comm.rank + 1, np.float32)
        comm.all_reduce(x)
        wanted = comm.size * (comm.size + 1) / 2
        assert (x == wanted).all(), f"rank {comm.rank}: {x[0]} instead of {wanted}"
    try:
        comm.all_reduce(np.zeros(10 + comm.rank, np.float32), timeout=TIMEOUT * patience)
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


def rank(patience: float) -> None:
    """One of the processes."""
    comm = collectives.init(timeout=TIMEOUT * patience)
    shared_works(comm)
    all_reduces(comm, patience)


def threads(patience: float) -> bool:
    """Ranks that are threads. Returns whether they ran without the interpreter's lock."""
    failed: list[BaseException] = []

    def run(comm: collectives.Communicator) -> None:
        try:
            shared_works(comm)
            all_reduces(comm, patience)
        except BaseException as error:
            failed.append(error)

    group = collectives.local_group(THREADS, timeout=TIMEOUT * patience)
    ranks = [threading.Thread(target=run, args=(comm,)) for comm in group]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    if failed:
        raise failed[0]
    return not getattr(sys, "_is_gil_enabled", lambda: True)()


def check(patience: float) -> None:
    """All of it."""
    print(f"Python {sys.version.split()[0]}, NumPy {np.__version__}, collectives {collectives.__version__}")
    assert importlib.metadata.version("collectives-comm") == collectives.__version__
    for transport in TRANSPORTS:
        command = [sys.executable, "-m", "collectives", "run", "-n", str(RANKS), sys.executable, __file__, "--rank"]
        command += ["--patience", str(patience)]
        variables = {**os.environ, "COLLECTIVES_TRANSPORT": transport}
        subprocess.run(command, env=variables, check=True, timeout=SECONDS * patience)
        print(f"{RANKS} ranks, transport {transport}: right")
    without = threads(patience)
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert without, "the module made Python take its global lock again"
    print(f"{THREADS} threads{' without the global lock' if without else ''}: right")


def main() -> None:
    """By the arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--patience", type=float, default=1, metavar="N", help="all may take N times as long")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    (rank if arguments.rank else check)(arguments.patience)


if __name__ == "__main__":
    main()
