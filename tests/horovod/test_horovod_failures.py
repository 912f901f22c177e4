"""What ranks of the training API get where they disagree or are wrong by themselves, and that they go on."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import horovod_checks as checks
import pytest
from horovod_ranks import Ranks

SIZE = 3


@pytest.fixture(scope="module", params=["shm", "tcp"])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    made = Ranks(SIZE, variables={"COLLECTIVES_TRANSPORT": request.param})
    try:
        yield made
        assert made.leave() == [0] * SIZE
    finally:
        made.destroy()


def test_all_ranks_hear_of_a_disagreement_and_go_on(ranks):
    outcomes = ranks.run(checks.disagreements)
    lists = {  # rank 0 and rank 1 have the same, and either may be the one that is named
        "shape": ("['x' (3,)]", "['x' (4,)]"),
        "dimensions": ("['x' (3, 2)]", "['x' (2, 3)]"),
        "name": ("['a' (3,)]", "['b' (3,)]"),
        "variables": ("['w:0' (1,)]", "['other:0' (1,)]"),
        "tape": ("['w:0' (1,)]", "['other:0' (1,)]"),
        "tape in function": ("['w:0' (1,)]", "['other:0' (1,)]"),
        "group": ("['g_1' (3, 2), 'g_0' (3, 2)]", "['g_2' (3, 2), 'g_1' (3, 2), 'g_0' (3, 2)]"),
        "in a function": ("['second' (4,)]", "['second' (5,)]"),
    }
    for found in outcomes:
        for name, (error, after) in found.items():
            assert error.startswith("FailedPreconditionError"), f"{name}: {error}"
            assert "ranks disagree" in error or "root" in error, f"{name}: {error}"
            if name in lists:
                most, last = lists[name]
                assert re.search(rf"rank [01] has {re.escape(most)}, rank 2 has {re.escape(last)}", error), error
            assert after == SIZE, name


def test_disagreements_leave_nothing_behind(ranks):
    for before, after in ranks.run(checks.many_disagreements, 30):
        assert after <= before


def test_calls_that_are_wrong_by_themselves(ranks):
    expected = {
        "string": ("TypeError", "'words'"),
        "bool": ("TypeError", "'flags'"),
        "bool in a group": ("TypeError", "'g_1'"),
        "string gathered": ("TypeError", "'words'"),
        "string variable": ("TypeError", "'words"),
        "no variable": ("TypeError", "no variable"),
        "not even": ("InvalidArgumentError", "cannot be split evenly"),
        "splits too large": ("InvalidArgumentError", "do not add up"),
        "splits negative": ("InvalidArgumentError", "negative"),
        "splits too few": ("InvalidArgumentError", "one integer for each"),
        "splits of floats": ("InvalidArgumentError", "float32"),
        "scalar to all": ("InvalidArgumentError", "scalar"),
        "scalar scattered": ("InvalidArgumentError", "'scalar' is a scalar"),
        "scalar in a group": ("InvalidArgumentError", "scalar"),
        "slices by max": ("NotImplementedError", "op=MAX"),
        "slices scaled": ("NotImplementedError", "prescale_factor"),
        "slices by max in a group": ("NotImplementedError", "op=MIN"),
        "op and average": ("ValueError", "both given"),
        "op": ("TypeError", "Average, Sum"),
        "root": ("ValueError", "ranks 0 to 2"),
        "process set": ("NotImplementedError", "new_group"),
        "process_set_id": ("ValueError", "only 0"),
        "global variables": ("RuntimeError", "eager"),
        "object in a function": ("RuntimeError", "eager"),
        "no tape": ("TypeError", "no tf.GradientTape"),
        "predivide": ("ValueError", "Average"),
        "join": ("NotImplementedError", "equally many batches"),
        "Adasum": ("NotImplementedError", "op=Average"),
        "elastic": ("NotImplementedError", "shrink"),
        "process sets": ("NotImplementedError", "new_group"),
        "before init": ("ValueError", "call init() first"),
        "tape before init": ("ValueError", "call init() first"),
        "MPI": ("TypeError", "new_group(ranks)"),
    }
    for found in ranks.run(checks.refused):
        assert found.pop("after all") == str(float(SIZE))
        assert found.keys() == expected.keys()
        for name, text in found.items():
            kind, part = expected[name]
            assert text.startswith(f"{kind}: ") and part in text, f"{name}: {text}"


def test_a_rank_that_dies():
    """It is no disagreement: the others raise that it is gone, and do not go on."""
    ranks = Ranks(3)
    try:
        ranks.processes[1].process.send_signal(signal.SIGKILL)
        others = [ranks.processes[0], ranks.processes[2]]
        for worker in others:
            worker.tell((checks.after_a_death, ()))
        for worker in others:
            first, second = worker.outcome().value
            assert first.startswith("UnavailableError") and "rank 1" in first, first
            assert second.startswith(("UnavailableError", "FailedPreconditionError")), second
    finally:
        ranks.destroy()


def test_a_rank_that_leaves_after_a_disagreement():
    ranks = Ranks(2)
    try:
        ranks.processes[0].tell((checks.after_a_disagreement, (True,)))
        ranks.processes[1].tell((checks.after_a_disagreement, (False,)))
        assert ranks.processes[1].outcome().value[0].startswith("FailedPreconditionError")
        ranks.processes[1].link.close()
        first, second, third = ranks.processes[0].outcome().value
        assert first.startswith("FailedPreconditionError"), first
        for error in (second, third):
            assert error.startswith("UnavailableError"), error
            assert "cannot go on after a disagreement" in error or "rank 1" in error, error
    finally:
        ranks.destroy()
