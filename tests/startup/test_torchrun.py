"""Ranks that torchrun starts meet by its store, with nothing set."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from collectives._startup import rendezvous
from collectives._startup.environment import Environment
from collectives._startup.launchers import find_job
from collectives._startup.launchers.torchrun import Job
from collectives._startup.wire import Deadline
from collectives.errors import CollectivesError, DeadlineError, MismatchError
from collectives.torch import _store

LIMIT = 60.0  # seconds that nothing here may reach
KEY = "collectives/run"  # in the store, of the jobs below

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
    assert find_job(GIVEN) == Job(1, 4, "node1", 29500, "run")
    assert find_job({}) is None
    assert find_job({**GIVEN, "WORLD_SIZE": "1", "RANK": "0"}) is None
    # Others set RANK and WORLD_SIZE too; those have no store of torchrun's.
    others = find_job({name: value for name, value in GIVEN.items() if not name.startswith("TORCH")})
    assert not isinstance(others, Job)


@pytest.mark.parametrize("name", ["RANK", "SIZE"])
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
    assert store.get(f"collectives/{os.environ['TORCHELASTIC_RUN_ID']}") == b""
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


RESTARTED = """
import os, sys, time
import collectives

rank, first = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if first and rank == 2:
    from datetime import timedelta
    from torch.distributed import TCPStore
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                     wait_for_workers=False, timeout=timedelta(seconds=50))
    store.get(f"collectives/{os.environ['TORCHELASTIC_RUN_ID']}")  # rank 0 listens, and will be ended
    sys.exit(1)
if not first and rank == 0:
    time.sleep(1)  # so that the others find what its predecessor left
comm = collectives.init(timeout=50)
comm.barrier()
os.write(1, b"rank %d, first %d\\n" % (rank, first))
comm.close()
"""


def test_torchrun_restarts_its_workers(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(RESTARTED)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    options = ["--standalone", "--nproc-per-node", "3", "--max-restarts", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(program)],
        env={**environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3 * LIMIT,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank}, first 0" for rank in range(3)]


@pytest.fixture
def store(monkeypatch):
    """A store of torch in this process, for jobs whose ranks are threads of it."""
    torch = pytest.importorskip("torch.distributed")
    monkeypatch.delenv("COLLECTIVES_TOKEN", raising=False)
    # Without libuv, with which the server of torch keeps its descriptors.
    return torch.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=LIMIT), use_libuv=False
    )


def job(store, rank):
    return Job(rank, 2, "127.0.0.1", store.port, "run")


def test_what_is_in_the_store(store):
    """A token that rank 0 makes, as long as ranks come; none where the user gave one."""
    for given in (None, "only ours"):
        with job(store, 0).meet(token=given, timeout=LIMIT) as zero:
            text = store.get(KEY).decode()
            with job(store, 1).meet(token=given, timeout=LIMIT) as one:
                assert one.rendezvous == zero.rendezvous
                assert one.token == zero.token == (b"only ours" if given else zero.token)
                assert (zero.token.decode() in text) == (given is None)
                assert (zero.rendezvous_fd >= 0, one.rendezvous_fd) == (True, -1)
        assert store.get(KEY) == b""


def test_rank_0_says_nothing(store):
    begin = time.monotonic()
    with pytest.raises(DeadlineError) as caught, job(store, 1).meet(token=None, timeout=0.5):
        pass
    assert "rank 1 waited 0.5 s for rank 0" in str(caught.value)
    assert (caught.value.rank, caught.value.peer) == (1, 0)
    assert time.monotonic() - begin < LIMIT / 2


def test_there_is_no_store(store):
    gone = Job(1, 2, "127.0.0.1", 1, "run")  # nothing listens on port 1
    with pytest.raises(DeadlineError) as caught, gone.meet(token=None, timeout=0.5):
        pass
    assert "did not reach torchrun's store at 127.0.0.1:1 within 0.5 s" in str(caught.value)


def test_a_rank_that_waits_for_the_store_lets_others_run(store):
    """The wait is in torch, which must not hold the interpreter."""
    outcome = []

    def wait():
        with contextlib.suppress(DeadlineError), job(store, 1).meet(token=None, timeout=LIMIT) as environment:
            outcome.append(environment.token)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    with job(store, 0).meet(token=None, timeout=LIMIT) as zero:
        waiting.join(LIMIT)
        assert outcome == [zero.token]


class Rank(threading.Thread):
    """One rank, which meets the others with what it finds in the store."""

    def __init__(self, store, rank, timeout=LIMIT, token=None):
        super().__init__(daemon=True)
        self.place, self.timeout, self.token = job(store, rank), timeout, token
        self.result = self.error = None
        self.start()

    def run(self):
        try:
            with (
                self.place.meet(token=self.token, timeout=self.timeout) as environment,
                rendezvous.join(environment, environment.deadline) as meeting,
            ):
                self.result = meeting.exchange(meeting.rank), meeting.environment.token
        except BaseException as error:
            self.error = error


def finish(*ranks):
    for rank in ranks:
        rank.join(LIMIT)
        assert not rank.is_alive(), "a rank hangs"
    return ranks


@contextlib.contextmanager
def old_start(store, what):
    """What a start that was killed has left in the store: an address where nothing answers, or where a silent
    process or rank 0 of another job is."""
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket())
        sock.bind(("127.0.0.1", 0))
        if what != "nobody":
            sock.listen(16)
        if what == "another job":
            place = Environment(0, 2, sock.getsockname(), b"its token", timeout=LIMIT, rendezvous_fd=sock.fileno())
            joined = threading.Thread(target=join_and_fail, args=[place], daemon=True)
            joined.start()
            stack.callback(joined.join, LIMIT)
            stack.callback(join_and_fail, replace(place, rank=1, size=3, rendezvous_fd=-1))
        where = f"127.0.0.1:{sock.getsockname()[1]}"
        store.set(KEY, json.dumps({"address": where, "token": "of a start that is over"}))
        yield where


def join_and_fail(place):
    with pytest.raises(MismatchError), rendezvous.join(place, Deadline(LIMIT)):
        pass


@pytest.mark.parametrize("what", ["nobody", "silence", "another job"])
def test_an_old_start_left_something(store, what):
    with old_start(store, what):
        one = Rank(store, 1)
        one.join(0.3)  # so that it has most likely found it
        zero = Rank(store, 0)
        finish(zero, one)
    assert (zero.error, one.error) == (None, None)
    assert zero.result == one.result
    assert zero.result[0] == [0, 1]
    assert store.get(KEY) == b""


@pytest.mark.parametrize("what", ["nobody", "another job"])
def test_only_an_old_start_left_something(store, what):
    with old_start(store, what) as where:
        [one] = finish(Rank(store, 1, timeout=1))
    assert isinstance(one.error, DeadlineError)
    assert f"nobody answered at the rendezvous {where}" in str(one.error)
    assert "what it left in the launcher's store" in str(one.error)


def test_a_rank_that_failed_tries_again(store):
    """The ranks have tried different numbers of times."""
    for _ in range(2):
        [one] = finish(Rank(store, 1, timeout=0.2))
        assert isinstance(one.error, DeadlineError)
    zero, one = finish(Rank(store, 0), Rank(store, 1))
    assert (zero.error, one.error) == (None, None)
    [zero] = finish(Rank(store, 0, timeout=0.2))
    assert isinstance(zero.error, DeadlineError)
    one, zero = finish(Rank(store, 1), Rank(store, 0))
    assert (zero.error, one.error) == (None, None)


def test_a_wrong_token_of_the_user_is_told_at_once(store):
    begin = time.monotonic()
    zero = Rank(store, 0, token="one")
    [one] = finish(Rank(store, 1, token="two"))
    assert isinstance(one.error, MismatchError)
    assert "different tokens" in str(one.error)
    assert time.monotonic() - begin < LIMIT / 2
    finish(Rank(store, 1, token="one"), zero)
    assert zero.error is None


def test_what_another_start_has_written_stays(store):
    with job(store, 0).meet(token=None, timeout=LIMIT):
        store.set(KEY, "of another start")
    assert store.get(KEY) == b"of another start"


@pytest.mark.parametrize("rank", [0, 1])
def test_the_store_is_lost(monkeypatch, rank):
    pytest.importorskip("torch.distributed")
    program = (
        "from torch.distributed import TCPStore\n"
        "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "print(store.port, flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        place = Job(rank, 2, "127.0.0.1", int(server.stdout.readline()), "run")
        connect = _store.connect

        def connect_and_lose(*arguments):
            client = connect(*arguments)
            server.kill()
            server.wait()
            return client

        monkeypatch.setattr(_store, "connect", connect_and_lose)
        lost = pytest.raises(CollectivesError, match=f"rank {rank} lost torchrun's store")
        with lost, place.meet(token=None, timeout=LIMIT):
            pass
