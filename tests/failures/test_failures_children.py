"""Children of a rank, and programs that end by an exception: neither hides the end of the rank from the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pool
import pytest
from pool import NOTICED, Pools


def with_child(comm: Any, how: str) -> None:
    """Rank 1 has a child that outlives it; all call until something fails."""
    comm.barrier()
    if comm.rank == 1:
        if how == "fork":
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
        else:
            child = subprocess.Popen(["sleep", "600"], close_fds=False).pid
        pool.say(child)
    else:
        pool.say(0)
    while True:
        comm.all_reduce(np.ones(10))


@pytest.mark.parametrize("how", ["fork", "subprocess"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_death_shows_although_a_child_lives(pools: Pools, transport: str, how: str) -> None:
    group = pools.get(3, transport)
    group.start(with_child, how)
    child = max(rank.event() for rank in group.ranks)
    try:
        since = time.monotonic()
        group.ranks[1].signal(signal.SIGKILL)
        survivors = [group.ranks[rank].outcome(since + 60) for rank in (0, 2)]
        os.kill(child, 0)  # it lives
    finally:
        os.kill(child, signal.SIGKILL)
    group.broken = True
    for outcome in survivors:
        error: Any = outcome.error
        assert type(error).__name__ == "PeerError", outcome.text
        assert error.peer == 1
        assert outcome.ended - since < NOTICED


PROGRAM = """
import sys
import numpy as np
import collectives
comm = collectives.init()
comm.barrier()
if comm.rank == 1:
    raise LookupError("the shelf is empty")
try:
    while True:
        comm.all_reduce(np.ones(10))
except collectives.PeerError as error:
    assert error.peer == 1
    print("heard:", error)
    sys.exit(0)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_uncaught_exception_is_named_on_the_others(tmp_path: Path, transport: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "collectives", "run", "-n", "3", "--transport", transport, "--keep-going"]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, timeout=60)
    heard = [line for line in done.stdout.splitlines() if "heard:" in line]
    assert len(heard) == 2, done.stdout + done.stderr
    for line in heard:
        assert "rank 1" in line
        assert "LookupError: the shelf is empty" in line, line
    assert "rank 1" in done.stderr
    assert "the others go on" in done.stderr
