"""Launchers name the rank that is the cause, not one that waited for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 120  # seconds
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
RUN = ("-m", "collectives", "run", "-n", "2")

# Rank 1 fails while rank 0 waits for it, and takes a second to end, as interpreters with large libraries do.
PROGRAM = """
import atexit, os, signal, sys, time
slow = float(sys.argv[2])
if os.environ.get("COLLECTIVES_RANK", os.environ.get("RANK")) == "1":
    atexit.register(time.sleep, slow)  # after what is registered later
import collectives
import numpy as np
from collectives._startup import at_exit as _leaving
if slow > 1:
    _leaving._PATIENCE = 0.2
comm = collectives.init()
comm.barrier()
if comm.rank == 1:
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise KeyError("what rank 1 fails by")
try:
    comm.all_reduce(np.ones(3))
except collectives.PeerError as error:
    if sys.argv[1] == "wrapped":
        raise RuntimeError("the training has failed") from error
    raise
"""


def run(tmp_path: Path, launcher: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("COLLECTIVES_", "TORCH"))}
    return subprocess.run(
        [sys.executable, *launcher, str(program), *arguments],
        env={**environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@pytest.mark.parametrize("how", ["raise", "wrapped", "kill"])
def test_torchrun_names_the_cause(tmp_path: Path, how: str) -> None:
    pytest.importorskip("torch.distributed")
    done = run(tmp_path, TORCHRUN, how, "1")
    assert done.returncode == 1
    _, cause = done.stderr.split("Root Cause (first observed failure):")
    assert "rank      : 1 (local_rank: 1)" in cause
    assert ("Signal 9 (SIGKILL)" if how == "kill" else "KeyError: 'what rank 1 fails by'") in cause


@pytest.mark.parametrize("how", ["raise", "wrapped", "kill"])
def test_the_launcher_names_the_cause(tmp_path: Path, how: str) -> None:
    done = run(tmp_path, RUN, how, "1")
    assert done.returncode == (137 if how == "kill" else 1)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("collectives run: rank")]
    assert line.startswith("collectives run: rank 1 (pid ")
    assert line.endswith("; ending the other 1")


def test_a_peer_that_does_not_end_is_not_waited_for_long(tmp_path: Path) -> None:
    done = run(tmp_path, (*RUN, "--grace", "0.2"), "raise", "1000")
    assert done.returncode == 1
    assert "collectives run: rank 0 (pid " in done.stderr


ERROR_FILE = """
import os, subprocess, sys
import collectives
from collectives._startup import at_exit as _leaving
_leaving._NOTICE = 0.01
if sys.argv[1] == "child":
    subprocess.run([sys.executable, "-c", "import collectives; raise KeyError('of a child')"])
    sys.exit()
collectives.init()
if sys.argv[1] == "recorded":
    open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write('{"by": "torch"}')
if sys.argv[1] == "peer":
    raise collectives.PeerError("rank 1 has gone", peer=1)
raise ValueError("of a rank")
"""


@pytest.mark.parametrize(
    ("what", "text"),
    [("own", "ValueError: of a rank"), ("peer", "PeerError: rank 1 has gone"), ("recorded", ""), ("child", "")],
)
def test_the_error_file(tmp_path: Path, what: str, text: str) -> None:
    program, file = tmp_path / "program.py", tmp_path / "error.json"
    program.write_text(ERROR_FILE)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    subprocess.run(
        [sys.executable, str(program), what],
        env={**environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": str(file)},
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    if what == "child":
        assert not file.exists()
        return
    found = json.loads(file.read_text())
    if what == "recorded":
        assert found == {"by": "torch"}
        return
    assert found["message"]["message"] == text
    assert f"{program}" in found["message"]["extraInfo"]["py_callstack"]
    assert int(found["message"]["extraInfo"]["timestamp"]) > 1_000_000_000
