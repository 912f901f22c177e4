"""What the ranks of test_horovod_training.py run: tapes, and what becomes of gradients."""

from __future__ import annotations

import threading
from typing import Any

import collectives.tensorflow as hvd
import numpy as np
import tensorflow as tf
from collectives.tensorflow import _ops
from collectives.tensorflow._training import gradient_reduction, world
from horovod_checks import numpy

STEPS = 50
BATCH = 12  # of all ranks together; divides by 2, 3 and 4
WORDS = 20


def data() -> tuple[Any, Any, Any]:
    """Words, features and labels of all steps."""
    random = np.random.default_rng(7)
    words = random.integers(0, WORDS, (STEPS, BATCH)).astype(np.int32)
    features = random.standard_normal((STEPS, BATCH, 5)).astype(np.float32)
    return words, features, random.standard_normal((STEPS, BATCH, 1)).astype(np.float32)


def variables(seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    shapes = [(WORDS, 4), (9, 6), (6,), (6, 1)]
    return [tf.Variable(random.standard_normal(s).astype(np.float32) * 0.3, name=f"v{i}") for i, s in enumerate(shapes)]


def loss_of(vs: list[Any], words: Any, features: Any, labels: Any) -> Any:
    table, w1, b1, w2 = vs
    joined = tf.concat([tf.nn.embedding_lookup(table, words), features], 1)
    hidden = tf.nn.tanh(tf.matmul(joined, w1) + b1)
    return tf.reduce_mean(tf.square(tf.matmul(hidden, w2) - labels))


class Adam:
    """Adam in plain TensorFlow, of dense gradients and IndexedSlices, whose equal rows it adds up."""

    def __init__(self, vs: list[Any]) -> None:
        self._m = [tf.Variable(tf.zeros_like(v)) for v in vs]
        self._v = [tf.Variable(tf.zeros_like(v)) for v in vs]
        self._t = tf.Variable(0.0)

    def apply(self, gradients: list[Any], vs: list[Any]) -> None:
        self._t.assign_add(1.0)
        scale = tf.sqrt(1 - 0.999**self._t) / (1 - 0.9**self._t)
        for g, v, m, s in zip(gradients, vs, self._m, self._v, strict=True):
            dense = tf.convert_to_tensor(g)
            m.assign(0.9 * m + 0.1 * dense)
            s.assign(0.999 * s + 0.001 * tf.square(dense))
            v.assign_sub(0.01 * scale * m / (tf.sqrt(s) + 1e-7))


def sgd(gradients: list[Any], vs: list[Any]) -> None:
    for g, v in zip(gradients, vs, strict=True):
        v.assign_sub(0.1 * tf.convert_to_tensor(g))


def train(optimizer: str, eager: bool, options: dict[str, Any], alone: bool) -> list[Any]:
    """The variables after all steps: on the part of this rank, or `alone` on the joined batch."""
    vs = variables(0 if alone else hvd.rank())
    if not alone:
        hvd.broadcast_variables(vs, root_rank=0)
    apply = sgd if optimizer == "sgd" else Adam(vs).apply

    def step(words: Any, features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(vs, words, features, labels)
        if not alone:
            tape = hvd.DistributedGradientTape(tape, **options)
        apply(tape.gradient(loss, vs), vs)

    call = step if eager else tf.function(step)
    rank, size = (0, 1) if alone else (hvd.rank(), hvd.size())
    part = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    for batch in zip(*data(), strict=True):
        call(*[tf.constant(values[part]) for values in batch])
    return [v.numpy() for v in vs]


def trained() -> dict[str, tuple[list[Any], list[Any]]]:
    """By case, what the ranks have and what one process has."""
    cases: dict[str, tuple[str, bool, dict[str, Any]]] = {
        "adam": ("adam", False, {}),
        "sgd, eager": ("sgd", True, {"compression": hvd.Compression.none, "op": hvd.Average}),
        "adam, options": ("adam", False, {"num_groups": 2, "gradient_predivide_factor": 3.0, "sparse_as_dense": True}),
        "fp16": ("sgd", False, {"compression": hvd.Compression.fp16}),
        "bf16": ("sgd", False, {"compression": hvd.Compression.bf16, "sparse_as_dense": True}),
    }
    alone = {optimizer: train(optimizer, False, {}, True) for optimizer in ("sgd", "adam")}
    return {
        name: (train(optimizer, eager, options, False), alone[optimizer])
        for name, (optimizer, eager, options) in cases.items()
    }


def tape_options() -> dict[str, Any]:
    rank, size = hvd.rank(), hvd.size()
    x, y, unused = (tf.Variable([v], name=n) for v, n in ((2.0, "x"), (3.0, "y"), (4.0, "unused")))

    def gradients(sources: Any, make: Any, persistent: bool = False) -> Any:
        with tf.GradientTape(persistent=persistent) as tape:
            loss = (rank + 1) * (x * 10 + y * 100)
        return make(tape).gradient(loss, sources)

    def with_local(tape: Any) -> Any:
        made = hvd.DistributedGradientTape(tape)
        made.register_local_source(y)
        return made

    class Layer:
        trainable_variables = (y,)

    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as around:
        inside = (rank + 1) * x
    partial = hvd.PartialDistributedGradientTape(_tape_of(lambda: (rank + 1) * (x + 10 * y)), local_layers=Layer())
    local, shared = partial.get_local_and_global_gradients(_loss[0], [x, y])
    found = gradients({"x": x, "none": unused}, hvd.DistributedGradientTape)
    assert isinstance(around, tf.GradientTape)
    names = [[v.name for v, _ in pairs] for pairs in (local, shared)]
    return {
        "nested": (found["none"], found["x"].numpy().tolist()),
        "sum": numpy(gradients([x, y], lambda t: hvd.DistributedGradientTape(t, op=hvd.Sum))),
        "local": numpy(gradients([x, y], with_local)),
        "groups": numpy(gradients([x, y], lambda t: hvd.DistributedGradientTape(t, groups=[[y]]))),
        "around": [numpy(around.gradient(inside, [x])) for _ in range(2)],
        "partial": (names, numpy([g for pairs in (local, shared) for _, g in pairs])),
        "size": size,
    }


_loss: list[Any] = []


def _tape_of(make: Any) -> Any:
    with tf.GradientTape() as tape:
        _loss[:] = [make()]
    return tape


def in_flight_during_backward() -> dict[str, Any]:
    """The last layers' bucket travels while the first layer's gradient is made: that waits until it sees it.

    Rank 1 makes its last gradients only when rank 0 has seen its own under way, so this cannot be by chance. (Functions
    of Python that are stateful would run before all collectives, which stand behind them in the program.)
    """
    rank = hvd.rank()
    beside = world.group().communicator.dup()
    rows = gradient_reduction.BUCKET_BYTES // 4 // 256
    first = tf.Variable(tf.ones([rows, 256]), name="first")
    last = tf.Variable(tf.ones([rows, 256]), name="last")
    seen: list[int] = []

    def when_rank_0_has_seen(dy: Any) -> Any:
        if rank == 1:
            beside.recv(np.empty(1), 0)
        return dy

    def when_under_way(dy: Any) -> Any:
        if rank == 0:
            clock = threading.Event()
            while not seen or seen[-1] == 0:
                seen.append(_ops.in_flight())
                clock.wait(0.001)
            beside.send(np.ones(1), 1)
        return dy

    def delayed(function: Any) -> Any:
        @tf.custom_gradient
        def of(x: Any) -> Any:
            return tf.identity(x), lambda dy: tf.ensure_shape(
                tf.numpy_function(function, [dy], dy.dtype, stateful=False), dy.shape
            )

        return of

    @tf.function
    def step(one: Any) -> Any:  # not a constant, of which TensorFlow would make the gradients before it begins
        with tf.GradientTape() as tape:
            early, late = delayed(when_under_way)(first * 2), delayed(when_rank_0_has_seen)(last * 1)
            loss = one * tf.reduce_sum(early + late)
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, [first, last])

    results = step(tf.constant(1.0))
    beside.close()
    records = [r for r in world.group().communicator.recorder() if r["collective"] == "all_reduce"][-2:]
    return {
        "in flight": seen[-1] if seen else None,
        "results": [float(g[0, 0]) for g in results],
        "names": [r["name"] for r in records],
        "bytes": [r["bytes"] for r in records],
    }


def travels_as() -> dict[str, Any]:
    """The element types of what tapes send, by the recorder."""
    x = tf.Variable(tf.ones([100], tf.float16), name="half")
    y = tf.Variable(tf.ones([100]), name="single")

    def types(**options: Any) -> list[str]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x) + tf.cast(tf.reduce_sum(y), tf.float16)
        gradients = hvd.DistributedGradientTape(tape, **options).gradient(loss, [x, y])
        assert [g.dtype for g in gradients] == [tf.float16, tf.float32]
        records = world.group().communicator.recorder()
        return [r["dtype"] for r in records if r["collective"] == "all_reduce"][-(1 if options else 2) :]

    return {"as they are": sorted(types()), "fp16": types(compression=hvd.Compression.fp16)}
