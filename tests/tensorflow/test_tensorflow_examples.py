"""The programs in examples/ for TensorFlow run as a user would run them, for fewer epochs; their numbers are right."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from served import free_ports

LIMIT = 120  # seconds
SAMPLES = 1797 * 4 // 5  # for training, of scikit-learn's digits
PARAMETERS = 64 * 64 + 64 + 64 * 10 + 10  # of the model in the examples on digits

# Runs an example, then says what the engine has carried in this process.
COUNTING = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
from collectives.tensorflow import _ops
print("bytes of replicas:", _ops.replica_bytes())
if "TF_CONFIG" in __import__("os").environ:
    from collectives.tensorflow import _job
    print("bytes between workers:", sum(_job._jobs[0][1].communicator.bytes_by_transport().values()))
"""


def environment(**variables: str) -> dict[str, str]:
    # Unbuffered, a line and its end are two writes, and workers that share a pipe write between them.
    others = ("COLLECTIVES_", "TF_", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    kept["OMP_NUM_THREADS"] = kept["OPENBLAS_NUM_THREADS"] = "1"  # processes share the cores
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "COLLECTIVES_TIMEOUT": "60", **variables}


def run(example: str, *arguments: str, folder: Path, counting: bool = True) -> str:
    """What the example prints. It must leave by itself, with code 0."""
    command = [sys.executable, *(["-c", COUNTING] if counting else []), str(ROOT / "examples" / example), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    found = [float(number) for number in re.findall(pattern, text)]
    assert found, f"no {pattern!r} in:\n{text}"
    return found


def assert_falls(losses: list[float], epochs: int) -> None:
    assert len(losses) == epochs
    assert all(after < before for before, after in itertools.pairwise(losses)), losses


def test_keras_mirrored(tmp_path: Path) -> None:
    replicas, ops, epochs = 3, "hierarchical_copy", 4
    options = ("--replicas", str(replicas), "--ops", ops, "--epochs", str(epochs), "--batch", "16")
    text = run("keras_mirrored.py", *options, folder=tmp_path)
    assert f"{replicas} replicas, {ops}" in text
    assert_falls(numbers(r"\d - loss: (\d\.\d+)", text), epochs)
    (accuracy,) = numbers(r"test accuracy (\d\.\d+)", text)
    assert accuracy > 0.8
    assert numbers(r"by predict (\d\.\d+)", text) == [accuracy]
    steps = -(-SAMPLES // (16 * replicas)) * epochs
    assert numbers(r"bytes of replicas: (\d+)", text)[0] >= steps * replicas * PARAMETERS * 4


def test_custom_loop_mirrored(tmp_path: Path) -> None:
    text = run("custom_loop_mirrored.py", "--replicas", "3", "--epochs", "3", folder=tmp_path)
    assert_falls(numbers(r"of 3: loss (\d\.\d+)", text), 3)
    assert numbers(r"test accuracy (\d\.\d+)", text)[-1] > 0.8
    shares = [json.loads(found) for found in re.findall(r"samples of each replica (\[.*?\])", text)]
    assert [sum(share) for share in shares] == [SAMPLES] * 3
    assert all(len(share) == 3 and min(share) > 0 for share in shares)
    steps = -(-SAMPLES // 96) * 3
    assert numbers(r"bytes of replicas: (\d+)", text)[0] >= steps * 3 * PARAMETERS * 4


def test_dtensor_mlp_draws_a_plot(tmp_path: Path) -> None:
    pyplot: Any = pytest.importorskip("matplotlib.pyplot")
    text = run("dtensor_mlp.py", "--images", "1280", "--epochs", "2", "--replicas", "4", folder=tmp_path)
    assert "1280 images for training, 1280 for the test" in text
    assert_falls(numbers(r"mean loss (\d\.\d+)", text), 2)
    assert numbers(r"test accuracy (\d\.\d+)", text)[-1] > 0.6
    drawn = pyplot.imread(tmp_path / "dtensor_mlp.png")
    assert drawn.shape[0] > 300
    assert drawn.shape[1] > 600
    for half in np.array_split(drawn[..., :3], 2, axis=1):  # a line in both: blue, which axes and text are not
        assert ((half[..., 2] > half[..., 0] + 0.3).sum()) > 200
    gradients = 4 * (784 * 700 + 700 + 700 * 500 + 500 + 500 * 10 + 10)
    assert numbers(r"bytes of replicas: (\d+)", text)[0] >= 20 * 4 * gradients


def workers_with_tf_config(*arguments: str, folder: Path) -> list[str]:
    """What two workers print, each started with the TF_CONFIG that a launcher would set."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    workers = []
    try:
        for index in range(2):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            command = [sys.executable, "-c", COUNTING, str(ROOT / "examples" / "keras_multi_worker.py"), *arguments]
            environ = environment(TF_CONFIG=json.dumps(config))
            with open(folder / f"worker{index}", "w") as output:
                workers.append(
                    subprocess.Popen(command, cwd=folder, env=environ, stdout=output, stderr=subprocess.STDOUT)
                )
        codes = [worker.wait(LIMIT) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    texts = [(folder / f"worker{index}").read_text() for index in range(2)]
    assert codes == [0, 0], "\n".join(texts)
    return texts


def test_keras_multi_worker_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    name = "keras_multi_worker.py"
    first = run(name, "--workers", "2", "--epochs", "2", folder=tmp_path, counting=False)
    assert_falls(numbers(r"\d - loss: (\d\.\d+)", first), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["keras_multi_worker.keras"]  # the chief's, and no other

    second = workers_with_tf_config("--epochs", "4", "--restore", folder=tmp_path)
    assert "2 epochs done" in second[0]
    assert "Epoch 3/4" in second[0]
    assert "Epoch 2/4" not in second[0]
    assert "Epoch" not in second[1]
    steps = -(-SAMPLES // 64) * 2
    for text in second:
        assert numbers(r"bytes between workers: (\d+)", text)[0] >= steps * PARAMETERS * 4

    straight = run(
        name, "--workers", "2", "--epochs", "4", "--checkpoint", "other.keras", folder=tmp_path, counting=False
    )
    weights = [numbers(r"sum of weights (\S+)", text) for text in (*second, straight)]
    assert weights[0] == weights[1]
    assert weights[2][0] == weights[2][1]
    assert weights[0][0] == pytest.approx(weights[2][0], rel=1e-6)
    losses = [numbers(r"test loss (\S+),", text)[0] for text in (*second, straight)]
    assert losses == pytest.approx([losses[2]] * 3, abs=1e-5)
    assert losses[2] < numbers(r"test loss (\S+),", first)[0]


def test_parameter_server(tmp_path: Path) -> None:
    text = run("parameter_server.py", "--workers", "2", "--epochs", "3", folder=tmp_path)
    assert_falls(numbers(r"mean loss (\d\.\d+)", text), 3)
    assert numbers(r"test accuracy (\d\.\d+)", text)[-1] > 0.75


# Runs several examples in the ranks of one job, which import TensorFlow once.
IN_TURN = """
import runpy, sys
for arguments in sys.argv[1:]:
    sys.argv = arguments.split(" ")
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which two ranks under `collectives run` have run two examples, and what they printed."""
    folder = tmp_path_factory.mktemp("ranks")
    program = folder / "in_turn.py"
    program.write_text(IN_TURN)
    launcher = [sys.executable, "-m", "collectives", "run", "-n", "2", str(program)]
    smddp = f"{ROOT / 'examples' / 'smddp.py'} --steps 81"
    horovod = f"{ROOT / 'examples' / 'horovod_keras.py'} --epochs 4"
    command = [*launcher, smddp, horovod]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    program.unlink()
    return folder, done.stdout


def test_smddp(of_ranks: tuple[Path, str]) -> None:
    folder, text = of_ranks
    assert_falls(numbers(r"(?m)^\[0\] step \d+ of 81: loss (\d\.\d+)", text), 5)
    assert "[1] step" not in text
    (accuracy,) = numbers(r"test accuracy (\d\.\d+); saved", text)
    assert accuracy > 0.7
    assert {path.name.partition(".")[0] for path in (folder / "smddp").iterdir()} == {"checkpoint", "checkpoint-1"}


def test_horovod_keras(of_ranks: tuple[Path, str]) -> None:
    folder, text = of_ranks
    assert_falls(numbers(r"(?m)^\[0\].* - loss: (\d\.\d+)", text), 4)
    rates = numbers(r" - lr: (\d\.\d+)", text)
    assert rates == pytest.approx([0.003, 0.004, 0.004, 0.004])  # of two ranks, risen in two epochs
    first, second = numbers(r"sum of weights (\S+)", text)
    assert first == second
    assert min(numbers(r"rank \d: test accuracy (\d\.\d+)", text)) > 0.7
    assert {path.name for path in folder.iterdir()} == {"horovod.keras", "smddp"}  # of rank 0, and no others


@pytest.mark.parametrize(
    ("example", "arguments", "said"),
    [
        ("dtensor_mlp.py", ["--batch", "100"], "--batch is a multiple of --replicas"),
        ("keras_multi_worker.py", ["--workers", "0"], "--workers, --epochs and --batch are at least 1"),
    ],
)
def test_wrong_arguments(example: str, arguments: list[str], said: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / example), *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2
    assert said in done.stderr
