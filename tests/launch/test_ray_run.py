"""`collectives.ray.run` with Ray itself; without Ray, what it says."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 240  # seconds

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'collectives-comm[ray]'"
)

PROGRAM = """
import os, signal, sys, threading
import collectives, ray
import collectives.ray
import numpy as np

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)

def work(comm, scale):
    return comm.rank, float(comm.all_reduce(np.array([comm.rank * scale]))[0]), os.environ.get("COLLECTIVES_TOKEN")

def fails(comm):
    if comm.rank == 2:
        raise KeyError("what rank 2 says")
    comm.barrier()

def dies(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()

print("results", collectives.ray.run(work, 4, {"CPU": 1}, args=(10.0,)))
def makes_a_lock(comm):
    return threading.Lock()

for fn in (fails, dies, makes_a_lock):
    try:
        collectives.ray.run(fn, 3)
    except Exception as error:
        print(type(error).__name__, error, "in" if error.__cause__ else "", str(error.__cause__).split("\\n")[2:3])
try:
    collectives.ray.run(work, 2, {"CPU": 3}, timeout=1)
except TimeoutError as error:
    print(error)
print("free", ray.available_resources()["CPU"])
"""


@needs_ray
def test_ranks_in_actors(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    # Not as a child of this process that a marked process could outlive: Ray's daemons end with the program.
    done = subprocess.run(
        [sys.executable, program], env=kept, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    results, fails, dies, lock, room, *_ = [line for line in done.stdout.splitlines() if not line.startswith("\x1b")]
    assert results == f"results {[(rank, 60.0, None) for rank in range(4)]}"
    assert fails == "KeyError 'what rank 2 says' in ['in rank 2:']"
    assert dies.startswith("PeerError rank 1 of 3, an actor of Ray, died: The actor died unexpectedly")
    assert lock.startswith("CollectivesError the result of rank ") and "cannot be sent: " in lock
    assert room.startswith("the cluster made no room for 2 workers with {'CPU': 3.0} each within 1 s; free are 4 CPU")


BAD = """
import collectives.ray
for arguments in ((0,), ("2",), (True,), (2, {"CPU": 0}), (2, {}), (2, 3), (2, {"GPU": "1"})):
    try:
        collectives.ray.run(print, *arguments)
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
"""


@needs_ray
def test_arguments_that_are_refused() -> None:
    done = subprocess.run([sys.executable, "-c", BAD], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout.splitlines() == [
        "ValueError num_workers is 0; at least 1 is accepted",
        "TypeError num_workers is '2' of type str; an integer is accepted",
        "TypeError num_workers is True of type bool; an integer is accepted",
        *(
            f"{kind} resources {what}; a mapping like {{'CPU': 2, 'GPU': 1}} is accepted, of names to numbers above 0"
            for kind, what in (
                ("ValueError", "has 'CPU': 0"),
                ("ValueError", "is empty"),
                ("TypeError", "is 3 of type int"),
                ("TypeError", "has 'GPU': '1'"),
            )
        ),
    ], done.stderr


ABSENT = """
import sys
import collectives
assert "ray" not in sys.modules
sys.modules["ray"] = None  # as Python marks a module that cannot be imported
import collectives.ray
try:
    collectives.ray.run(print, 2)
except ImportError as error:
    print(error)
"""


def test_without_ray() -> None:
    done = subprocess.run([sys.executable, "-c", ABSENT], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("collectives.ray needs Ray, which cannot be imported here (")
    assert done.stdout.endswith("): pip install 'collectives-comm[ray]'\n")
