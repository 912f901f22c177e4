"""Ranks that torchrun starts meet by its store, with nothing set."""

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from collectives.errors import DeadlineError
from collectives.launch import _torchrun
from collectives.launch._torchrun import Job, find_job, meet

LIMIT = 60.0  # seconds that nothing here may reach

GIVEN = {
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}


def test_the_variables():
    assert find_job(GIVEN) == Job(1, 4, "node1", 29500, "run/2")
    assert find_job({}) is None
    assert find_job({**GIVEN, "WORLD_SIZE": "1", "RANK": "0"}) is None
    # Others set RANK and WORLD_SIZE too; those have no store of torchrun's.
    assert find_job({name: value for name, value in GIVEN.items() if not name.startswith("TORCH")}) is None


@pytest.mark.parametrize("name", ["RANK", "SIZE", "RENDEZVOUS"])
def test_our_own_variables_win(name):
    assert find_job({**GIVEN, f"COLLECTIVES_{name}": "1"}) is None
    assert find_job({**GIVEN, f"COLLECTIVES_{name}": ""}) is not None


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"RANK": "x"}, ["RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT", "'x'"]),
        ({"RANK": "4"}, ["RANK 4", "WORLD_SIZE 4"]),
        (
            {"TORCHELASTIC_USE_AGENT_STORE": "False"},
            ["TORCHELASTIC_USE_AGENT_STORE", "rank 1 of 4", "COLLECTIVES_RANK"],
        ),
    ],
)
def test_variables_that_cannot_be(changes, parts):
    with pytest.raises(ValueError) as caught:
        find_job({**GIVEN, **changes})
    for part in (*parts, "docs/environment.md"):
        assert part in str(caught.value)


PROGRAM = """
import os, sys, threading
import numpy as np
import collectives

for name in ("COLLECTIVES_RANK", "COLLECTIVES_SIZE", "COLLECTIVES_RENDEZVOUS"):
    assert name not in os.environ
rank = int(os.environ["RANK"])
for time in range(2):
    comm = collectives.init(timeout=50, transport=sys.argv[1])
    assert (comm.rank, comm.size) == (rank, 3), comm
    assert comm.all_reduce(np.full(5, rank + 1.0)).tolist() == [6.0] * 5
    comm.barrier()
    comm.close()
from torch.distributed import TCPStore
from datetime import timedelta
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False,
                 timeout=timedelta(seconds=50))
if rank == 0:  # it has taken away what it left there
    name = f"collectives/{os.environ['TORCHELASTIC_RUN_ID']}/{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    assert not any(store.check([f"{name}/{n}"]) for n in range(3))
os.write(1, b"sums right\\n")
"""


@pytest.mark.parametrize(
    ("options", "variables", "transport"),
    [
        (["--standalone"], {}, "tcp"),
        (["--rdzv-backend", "static"], {"COLLECTIVES_TOKEN": "given to all"}, "auto"),
    ],
)
def test_torchrun(tmp_path, options, variables, transport):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node", "3", str(program), transport],
        env={**environ, **variables, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3 * LIMIT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sums right") == 3


@pytest.fixture
def store(monkeypatch):
    """A store of torch in this process, for jobs whose ranks are threads of it."""
    torch = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(_torchrun, "_meetings", itertools.repeat(0))
    monkeypatch.delenv("COLLECTIVES_TOKEN", raising=False)
    # Without libuv, with which the server of torch keeps its descriptors.
    return torch.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=LIMIT), use_libuv=False
    )


def job(store, rank):
    return Job(rank, 2, "127.0.0.1", store.port, "run/0")


def test_what_is_in_the_store(store):
    """A token that rank 0 makes, as long as ranks come; none where the user gave one."""
    for given in (None, "only ours"):
        with meet(job(store, 0), token=given, timeout=LIMIT) as zero:
            text = store.get("collectives/run/0/0").decode()
            with meet(job(store, 1), token=given, timeout=LIMIT) as one:
                assert one.rendezvous == zero.rendezvous
                assert one.token == zero.token == (b"only ours" if given else zero.token)
                assert (zero.token.decode() in text) == (given is None)
                assert (zero.rendezvous_fd >= 0, one.rendezvous_fd) == (True, -1)
        assert not store.check(["collectives/run/0/0"])


def test_rank_0_says_nothing(store):
    begin = time.monotonic()
    with pytest.raises(DeadlineError) as caught, meet(job(store, 1), token=None, timeout=0.5):
        pass
    assert "rank 1 waited 0.5 s for rank 0" in str(caught.value)
    assert (caught.value.rank, caught.value.peer) == (1, 0)
    assert time.monotonic() - begin < LIMIT / 2


def test_there_is_no_store(store):
    gone = Job(1, 2, "127.0.0.1", 1, "run/0")  # nothing listens on port 1
    with pytest.raises(DeadlineError) as caught, meet(gone, token=None, timeout=0.5):
        pass
    assert "did not reach torchrun's store at 127.0.0.1:1 within 0.5 s" in str(caught.value)


def test_a_rank_that_waits_for_the_store_lets_others_run(store):
    """The wait is in torch, which must not hold the interpreter."""
    outcome = []

    def wait():
        with contextlib.suppress(DeadlineError), meet(job(store, 1), token=None, timeout=LIMIT) as environment:
            outcome.append(environment.token)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    with meet(job(store, 0), token=None, timeout=LIMIT) as zero:
        waiting.join(LIMIT)
        assert outcome == [zero.token]
