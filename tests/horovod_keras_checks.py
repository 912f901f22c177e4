"""What the ranks of test_horovod_keras.py run: optimizers, callbacks and layers of Keras 3 over several ranks.

The reference is one process that takes the batches of all ranks, joined.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import zipfile
from typing import Any

import collectives.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod_ranks import said

FEATURES, BATCH, STEPS, WORDS = 6, 4, 20, 5  # BATCH of each rank


def data() -> tuple[Any, Any]:
    """Of all ranks, in the order in which one process takes them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS * BATCH * hvd.size(), FEATURES)).astype("float32")
    return x, (x @ rng.normal(size=(FEATURES, 1)) + 1).astype("float32")


def mine(values: Any) -> Any:
    """The part of this rank of each joined batch."""
    parts = values.reshape(-1, hvd.size(), BATCH, *values.shape[1:])
    return parts[:, hvd.rank()].reshape(-1, *values.shape[1:])


def dense() -> Any:
    import keras

    layers = keras.layers
    seeds = [keras.initializers.GlorotUniform(seed=seed) for seed in (1, 2)]
    return keras.Sequential(
        [
            layers.Input((FEATURES,)),
            layers.Dense(8, activation="tanh", kernel_initializer=seeds[0]),
            layers.Dense(1, kernel_initializer=seeds[1]),
        ]
    )


def embedding() -> Any:
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((FEATURES,), dtype="int32"),
            layers.Embedding(WORDS, 3, embeddings_initializer=keras.initializers.RandomNormal(seed=3)),
            layers.Flatten(),
            layers.Dense(1, kernel_initializer=keras.initializers.RandomNormal(seed=4)),
        ]
    )


def tokens(x: Any) -> Any:
    return (np.abs(x) * 10).astype("int32") % WORDS


def optimizers() -> dict[str, Any]:
    import keras

    return {
        "adam": lambda: keras.optimizers.Adam(0.01),
        "sgd": lambda: keras.optimizers.SGD(0.05),
        "momentum": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
        "decay": lambda: keras.optimizers.AdamW(
            keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.5), weight_decay=0.1, global_clipnorm=0.5
        ),
    }


def number(variable: Any) -> float:
    import keras

    return float(keras.ops.convert_to_numpy(variable))


def same(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def same_on_all(values: Any) -> None:
    """The very bits."""
    for other in hvd.allgather_object([np.asarray(value).tolist() for value in values]):
        assert other == [np.asarray(value).tolist() for value in values]


def trained(model: Any, optimizer: Any, x: Any, y: Any, batch: int, **options: Any) -> Any:
    model.compile(optimizer, "mse", **options)
    model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
    return model.get_weights()


# --- the optimizer --------------------------------------------------------------------------------------------------


def fit(kind: str, name: str, eager: bool) -> None:
    """20 steps of `fit` on the ranks' parts, and on the joined batches."""
    make = {"dense": dense, "embedding": embedding}[kind]
    x, y = data()
    if kind == "embedding":
        x = tokens(x)
    made = hvd.DistributedOptimizer(optimizers()[name]())
    model = make()
    weights = trained(model, made, mine(x), mine(y), BATCH, run_eagerly=eager)
    assert number(model.optimizer.iterations) == STEPS
    same_on_all(weights)
    same(weights, trained(make(), optimizers()[name](), x, y, BATCH * hvd.size()))


def options_of_reductions() -> None:
    """All of them move the same gradients."""
    reference: Any = None
    given: list[dict[str, Any]] = [
        {"groups": True},
        {"num_groups": 2},
        {"gradient_predivide_factor": 2.0, "sparse_as_dense": True},
        {"op": hvd.Sum},
        {"backward_passes_per_step": 1, "average_aggregated_gradients": True},
        {"sparse_as_dense": True},
    ]
    for options in given:
        model = embedding()
        if "groups" in options:
            options["groups"] = [[model.layers[0].embeddings, model.layers[-1].bias]]
        x, y = data()
        rate = 0.05 / (hvd.size() if options.get("op") is hvd.Sum else 1)
        import keras

        made = hvd.DistributedOptimizer(keras.optimizers.SGD(rate), **options)
        weights = trained(model, made, mine(tokens(x))[: 3 * BATCH], mine(y)[: 3 * BATCH], BATCH, run_eagerly=True)
        reference = reference or weights
        same(weights, reference)


def _step_of(optimizer: Any, variables: Any) -> Any:
    def step(scale: Any) -> None:
        gradients = [tf.fill([2], scale), tf.fill([1], 2.0 * scale)]
        if variables is None:
            optimizer.apply(gradients)
        else:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return step


def custom_loop() -> None:
    """`apply` without the variables, in eager mode and in functions, which build the optimizer or find it built."""
    import keras

    for build in (True, False):
        for function in (lambda f: f, tf.function):
            v = keras.Variable([1.0, 2.0], name="v")
            w = keras.Variable([3.0], name="w")
            made = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
            if build:
                made.build([v, w])
            step = function(_step_of(made, None if build else [v, w]))
            step(tf.constant(float(hvd.rank())))
            step(tf.constant(float(hvd.rank())))
            mean = (hvd.size() - 1) / 2
            assert np.array(v).tolist() == [1 - 2 * mean, 2 - 2 * mean]
            assert np.array(w).tolist() == [3 - 4 * mean]
            assert number(made.iterations) == 2


def passes(kind: str, average: bool, eager: bool) -> None:
    """Two passes for a step: `fit` is that of one process with a batch twice as large."""
    import keras

    make, x, y = {"dense": dense, "embedding": embedding}[kind], *data()
    if kind == "embedding":
        x = tokens(x)
    optimizer = functools.partial(keras.optimizers.SGD, momentum=0.9)
    rate = 0.04
    factor = 1.0 if average else 2.0  # a sum over passes is twice the average
    if average:  # which squares gradients, of an embedding row by row
        optimizer = keras.optimizers.Adam
    made = hvd.DistributedOptimizer(
        optimizer(rate / factor), backward_passes_per_step=2, average_aggregated_gradients=average
    )
    model = make()
    weights = trained(model, made, mine(x)[: 7 * BATCH], mine(y)[: 7 * BATCH], BATCH, run_eagerly=eager)
    assert number(made._agg_helper.counter) == 1
    assert number(made.iterations) == 3
    same_on_all(weights)
    joined = [slice(2 * i * BATCH * hvd.size(), 2 * (i + 1) * BATCH * hvd.size()) for i in range(3)]
    x, y = (np.concatenate([values[part] for part in joined]) for values in (x, y))
    same(weights, trained(make(), optimizer(rate), x, y, 2 * BATCH * hvd.size()))


def passes_that_leave_out_variables() -> None:
    """A gradient that is None in some passes; and ranks that disagree in the last one, which loses that step only."""
    import keras

    v, w = keras.Variable([0.0]), keras.Variable([0.0])
    odd = keras.Variable(np.zeros(1 + hvd.rank(), "float32"))
    made = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    made.build([v, w, odd])
    one = tf.constant([1.0])
    for other in (None, None, one, None):
        made.apply([one, other], [v, w])
    assert (np.array(v).tolist(), np.array(w).tolist(), number(made._agg_helper.counter)) == ([-4.0], [-1.0], 0)
    made.apply([one, tf.ones(1 + hvd.rank())], [v, odd])
    assert number(made._agg_helper.counter) == 1
    text = said(made.apply, [one, tf.ones(1 + hvd.rank())], [v, odd])
    assert text.startswith("FailedPreconditionError"), text
    made.apply([one, one], [v, w])
    made.apply([one, one], [v, w])
    assert (np.array(v).tolist(), np.array(w).tolist()) == ([-6.0], [-3.0])


def local_gradients() -> None:
    """Of a layer of each rank, which need not be built, and of single variables."""
    import keras

    x, y = data()
    for scale in (True, False):
        model = dense()
        local = model.layers[-1]
        made = hvd.PartialDistributedOptimizer(
            keras.optimizers.SGD(0.1), local_layers=local, scale_local_gradients=scale
        )
        start = model.get_weights()
        trained(model, made, mine(x)[:BATCH], mine(y)[:BATCH], BATCH, run_eagerly=True)
        own = dense()
        trained(own, keras.optimizers.SGD(0.1), mine(x)[:BATCH], mine(y)[:BATCH], BATCH, run_eagerly=True)
        factor = hvd.size() if scale else 1
        expected = [a + (b - a) / factor for a, b in zip(start[2:], own.get_weights()[2:], strict=True)]
        same(model.get_weights()[2:], expected)
        same_on_all(model.get_weights()[:2])
    unbuilt = keras.layers.Dense(1)
    made = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[unbuilt])
    later = keras.Sequential([keras.layers.Dense(2), unbuilt])
    trained(later, made, mine(x)[:BATCH], mine(y)[:BATCH], BATCH, run_eagerly=True)
    assert made._agg_helper.reduction.is_local(unbuilt.kernel)
    v = keras.Variable([1.0])
    made = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    made.register_local_source(v)
    made.apply([tf.constant([float(hvd.rank())])], [v])
    same([np.array(v)], [[1.0 - hvd.rank() / hvd.size()]])


def configs() -> None:
    """The object and the class make optimizers from its config, which is that of the plain one."""
    import keras

    made = [make() for make in optimizers().values()]
    made += [keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.25), initial_scale=8.0)]
    for plain in made:
        wrapped = hvd.DistributedOptimizer(plain, compression=hvd.Compression.fp16, backward_passes_per_step=3)
        config = wrapped.get_config()
        assert config == plain.get_config()
        assert isinstance(wrapped, type(plain)) and type(wrapped) is not type(plain)
        assert (type(wrapped).__name__, type(wrapped).__module__) == (type(plain).__name__, type(plain).__module__)
        for again in (wrapped.from_config(dict(config)), type(wrapped).from_config(dict(config))):
            assert again.get_config() == config
            assert type(again) is type(wrapped)
            assert again._agg_helper._passes == 3 and again._agg_helper is not wrapped._agg_helper
        assert type(type(plain).from_config(dict(config))) is type(plain)
    assert hvd.DistributedOptimizer(keras.optimizers.SGD(), name="mine").name == "mine"


def keeps_state() -> None:
    """Of an optimizer that is built, with what no config has; and it leaves the given one alone."""
    import keras

    calls = []

    def rate() -> float:
        calls.append(1)
        return 0.5

    plain = keras.optimizers.AdamW(rate, weight_decay=0.1)
    plain.exclude_from_weight_decay(var_names=["bias"])
    v = keras.Variable([1.0], name="bias")
    plain.apply([tf.constant([1.0])], [v])
    wrapped = hvd.DistributedOptimizer(plain)
    before = [np.array(one).tolist() for one in plain.variables]
    assert [np.array(one).tolist() for one in wrapped.variables] == before
    value = np.array(v)
    wrapped.apply([tf.constant([float(hvd.rank())])])
    assert [np.array(one).tolist() for one in plain.variables] == before
    other = keras.Variable(value, name="bias")
    reference = keras.optimizers.AdamW(0.5, weight_decay=0.1)
    reference.exclude_from_weight_decay(var_names=["bias"])
    reference.build([other])
    for new, old in zip([one for one in reference.variables if one.name != "learning_rate"], before, strict=True):
        new.assign(old)
    reference.apply([tf.constant([(hvd.size() - 1) / 2])])
    same([np.array(v)], [np.array(other)])
    assert calls


def refused() -> list[str]:
    import keras

    adam = keras.optimizers.Adam
    wrapped = hvd.DistributedOptimizer(adam())
    return [
        said(hvd.DistributedOptimizer, tf.compat.v1.train.GradientDescentOptimizer(0.1)),
        said(hvd.DistributedOptimizer, adam),
        said(hvd.PartialDistributedOptimizer, "adam"),
        said(hvd.DistributedOptimizer, wrapped),
        said(hvd.DistributedOptimizer, adam(), backward_passes_per_step=0),
        said(hvd.DistributedOptimizer, adam(), backward_passes_per_step=1.5),
        said(hvd.DistributedOptimizer, adam(), op="sum"),
        said(hvd.DistributedOptimizer, adam(), process_set=[0]),
        said(wrapped.apply, [tf.constant(1.0)]),
    ]


# --- loss scales ----------------------------------------------------------------------------------------------------

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
    expected = half(x, y, "")
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
    x = mine(x)[: 2 * BATCH]
    if hvd.rank() == 0:
        x[:BATCH] = 6e4
    trained(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), x, mine(y)[: 2 * BATCH], BATCH)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert np.isfinite(np.concatenate([w.ravel() for w in model.get_weights()])).all()
    same_on_all([*model.get_weights(), number(model.optimizer.dynamic_scale)])
    assert number(model.optimizer.dynamic_scale) < 2.0**15


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


# --- saving ---------------------------------------------------------------------------------------------------------


def saves_and_loads(folder: str) -> None:
    """Rank 0 saves; plain Keras loads it, with a file that names nothing of ours; and `load_model` goes on."""
    import keras
    from collectives.tensorflow import keras as hvd_keras

    model = dense()
    x, y = data()
    x, y = mine(x), mine(y)
    trained(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), x[:32], y[:32], BATCH)
    path = os.path.join(folder, "model.keras")
    if hvd.rank() == 0:
        model.save(path)
    hvd.barrier()
    with zipfile.ZipFile(path) as archive:
        assert not [name for name in archive.namelist() if b"collectives" in archive.read(name)]
    loaded = hvd_keras.load_model(path)
    plain = keras.saving.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.Adam
    assert isinstance(loaded.optimizer, keras.optimizers.Adam) and type(loaded.optimizer) is not keras.optimizers.Adam
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for other in (loaded, plain):
        same([np.array(v) for v in other.optimizer.variables], [np.array(v) for v in model.optimizer.variables])
    assert number(loaded.optimizer.iterations) == 8
    for one in (model, loaded):
        one.fit(x[32:], y[32:], batch_size=BATCH, shuffle=False, verbose=0)
    same(loaded.get_weights(), model.get_weights())
    same_on_all(loaded.get_weights())
    again = os.path.join(folder, f"again{hvd.rank()}.keras")
    loaded.save(again)
    assert type(keras.saving.load_model(again).optimizer) is keras.optimizers.Adam


def saves_other_optimizers(folder: str) -> None:
    """One of the program, registered or not, and one with a loss scale; and a model without an optimizer."""
    import keras
    from collectives.tensorflow import keras as hvd_keras

    @keras.saving.register_keras_serializable(package="program")
    class Registered(keras.optimizers.SGD):  # type: ignore[misc, unused-ignore]
        pass

    class Unknown(keras.optimizers.SGD):  # type: ignore[misc, unused-ignore]
        pass

    for number, plain in enumerate(
        [
            Registered(0.5),
            Unknown(0.5),
            keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.5)),
            None,
        ]
    ):
        model = dense()
        if plain is not None:
            model.compile(hvd.DistributedOptimizer(plain), "mse")
        path = os.path.join(folder, f"other{number}-{hvd.rank()}.keras")
        model.save(path)
        custom = [Unknown] if isinstance(plain, Unknown) else None
        with contextlib.ExitStack() as stack:
            if custom:
                stack.enter_context(keras.saving.custom_object_scope({"Unknown": Unknown}))
            assert plain is None or type(keras.saving.load_model(path).optimizer) is type(plain)
        loaded = hvd_keras.load_model(path, custom_optimizers=custom)
        if plain is None:
            assert getattr(loaded, "optimizer", None) is None
        else:
            assert isinstance(loaded.optimizer, type(plain))
            assert said(hvd.DistributedOptimizer, loaded.optimizer).startswith("ValueError")


# --- values ---------------------------------------------------------------------------------------------------------


def values() -> None:
    """Functions that return NumPy arrays, and names."""
    from collectives.tensorflow import keras as hvd_keras

    n, r = hvd.size(), hvd.rank()
    for got, expected in (
        (hvd_keras.allreduce(float(r)), np.float32((n - 1) / 2)),
        (hvd_keras.allreduce(np.full(3, r), op=hvd_keras.Sum), np.full(3, n * (n - 1) // 2)),
        (hvd_keras.allreduce([1.0], average=False, prescale_factor=2.0), np.full(1, 2.0 * n, "float32")),
        (hvd_keras.allreduce([3.0], compression=hvd_keras.Compression.fp16), np.full(1, 3.0, "float32")),
        (hvd_keras.allgather(np.full((r + 1, 2), r)), np.repeat(np.arange(n), np.arange(n) + 1)[:, None] + [0, 0]),
        (hvd_keras.broadcast(np.array([r, 7]), 1), np.array([1, 7])),
        (hvd_keras.reducescatter(np.arange(2.0 * n)), np.arange(2.0 * n)[2 * r : 2 * r + 2]),
    ):
        assert isinstance(got, np.ndarray | np.generic) and got.dtype == expected.dtype, got
        np.testing.assert_array_equal(got, expected)
    assert hvd_keras.broadcast_object({"a": r}, 1) == {"a": 1}
    assert (hvd_keras.rank(), hvd_keras.size(), hvd_keras.is_initialized()) == (r, n, True)
    assert said(hvd_keras.broadcast_global_variables, 0).startswith("RuntimeError")
    assert hvd.keras is hvd_keras
    for name in ("elastic", "join", "ProcessSet", "start_timeline"):
        assert said(getattr, hvd_keras, name).startswith("NotImplementedError")
    assert said(getattr, hvd_keras.callbacks, "CommitStateCallback").startswith("NotImplementedError")
    assert said(getattr, hvd_keras, "nonsense").startswith("AttributeError")


# --- callbacks ------------------------------------------------------------------------------------------------------


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

    for name, correct in (("momentum", True), ("momentum", False), ("adam", True)):
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
        factor = 0.1 / 0.02 if correct and name == "momentum" else 1.0
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
    best = callbacks().BestModelCheckpoint(filepath=path, monitor="loss")
    listed = [callbacks().MetricAverageCallback(), best, worse]
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


# --- batch normalization --------------------------------------------------------------------------------------------


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
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        a, b = np.array(a), np.array(b)
        if number in (2, 3):  # of gamma and beta: each rank has that of its own loss
            a = hvd.allreduce(a, op=hvd.Sum).numpy()
        elif number in (0, 1, 4):
            b = b[part]
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5, err_msg=str(number))
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
    """A rank without examples, and ranks without any; a layer that is frozen; and before anybody has examples."""
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
    expected = trained(
        make(keras.layers.BatchNormalization), keras.optimizers.SGD(0.05), x[:count], y[:count], BATCH * hvd.size()
    )
    same(weights, expected, 2e-5)
    path = os.path.join(folder, f"norm{hvd.rank()}.keras")
    model.save(path)
    same(keras.saving.load_model(path).predict(x[:4], verbose=0), model.predict(x[:4], verbose=0), 1e-6)
