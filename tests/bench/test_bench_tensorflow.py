"""The bench of training steps: runs in small form, what it writes, what it refuses, and how it computes ratios."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
import tiers
from bench_runs import run_bench

bench = functools.partial(run_bench, program="tensorflow_step.py", timeout=280)
CONTENDERS = {
    "2 replicas": {
        *("one device", "hierarchical copy", "ring", "tf one device", "tf hierarchical copy", "tf default"),
        *("tf dtensor", "no all-reduce"),
    },
    "2 workers": {"tf ring", "shm", "tcp", "no all-reduce"},
}


# Each contender on workers is two processes that import TensorFlow, which takes as long as all the rest.
@pytest.mark.parametrize("group", CONTENDERS if tiers.full() else ["2 replicas"])
def test_small_run(group, tmp_path):
    file = tmp_path / "out.json"
    run = bench("--group", group, "--duration", 0.1, "--json", file)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""  # no bar where stderr is no terminal, and no remarks of TensorFlow
    assert run.stdout.splitlines()[-1] == "checked: nothing wrong"
    report = json.loads(file.read_text())
    assert report["wrong"] == []
    assert {row["contender"] for row in report["rows"] if row["part"] == "step"} == CONTENDERS[group]
    assert {row["contender"] for row in report["rows"] if row["part"] == "all-reduce"} == CONTENDERS[group] - {
        "tf dtensor"
    }
    for row in report["rows"]:
        assert row["group"] == group
        assert row["blocks"] == report["rounds"] == sum(row["placements"].values())
        low, high = row["time_ms_quartiles"]
        assert 0 < low <= row["time_ms"] <= high
    assert {ratio["group"] for ratio in report["ratios"]} == {group}
    assert [ratio["met"] is None for ratio in report["ratios"]] == [r["target"] is None for r in report["ratios"]]


def test_ratios(bench_module):
    report = bench_module("tensorflow_report")
    ours = report.Case("8 replicas", "ring", "all-reduce")
    theirs = report.Case("8 replicas", "tf default", "all-reduce")
    nothing = report.Case("8 replicas", report.NOTHING, "all-reduce")
    collected = report.Report([ours, theirs, nothing])
    for mine, other in ((1.0, 8.0), (2.0, 8.0), (3.0, 6.0)):
        collected.add(ours, report.Block(mine, "near", "near"))
        collected.add(theirs, report.Block(other, "near", "far"))
        collected.add(nothing, report.Block(0.5, "near", "near"))
    found = collected.as_json()
    (ratio,) = found["ratios"]
    assert ratio["ratio"] == 2 / 8
    assert ratio["net"] == (2 - 0.5) / (8 - 0.5)
    assert ratio["quartiles"] == [(1 / 8 + 2 / 8) / 2, (2 / 8 + 3 / 6) / 2]  # of 1/8, 2/8, 3/6
    assert ratio["target"] == 0.25
    assert ratio["met"] is True
    assert [row["placements"] for row in found["rows"]] == [{"near": 3}, {"mixed": 3}, {"near": 3}]
    collected.add(ours, report.Block(3.0, "near", "near"))
    collected.add(theirs, report.Block(6.0, "near", "near"))
    found = collected.as_json()
    assert found["ratios"][0]["met"] is False
    text = report.as_text({**found, "others": 0.5})
    assert "NOT MET" in text
    assert "other programs took 50%" in text


def test_the_model_learns_and_its_gradients_are_right(bench_module):
    model = bench_module("tensorflow_model")
    losses = model.losses()
    assert len(losses) == model.CHECKED_STEPS
    assert losses == sorted(losses, reverse=True)
    assert sum(g.nbytes for g in model.gradients(0)) == model.NBYTES
    for k, total in enumerate(model.total(3, 2.0)):
        by_hand = 2 * (model.gradients(0)[k] + model.gradients(1)[k] + model.gradients(2)[k])
        assert np.array_equal(total, by_hand)
        assert not np.array_equal(model.gradients(0)[k], model.gradients(1)[k])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--group", "3 replicas"], "8 replicas"),
        (["--duration", "0"], "a number above 0"),
        (["--json", "/nowhere/out.json"], "cannot be written"),
    ],
)
def test_bad_input(arguments, words):
    run = bench(*arguments)
    assert run.returncode == 2
    assert words in run.stderr
    assert "Traceback" not in run.stderr
