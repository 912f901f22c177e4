"""The programs in examples/ run, alone and on several ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from paths import ROOT

# Those for TensorFlow and PyTorch are started otherwise: tests/tensorflow/test_tensorflow_examples.py,
# tests/torch/test_torch_examples.py.
FRAMEWORK = re.compile(r"^ *(?:import|from) (?:collectives\.tensorflow|torch)\b", re.MULTILINE)
EXAMPLES = sorted(p.name for p in (ROOT / "examples").glob("*.py") if not FRAMEWORK.search(p.read_text()))
LIMIT = 120  # seconds


def run(n: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "collectives", "run", "-n", str(n)] if n else []
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    environ["OMP_NUM_THREADS"] = environ["OPENBLAS_NUM_THREADS"] = "1"  # ranks share the cores
    return subprocess.run(
        [sys.executable, *launcher, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LIMIT
    )


@pytest.mark.parametrize("n", [0, 4])
@pytest.mark.parametrize("name", EXAMPLES)
def test_runs(name: str, n: int) -> None:
    done = run(n, f"examples/{name}")
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("n", [0, 4])
def test_digits_are_those_of_one_process(n: int) -> None:
    done = run(n, "examples/digits.py", "--check")
    assert done.returncode == 0, done.stderr
    accuracies = re.findall(r"epoch \d+ of 20: loss \S+, test accuracy (0\.\d+)", done.stdout)
    assert len(accuracies) == 20, done.stdout  # of rank 0 only
    assert float(accuracies[-1]) > 0.93
    found = re.search(r"same bits on (\d) ranks; at most (\S+) from one process", done.stdout)
    assert found, done.stdout
    assert int(found[1]) == max(n, 1)
    assert float(found[2]) < 1e-6


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_training_goes_on_without_a_worker(transport: str) -> None:
    done = run(4, "--keep-going", "--transport", transport, "examples/shrink.py", "--lose", "0")
    assert done.returncode == 0, done.stderr
    found = re.search(r"3 ranks at the end; 200 steps; largest error (\S+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) < 1e-3
