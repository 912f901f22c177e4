"""The peers of the bench that take part as packages of Python: small runs, checked, and what they cannot do.

Their packages are those that the tests have anyway: what `--install` makes is imitated by a folder that leads to them.
"""

from __future__ import annotations

import functools
import json
import sys

import pytest
import tiers
from bench_runs import run_bench

bench = functools.partial(run_bench, "--duration", 0.02)


@pytest.fixture
def environments(tmp_path):
    """Of a peer by its name: a folder that looks like what its `--install` makes."""

    def make(name):
        pytest.importorskip(name)
        program = tmp_path / name / "bin" / "collectives"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m collectives "$@"\n')
        program.chmod(0o755)
        (tmp_path / name / "lib" / "python3" / "site-packages" / name).mkdir(parents=True)
        return tmp_path / name

    return make


@pytest.mark.parametrize(
    ("peer", "arguments", "ways"),
    [
        ("jax", ["-b", 8, "-e", "64K", "-f", 8192, "--op", "avg", "--dtype", "bfloat16"], {"default"}),
        ("jax", ["--collective", "broadcast", "-b", "1K", "-e", "1K", "--dtype", "float64"], {"default"}),
        ("tensorflow", ["-b", 8, "-e", "8M", "-f", 1 << 20, "--op", "avg"], {"default", "subdivided"}),
        ("tensorflow", ["-b", "8K", "-e", "8K", "--op", "max", "--dtype", "bfloat16"], {"default"}),
        ("tensorflow", ["--collective", "broadcast", "-b", "1K", "-e", "1K"], {"default"}),
    ][:: tiers.few(2, full=1)],
)
def test_results_are_right(peer, arguments, ways, environments, tmp_path):
    file = tmp_path / "out.json"
    run = bench("--vs", f"{peer}={environments(peer)}", "--json", file, *arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = json.loads(file.read_text())["rows"]
    assert {row["algorithm"] for row in rows if row["peer"]} == ways
    for row in rows:
        assert row["peer"] in (None, peer)
        assert row["level"] == "python"
        assert row["wrong"] == 0
        assert row["time_us"] > 0


@pytest.mark.parametrize(
    ("peer", "arguments", "words"),
    [
        ("jax", ["--op", "prod"], "JAX has no all_reduce with prod"),
        ("jax", ["--dtype", "bool"], "JAX adds bools as integers"),
        ("jax", ["--collective", "reduce"], "reduce of JAX is not measured"),
        ("jax", ["--level", "c"], "level python only"),
        ("jax", [], "python bench/peers/jax.py --install /nowhere"),
        ("tensorflow", ["--dtype", "int8"], "TensorFlow has no all_reduce of int8"),
        ("tensorflow", ["--collective", "broadcast", "--dtype", "bfloat16"], "TensorFlow has no broadcast of bfloat16"),
        ("tensorflow", ["--collective", "barrier"], "barrier of TensorFlow is not measured"),
        ("tensorflow", ["-n", "1"], "at least 2 ranks"),
        ("tensorflow", [], "python bench/peers/tensorflow.py --install /nowhere"),
    ],
)
def test_what_they_cannot_do(peer, arguments, words):
    run = bench("--vs", f"{peer}=/nowhere", *arguments)
    assert run.returncode == 2
    assert words in run.stderr
    assert "Traceback" not in run.stderr
