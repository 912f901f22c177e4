"""IndexedSlices of replicas: joined, or merged into one row per distinct index, alone and beside dense tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from collectives.tensorflow import HierarchicalCopyAllReduce, ReductionToOneDevice, RingAllReduce, _ops, _private
from collectives.tensorflow._indexed_slices import join, merge
from hypothesis import given, settings
from hypothesis import strategies as st
from logical_cpus import DEVICES, MEAN, SUM, components, eager_and_traced, mirrored, per_replica, slices

CLASSES: list[Any] = [RingAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice]
HEIGHT = 6  # rows of the tensors that the slices are of
PARTS = [([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [4, 1, 4]), ([[7.0, 8.0]], [1]), ([], [])]  # rows, indices


def three(dtype: str = "float32") -> Any:
    made = [slices(rows if rows else np.empty((0, 2)), indices, HEIGHT, dtype) for rows, indices in PARTS]
    return per_replica([on(device, part) for device, part in zip(DEVICES, made, strict=False)])


def on(device: str, part: Any) -> Any:
    with tf.device(device):
        return tf.IndexedSlices(tf.identity(part.values), tf.identity(part.indices), tf.identity(part.dense_shape))


def dense(part: Any) -> Any:
    """The tensor that IndexedSlices are of."""
    whole = np.zeros(part.dense_shape.numpy(), part.values.dtype.as_numpy_dtype)
    np.add.at(whole, part.indices.numpy(), part.values.numpy())
    return whole


TOTAL = np.array([[0, 0], [10, 12], [0, 0], [0, 0], [6, 8], [0, 0]], np.float32)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("op, expected", [(SUM, TOTAL), (MEAN, TOTAL / 3)], ids=["sum", "mean"])
def test_one_row_for_each_distinct_index(kind, op, expected):
    value = three()
    results = components(kind(merge_indexed_slices=True).reduce(op, value, value))
    assert [r.device for r in results] == DEVICES[:3]
    for result in results:
        assert isinstance(result, tf.IndexedSlices)
        assert result.indices.numpy().tolist() == [4, 1]
        assert result.dense_shape.numpy().tolist() == [HEIGHT, 2]
        np.testing.assert_allclose(dense(result), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("op, expected", [(SUM, TOTAL), (MEAN, TOTAL / 3)], ids=["sum", "mean"])
def test_all_rows_in_the_order_of_the_replicas(kind, op, expected):
    value = three()
    for attempt in eager_and_traced(lambda: components(kind().reduce(op, value, value))):
        results = attempt()
        assert len(results) == 3
        for result in results:
            assert result.indices.numpy().tolist() == [4, 1, 4, 1]
            assert result.dense_shape.numpy().tolist() == [HEIGHT, 2]
            np.testing.assert_allclose(dense(result), expected, rtol=1e-6)


def test_joining():
    """Indices of two dtypes, rows of halves as they are, means of integers, slices of slices, and one alone."""
    first = tf.IndexedSlices(tf.constant([[1], [3]], tf.int32), tf.constant([3, 3], tf.int32))
    second = tf.IndexedSlices(tf.constant([[5]], tf.int32), tf.constant([0], tf.int64), tf.constant([5, 1], tf.int64))
    joined = join([first, second], 2)
    assert (joined.indices.dtype, joined.values.dtype) == (tf.int64, tf.float64)
    assert joined.indices.numpy().tolist() == [3, 3, 0]
    assert joined.values.numpy().tolist() == [[0.5], [1.5], [2.5]]
    assert joined.dense_shape.numpy().tolist() == [5, 1]
    assert join([first]).dense_shape is None
    halves = join([slices([[2048.0], [1.0]], [0, 0], 1, "float16")] * 2)
    assert halves.values.numpy().tolist() == [[2048], [1]] * 2
    nested = tf.IndexedSlices(second, tf.constant([4]), tf.constant([HEIGHT, 1]))
    assert join([nested]).indices.numpy().tolist() == [4]


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_merging_is_yes_or_no(value):
    with pytest.raises(TypeError, match=f"merge_indexed_slices is {value!r}; True or False"):
        RingAllReduce(merge_indexed_slices=value)


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.lists(st.integers(0, HEIGHT - 1), max_size=6), min_size=1, max_size=5),
    dtype=st.sampled_from(["float32", "float64", "int64", "float16", "bfloat16", "complex64"]),
)
def test_merging(parts, dtype):
    made = [
        slices([[i + r, 2 * i] for i in range(len(indices))] if indices else np.empty((0, 2)), indices, HEIGHT, dtype)
        for r, indices in enumerate(parts)
    ]
    merged = merge(made)
    assert merged.values.dtype.name == dtype
    assert merged.indices.numpy().tolist() == list(dict.fromkeys(i for part in parts for i in part))
    np.testing.assert_array_equal(dense(merged), sum(dense(part) for part in made))


def test_halves_are_summed_in_float32():
    """2048 + 1 is 2048 in float16; ten ones are not lost."""
    rows = [[2048.0], *[[1.0]] * 10]
    assert merge([slices(rows, [0] * 11, 1, "float16")]).values.numpy().tolist() == [[2058.0]]


def test_indices_and_shapes_that_differ_between_replicas():
    first = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3], tf.int32))
    second = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([3, 0], tf.int64), tf.constant([5, 2], tf.int64))
    merged = merge([first, second])
    assert merged.indices.dtype == tf.int64
    assert merged.dense_shape.numpy().tolist() == [5, 2]
    assert dense(merged).tolist() == [[1, 1], [0, 0], [0, 0], [2, 2], [0, 0]]
    assert merge([first]).dense_shape is None
    assert merge([first]).indices.dtype == tf.int32


def test_slices_of_slices():
    inner = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([1, 0, 1]), tf.constant([2, 1]))
    nested = tf.IndexedSlices(inner, tf.constant([3, 2]), tf.constant([HEIGHT, 1]))
    merged = merge([nested])
    assert merged.indices.numpy().tolist() == [2, 3]
    assert merged.values.numpy().tolist() == [[5.0], [2.0]]


@pytest.mark.parametrize("kind", CLASSES)
def test_batches_with_dense_tensors(kind):
    """In the given order; replicas that disagree about being sparse give a dense sum."""
    first = dense(three().values[0])
    values = [per_replica([1.0, 2.0, 4.0]), three(), per_replica([[1.0]] * 3)]
    values.append(_private.PerReplica([three().values[0], tf.ones([HEIGHT, 2]), tf.ones([HEIGHT, 2])]))
    before = _ops.replica_bytes()

    def run():
        return [components(r)[0] for r in kind().batch_reduce(SUM, [(value, "CPU:1") for value in values])]

    for attempt in eager_and_traced(run):
        scalar, sparse, vector, both = attempt()
        assert float(scalar) == 7
        np.testing.assert_array_equal(dense(sparse), TOTAL)
        assert vector.numpy().tolist() == [3.0]
        np.testing.assert_array_equal(both, first + 2)
    assert _ops.replica_bytes() - before == 2 * (12 + 12 + 3 * 4 * HEIGHT * 2)


def test_dtype_that_has_no_sum():
    value = per_replica([tf.IndexedSlices(tf.constant([True]), tf.constant([0]))] * 2)
    with pytest.raises(TypeError, match="the IndexedSlices of unnamed bool tensor 0 of the call has dtype bool"):
        RingAllReduce().reduce(SUM, value, "CPU:0")


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("traced", [False, True])
def test_training_an_embedding(kind, traced):
    """Sparse gradients of an embedding and dense ones of a layer, against TensorFlow's own reduction."""

    def train(ops):
        strategy = mirrored(3, ops)
        with strategy.scope():
            table = tf.Variable(tf.reshape(tf.range(12.0), [HEIGHT, 2]))
            weights = tf.Variable([[1.0], [-1.0]])
            optimizer = tf.keras.optimizers.SGD(0.125)
            optimizer.build([table, weights])
        tokens = _private.PerReplica([tf.constant(t) for t in ([0, 1, 1], [1, 5, 0], [2, 2, 2])])

        def step(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((tf.gather(table, ids) @ weights - 1.0) ** 2) / 8
            gradients = tape.gradient(loss, [table, weights])
            assert isinstance(gradients[0], tf.IndexedSlices)
            gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
            assert isinstance(gradients[0], tf.IndexedSlices)
            table.assign_sub(0.125 * tf.convert_to_tensor(gradients[0]))
            weights.assign_sub(0.125 * gradients[1])
            return loss

        def run():
            strategy.run(step, args=(tokens,))

        run = tf.function(run) if traced else run
        for _ in range(3):
            run()
        return [v.numpy() for v in (table, weights)]

    before = _ops.replica_bytes()
    ours = train(kind())
    assert _ops.replica_bytes() - before == 3 * 3 * 8
    for got, expected in zip(ours, train(tf.distribute.ReductionToOneDevice()), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
