"""The programs in examples/ for PyTorch run as a user would run them; they compare themselves with one process."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from paths import ROOT

LIMIT = 120  # seconds
TOLERANCE = 1e-5
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("COLLECTIVES_", "RANK"))}
    environ["OMP_NUM_THREADS"] = "1"  # ranks share the cores
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LIMIT
    )


def check(done: subprocess.CompletedProcess[str], steps: int) -> None:
    """It trained, and one process ends with the same weights."""
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(loss) for loss in re.findall(r"of \d+: loss (\S+)", done.stdout)]
    assert len(losses) == steps, done.stdout  # of rank 0 alone
    assert losses[-1] < losses[0]
    found = re.search(r"relative distance .*from one process (\S+)", done.stdout)
    assert found, done.stdout
    assert float(found[1]) < TOLERANCE


def test_ddp() -> None:
    check(run(*TORCHRUN, "examples/torch_ddp.py", "--epochs", "2"), 2)


def test_fsdp() -> None:
    done = run(*TORCHRUN, "examples/torch_fsdp.py", "--steps", "41")
    check(done, 3)
    kept, every = re.findall(r"keeps (\d+) of (\d+) parameters", done.stdout)[0]
    assert 0 < int(kept) <= int(every) // 2 + 100


@pytest.mark.parametrize(("example", "package"), [("lightning_fit.py", "lightning"), ("ray_train.py", "ray")])
def test_of_another_package(example: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install '.[torch-examples]'")
    check(run(f"examples/{example}", "--epochs", "2"), 2)


def test_wrong_arguments() -> None:
    done = run(*TORCHRUN[:-1], "1", "examples/torch_ddp.py", "--batch", "3")
    assert done.returncode != 0
    assert "--batch divides 4096 and is a multiple of the 1 ranks" in done.stderr
