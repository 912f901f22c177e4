"""The bench of torch.distributed: runs in small form, also between hosts, and how it computes ratios."""

from __future__ import annotations

import functools
import json

import pytest
import tiers
from bench_runs import run_bench
from namespaces import REASON, two_hosts

bench = functools.partial(run_bench, program="torch_step.py", timeout=280)
PAIR = {"collectives", "gloo"}


def check(run, file, hosts, whats):
    """What every run must have written."""
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""
    assert run.stdout.splitlines()[-1] == "checked: nothing wrong"
    report = json.loads(file.read_text())
    assert report["wrong"] == []
    assert report["hosts"] == hosts
    contenders = {what: {row["contender"] for row in report["rows"] if row["what"] == what} for what in whats}
    assert {row["what"] for row in report["rows"]} <= set(whats)
    blocks = sum(row["blocks"] for row in report["rows"]) + report["mixed"]
    cases = sum(3 if what == "DDP step" else 2 for what in whats)
    assert blocks == report["rounds"] * cases
    for row in report["rows"]:
        low, high = row["time_us_quartiles"]
        assert 0 < low <= row["time_us"] <= high
    return report, contenders


# Each run is two processes that import PyTorch and warm up, which takes as long as all the rest.
@pytest.mark.parametrize("hosts", [1, 2] if tiers.full() else [1])
def test_small_run(hosts, tmp_path):
    if hosts == 2 and REASON is not None:
        pytest.skip(REASON)
    file = tmp_path / "out.json"
    calls = ["all_reduce 8", "all_reduce 65536"]
    small = ("--sizes", "8,64K", "--batch", 2, "--duration", 0.1, "--json", file)
    if hosts == 1:
        parts = () if tiers.full() else ("--part", "calls", "--part", "ddp")
        steps = ["DDP step"] + (["FSDP2 step"] if tiers.full() else [])
        report, _ = check(bench(*parts, *small), file, 1, [*calls, *steps])
        for ratio in report["ratios"]:
            assert (ratio["target"] is None) == (ratio["placement"] != "near" or ratio["what"] == "FSDP2 step")
            assert (ratio["communication"] is None) == (ratio["what"] != "DDP step") or ratio["placement"] != "near"
        return
    with two_hosts() as names:
        run = bench("--part", "calls", *small, "--namespaces", ",".join(names), "--address", "10.91.0.1")
    report, contenders = check(run, file, 2, calls)
    assert all(names == PAIR for names in contenders.values())
    assert {row["placement"] for row in report["rows"]} == {"unknown"}  # no shared memory, so no flag
    assert {ratio["target"] for ratio in report["ratios"]} == {0.95}


def test_ratios(bench_module):
    pytest.importorskip("torch")
    report = bench_module("torch_report")
    cases = [(what, name) for what in ("all_reduce 8", "DDP step") for name in ("collectives", "gloo")]
    collected = report.Report([*cases, ("DDP step", report.NOTHING)], 1)
    for mine, other in ((1.0, 30.0), (2.0, 30.0), (3.0, 90.0)):
        collected.add(cases[0], mine, "near", "near")
        collected.add(cases[1], other, "near", "near")
    collected.add(cases[0], 50.0, "near", "far")  # does not count
    collected.add(cases[0], 10.0, "far", "far")
    collected.add(cases[1], 50.0, "far", "far")
    collected.add(cases[2], 100.0, "near", "near")
    collected.add(cases[3], 110.0, "near", "near")
    collected.add(("DDP step", report.NOTHING), 77.0, "near", "near")
    found = collected.as_json()
    assert found["mixed"] == 1
    calls = {ratio["placement"]: ratio for ratio in found["ratios"] if ratio["what"] == "all_reduce 8"}
    assert calls["near"]["ratio"] == 15
    assert calls["near"]["met"] is True
    assert calls["far"]["ratio"] == 5
    assert calls["far"]["target"] is None
    (step,) = (ratio for ratio in found["ratios"] if ratio["what"] == "DDP step")
    assert step["ratio"] == 1.1
    assert step["met"] is False
    assert step["communication"] == pytest.approx(0.3)
    text = report.as_text({**found, "others": 0.5, "rounds": 3})
    assert "NOT MET" in text
    assert "30% of the step" in text
    assert "other programs took 50%" in text
    between = report.Report(cases, 2)
    between.add(cases[0], 10.0, "unknown", "unknown")
    between.add(cases[1], 9.8, "unknown", "unknown")
    assert [ratio["met"] for ratio in between.as_json()["ratios"]] == [True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "8,3"], "multiples of 4"),
        (["--namespaces", "one"], "two names"),
        (["--namespaces", "one,two"], "belong together"),
        (["--json", "/nowhere/out.json"], "cannot be written"),
    ],
)
def test_bad_input(arguments, words):
    run = bench(*arguments)
    assert run.returncode == 2
    assert words in run.stderr
    assert "Traceback" not in run.stderr
