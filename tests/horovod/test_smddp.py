"""A script for SageMaker's data-parallel library runs with nothing but its import line changed.

Row 10 of what users run: its losses and weights are those of one process that trains on the batches of all ranks, and
all ranks end with the same bits. Keras 3 has no ``variables()``, ``get_scaled_loss`` and ``get_unscaled_gradients`` of
an optimizer, so there these lines of the script change, too; under Keras 2 (tf_keras) they stand as they are.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tiers
from sklearn.datasets import load_digits

SCRIPT = Path(__file__).with_name("smddp_script.py")
LIMIT = 150  # seconds for a job
IMPORT = "import smdistributed.dataparallel.tensorflow as sdp\n"
KERAS_3 = {
    "opt.variables()": "opt.variables",
    "opt.get_scaled_loss(loss_value)": "opt.scale_loss(loss_value)",
    "opt.get_unscaled_gradients(grads)": "grads",  # apply_gradients does it
}

# Runs the script several times in each rank: TensorFlow is imported once, and the world begins and ends each time.
SEVERAL = """
import runpy, sys
script, *variants = sys.argv[1:]
for arguments in variants:
    sys.argv = [script, *arguments.split()]
    runpy.run_path(script, run_name="__main__")
"""
VARIANTS = {
    "dense": "--own-seeds",
    "embedding": "--own-seeds --model embedding",
    "same seeds": "",
    "fp16": "--fp16",
    "mixed": "--mixed --fp16",
}
PRODUCT = (("run", "torchrun"), (2, 4), ("keras2", "keras3"))
# Two ranks under `collectives run`, with Keras 3, are tested in tests/tensorflow/test_tensorflow_examples.py.
JOBS = {
    "run-4-keras3": ["embedding"],
    "torchrun-2-keras2": ["dense", "mixed"],
}
if tiers.full():
    JOBS = {f"{how}-{ranks}-{keras}": list(VARIANTS) for how, ranks, keras in itertools.product(*PRODUCT)}


def command(launcher: str, ranks: str) -> list[str]:
    if launcher == "run":
        return [sys.executable, "-m", "collectives", "run", "-n", ranks]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By job, the folder with what its ranks have written. Each job runs once, when it is first asked for."""
    folders: dict[str, Path] = {}

    def of(job: str) -> Path:
        if job not in folders:
            folders[job] = run(job, tmp_path_factory.mktemp(job))
        return folders[job]

    return of


def run(job: str, folder: Path) -> Path:
    launcher, ranks, keras = job.split("-")
    text = SCRIPT.read_text()
    assert text.count(IMPORT) == 1
    text = text.replace(IMPORT, "import collectives.tensorflow as sdp\n")
    for old, new in KERAS_3.items():
        assert text.count(old) == 1
        text = text.replace(old, new) if keras == "keras3" else text
    (folder / "script.py").write_text(text)
    (folder / "several.py").write_text(SEVERAL)
    others = ("COLLECTIVES_", "TF_", "PYTHONUNBUFFERED")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "COLLECTIVES_TIMEOUT": "60"}
    environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if keras == "keras2":
        environ["TF_USE_LEGACY_KERAS"] = "1"
    arguments = [f"{VARIANTS[name]} --out {name.replace(' ', '_')}" for name in JOBS[job]]
    done = subprocess.run(
        [*command(launcher, ranks), "several.py", "script.py", *arguments],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert len(re.findall(r"Step #0\tLoss: \d", done.stdout)) == len(JOBS[job])  # of rank 0 only
    return folder


def mean(gradients: tuple[Any, ...]) -> Any:
    """Of the gradients of several models; rows stay rows."""
    if isinstance(gradients[0], tf.IndexedSlices):
        values = tf.concat([one.values for one in gradients], 0) / len(gradients)
        return tf.IndexedSlices(values, tf.concat([one.indices for one in gradients], 0), gradients[0].dense_shape)
    return tf.add_n(gradients) / len(gradients)


def one_process(keras: Any, variant: str, ranks: int, steps: int = 50, batch: int = 16) -> list[np.ndarray[Any, Any]]:
    """Losses and weights of one process that trains on the batches of all ranks.

    With a seed of its own for each rank the first step is that of a model for each, as the script broadcasts after it.
    """
    images, labels = load_digits(return_X_y=True)
    images, labels = images[:1600].astype("float32"), labels[:1600]
    models = []
    for rank in range(ranks if "--own-seeds" in VARIANTS[variant] else 1):
        keras.utils.set_random_seed(1 + rank)
        if variant == "embedding":
            layers = [keras.layers.Embedding(17, 4), keras.layers.Flatten()]
        else:
            layers = [keras.layers.Rescaling(1 / 16), keras.layers.Dense(64, activation="relu")]
        last = keras.layers.Dense(10, dtype="float32", activation="softmax")
        models.append(keras.Sequential([keras.Input((64,)), *layers, last]))
    loss = keras.losses.SparseCategoricalCrossentropy()
    optimizer = keras.optimizers.Adam(0.001 * ranks)
    if variant == "mixed":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)

    scale = getattr(optimizer, "get_scaled_loss", getattr(optimizer, "scale_loss", lambda value: value))
    unscale = getattr(optimizer, "get_unscaled_gradients", lambda gradients: gradients)

    def gradients(model: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
            minimized = scale(value)
        return value, unscale(tape.gradient(minimized, model.trainable_variables))

    @tf.function
    def first_step(images: Any, labels: Any) -> Any:
        found = [gradients(m, images[r :: len(models)], labels[r :: len(models)]) for r, m in enumerate(models)]
        means = [mean(each) for each in zip(*(g for _, g in found), strict=True)]
        optimizer.apply_gradients(zip(means, models[0].trainable_variables, strict=True))
        return sum(value for value, _ in found) / len(models)

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        value, found = gradients(models[0], images, labels)
        optimizer.apply_gradients(zip(found, models[0].trainable_variables, strict=True))
        return value

    losses = []
    for k in range(steps):
        rows = np.arange(k * batch * ranks, (k + 1) * batch * ranks) % len(labels)
        run_step = first_step if k == 0 and len(models) > 1 else step
        losses.append(float(run_step(images[rows], labels[rows])))
    return [np.array(losses), *[v.numpy() for v in models[0].trainable_variables]]


@pytest.mark.parametrize(("job", "variant"), [(job, variant) for job, variants in JOBS.items() for variant in variants])
def test_it_trains_as_one_process(outputs: Callable[[str], Path], job: str, variant: str) -> None:
    _, ranks, keras = job.split("-")
    module = tf.keras if keras == "keras3" else pytest.importorskip("tf_keras")
    name, folder = variant.replace(" ", "_"), outputs(job)
    assert (folder / name / "checkpoint").exists()
    written = [np.load(folder / f"{name}-{rank}.npz") for rank in range(int(ranks))]
    found = [[arrays[key] for key in arrays.files] for arrays in written]
    for arrays in found[1:]:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found[0], arrays, strict=True)), "ranks differ"

    module.mixed_precision.set_global_policy("mixed_float16" if variant == "mixed" else "float32")
    try:
        expected = one_process(module, variant, int(ranks))
    finally:
        module.mixed_precision.set_global_policy("float32")
    tolerance = 1e-2 if variant in ("fp16", "mixed") else 1e-5
    differences = [float(np.abs(a - b).max()) for a, b in zip(found[0], expected, strict=True)]
    assert max(differences) < tolerance, differences
    assert found[0][0][-5:].mean() < found[0][0][:5].mean()
