"""Ranks that ended before the job had started: the launcher tells the others, which do not wait for them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import collectives
import pytest
from collectives._startup.ended import EndedRanks, EndedRanksReader

LIMIT = 60  # seconds, of which the start may take all but a few
RUN = (sys.executable, "-m", "collectives", "run", "--timeout", "600")

# One rank ends by itself, before or after the others have begun to wait; they print the error that they get.
PROGRAM = """
import os, signal, socket, sys, time
import collectives
suspect, how, when = int(sys.argv[1]), sys.argv[2], sys.argv[3]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = int(os.environ["COLLECTIVES_RANK"])
fifo = os.path.join(os.path.dirname(__file__), "go%d")
if rank == suspect:
    if when == "later":
        for other in set(range(3)) - {rank}:
            open(fifo % other).read()  # which has begun
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(int(how))
if when == "later":
    open(fifo % rank, "w").close()
else:
    # A rank that comes late, when the others have received the report and gone.
    if rank == 2 or (rank, suspect) == (1, 2):
        while b"\\n%d " % suspect not in os.pread(int(os.environ["COLLECTIVES_LAUNCHER_FD"]), 9999, 0):
            time.sleep(0.01)
try:
    collectives.init()
except collectives.PeerError as error:
    print(error.rank, error.peer, error.host == socket.gethostname(), error.pid is not None, error, flush=True)
    sys.exit(5)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    for rank in range(3):
        os.mkfifo(tmp_path / f"go{rank}")
    return path


def run(*command: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    return subprocess.run(
        command,
        env={**kept, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


ENDS = {"kill": "was killed by signal 9 (SIGKILL)", "7": "ended with exit code 7", "0": "ended with exit code 0"}


@pytest.mark.parametrize(
    ("options", "how", "suspect", "when"),
    [
        *(((), "kill", suspect, "later") for suspect in range(3)),
        *((("--keep-going",), "kill", suspect, when) for suspect in range(3) for when in ("before", "later")),
        *((options, how, 1, "later") for options in ((), ("--keep-going",)) for how in ("7", "0")),
    ],
)
def test_others_hear_at_once(program: Path, options: tuple[str, ...], how: str, suspect: int, when: str) -> None:
    done = run(*RUN, *options, "--grace", "50", "-n", "3", str(program), str(suspect), how, when)
    lines = sorted(done.stdout.splitlines())
    for line, rank in zip(lines, sorted({0, 1, 2} - {suspect}), strict=True):
        assert line.startswith(f"[{rank}] {rank} {suspect} True True rank {suspect} (host ")
        assert f"{ENDS[how]} before the job had started. Look at its output" in line
    assert done.returncode == (137 if how == "kill" else 5 if how == "0" and not options else int(how))


class Deadly:
    """Ends the rank that unpickles it."""

    def __init__(self, *, armed: bool) -> None:
        self.armed = armed

    def __reduce__(self) -> tuple[object, tuple[bool]]:
        return _arrive, (self.armed,)


def _arrive(armed: bool) -> str:
    if armed and multiprocessing.current_process().name == "collectives rank 1":
        os.kill(os.getpid(), signal.SIGKILL)
    return "arrived"


def nothing(comm: collectives.Communicator, _: object) -> None:
    comm.barrier()


def test_spawn_ends_at_once() -> None:
    begin = time.monotonic()
    with pytest.raises(collectives.PeerError, match=r"rank 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\)"):
        collectives.spawn(nothing, 3, (Deadly(armed=True),), timeout=600)
    assert time.monotonic() - begin < LIMIT


def test_a_job_of_the_programs_own_is_another(tmp_path: Path) -> None:
    """Whose ranks are others, and whose size or token."""
    ended = EndedRanks(3, "token")
    try:
        ended.add(1, 77, "ended with exit code 3")
        assert not EndedRanksReader(ended.fd, 2, b"token").useful
        assert not EndedRanksReader(ended.fd, 3, b"another").useful
        assert not EndedRanksReader(-1, 3, b"token").useful
        assert not EndedRanksReader(1 << 20, 3, b"token").useful
        reader = EndedRanksReader(ended.fd, 3, b"token")
        assert reader.new() == [(1, 77, "ended with exit code 3")]
        assert reader.new() == []
        ended.add(0, 78, "was killed by signal 9 (SIGKILL)")
        assert reader.new() == [(0, 78, "was killed by signal 9 (SIGKILL)")]
    finally:
        ended.close()
    with (tmp_path / "a file").open("w+") as file, socket.socket() as other:
        assert not EndedRanksReader(file.fileno(), 3, b"token").useful
        assert not EndedRanksReader(other.fileno(), 3, b"token").useful
