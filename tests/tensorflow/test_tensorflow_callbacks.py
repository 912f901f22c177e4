"""What Keras writes on two workers that were given one path, and training that goes on from it after a death."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import test_tensorflow_failures as failures
import tf_worker_checks as checks
import tiers
from tf_workers import strategy

start = failures.start  # the fixture
EPOCHS = 4


def make_model() -> Any:
    import keras

    keras.utils.set_random_seed(3)
    with strategy().scope():
        made = checks.model(keras)
        made.compile(keras.optimizers.Adam(0.01), "mse")
        made.optimizer.build(made.trainable_variables)
    return made


def fit(folder: str, killed_in: int | None = None) -> Any:
    """Trains with callbacks that all write below one folder; the losses by epoch, and the weights at the end."""
    import keras

    tempfile.tempdir = None  # perhaps it was asked for before this process had its environment
    x, y = checks.data()
    model = make_model()

    batches = checks.EXAMPLES // checks.BATCH
    steps: list[int] = []

    def die(batch: int, logs: Any) -> None:
        """In the middle of an epoch, whose first batch has been trained on."""
        steps.append(batch)
        if killed_in is not None and checks.rank() == 1 and len(steps) > killed_in * batches:
            os.kill(os.getpid(), signal.SIGKILL)

    Path(folder).mkdir(exist_ok=True)  # which CSVLogger does not make
    callbacks = [
        keras.callbacks.BackupAndRestore(f"{folder}/backup"),
        keras.callbacks.ModelCheckpoint(f"{folder}/checkpoints/{{epoch}}.keras"),
        keras.callbacks.ModelCheckpoint(f"{folder}/checkpoints/last.weights.h5", save_weights_only=True),
        keras.callbacks.CSVLogger(f"{folder}/losses.csv", append=True),
        keras.callbacks.LambdaCallback(on_train_batch_end=die),
    ]
    before = [callback.filepath for callback in callbacks[1:3]]
    history = model.fit(x, y, batch_size=checks.BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    assert [callback.filepath for callback in callbacks[1:3]] == before
    for _ in range(5):
        model.save(f"{folder}/model.keras")
    keras.saving.save_model(model, f"{folder}/function.keras")
    model.save_weights(f"{folder}/model.weights.h5")
    model.export(f"{folder}/exported")
    own = Path(folder) / f"workertemp_{checks.rank()}"
    own.mkdir(exist_ok=True)
    model.save(own / "model.keras")
    return dict(zip(history.epoch, history.history["loss"], strict=True)), model.get_weights()


def backup_on_the_chief(folder: str) -> None:
    """The chief alone has the callback."""
    import keras

    x, y = checks.data()
    model = make_model()
    callbacks = [keras.callbacks.BackupAndRestore(folder)] if checks.rank() == 0 else []
    model.fit(x, y, batch_size=checks.BATCH, epochs=1, verbose=0, callbacks=callbacks)


def load(path: str) -> Any:
    """The weights in a file, read by one process alone."""
    import keras

    return keras.models.load_model(path).get_weights()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where workers make their folders, of which nothing stays."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert list(folder.glob("collectives-*")) == []


def same(left: Any, right: Any) -> bool:
    return all((a == b).all() for a, b in zip(left, right, strict=True))


def test_one_path_on_all_workers(start, tmp_path, temporary):
    workers = start()
    (losses, weights), (_, other_weights) = workers.run(fit, str(tmp_path))
    assert list(losses) == list(range(EPOCHS)) and same(weights, other_weights)
    names = {path.name for path in tmp_path.iterdir()} - {"temporary"}
    assert names == {
        *("checkpoints", "losses.csv", "model.keras", "function.keras", "model.weights.h5", "exported"),
        *("workertemp_0", "workertemp_1"),
    }
    assert all((tmp_path / f"workertemp_{rank}" / "model.keras").exists() for rank in range(2))
    assert len((tmp_path / "losses.csv").read_text().splitlines()) == 1 + EPOCHS
    assert len(list((tmp_path / "checkpoints").iterdir())) == EPOCHS + 1
    first, _ = workers.processes
    for name in ("model.keras", "function.keras", f"checkpoints/{EPOCHS}.keras"):
        first.tell((load, (str(tmp_path / name),)))
        outcome = first.outcome()
        assert outcome.error is None, outcome.text
        assert same(outcome.value, weights), name
    assert workers.leave() == [0, 0]


# Whether the one that starts again finds the backup at its own path.
@pytest.mark.parametrize("shared", [True, False] if tiers.full() else [False])
def test_training_goes_on_after_a_death(start, tmp_path, temporary, shared):
    from tensorflow.errors import UnavailableError

    workers = start()
    whole = workers.run(fit, str(tmp_path / "whole"))
    assert workers.leave() == [0, 0]

    workers = start()
    survivor, _ = workers.outcomes(fit, str(tmp_path / "broken"), 2)
    assert isinstance(survivor.error, UnavailableError), survivor.text
    assert workers.leave()[0] == 0
    remains = list(temporary.glob("collectives-*"))  # of the one that was killed
    assert len(remains) == 4  # callbacks
    for left in remains:
        assert left.name.startswith("collectives-worker-1-")
        for file in left.iterdir():
            file.unlink()
        left.rmdir()

    workers = start()
    for worker in workers.processes:
        elsewhere = not shared and worker.name == "worker 1"
        worker.tell((fit, (str(tmp_path / ("elsewhere" if elsewhere else "broken")), None)))
    resumed = [worker.outcome() for worker in workers.processes]
    for outcome, (losses, weights) in zip(resumed, whole, strict=True):
        assert outcome.error is None, outcome.text
        assert outcome.value[0] == {epoch: losses[epoch] for epoch in (2, 3)}
        assert same(outcome.value[1], weights)
    assert not (tmp_path / "broken" / "backup").exists()
    assert workers.leave() == [0, 0]


def test_a_backup_on_the_chief_alone_is_told(start, tmp_path, temporary):
    """It would let the workers begin at different epochs."""
    from tensorflow.errors import InvalidArgumentError

    workers = start()
    first, second = workers.outcomes(backup_on_the_chief, str(tmp_path / "backup"))
    for outcome in (first, second):
        assert isinstance(outcome.error, InvalidArgumentError), outcome.text
    assert "Give BackupAndRestore to all workers" in first.error.message
    assert workers.leave() == [0, 0]
