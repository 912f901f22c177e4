"""What the ranks of test_horovod_keras.py run of optimizers of Keras 3, and what all of their checks share.

The reference is one process that takes the batches of all ranks, joined.
"""

from __future__ import annotations

import functools
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
        "rmsprop": lambda: keras.optimizers.RMSprop(0.02, momentum=0.9),
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


def same_as_alone(
    weights: Any, model: Any, optimizer: Any, x: Any, y: Any, batch: int, tolerance: float = 1e-5
) -> None:
    """Those of all ranks are those of one process, of which one of them is enough."""
    same_on_all(weights)
    if hvd.rank() == 0:
        same(weights, trained(model, optimizer, x, y, batch, run_eagerly=True), tolerance)


def fit(kind: str, name: str, eager: bool) -> None:
    """20 steps of `fit` on the ranks' parts, and on the joined batches; fewer where they are slow."""
    make = {"dense": dense, "embedding": embedding}[kind]
    steps = 5 if eager else STEPS
    x, y = (values[: steps * BATCH * hvd.size()] for values in data())
    if kind == "embedding":
        x = tokens(x)
    made = hvd.DistributedOptimizer(optimizers()[name]())
    model = make()
    weights = trained(model, made, mine(x), mine(y), BATCH, run_eagerly=eager)
    assert number(model.optimizer.iterations) == steps
    same_as_alone(weights, make(), optimizers()[name](), x, y, BATCH * hvd.size())


def options_of_reductions() -> None:
    """All of them move the same gradients."""
    reference: Any = None
    given: list[dict[str, Any]] = [
        {"groups": True},
        {"num_groups": 2},
        {"gradient_predivide_factor": 2.0, "sparse_as_dense": True},
        {"op": hvd.Sum},
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
        optimizer = keras.optimizers.Adagrad
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
    same_as_alone(weights, make(), optimizer(rate), x, y, 2 * BATCH * hvd.size())


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
