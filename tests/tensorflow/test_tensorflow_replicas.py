"""The cross-device ops of TensorFlow's strategies: what they compute, where results lie, what they refuse."""

from __future__ import annotations

import copy
import itertools
import threading
from typing import Any

import collectives
import logical_cpus
import numpy as np
import pytest
import tensorflow as tf
from collectives import cross_device_ops as on_arrays
from collectives.tensorflow import (
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
    RingAllReduce,
    _ops,
    _private,
    _replica_ops,
)
from combining import Model
from conformance import bits, values
from hypothesis import given, settings
from hypothesis import strategies as st
from logical_cpus import COUNTS, DEVICES, MEAN, SUM, components, eager_and_traced, on_devices, per_replica

CLASSES: list[Any] = [RingAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice]
OPS = {"sum": SUM, "mean": MEAN}
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint16", "complex64")


def model(kind: Any, op: str, arrays: list[Any], packs: int = 1) -> Any:
    return Model(getattr(on_arrays, kind.__name__), op, arrays[0].dtype)(arrays, packs)


def check(result: Any, expected: Any, devices: list[str]) -> None:
    """Every component has the bits expected, and lies where it should."""
    parts = components(result)
    assert [part.device for part in parts] == devices
    for part in parts:
        got = part.numpy()
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        assert bits(got) == bits(expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", CLASSES)
def test_reduce(kind, dtype):
    for op, n in itertools.product(OPS, [*COUNTS, 5]):
        arrays = [values(dtype, False, 133, r) for r in range(n)]
        value = per_replica(arrays)
        before = _ops.replica_bytes()
        for ops in (kind(), copy.deepcopy(kind())):
            check(ops.reduce(OPS[op], value, value), model(kind, op, arrays), DEVICES[:n])
        assert _ops.replica_bytes() - before == 2 * n * arrays[0].nbytes


@pytest.mark.parametrize("packs", [0, 1, 3])
@pytest.mark.parametrize("n", COUNTS)
def test_a_batch_of_the_ring_is_one_buffer(n, packs):
    counts = [7, 100, 1, 2000]
    arrays = [values("float32", False, sum(counts), r) for r in range(n)]
    expected = np.split(model(RingAllReduce, "sum", arrays, max(packs, 1)), np.cumsum(counts)[:-1])
    pairs = [
        (per_replica(parts),) * 2 for parts in zip(*(np.split(a, np.cumsum(counts)[:-1]) for a in arrays), strict=True)
    ]
    for result, wanted in zip(RingAllReduce(packs).batch_reduce(SUM, pairs), expected, strict=True):
        check(result, wanted, DEVICES[:n])


def batch_of(n: int, mixed: list[tuple[str, tuple[int, ...]]]) -> list[list[Any]]:
    return [
        [values(dtype, False, int(np.prod(shape)), r, seed=k).reshape(shape) for r in range(n)]
        for k, (dtype, shape) in enumerate(mixed)
    ]


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(CLASSES),
    op=st.sampled_from(sorted(OPS)),
    n=st.integers(2, 8),
    mixed=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3).map(tuple)), min_size=1, max_size=6
    ),
    traced=st.booleans(),
)
def test_batches_of_any_tensors(kind, op, n, mixed, traced):
    """The same results as for arrays of NumPy, whatever shares the batch."""
    batch = batch_of(n, mixed)
    ops = kind()

    def run(tensors):
        pairs = [(_private.PerReplica(t), _private.PerReplica(t)) for t in tensors]
        return [components(r) for r in ops.batch_reduce(OPS[op], pairs)]

    results = (tf.function(run) if traced else run)([on_devices(arrays) for arrays in batch])
    expected = getattr(on_arrays, kind.__name__)().batch_reduce(op, [(arrays, None) for arrays in batch])
    for result, wanted, inputs in zip(results, expected, batch, strict=True):
        for got, right in zip(result, wanted, strict=True):
            assert got.dtype.name == right.dtype.name
            assert got.numpy().shape == right.shape
            if op == "mean" and inputs[0].dtype.kind in "iu":
                # TensorFlow divides these, and in graphs it multiplies by the reciprocal.
                np.testing.assert_array_max_ulp(got.numpy(), right, 1)
            else:
                assert bits(got.numpy()) == bits(right)


def natives(graph: Any) -> list[Any]:
    return [op for op in graph.get_operations() if op.type == "CollectivesReduceReplicas"]


def test_a_batch_is_one_op_in_the_given_order():
    batch = batch_of(3, [("float32", (3,)), ("float64", (2, 2)), ("float16", ()), ("float32", (5,)), ("int64", (1,))])

    @tf.function
    def run(tensors):
        pairs = [(_private.PerReplica(t), _private.PerReplica(t)) for t in tensors]
        return [components(r)[0] for r in RingAllReduce().batch_reduce(SUM, pairs)]

    (op,) = natives(run.get_concrete_function([on_devices(arrays) for arrays in batch]).graph)
    assert [o.dtype.name for o in op.outputs] == ["float32", "float64", "float16", "float32", "int64"]


@pytest.mark.parametrize("kind", CLASSES)
def test_other_destinations(kind):
    """Names of devices, a variable, a tensor; fewer, more and other devices than the values have."""
    arrays = [values("float32", False, 9, r) for r in range(3)]
    value, expected, ops = per_replica(arrays), model(kind, "mean", arrays), kind()
    check(ops.reduce(MEAN, value, "CPU:5"), expected, [DEVICES[5]])
    with tf.device("CPU:2"):
        variable, tensor = tf.Variable(1.0), tf.identity(tf.constant(1.0))
    more = per_replica([0.0] * 8)
    results = ops.batch_reduce(MEAN, [(value, variable), (value, more), (value, tensor), (value, value)])
    for result, devices in zip(results, [[DEVICES[2]], DEVICES, [DEVICES[2]], DEVICES[:3]], strict=True):
        check(result, expected, devices)


@pytest.mark.parametrize("kind", CLASSES)
def test_arguments_of_functions_have_no_device(kind):
    """Results still lie on the devices of the strategy, where there is one, and are right where there is none."""
    arrays = [values("float32", False, 9, r) for r in range(4)]
    ops, expected = kind(), model(kind, "sum", arrays)
    strategy = logical_cpus.mirrored(4, ops)
    placed = []

    @tf.function
    def run(value):
        assert not value.values[1].device
        result = strategy.extended.batch_reduce_to(SUM, [(value, value)])[0]
        placed.append([part.device for part in result.values])
        return result.values

    with strategy.scope():
        result = run(per_replica(arrays))
    assert placed == [DEVICES[:4]]
    for part in (*result, *tf.function(lambda v: ops.reduce(SUM, v, v).values)(per_replica(arrays))):
        assert bits(part.numpy()) == bits(expected)


@pytest.mark.parametrize("policy", ["silent", "explicit"])
def test_device_policy(policy):
    """Tensors may be on other devices than the reduction even where a program forbids it to its own ops."""
    value = per_replica([[1.0], [2.0]])
    tf.config.experimental.set_device_policy(policy)
    try:
        check(RingAllReduce().reduce(SUM, value, "CPU:3"), np.array([3.0], np.float32), [DEVICES[3]])
        assert tf.config.experimental.get_device_policy() == policy
    finally:
        tf.config.experimental.set_device_policy("silent")


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("dtype", ["float32", "bool", "string", "int64"])
def test_gather(kind, dtype):
    ops = kind()
    for axis in (-3, -1, 0, 1, 2):
        shapes = [[2, 3, 4] for _ in range(3)]
        for r, shape in enumerate(shapes):
            shape[axis] = r + 1
        arrays = [
            (np.arange(np.prod(s)).reshape(s) % 7 + r).astype(dtype if dtype != "string" else "S3")
            for r, s in enumerate(shapes)
        ]
        value = per_replica(arrays)
        for run in eager_and_traced(lambda v, axis=axis: components(ops._gather(v, "CPU:1" if axis else v, axis))):
            parts = run(value)
            assert len(parts) == (1 if axis else 3)
            for part in parts:
                np.testing.assert_array_equal(part.numpy().astype(arrays[0].dtype), np.concatenate(arrays, axis))


@pytest.mark.parametrize("kind", CLASSES)
def test_broadcast(kind):
    for value in (np.arange(6.0).reshape(2, 3), np.array(True), np.int32(3)):
        check(kind().broadcast(tf.constant(value), per_replica([0.0] * 3)), np.asarray(value), DEVICES[:3])


def test_inside_cond():
    strategy = logical_cpus.mirrored(3, RingAllReduce())

    @tf.function
    def run(flag, value):
        def reduced():
            return strategy.extended.batch_reduce_to(SUM, [(value, value)])[0].values

        return tf.cond(flag, reduced, lambda: tuple(-v for v in value.values))

    value = per_replica([1.0, 2.0, 4.0])
    before = _ops.replica_bytes()
    assert [float(v) for v in run(tf.constant(True), value)] == [7.0] * 3
    assert _ops.replica_bytes() - before == 12
    assert [float(v) for v in run(tf.constant(False), value)] == [-1.0, -2.0, -4.0]
    assert _ops.replica_bytes() - before == 12


def test_graph_of_tensorflow_1():
    with tf.Graph().as_default():
        (result,) = RingAllReduce().batch_reduce(MEAN, [(per_replica([[1.0, 2.0], [5.0, 0.0]]),) * 2])
        config = tf.compat.v1.ConfigProto(device_count={"CPU": 2})
        with tf.compat.v1.Session(config=config) as session:
            for part in session.run(list(result.values)):
                np.testing.assert_array_equal(part, [3.0, 1.0])


@pytest.mark.parametrize("op", sorted(OPS))
def test_gradient_in_cross_replica_context(op):
    values = on_devices([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    with tf.GradientTape() as tape:
        tape.watch(values)
        value = _private.PerReplica(values)
        result = RingAllReduce().reduce(OPS[op], value, "CPU:0")
        loss = tf.reduce_sum(result * [2.0, 3.0])
    wanted = np.array([2.0, 3.0], np.float32) / (3 if op == "mean" else 1)
    for gradient in tape.gradient(loss, values):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-6)


class TestReductionToOneDevice:
    def test_where_the_result_is_made(self):
        with tf.Graph().as_default() as graph:
            value = per_replica([1.0, 2.0])
            ReductionToOneDevice("/device:CPU:7").reduce(SUM, value, value)
            (op,) = natives(graph)
            (copied,) = op.outputs[0].consumers()
            assert copied.device.endswith("CPU:7")
            assert {c.device for c in copied.outputs[0].consumers()} == set(DEVICES[:2])

    def test_device(self):
        assert ReductionToOneDevice().reduce_to_device is None
        assert ReductionToOneDevice("cpu:3").reduce_to_device == "/device:CPU:3"
        assert (
            ReductionToOneDevice(tf.DeviceSpec(device_type="CPU", device_index=1)).reduce_to_device == "/device:CPU:1"
        )

    @pytest.mark.parametrize("device", [0, True, b"/device:CPU:0", ["CPU:0"]])
    def test_device_that_is_no_name(self, device):
        with pytest.raises(TypeError, match=r"reduce_to_device is .*'/device:CPU:0'"):
            ReductionToOneDevice(device)

    @pytest.mark.parametrize("device", ["first", "/job:worker/rack:3", "/device:CPU:zero"])
    def test_device_whose_name_is_malformed(self, device):
        with pytest.raises(ValueError, match=f"reduce_to_device is '{device}'.*'/device:CPU:0'"):
            ReductionToOneDevice(device)

    def test_accumulation_fn(self):
        seen = []

        def largest(tensors):
            seen.append((type(tensors), [t.device for t in tensors]))
            return tf.reduce_max(tf.stack(tensors), 0)

        value = per_replica([[1.0, 8.0], [6.0, 2.0], [3.0, 4.0]])
        before = _ops.replica_bytes()
        ops = ReductionToOneDevice(accumulation_fn=largest)
        check(ops.reduce(SUM, value, value), np.array([6, 8], np.float32), DEVICES[:3])
        check(ops.reduce(MEAN, value, value), np.array([2, 8 / 3], np.float32), DEVICES[:3])
        assert seen == [(list, DEVICES[:3])] * 2
        assert _ops.replica_bytes() == before  # the function did the work

    def test_accumulation_fn_add_n_is_the_engine(self):
        value = per_replica([1.0, 2.0])
        before = _ops.replica_bytes()
        check(ReductionToOneDevice(accumulation_fn=tf.add_n).reduce(SUM, value, value), np.array(3, "f"), DEVICES[:2])
        assert _ops.replica_bytes() - before == 8

    def test_accumulation_fn_that_is_no_function(self):
        with pytest.raises(TypeError, match="accumulation_fn is 'sum'"):
            ReductionToOneDevice(accumulation_fn="sum")


class TestArguments:
    @pytest.mark.parametrize("kind", [RingAllReduce, HierarchicalCopyAllReduce, NcclAllReduce])
    def test_num_packs(self, kind):
        assert kind(0).packs == kind().packs == 1
        assert kind(num_packs=5).packs == 5
        with pytest.raises(ValueError, match="num_packs is -1"):
            kind(-1)
        for wrong in ("2", 1.5, True):
            with pytest.raises(TypeError, match="num_packs is "):
                kind(wrong)

    def test_copies(self):
        ops = RingAllReduce(4)
        setattr(ops, _private.CANONICALIZE_DEVICES, False)
        copied = copy.deepcopy(ops)
        assert (type(copied), copied.packs) == (RingAllReduce, 4)
        assert getattr(copied, _private.CANONICALIZE_DEVICES) is False
        assert copied._num_between_graph_workers == 1

    def test_nccl(self):
        ops, value = NcclAllReduce(2), per_replica([1.0, 2.0])
        for use in (
            lambda: ops.reduce(SUM, value, value),
            lambda: ops.batch_reduce(SUM, [(value, value)]),
            lambda: ops.broadcast(tf.constant(1.0), value),
            lambda: ops._gather(value, value, 0),
            lambda: ops._all_reduce(SUM, tf.constant(1.0), 0, None),
        ):
            with pytest.raises(collectives.BackendError, match=r"Use tf.distribute\.NcclAllReduce.*\.RingAllReduce"):
                use()

    @pytest.mark.parametrize("kind", CLASSES)
    def test_dtypes_that_have_no_sum(self, kind):
        good = per_replica([1.0, 2.0])
        for bad in ([True, False], ["a", "b"]):
            dtype = tf.convert_to_tensor(bad).dtype.name
            with pytest.raises(
                TypeError, match=f"'unnamed {dtype} tensor 1 of the call' of replica 0 has dtype {dtype}"
            ):
                kind().batch_reduce(SUM, [(good, good), (per_replica(bad), good)])
            with tf.device("CPU:0"):
                variable = tf.Variable(1.0, name="kernel")
            with pytest.raises(TypeError, match="'kernel:0' of replica 0"):
                kind().reduce(SUM, per_replica(bad), variable)

            @tf.function
            def run(bad=bad):
                named = [tf.identity(b, name="mask") for b in bad]
                return kind().reduce(SUM, _private.PerReplica(named), "CPU:0")

            with pytest.raises(TypeError, match="'mask:0' of replica 0"):
                run()

    def test_op(self):
        value = per_replica([1.0, 2.0])
        with pytest.raises(ValueError, match="reduce_op is 'PROD'"):
            RingAllReduce().reduce("PROD", value, value)

    def test_replicas_that_differ(self):
        for other, error, words in (
            ([1.0, 2.0], ValueError, r"has shape \(\) on replica 0 and \(2,\) on replica 1"),
            (tf.constant(1.0, tf.float64), TypeError, "has dtype float32 on replica 0 and float64 on replica 1"),
        ):
            with pytest.raises(error, match=words):
                RingAllReduce().reduce(SUM, per_replica([1.0, other]), "CPU:0")

    def test_shapes_that_differ_when_the_op_runs(self):
        vector = tf.TensorSpec([None], tf.float32)

        @tf.function(input_signature=[vector, vector])
        def run(a, b):
            return RingAllReduce().reduce(SUM, _private.PerReplica([tf.identity(a, name="bias"), b]), "CPU:0")

        assert run(tf.ones(2), tf.ones(2)).numpy().tolist() == [2.0, 2.0]
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"'bias:0' differs in shape.*replica 0 and replica 1"):
            run(tf.ones(2), tf.ones(3))


def test_tensors_on_gpus_are_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr(_replica_ops, "_warned_of_gpus", threading.Event())
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    place = "/job:localhost/replica:0/task:0/device:"
    for devices in ([place + "CPU:0"], [place + "CPU:0", place + "GPU:1"], [place + "GPU:0"]):
        _replica_ops._warn_of_gpus(devices)
    assert [r.getMessage() for r in caplog.records if "copied to the host" in r.getMessage()] == [caplog.messages[-1]]
