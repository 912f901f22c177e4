"""Groups: made by their members alone, split, destroyed and made again; deaths, deadlines and disagreement."""

import os
import pickle
import signal
import subprocess
import sys
import time

import pytest
import torch_group_checks as checks
from torch_ranks import LIMIT, Ranks

pytest.importorskip("torch.distributed")

NOTICED = 15.0  # seconds in which a death is seen on a busy machine


@pytest.fixture(scope="module")
def ranks():
    made = Ranks(3)
    yield made
    assert made.leave() == [0] * 3


@pytest.mark.parametrize("name", checks.CHECKS)
def test_groups(ranks, name):
    ranks.run(checks.run, name)


def test_the_ways_to_start(tmp_path):
    """By a store of another kind, as part of a list of backends, by a world that exists; again and again."""
    ranks = Ranks(2, None, init_method=f"file://{tmp_path}/store")
    for name in ("file_store", "world_of_the_program", "again", "lists_of_backends", "gloo_first"):
        ranks.run(checks.run, name)
    assert ranks.leave() == [0, 0]


def test_one_rank():
    ranks = Ranks(1)
    ranks.run(checks.run, "alone")
    assert ranks.leave() == [0]


def test_disagreement():
    """Gloo returns wrong sums, or waits; this is an error on every rank, which is one of torch's too."""
    ranks = Ranks(2)
    for what in ("shape", "dtype", "op", "collective", "asynchronous"):
        ranks.run(checks.run, "disagree", what)
    assert ranks.leave() == [0, 0]


def test_a_rank_dies():
    ranks = Ranks(3)
    for rank in ranks.processes[:2]:
        rank.tell((checks.run, ("survive",)))
    for rank in ranks.processes[:2]:
        assert rank.event() == "waiting"
    begin = time.monotonic()
    ranks.processes[2].process.send_signal(signal.SIGKILL)
    for rank in ranks.processes[:2]:
        outcome = rank.outcome()
        assert outcome.error is None, outcome.text
    assert time.monotonic() - begin < NOTICED
    assert ranks.leave() == [0, 0, -signal.SIGKILL]


def test_a_rank_does_not_come():
    ranks = Ranks(2)
    ranks.run(checks.run, "deadline")
    assert ranks.leave() == [0, 0]


def test_torch_reads_what_the_recorder_has(ranks, tmp_path):
    """torchfrtrace finds the collective that one rank has not made."""
    pytest.importorskip("torch.distributed.flight_recorder")
    ranks.run(checks.record_calls, str(tmp_path / "traces"))
    database = tmp_path / "database"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path / "traces"), "-o", database],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    assert "Not all ranks joining collective" in done.stderr + done.stdout
    _, found = pickle.loads(database.read_bytes())
    collectives = {(one.collective_name, str(one.output_sizes)): one for one in found.collectives}
    for name in (("gloo:all_reduce", "[[3]]"), ("gloo:broadcast", "[[5]]"), ("gloo:all_gather", "[[6]]")):
        assert collectives[name].pass_check, collectives[name]
    assert collectives[("gloo:broadcast", "[[5]]")].expected_ranks == {0, 2}
    missing = collectives[("gloo:all_reduce", "[[7]]")]
    assert missing.missing_ranks == {2}


def test_no_rank_has_to_destroy_its_group():
    ranks = Ranks(2)
    ranks.run(os.getpid)
    assert ranks.leave() == [0, 0]
