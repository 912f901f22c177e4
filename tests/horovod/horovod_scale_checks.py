"""What the ranks of test_horovod_keras.py run of loss scales, and of XLA."""

from __future__ import annotations

from typing import Any

import collectives.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod_keras_checks import BATCH, FEATURES, data, dense, mine, number, same, same_on_all
from horovod_ranks import said

LEVEL = 64.0


def scaled(plain: Any, wrap: str, passes: int) -> Any:
    """With a loss scale, which has the distributed optimizer inside or outside."""
    import keras

    scale = keras.optimizers.LossScaleOptimizer
    options = {"backward_passes_per_step": passes}
    if wrap == "inside":
        return scale(hvd.DistributedOptimizer(plain, **options), initial_scale=LEVEL)
    made = scale(plain, initial_scale=LEVEL)
    return hvd.DistributedOptimizer(made, **options) if wrap else made


def half(x: Any, y: Any, wrap: str, eager: bool = False, passes: int = 1) -> Any:
    """Weights, scale, and updates after one epoch of a mixed_float16 model."""
    import keras

    model = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones", dtype="mixed_float16")]
    )
    model.compile(scaled(keras.optimizers.SGD(2.0**-6), wrap, passes), "mse", run_eagerly=eager)
    model.fit(x, y, batch_size=BATCH if wrap else BATCH * hvd.size(), shuffle=False, verbose=0)
    return (
        model.get_weights(),
        number(model.optimizer.dynamic_scale),
        number(model.optimizer.inner_optimizer.iterations),
    )


def overflow(wrap: str, eager: bool) -> None:
    """On one rank only: all leave out the step and halve the scale, as one process does."""
    rng = np.random.default_rng(1)
    count = 5 * BATCH * hvd.size()
    x = rng.integers(-2, 3, (count, 3)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [1.0]], "float32")
    x[2 * BATCH * hvd.size() + BATCH] = 60000.0  # the third batch of rank 1
    weights, scale, steps = half(mine(x), mine(y), wrap, eager)
    assert (scale, steps) == (LEVEL / 2, 4)
    same_on_all(weights)
    if hvd.rank() == 0:
        expected = half(x, y, "", True)
        assert expected[1:] == (scale, steps)
        same(weights, expected[0], 2e-3)
    if not eager:  # the passes 2 and 3 are lost, 4 is one half of a step
        assert half(mine(x), mine(y), wrap, passes=2)[1:] == (LEVEL / 2, 1)


def overflow_in_a_loop(wrap: str) -> None:
    """The same where `apply` is called without the variables."""
    import keras

    v = keras.Variable([0.0])
    made = scaled(keras.optimizers.SGD(1.0), wrap, 1)
    made.build([v])
    for value, scale in ((LEVEL, LEVEL), (np.inf if hvd.rank() else 1.0, LEVEL), (LEVEL / 2, LEVEL / 2)):
        assert number(made.dynamic_scale) == scale
        made.apply([tf.constant([value], tf.float32)])
    assert np.array(v).tolist() == [-2.0]


def compile_wraps_for_half() -> None:
    """`compile` puts a loss scale around it by itself, in a model that is mixed_float16 as a whole."""
    import keras

    before = keras.config.dtype_policy().name
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = dense()
    finally:
        keras.config.set_dtype_policy(before)
    x, y = data()
    x, y = mine(x)[: 3 * BATCH], mine(y)[: 3 * BATCH]
    if hvd.rank() == 0:
        y[BATCH : 2 * BATCH] = 6e4
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    model.optimizer.initial_scale = LEVEL
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    assert np.isfinite(np.concatenate([w.ravel() for w in model.get_weights()])).all()
    same_on_all(model.get_weights())
    optimizer = model.optimizer
    assert (number(optimizer.dynamic_scale), number(optimizer.inner_optimizer.iterations)) == (LEVEL / 2, 2)


def never_by_xla() -> None:
    """Where Keras would choose XLA, as with a GPU, it does not; what is asked for is refused when it is traced."""
    import keras

    class Chooses(keras.Sequential):  # type: ignore[misc, unused-ignore]
        def _resolve_auto_jit_compile(self) -> bool:
            return True

    x, y = (mine(values)[:BATCH] for values in data())
    for optimizer, chosen in ((hvd.DistributedOptimizer(keras.optimizers.SGD()), False), ("sgd", True)):
        model = Chooses([keras.layers.Input((FEATURES,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        assert model.jit_compile is chosen
        if not chosen:
            model.fit(x, y, batch_size=BATCH, verbose=0)
    model = dense()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse", jit_compile=True)
    assert "jit_compile=True" in said(model.fit, x, y, batch_size=BATCH, verbose=0)
    assert not hvd.SyncBatchNormalization().supports_jit
