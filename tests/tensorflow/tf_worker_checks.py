"""What the workers of test_tensorflow_workers.py run.

TensorFlow is imported on use, since the process of the tests does not need it.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from tf_workers import group, make, moved, starts, strategy

FEATURES, EXAMPLES, BATCH = 6, 64, 16


def rank() -> int:
    return int(group().rank)


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    return x, (x @ rng.normal(size=(FEATURES, 1)) + 1).astype("float32")


def model(keras: Any) -> Any:
    made = keras.Sequential(
        [keras.layers.Input((FEATURES,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    )
    made.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    return made


def ready(**options: Any) -> tuple[int, str]:
    """Makes the first strategy."""
    import tensorflow as tf

    made = make(**options) if options else strategy()
    assert isinstance(made, tf.distribute.MultiWorkerMirroredStrategy)
    return made.num_replicas_in_sync, ",".join(k for k, v in group().communicator.bytes_by_transport().items())


def seeds_and_one_step() -> Any:
    """Other seeds on each worker; the weights at first and after one step, and the bytes that the step moved."""
    import tensorflow as tf

    s = strategy()
    tf.random.set_seed(100 + rank())
    with s.scope():
        w = tf.Variable(tf.random.normal([400, 3]), name="weights")
        b = tf.Variable(tf.zeros([3]), name="bias")
        flag = tf.Variable(rank() == 0, name="flag")
    first = s.experimental_local_results(w)[0].numpy()

    @tf.function
    def step() -> None:
        def in_replica() -> None:
            context = tf.distribute.get_replica_context()
            x = tf.random.normal([4, 400])
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w + b - 1.0) ** 2)
            gradients = context.all_reduce("MEAN", tape.gradient(loss, [w, b]))
            for v, g in zip((w, b), gradients, strict=True):
                context.merge_call(
                    lambda s, v, g: s.extended.update(v, lambda x, y: x.assign_sub(0.1 * y), (g,)), (v, g)
                )

        s.run(in_replica)

    before = moved()
    step()
    after = [v.numpy() for v in s.experimental_local_results(w)]
    return first, after, moved() - before, bool(s.experimental_local_results(flag)[0].numpy())


def fit() -> Any:
    """The history and the weights of `fit`, what evaluate and predict say, and the bytes moved."""
    import keras

    x, y = data()
    before = moved()
    keras.utils.set_random_seed(7 * rank())
    with strategy().scope():
        made = model(keras)
    start = made.get_weights()
    history = made.fit(x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0).history
    evaluated = made.evaluate(x, y, batch_size=BATCH, verbose=0)
    predicted = made.predict(x[:8], batch_size=4, verbose=0)
    own = made(x[:8]).numpy()
    return start, history, made.get_weights(), evaluated, predicted, own, moved() - before


def fit_alone(start: Any) -> Any:
    """The same without a strategy, on the global batch, from the same weights."""
    import keras

    x, y = data()
    made = model(keras)
    made.set_weights(start)
    history = made.fit(x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0).history
    return history, made.get_weights(), made.evaluate(x, y, batch_size=BATCH, verbose=0)


def custom_loop() -> Any:
    """Distributed data, a loss for each replica, and `reduce` of it in all forms."""
    import tensorflow as tf

    s = strategy()
    numbers = tf.data.Dataset.range(16).batch(8)
    distributed = iter(s.experimental_distribute_dataset(numbers))

    @tf.function
    def total(batch: Any) -> Any:
        return s.reduce("SUM", s.run(lambda b: tf.reduce_sum(b), (batch,)), axis=None)

    totals = [int(total(next(distributed))) for _ in range(2)]
    values = s.experimental_distribute_values_from_function(lambda c: tf.fill([2], float(c.replica_id_in_sync_group)))
    return (
        totals,
        float(s.reduce("SUM", values, axis=0)),
        float(s.reduce("MEAN", values, axis=0)),
        s.reduce("MEAN", values, axis=None).numpy().tolist(),
        [v.numpy().tolist() for v in s.reduce("SUM", (values, values), axis=None)],
        float(s.reduce("MEAN", tf.constant(4.0), axis=0)),
    )


def dtypes(names: list[str]) -> Any:
    """SUM and MEAN of a scalar and a vector of each dtype, in one batch of all; dtype and value of each result."""
    import tensorflow as tf

    s = strategy()

    @tf.function
    def run() -> Any:
        def in_replica() -> Any:
            context = tf.distribute.get_replica_context()
            r = context.replica_id_in_sync_group + 1
            values = [tf.cast(v, name) for name in names for v in (r, tf.stack([r, 2 * r]))]
            return context.all_reduce("SUM", values), context.all_reduce("MEAN", values)

        return s.run(in_replica)

    local = [s.experimental_local_results(v)[0] for v in tf.nest.flatten(run())]
    return [(v.dtype.name, np.asarray(tf.cast(v, tf.complex128)).real.tolist()) for v in local]


def gathers() -> Any:
    """Gathering on axes 0, 1, -1, of scalars, bools, in and out of functions; lengths differ between workers."""
    import tensorflow as tf

    s = strategy()
    n = rank() + 1
    local = s.experimental_distribute_values_from_function
    rows = local(lambda c: tf.fill([n, 2], c.replica_id_in_sync_group))
    columns = local(lambda c: tf.fill([2, n, 1], c.replica_id_in_sync_group))

    @tf.function
    def inside() -> Any:
        return s.run(lambda x: tf.distribute.get_replica_context().all_gather(x, 1), (columns,))

    return (
        s.gather(rows, 0).numpy().tolist(),
        s.gather(columns, 1).numpy()[0, :, 0].tolist(),
        s.gather(columns, -2).numpy()[1, :, 0].tolist(),
        s.experimental_local_results(inside())[0].numpy()[0, :, 0].tolist(),
        s.gather(local(lambda c: tf.constant([c.replica_id_in_sync_group == 0])), 0).numpy().tolist(),
    )


def slices(merging: bool, cap: int) -> Any:
    """Sum and mean of IndexedSlices beside a dense tensor, and bytes moved; `cap` 0 forces the dense way of merging."""
    import tensorflow as tf
    from collectives.tensorflow import _worker_slices

    s = make(merge_indexed_slices=merging)
    before = moved()

    @tf.function
    def run() -> Any:
        def in_replica() -> Any:
            context = tf.distribute.get_replica_context()
            r = context.replica_id_in_sync_group
            one = tf.IndexedSlices(
                tf.ones([3, 2]) * tf.cast(r + 1, tf.float32), tf.stack([r, 9, 9]), tf.constant([12, 2])
            )
            none = tf.IndexedSlices(tf.ones([r, 2], tf.int32), tf.range(r, dtype=tf.int64), tf.constant([12, 2]))
            results = [context.all_reduce(op, [one, tf.ones([2]), none]) for op in ("SUM", "MEAN")]
            assert all(isinstance(x[0], tf.IndexedSlices) for x in results)
            return [[tf.convert_to_tensor(x[0]), x[1], tf.convert_to_tensor(x[2])] for x in results]

        return s.run(in_replica)

    usual, _worker_slices.MEMORY_CAP = _worker_slices.MEMORY_CAP, cap
    try:
        local = [s.experimental_local_results(v)[0] for v in tf.nest.flatten(run())]
    finally:
        _worker_slices.MEMORY_CAP = usual
    return [(v.dtype.name, v.numpy().tolist()) for v in local], moved() - before


def rows(merging: bool, traced: bool) -> Any:
    """The rows and indices of a sum of IndexedSlices, in which index 1 occurs twice on each replica."""
    import tensorflow as tf

    s = make(merge_indexed_slices=merging)

    def in_replica() -> Any:
        context = tf.distribute.get_replica_context()
        r = context.replica_id_in_sync_group
        one = tf.IndexedSlices(
            tf.reshape(tf.cast(tf.stack([r, 10 + r, 20 + r]), tf.float32), [3, 1]), tf.stack([1, 5 + r, 1])
        )
        result = context.all_reduce("SUM", one)
        return result.indices, result.values[:, 0]

    def run() -> Any:
        return s.run(in_replica)

    found = (tf.function(run) if traced else run)()
    return [s.experimental_local_results(part)[0].numpy().tolist() for part in found]


def too_many_rows(traced: bool) -> Any:
    """What is said where rows need more than the cap, how much has moved by then, and that it goes on after that."""
    import tensorflow as tf
    from collectives.tensorflow import _worker_slices

    s = strategy()
    n = s.num_replicas_in_sync

    def step() -> Any:
        def in_replica() -> Any:
            table = tf.zeros([1000, 100])
            with tf.GradientTape() as tape:
                tape.watch(table)
                loss = tf.reduce_sum(tf.gather(table, tf.range(1000)))
            gradient = tape.gradient(loss, table)
            return tf.distribute.get_replica_context().all_reduce("SUM", gradient).values[0, 0]

        return s.run(in_replica)

    run = tf.function(step) if traced else step
    cap = _worker_slices.MEMORY_CAP
    _worker_slices.MEMORY_CAP = 400_000 * n - 1
    before = moved()
    try:
        run()
        text = ""
    except tf.errors.InvalidArgumentError as error:
        text = str(error)
    finally:
        _worker_slices.MEMORY_CAP = cap
    carried = moved() - before
    return text, carried, float(s.reduce("SUM", tf.constant(1.0), axis=None))


def embedding(optimizer: str, merging: bool) -> Any:
    """What `fit` of an embedding gives, by workers."""
    from tensorflow_training import embedding_fit

    return embedding_fit(optimizer, make(merge_indexed_slices=merging))


def embedding_alone(optimizer: str, dense: bool) -> Any:
    """What it gives in one process."""
    from tensorflow_training import embedding_fit

    return embedding_fit(optimizer, dense=dense)


def packs() -> Any:
    """How many collectives reduce 6 tensors of 400 bytes and one of another dtype, and the results."""
    import tensorflow as tf

    s = strategy()
    found = []
    for size in (0, 800, 1):
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=size)

        @tf.function
        def run(options: Any = options) -> Any:
            def in_replica() -> Any:
                values = [tf.fill([100], float(i)) for i in range(6)] + [tf.constant([3], tf.int64)]
                return tf.distribute.get_replica_context().all_reduce("SUM", values, options)

            return s.run(in_replica)

        results = [float(s.experimental_local_results(v)[0][0]) for v in run()]
        found.append((starts(run.get_concrete_function()), results))
    return found


def opposite_orders(ordered: bool) -> Any:
    """Two collectives of one graph, traced in opposite order by the workers; what the ranks get, or the error."""
    import tensorflow as tf

    s = strategy()

    @tf.function
    def run() -> Any:
        def in_replica() -> Any:
            context = tf.distribute.get_replica_context()
            values = [tf.fill([1000], 1.0), tf.fill([2000], 2.0)]
            order = (0, 1) if ordered or rank() == 0 else (1, 0)
            results = {i: context.all_reduce("SUM", values[i]) for i in order}
            return [results[0][0], results[1][0]]

        return s.run(in_replica)

    return [float(s.experimental_local_results(v)[0]) for v in run()]


def refused() -> list[str]:
    """What is said of tensors that cannot be reduced."""
    import tensorflow as tf

    s = strategy()
    texts = []
    for value in (tf.constant([True]), tf.constant(["a"])):

        @tf.function
        def run(value: Any = value) -> Any:
            return s.run(
                lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(value, name="suspect"))
            )

        try:
            run()
        except TypeError as error:
            texts.append(str(error))
    return texts


def exports(folder: str) -> list[str]:
    """What exporting says of functions that communicate: of five one after another; "" when it works."""
    import tensorflow as tf

    s = strategy()
    with s.scope():
        total = tf.Variable(
            1.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
        )
        weight = tf.Variable(2.0)

    def step() -> Any:
        s.run(lambda: total.assign_add(1.0))
        return total.read_value()

    def in_replicas() -> Any:
        context = tf.distribute.get_replica_context
        return s.experimental_local_results(s.run(lambda: context().all_reduce("SUM", weight + 0.0)))[0]

    functions = [
        step,
        in_replicas,
        lambda: s.reduce("SUM", weight + 1.0, axis=None),
        lambda: s.gather(tf.reshape(weight + 0.0, [1]), 0),
        lambda: weight + 1.0,  # which does not
    ]
    found = []
    for number, function in enumerate(functions):
        module = tf.Module()
        module.total, module.weight = total, weight
        module.function = tf.function(function, input_signature=[])
        signature = module.function.get_concrete_function()
        try:
            tf.saved_model.save(module, f"{folder}/{rank()}-{number}", signatures=signature)
            found.append("")
        except ValueError as error:
            found.append(str(error))
    return found


def conditional_and_gradient() -> Any:
    """all_reduce inside tf.cond, and the gradient through it, which reduces again."""
    import tensorflow as tf

    s = strategy()

    @tf.function
    def conditional(flag: Any) -> Any:
        def in_replica() -> Any:
            context = tf.distribute.get_replica_context()
            return tf.cond(flag, lambda: context.all_reduce("SUM", tf.ones([2])), lambda: tf.zeros([2]))

        return s.run(in_replica)

    @tf.function
    def differentiated() -> Any:
        def in_replica() -> Any:
            context = tf.distribute.get_replica_context()
            x = tf.constant([2.0, 3.0]) * tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(context.all_reduce("SUM", x) ** 2)
            return tape.gradient(loss, x)

        return s.run(in_replica)

    many = len(s.extended.worker_devices) > 1  # then it needs a merge call, which TensorFlow refuses in a tf.cond
    flags = [] if many else [conditional(tf.constant(flag)).numpy().tolist() for flag in (True, False)]
    return flags, s.experimental_local_results(differentiated())[0].numpy().tolist()


def eager() -> Any:
    """Without tf.function, through a copy of the ops, and by a second strategy of the same job."""
    import tensorflow as tf

    s = strategy()
    ops = copy.deepcopy(s.extended._cross_device_ops)
    values = s.experimental_distribute_values_from_function(lambda c: tf.constant([c.replica_id_in_sync_group, 1]))
    (copied,) = ops.batch_reduce(tf.distribute.ReduceOp.SUM, [(values, values)])
    second = make()
    return (
        s.experimental_local_results(copied)[0].numpy().tolist(),
        second.extended._group is s.extended._group,
        second.reduce("SUM", values, axis=None).numpy().tolist(),
        type(ops) is type(s.extended._cross_device_ops),
    )


def plugged() -> Any:
    """TensorFlow's strategy, whose variable keeps its value, with RingAllReduce."""
    import collectives.tensorflow as ours
    import tensorflow as tf

    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=60)
    s = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    with s.scope():
        v = tf.Variable([3.0, 4.0])
    ours.plug(s, ours.RingAllReduce())
    before = moved()

    @tf.function
    def run() -> Any:
        return s.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", v * 2.0))

    result = s.experimental_local_results(run())[0].numpy().tolist()
    graph = run.get_concrete_function().graph
    algorithms = [op.get_attr("algorithm").decode() for op in graph.get_operations() if op.type == "CollectivesStart"]
    return result, float(s.reduce("SUM", tf.constant(2.0), axis=None)), moved() - before, rank(), algorithms
