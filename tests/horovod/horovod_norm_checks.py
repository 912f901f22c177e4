"""What the ranks of test_horovod_keras.py run of batch normalization."""

from __future__ import annotations

import itertools
import os
from typing import Any

import collectives.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod_keras_checks import (
    BATCH,
    FEATURES,
    data,
    mine,
    same,
    same_as_alone,
    same_on_all,
    trained,
)
from horovod_ranks import said


def ragged() -> tuple[Any, list[slice]]:
    """Examples of all ranks, and which rank has which: not equally many."""
    values = np.random.default_rng(2).normal(3.0, 2.0, size=(2 + 5 * hvd.size(), 4, 3)).astype("float32")
    borders = [0, *(2 + 5 * (r + 1) for r in range(hvd.size()))]
    return values, [slice(a, b) for a, b in itertools.pairwise(borders)]


def _normalize(layer: Any, mask: Any, weight: Any) -> Any:
    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = layer(x, training=True, mask=mask)
            loss = tf.reduce_sum(out * weight)
        return out, *tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])

    return run


def batch_norm(axis: int, masked: bool, function: bool) -> None:
    """Outputs, gradients and moving statistics are those of the joined batch."""
    import keras

    values, parts = ragged()
    part = parts[hvd.rank()]
    mask = np.random.default_rng(3).random(values.shape[:2]) > 0.3 if masked else None
    weight = np.random.default_rng(4).normal(size=values.shape).astype("float32")
    options: dict[str, Any] = {
        "axis": axis,
        "momentum": 0.7,
        "gamma_initializer": "random_normal",
        "beta_initializer": "ones",
    }
    results = []
    for kind, chosen in ((hvd.SyncBatchNormalization, part), (keras.layers.BatchNormalization, slice(None))):
        layer = kind(**options)
        layer.build(values.shape)
        layer.gamma.assign(np.linspace(0.5, 2.0, layer.gamma.shape[0]))

        run = _normalize(layer, None if mask is None else tf.constant(mask[chosen]), weight[chosen])
        run = tf.function(run) if function else run
        for _ in range(2):
            out, *gradients = run(tf.constant(values[chosen]))
        inference = layer(values[chosen], training=False)
        results.append((out, *gradients, inference, layer.moving_mean, layer.moving_variance))
    ours, theirs = results
    for which, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        a, b = np.array(a), np.array(b)
        if which in (2, 3):  # of gamma and beta: each rank has that of its own loss
            a = hvd.allreduce(a, op=hvd.Sum).numpy()
        elif which in (0, 1, 4):
            b = b[part]
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5, err_msg=str(which))
    same_on_all(ours[5:])


def batch_norm_of_halves_and_doubles() -> None:
    """float16 is computed in float32: values whose squares overflow; float64 stays."""
    values = (np.arange(8).reshape(4, 2) * 1000.0 + 8000 * hvd.rank()).astype("float16")
    joined = hvd.allgather(values.astype("float64")).numpy()
    for dtype, tolerance in (("float16", 2e-3), ("mixed_float16", 2e-3), ("float64", 1e-12)):
        layer = hvd.SyncBatchNormalization(dtype=dtype, epsilon=0.0)
        out = layer(values, training=True)
        assert out.dtype.name == layer.compute_dtype
        expected = (values - joined.mean(0)) / joined.std(0)
        np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)


def batch_norm_of_none() -> None:
    """A rank without examples, and ranks without any; a layer that is frozen; and before any rank has examples."""
    import keras

    layer = hvd.SyncBatchNormalization(momentum=0.0)
    values = np.arange(6.0, dtype="float32").reshape(3, 2)
    out = layer(values[: 0 if hvd.rank() else 3], training=True)
    assert out.shape == (0 if hvd.rank() else 3, 2)
    same([np.array(layer.moving_mean), np.array(layer.moving_variance)], [values.mean(0), values.var(0)])
    assert np.isfinite(np.array(layer(values[:0], training=True))).all()
    layer.trainable = False
    before = np.array(layer.moving_mean)
    layer(values * (1 + hvd.rank()), training=True)
    same([np.array(layer.moving_mean)], [before], 0)
    layer = hvd.SyncBatchNormalization()
    text = said(layer, np.ones((2, 3 + hvd.rank()), "float32"), training=True)
    assert "FailedPreconditionError" in text, text
    assert "renorm" in said(hvd.SyncBatchNormalization, renorm=True)
    assert "fused" in said(hvd.SyncBatchNormalization, fused=True)
    layer = hvd.SyncBatchNormalization(center=False, scale=False, fused=False, name="x")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(again) is hvd.SyncBatchNormalization and again.get_config() == layer.get_config()
    layer(np.ones((2, 3), "float32"), training=True)


def batch_norm_in_fit(folder: str) -> None:
    """A model with it trains as one process with the joined batches, and is saved and loaded."""
    import keras

    def make(kind: Any) -> Any:
        seeds = [keras.initializers.GlorotUniform(seed=seed) for seed in (1, 2)]
        return keras.Sequential(
            [
                keras.layers.Input((FEATURES,)),
                keras.layers.Dense(4, kernel_initializer=seeds[0]),
                kind(),
                keras.layers.Dense(1, kernel_initializer=seeds[1]),
            ]
        )

    x, y = data()
    count = 8 * BATCH * hvd.size()
    model = make(hvd.SyncBatchNormalization)
    made = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))
    weights = trained(model, made, mine(x[:count]), mine(y[:count]), BATCH)
    alone = make(keras.layers.BatchNormalization)
    same_as_alone(weights, alone, keras.optimizers.SGD(0.05), x[:count], y[:count], BATCH * hvd.size(), 2e-5)
    path = os.path.join(folder, f"norm{hvd.rank()}.keras")
    model.save(path)
    same(keras.saving.load_model(path).predict(x[:4], verbose=0), model.predict(x[:4], verbose=0), 1e-6)
