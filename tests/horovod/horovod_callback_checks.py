"""What the ranks of test_horovod_keras.py run of callbacks."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

import collectives.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod_keras_checks import BATCH, FEATURES, data, dense, mine, number, optimizers, same, same_on_all
from horovod_ranks import said


def callbacks() -> Any:
    from collectives.tensorflow.keras import callbacks as module

    return module


def broadcast_callback(built: bool) -> None:
    """Models of different seeds are equal after the training, and those that are built from the first batch on."""
    import keras

    keras.utils.set_random_seed(5 + hvd.rank())
    layers = [
        keras.layers.Dense(3),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.0),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.layers.Input((FEATURES,)), *layers] if built else layers)
    x, y = data()
    x, y = mine(x)[: 3 * BATCH], mine(y)[: 3 * BATCH]
    root = 1
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01 * (1 + hvd.rank()))), "mse")
    start = hvd.allgather_object(model.get_weights())[root] if built else None
    seen: list[Any] = []
    look = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: seen.append(model.get_weights()))
    callback = callbacks().BroadcastGlobalVariablesCallback(root)
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[callback, look])
    weights = [layer.get_weights() for layer in (model.layers[0], model.layers[-1])]
    same_on_all(weights[0] + weights[1])
    assert number(model.optimizer.learning_rate) == np.float32(0.02)
    same_on_all([v.numpy() for v in model.optimizer.variables])
    if built:
        same(seen[0], start, 0)
    same_on_all(seen[0 if built else 1])


def broadcast_of_what_was_loaded() -> None:
    """Where the root has a model that goes on, built, and the others a new one that is not."""
    import keras

    x, y = data()
    x, y = mine(x)[: 2 * BATCH], mine(y)[: 2 * BATCH]
    make = lambda: keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])  # noqa: E731
    model = make()
    if hvd.rank() == 0:
        model.build((None, FEATURES))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.5)), "mse")
    callback = callbacks().BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[callback])
    same_on_all(model.get_weights() + [v.numpy() for v in model.optimizer.variables])
    first = model.get_weights()
    if hvd.rank():  # and once more, for another training
        model.set_weights([w + 1 for w in first])
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[callback])
    same_on_all(model.get_weights())


def ranks_that_number_layers_otherwise() -> None:
    """Where one of them has made more models: their variables have other paths."""
    import keras

    for _ in range(hvd.rank()):
        dense()
    model = dense()
    made = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    paths = hvd.allgather_object([v.path for v in model.variables])
    assert paths[0] != paths[1]
    model.compile(made, "mse", run_eagerly=True)
    x, y = (mine(values)[:BATCH] for values in data())
    model.fit(x, y, verbose=0, callbacks=[callbacks().BroadcastGlobalVariablesCallback(0)])
    same_on_all(model.get_weights() + [v.numpy() for v in model.optimizer.variables])


def broadcast_leaves_local_variables() -> None:
    model = dense()
    model.set_weights([w + hvd.rank() for w in model.get_weights()])
    own = model.get_weights()
    import keras

    made = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    layer = model.layers[0]
    callback = callbacks().BroadcastGlobalVariablesCallback(0, local_variables=[layer.kernel, model.layers[1]])
    x, y = data()
    model.compile(made, "mse")
    model.fit(mine(x)[:BATCH], mine(y)[:BATCH], verbose=0, callbacks=[callback])
    same([model.get_weights()[i] for i in (0, 2, 3)], [own[i] for i in (0, 2, 3)], 0)
    same([model.get_weights()[1]], [own[1] - hvd.rank()], 0)


def metric_average() -> None:
    """Callbacks after it, and the history, have the averages; one collective for all metrics."""
    import keras

    model = dense()
    x, y = data()
    x, y = mine(x), mine(y)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", metrics=["mae"])
    seen: list[dict[str, float]] = []
    own: list[dict[str, float]] = []
    look = keras.callbacks.LambdaCallback
    listed = [
        look(on_epoch_end=lambda epoch, logs: own.append(dict(logs))),
        callbacks().MetricAverageCallback(),
        look(on_epoch_end=lambda epoch, logs: seen.append(dict(logs))),
    ]
    history = model.fit(x, y, epochs=2, validation_data=(x[:8], y[:8]), verbose=0, callbacks=listed).history
    for epoch, logs in enumerate(seen):
        assert logs.keys() == {"loss", "mae", "val_loss", "val_mae"}
        for name, value in logs.items():
            every = hvd.allgather_object(own[epoch][name])
            np.testing.assert_allclose(value, np.mean(every), rtol=1e-12)
            assert len(set(every)) > 1 and isinstance(value, float)
            assert history[name][epoch] == value
        same_on_all(list(logs.values()))


def metrics_that_differ() -> str:
    """What all ranks are told; and afterwards they go on. Arrays are averaged too, and texts left alone."""
    callback = callbacks().MetricAverageCallback()
    logs = {"loss": 1.0, "a" if hvd.rank() else "b": 2.0}
    text = said(callback.on_epoch_end, 0, logs)
    logs = {"loss": float(hvd.rank()), "array": np.full(2, hvd.rank()), "text": "x"}
    callback.on_epoch_end(0, logs)
    mean = (hvd.size() - 1) / 2
    assert (logs["loss"], logs["array"].tolist(), logs["text"]) == (mean, [mean, mean], "x")
    callback.on_epoch_end(0, None)
    return text


def rates_of(*listed: Any, optimizer: Any = None, epochs: int = 4, steps: int = 2) -> tuple[Any, Any]:
    """The learning rate of each batch, and the history."""
    import keras

    model = dense()
    x, y = data()
    model.compile(hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.5)), "mse", run_eagerly=True)
    rates: list[float] = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: rates.append(number(model.optimizer.learning_rate))
    )
    history = model.fit(
        x[: steps * BATCH], y[: steps * BATCH], batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[*listed, look]
    )
    return rates, history.history


def warm_up() -> None:
    """Horovod's formula, batch by batch, and nothing after it."""
    n = hvd.size()
    callback = callbacks().LearningRateWarmupCallback(initial_lr=0.1 * n, warmup_epochs=2, verbose=1)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        rates, history = rates_of(callback)
    assert out.getvalue() == f"\nEpoch 2: finished gradual learning rate warmup to {0.1 * n:g}.\n"
    steps = [i / 4 for i in (1, 2, 3, 4)]
    expected = [0.1 * (1 + done * (n - 1)) for done in steps] + [0.1 * n] * 4
    same([rates], [expected], 1e-6)
    same([history["lr"]], [[rates[1], rates[3], rates[5], rates[7]]], 1e-7)


def schedules() -> None:
    """A number and functions, by epochs and by batches, within their epochs."""
    schedule = callbacks().LearningRateScheduleCallback
    by_number = [
        schedule(0.5, multiplier=1.0, end_epoch=1),
        schedule(0.5, multiplier=0.1, start_epoch=1, end_epoch=3),
        schedule(0.5, multiplier=1e-2, start_epoch=3, staircase=False),
    ]
    same([rates_of(*by_number)[0]], [[0.5, 0.5, 0.05, 0.05, 0.05, 0.05, 0.005, 0.005]], 1e-6)
    halves = schedule(1.0, multiplier=lambda epoch: 2.0**-epoch, start_epoch=1)
    same([rates_of(halves)[0]], [[0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]], 1e-6)
    smooth = schedule(1.0, multiplier=lambda epoch: 1 + epoch, staircase=False, end_epoch=2)
    same([rates_of(smooth, epochs=3)[0]], [[1, 1.5, 2, 2.5, 2.5, 2.5]], 1e-6)


def momentum_correction() -> None:
    """The velocity is scaled as the rate is: the step after a change is as if the rate had been that before."""
    import keras

    for name, correct in (("momentum", True), ("momentum", False), ("rmsprop", True), ("adam", True)):
        v = keras.Variable([0.0])
        made = hvd.DistributedOptimizer(optimizers()[name]())
        made.build([v])
        gradient = tf.constant([1.0])
        made.apply([gradient])
        callback = callbacks().LearningRateScheduleCallback(0.2, 0.5, momentum_correction=correct)
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile(made, "mse")
        callback.set_model(model)
        callback.on_train_begin()
        callback.on_epoch_begin(0)
        before = np.array(v)
        kept = [np.array(one) for one in made.variables if "momentum" in one.path]
        callback.on_train_batch_begin(0)
        assert np.isclose(number(made.learning_rate), 0.1)
        now = [np.array(one) for one in made.variables if "momentum" in one.path]
        factor = 0.1 / 0.02 if correct and name != "adam" else 1.0
        assert kept
        same(now, [value * factor for value in kept], 1e-6)
        if name == "momentum":
            made.apply([gradient])
            same([np.array(v) - before], [0.9 * -0.02 * factor - 0.1], 1e-6)


def rates_refused() -> list[str]:
    import keras

    callback = callbacks()
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)

    def unknown_length() -> None:
        x, y = data()

        def batches() -> Any:
            yield x[:BATCH], y[:BATCH]

        model = dense()
        model.compile("sgd", "mse")
        model.fit(batches(), verbose=0, callbacks=[callback.LearningRateWarmupCallback(0.1)])

    return [
        said(callback.LearningRateScheduleCallback, None, 1.0),
        said(rates_of, callback.LearningRateWarmupCallback(0.1), optimizer=keras.optimizers.SGD(schedule, name="own")),
        said(unknown_length),
        said(rates_of, callback.BestModelCheckpoint()),
    ]


def best_model(folder: str) -> None:
    """Written by rank 0 alone, when the average is better."""
    import keras

    path = os.path.join(folder, f"best{hvd.rank()}.keras")
    model = dense()
    x, y = (mine(values) for values in data())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    worse = callbacks().LearningRateScheduleCallback(100.0, 1.0, start_epoch=2)
    listed = [
        callbacks().MetricAverageCallback(),
        callbacks().BestModelCheckpoint(filepath=path, monitor="loss"),
        worse,
    ]
    seen: list[Any] = []
    look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(model.get_weights()))
    model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[*listed, look])
    hvd.barrier()
    assert sorted(name for name in os.listdir(folder) if name.startswith("best")) == ["best0.keras"]
    if hvd.rank() == 0:
        same(keras.saving.load_model(path).get_weights(), seen[1], 0)
    later = callbacks().BestModelCheckpoint(monitor="loss")
    later.filepath = os.path.join(folder, f"later{hvd.rank()}.keras")
    model.set_weights(seen[1])
    model.fit(x[:BATCH], y[:BATCH], verbose=0, callbacks=[later])
    hvd.barrier()
    assert sorted(name for name in os.listdir(folder) if name.startswith("later")) == ["later0.keras"]
