"""What the workers of test_tensorflow_keras.py run: Keras' `fit`, `evaluate` and `predict` with what they take.

No size divides by two or three workers, nor the number of examples by the batch. Keras averages the losses of the
replicas, however many examples each has; `alone` does the same in one process, by weights of the examples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from tf_workers import moved, strategy

EXAMPLES, FEATURES, BATCH, EPOCHS = 25, 3, 11, 2
WORDS = ("a", "b", "c")


def data() -> tuple[Any, Any, Any]:
    """Examples, what to predict, and weights of the examples."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    y = (x @ rng.normal(size=(FEATURES, 1)) + 1).astype("float32")
    return x, y, rng.uniform(0.5, 1.5, EXAMPLES).astype("float32")


def classes() -> Any:
    x, _, _ = data()
    return ((x[:, 0] > 0).astype("int64") + (x[:, 1] > 0)).reshape(-1, 1)


def words() -> Any:
    return np.array(WORDS)[classes()]


def linear(**options: Any) -> Any:
    """Not built before Keras sees a batch."""
    import keras

    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mse", "mae"], **options)
    return model


def built() -> Any:
    model = linear()
    model.build((None, FEATURES))
    return model


def classifier() -> Any:
    import keras

    model = keras.Sequential([keras.layers.Dense(3, kernel_initializer="zeros")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss, metrics=["accuracy"])
    return model


def reader() -> Any:
    """Of strings, which have no mean."""
    import keras

    layers = [
        keras.layers.StringLookup(vocabulary=list(WORDS)),
        keras.layers.Embedding(len(WORDS) + 1, 2, embeddings_initializer="ones"),
        keras.layers.Flatten(),
        keras.layers.Dense(1, kernel_initializer="ones"),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mse"])
    return model


def branches() -> Any:
    """Two inputs and two outputs, in dicts."""
    import keras

    inputs = {name: keras.layers.Input((FEATURES,), name=name) for name in ("a", "b")}
    both = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    sizes = (("o", 1), ("p", 2))
    outputs = {name: keras.layers.Dense(n, name=name, kernel_initializer="zeros")(both) for name, n in sizes}
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.05), {"o": "mse", "p": "mae"}, metrics={"o": ["mae"]})
    return model


def branched() -> tuple[Any, Any]:
    x, y, _ = data()
    return {"a": x, "b": 2 * x[:, ::-1]}, {"o": y, "p": np.hstack([y, -y])}


def dataset(*parts: Any) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0]).batch(BATCH)


def py_dataset(*parts: Any) -> Any:
    import keras

    class Batches(keras.utils.PyDataset):  # type: ignore[misc, unused-ignore]
        def __len__(self) -> int:
            return -(-EXAMPLES // BATCH)

        def __getitem__(self, number: int) -> Any:
            return tuple(part[number * BATCH : (number + 1) * BATCH] for part in parts)

    return Batches()


# For each case the model; x, y and weights of examples as one process trains with them; and the arguments of `fit` and
# `evaluate`, and of `predict`.
Case = tuple[Callable[[], Any], tuple[Any, Any, Any], dict[str, Any], dict[str, Any]]


def case(name: str) -> Case:
    import tensorflow as tf

    x, y, weights = data()
    plain = {"x": x, "y": y, "batch_size": BATCH}
    predicted = {"x": x, "batch_size": BATCH}
    if name == "arrays":
        return linear, (x, y, None), plain, predicted
    if name == "a model that is built":
        return built, (x, y, None), plain, predicted
    if name == "weights":
        return linear, (x, y, weights), plain | {"sample_weight": weights}, predicted
    if name == "a data set":
        return linear, (x, y, None), {"x": dataset(x, y)}, {"x": dataset(x)}
    if name == "a data set with weights":
        return linear, (x, y, weights), {"x": dataset(x, y, weights)}, {"x": dataset(x)}
    if name == "a PyDataset":
        return linear, (x, y, None), {"x": py_dataset(x, y)}, predicted
    if name == "several steps at once":
        return (lambda: linear(steps_per_execution=2)), (x, y, None), plain, predicted
    if name == "eager":
        return (lambda: linear(run_eagerly=True)), (x, y, None), plain, predicted
    if name == "classes":
        return classifier, (x, classes(), None), plain | {"y": classes()}, predicted
    if name == "strings":
        texts = tf.constant(words())
        return reader, (texts, y, None), plain | {"x": texts}, predicted | {"x": texts}
    assert name == "dicts"
    inputs, outputs = branched()
    return branches, (inputs, outputs, None), plain | {"x": inputs, "y": outputs}, predicted | {"x": inputs}


NAMES = (
    "arrays",
    "a model that is built",
    "weights",
    "a data set",
    "a data set with weights",
    "a PyDataset",
    "several steps at once",
    "eager",
    "classes",
    "strings",
    "dicts",
)


def together(name: str) -> Any:
    """What all three methods give on these workers."""
    make, _, fitted, predicted = case(name)
    with strategy().scope():
        model = make()
    model.fit(**fitted, shuffle=False, epochs=EPOCHS, verbose=0)
    evaluated = model.evaluate(**fitted, verbose=0, return_dict=True)
    return model.get_weights(), evaluated, model.predict(**predicted, verbose=0)


def alone(name: str, replicas: int) -> Any:
    """The same in one process that takes every step on the global batch."""
    import tensorflow as tf

    make, (x, y, weights), fitted, predicted = case(name)
    model = make()
    for _ in range(EPOCHS):
        for begin in range(0, EXAMPLES, BATCH):
            chosen = slice(begin, min(begin + BATCH, EXAMPLES))
            mine = shares(chosen.stop - begin, replicas)
            if weights is not None:
                mine = mine * weights[chosen]
            # Keras takes weights in the structure of y, or one for all.
            parts = [tf.nest.map_structure(lambda part, chosen=chosen: part[chosen], whole) for whole in (x, y)]
            model.train_on_batch(*parts, sample_weight=tf.nest.map_structure(lambda _, mine=mine: mine, y))
    evaluated = model.evaluate(**fitted, verbose=0, return_dict=True)
    return model.get_weights(), evaluated, model.predict(**predicted, verbose=0)


def shares(examples: int, replicas: int) -> Any:
    """How much each example of a batch counts where replicas of different lengths count alike."""
    each = -(-examples // replicas)
    sizes = [max(0, min(each, examples - r * each)) for r in range(replicas)]
    return np.concatenate([np.full(size, examples / (replicas * size), "float32") for size in sizes if size])


def learns_shapes_by_itself() -> tuple[int, Any]:
    """The bytes that Keras' first look at a batch moves, and the mean of two batches that a user asks for."""
    import tensorflow as tf

    s = strategy()
    n = s.num_replicas_in_sync
    with s.scope():
        model = built()
    batch = next(iter(s.experimental_distribute_dataset(dataset(*data()[:2]))))
    model._maybe_symbolic_build(iterator=[(0, 1, iter([batch]))])  # makes variables, whose initial values are sent
    before = moved() if n > 1 else 0
    model._maybe_symbolic_build(iterator=[(0, 1, iter([batch]))])
    carried = moved() - before if n > 1 else 0
    numbers = next(iter(s.experimental_distribute_dataset(tf.data.Dataset.range(2 * n).batch(2 * n))))
    return carried, [mean.numpy().tolist() for mean in s.reduce("MEAN", (numbers, numbers), axis=None)]


HALF_BATCH, HALF_STEPS, LEVEL = 12, 4, 64.0


def half_data(bad: tuple[int, ...]) -> Any:
    """Whole numbers, whose sums are exact; in step 1 the chosen examples overflow float16."""
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, (HALF_BATCH * HALF_STEPS, FEATURES)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [1.0]], "float32")
    x[[HALF_BATCH + i for i in bad]] = 60000.0
    return x, y


def half_model(**options: Any) -> Any:
    import keras

    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones", dtype="mixed_float16")])
    inner = keras.optimizers.SGD(2.0**-4)
    model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=LEVEL), "mse", **options)
    return model


def half(bad: tuple[int, ...], run_eagerly: bool, with_workers: bool) -> Any:
    """Weights, the loss scale and the number of good steps since it changed, after steps of which one overflows."""
    with strategy().scope() if with_workers else contextlib.nullcontext():
        model = half_model(run_eagerly=run_eagerly)
    x, y = half_data(bad)
    model.fit(x, y, batch_size=HALF_BATCH, shuffle=False, verbose=0)
    optimizer = model.optimizer
    return (
        [w.tolist() for w in model.get_weights()],
        float(optimizer.dynamic_scale.numpy()),
        int(optimizer.step_counter.numpy()),
    )


def compiled_by_xla() -> tuple[str, str, list[float]]:
    """What is said of jit_compile=True at `compile` and by a function of the program, and a sum after that."""
    import tensorflow as tf

    s = strategy()

    def step() -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([2], name="suspect"))

    def in_scope() -> None:
        with s.scope():
            linear(jit_compile=True)

    return said(in_scope), said(tf.function(lambda: s.run(step), jit_compile=True)), s.run(step).numpy().tolist()


def said(function: Callable[[], Any]) -> str:
    try:
        function()
    except ValueError as error:
        return str(error)
    return ""
