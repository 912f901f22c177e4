"""Programs of users, as functions of the strategy: what tests run over our ops and over TensorFlow's own.

Data and rates are small powers of two, so that the sums of few steps are exact and do not depend on their order.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

PER_REPLICA = 4  # examples
STEPS = 3  # more would need more than the 24 bits of a float32
FEATURES = 3
RATE = 2.0**-2


def data(replicas: int, batches: int, exact: bool = True) -> tuple[Any, Any]:
    """Examples: whole numbers, or normal ones."""
    random = np.random.default_rng(7)
    shape = (batches * PER_REPLICA * replicas, FEATURES)
    x = random.integers(-1, 2, shape) if exact else random.standard_normal(shape)
    y = x @ np.array([[1.0], [-2.0], [3.0]]) + 1
    return x.astype("float32"), y.astype("float32")


def dense_model() -> Any:
    model = tf.keras.Sequential([tf.keras.Input((FEATURES,)), tf.keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(loss="mse", optimizer=tf.keras.optimizers.SGD(RATE))
    return model


def keras_fit(strategy: Any, as_dataset: bool = True, exact: bool = True) -> dict[str, Any]:
    """`fit`, `evaluate` and `predict` of one Dense(1); the global batch grows with the replicas."""
    n = strategy.num_replicas_in_sync
    x, y = data(n, 1, exact)
    batch = PER_REPLICA * n
    with strategy.scope():
        model = dense_model()
    pairs = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)
    training = {"x": pairs} if as_dataset else {"x": x, "y": y, "batch_size": batch, "shuffle": False}
    history = model.fit(**training, epochs=STEPS, verbose=0).history
    evaluated = model.evaluate(**{k: v for k, v in training.items() if k != "shuffle"}, verbose=0)
    predicted = model.predict(
        pairs.map(lambda a, b: a) if as_dataset else x, batch_size=None if as_dataset else batch, verbose=0
    )
    return {"loss": history["loss"], "evaluated": evaluated, "predicted": predicted, "weights": model.get_weights()}


def custom_loop(strategy: Any, exact: bool = True) -> dict[str, Any]:
    """A training loop as the guides of TensorFlow have it, over a distributed data set, read in both ways."""
    n = strategy.num_replicas_in_sync
    batch = PER_REPLICA * n
    with strategy.scope():
        kernel, bias = tf.Variable(tf.zeros([FEATURES, 1])), tf.Variable([0.0])
        optimizer = tf.keras.optimizers.SGD(RATE)
        optimizer.build([kernel, bias])
    dataset = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices(data(n, STEPS - 1, exact)).batch(batch)
    )

    def step(inputs: Any) -> Any:
        x, y = inputs
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ kernel + bias - y) ** 2) / batch
        optimizer.apply_gradients(zip(tape.gradient(loss, [kernel, bias]), [kernel, bias], strict=True))
        return loss

    @tf.function
    def train(inputs: Any) -> tuple[Any, Any]:
        losses = strategy.run(step, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None), losses

    result: dict[str, Any] = {"loss": [], "local": []}

    def record(total: Any, losses: Any) -> None:
        result["loss"].append(float(total))
        result["local"].append([float(loss) for loss in strategy.experimental_local_results(losses)])

    for inputs in dataset:
        record(*train(inputs))
    record(*train(next(iter(dataset))))
    return result | {"weights": [kernel.numpy(), bias.numpy()]}


WORDS, WIDTH, LENGTH = 5, 3, 4  # few words, so that they occur often in each replica
OPTIMIZERS = ("Adagrad", "Adam", "RMSprop", "SGD")  # the first three square gradients


def embedding_fit(optimizer: str, strategy: Any = None, dense: bool = False) -> dict[str, Any]:
    """`fit` of an embedding on batches of twelve, with one process as the default strategy.

    Args:
        dense: the same embedding as a product with a one-hot matrix, whose gradient is dense.
    """
    random = np.random.default_rng(3)
    tokens = random.integers(0, WORDS, (24, LENGTH))
    y = tokens.sum(1, keepdims=True).astype("float32") / LENGTH
    start = tf.keras.initializers.RandomNormal(seed=4)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        layers = tf.keras.layers
        embedding: list[Any] = [layers.Embedding(WORDS, WIDTH, embeddings_initializer=start)]
        if dense:
            embedding = [
                layers.Lambda(lambda x: tf.one_hot(x, WORDS)),
                layers.Dense(WIDTH, use_bias=False, kernel_initializer=start),
            ]
        last = layers.Dense(1, kernel_initializer=tf.keras.initializers.RandomNormal(seed=5))
        model = tf.keras.Sequential([tf.keras.Input((LENGTH,), dtype="int32"), *embedding, layers.Flatten(), last])
        model.compile(getattr(tf.keras.optimizers, optimizer)(2.0**-5), "mse")
    history = model.fit(tokens, y, batch_size=12, epochs=3, shuffle=False, verbose=0).history
    return {"loss": history["loss"], "weights": model.get_weights()}


def assert_equal(got: Any, expected: Any, rtol: float = 0.0) -> None:
    """Of nested results; `rtol` 0: the same bits but for the sign of zero."""
    assert got.keys() == expected.keys()
    for key in expected:
        for a, b in zip(tf.nest.flatten(got[key]), tf.nest.flatten(expected[key]), strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=key)
