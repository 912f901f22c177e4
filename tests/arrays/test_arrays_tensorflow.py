"""Tensors of TensorFlow in the public calls. A file of its own because importing TensorFlow takes seconds."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import collectives
import logical_cpus
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from array_kinds import Kind, Refused, exercise, judge_refused
from collectives._arrays import adapt, empty
from conformance import Array
from pool import Pools

EAGER = type(tf.constant(1))


def on_the_second(a: Array) -> Any:
    with tf.device(logical_cpus.DEVICES[1]):
        return tf.identity(tf.constant(a))


def read(x: Any) -> Array:
    return np.array(x.numpy())


KINDS = {
    "tensorflow": Kind(
        tf.constant,
        read,
        EAGER,
        False,
        ["float32", "float64", "bfloat16", "float16", "int32", "int64", "uint16", "bool"],
    ),
    "tensorflow second device": Kind(on_the_second, read, EAGER, False, ["float32", "bfloat16"]),
}


def exercise_kind(comm: Any, name: str) -> list[str]:
    return exercise(comm, KINDS[name])


@pytest.mark.parametrize(
    ("name", "transport"), [("tensorflow", "local"), ("tensorflow second device", "local"), ("tensorflow", "shm")]
)
def test_every_call(pools: Pools, name: str, transport: str) -> None:
    failures = [text for report in pools.get(2, transport).run(exercise_kind, name) for text in report]
    assert not failures, "\n".join(failures[:20])


def address(x: Any) -> int:
    return int(np.asarray(memoryview(tf.bitcast(x, tf.uint16) if x.dtype == tf.bfloat16 else x)).ctypes.data)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.bool, tf.int64, tf.complex64])
def test_nothing_is_copied(dtype: Any) -> None:
    x = tf.cast(tf.ones((3, 5)), dtype)
    adapted = adapt(x, "x")
    assert adapted.array.dtype == dtype.as_numpy_dtype
    assert adapted.array.ctypes.data == address(x)
    assert not adapted.array.flags.writeable
    result = empty((7,), adapted.array.dtype)
    back = adapted.wrap(result)
    assert back.dtype == dtype
    assert address(back) == result.ctypes.data


def test_float8_is_copied() -> None:
    x = tf.constant(np.array([1, 2, 3], ml_dtypes.float8_e5m2))
    adapted = adapt(x, "x")
    assert adapted.array.dtype == ml_dtypes.float8_e5m2
    assert adapted.array.astype(np.float32).tolist() == [1, 2, 3]
    back = adapted.wrap(adapted.array)
    assert back.dtype == x.dtype
    assert back.shape == (3,)
    assert adapt(tf.constant(np.array(1, ml_dtypes.float8_e5m2)), "x").array.shape == ()


def test_results_are_where_the_arguments_were() -> None:
    (comm,) = collectives.local_group(1)
    x = on_the_second(np.ones(3, np.float32))
    assert "CPU:1" in x.device
    assert comm.all_reduce(x).device == x.device
    with tf.device(logical_cpus.DEVICES[1]):  # what is current does not matter
        assert comm.all_reduce(y := tf.identity(tf.ones(3))).device == y.device


def test_memory_that_is_not_aligned_is_copied() -> None:
    array = empty((9,), np.dtype(np.float32))[1:]
    array[:] = 7
    back = adapt(tf.ones(3), "x").wrap(array)
    assert address(back) != array.ctypes.data
    assert np.array(back).tolist() == [7] * 8


def test_a_result_keeps_its_memory() -> None:
    class Watched(bytearray):
        pass

    store = Watched(64 + 4096)
    alive = weakref.ref(store)
    array = np.frombuffer(store, np.uint8)
    start = -array.ctypes.data % 64
    result = adapt(tf.ones(3), "x").wrap(array[start : start + 4096].view(np.float32))
    del store, array
    gc.collect()
    assert alive() is not None
    assert float(tf.reduce_sum(result)) == 0
    del result
    gc.collect()
    assert alive() is None


def test_a_variable_by_its_value() -> None:
    (comm,) = collectives.local_group(1)
    variable = tf.Variable([1.0, 2.0])
    value = variable.value()
    result = comm.all_reduce(value)
    variable.assign(result + 1)
    variable.assign_add([1.0, 1.0])
    assert value.numpy().tolist() == [1, 2]
    assert result.numpy().tolist() == [1, 2]
    assert variable.numpy().tolist() == [3, 4]


def test_mixed_with_numpy() -> None:
    (comm,) = collectives.local_group(1)
    host = np.ones(3, ml_dtypes.bfloat16)
    tensor = tf.ones(2, tf.bfloat16)
    results = comm.all_reduce([host, tensor])
    assert results[0] is host
    assert results[1] is not tensor
    assert results[1].dtype == tf.bfloat16


def graph(comm: Any) -> Any:
    return tf.function(lambda x: comm.all_reduce(x), autograph=False)(tf.ones(2))


T = TypeError
DENSE = ["dense tensors"]
REFUSED = {
    "variable": Refused(lambda c: c.all_reduce(tf.Variable([1.0])), T, ["x is a", "Variable", "value()", "assign"]),
    "variable out": Refused(lambda c: c.all_reduce(tf.ones(1), out=tf.Variable([1.0])), T, ["out is a", "Variable"]),
    "function": Refused(graph, T, ["x is a", "SymbolicTensor", "tf.function"]),
    "text": Refused(lambda c: c.all_reduce(tf.constant(["a"])), T, ["x is a tf.Tensor of dtype string"]),
    "text in a list": Refused(lambda c: c.all_reduce([tf.ones(1), tf.constant("a")]), T, ["x[1] is a", "string"]),
    "quantised": Refused(lambda c: c.all_reduce(tf.constant([1, 2], tf.qint8)), T, ["dtype qint8"]),
    "resource": Refused(lambda c: c.all_reduce(tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2])), T, ["resource"]),
    "ragged": Refused(lambda c: c.all_reduce(tf.ragged.constant([[1.0], [2.0, 3.0]])), T, ["RaggedTensor", *DENSE]),
    "sparse": Refused(lambda c: c.all_reduce(tf.sparse.from_dense(tf.eye(2))), T, ["SparseTensor", *DENSE]),
    "slices": Refused(lambda c: c.all_reduce(tf.IndexedSlices(tf.ones(2), [0, 3])), T, ["IndexedSlices", *DENSE]),
    "out": Refused(lambda c: c.all_reduce(tf.ones(2), out=tf.ones(2)), T, ["out is", "never change", "leave out="]),
    "another dtype": Refused(lambda c: c.all_reduce([tf.ones(2), np.ones(2)]), T, ["tensor 1", "float64", "float32"]),
}


@pytest.fixture(scope="module")
def alone() -> Iterator[Any]:
    (comm,) = collectives.local_group(1)
    with comm:
        yield comm


@pytest.mark.parametrize("name", REFUSED)
def test_refused(alone: Any, name: str) -> None:
    judge_refused(alone, REFUSED[name])


def test_another_device() -> None:
    """Seen from the name of the device alone; there is no other kind of device to try it on."""
    from collectives._arrays.libraries import tensorflow as tensorflow_tensors

    class Elsewhere:
        device = "/job:localhost/replica:0/task:0/device:GPU:1"

    adapter = tensorflow_tensors.adapter(tf, tf.ones(1))
    assert adapter is not None
    with pytest.raises(TypeError, match=r"x\[4\] is a tf\.Tensor on device .*GPU:1.*tf\.identity"):
        adapter(Elsewhere(), "x[4]")
