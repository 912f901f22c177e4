"""The names of TensorFlow that are not documented: a release that moves one fails the test named after it."""

from __future__ import annotations

import logical_cpus
import pytest
import tensorflow as tf
from collectives.tensorflow import ReductionToOneDevice, _private
from logical_cpus import DEVICES, SUM, components, on_devices


def test_PerReplica():
    value = _private.PerReplica(on_devices([1.0, 2.0]))
    assert isinstance(value, tf.distribute.DistributedValues)
    assert [float(v) for v in value.values] == [1.0, 2.0]


def test_Mirrored():
    value = _private.Mirrored(on_devices([1.0, 1.0]))
    assert isinstance(value, tf.distribute.DistributedValues)
    assert [v.device for v in value.values] == DEVICES[:2]


def test_regroup():
    joined = _private.regroup(on_devices([1.0, 1.0]), wrap_class=_private.Mirrored)
    assert isinstance(joined, _private.Mirrored)
    (one,) = on_devices([1.0])
    assert _private.regroup([one], wrap_class=_private.Mirrored) is one


@pytest.mark.parametrize("canonical", [True, False])
def test_get_devices_from(canonical):
    value = _private.PerReplica(on_devices([1.0, 2.0]))
    assert list(_private.get_devices_from(value, canonical)) == DEVICES[:2]
    (device,) = _private.get_devices_from("/job:worker/task:3/device:CPU:1", canonical)
    assert (tf.DeviceSpec.from_string(device).task == 3) == canonical


def test_must_run():
    """An op whose result is not used runs in the function that it is in, and in the one that calls that one."""
    done = tf.Variable(0)

    def note() -> int:
        done.assign_add(1)
        return 1

    @tf.function
    def inner() -> None:
        # A py_function is taken for stateful; this makes one that is not.
        with tf.control_dependencies([tf.py_function(note, [], tf.int32)]):
            _private.must_run(tf.identity(1).op)

    graph = inner.get_concrete_function().graph
    assert [op.type for op in graph.control_outputs].count("Identity") == 1
    inner()
    assert int(done) == 1


def test_DefaultStrategy():
    assert isinstance(tf.distribute.get_strategy(), _private.DefaultStrategy)


@pytest.mark.parametrize("member", _private.CROSS_DEVICE_OPS_MEMBERS)
def test_CROSS_DEVICE_OPS_MEMBERS(member):
    assert hasattr(tf.distribute.CrossDeviceOps, member)


def test_CANONICALIZE_DEVICES():
    assert getattr(tf.distribute.CrossDeviceOps(), _private.CANONICALIZE_DEVICES) is True


def test_get_cross_device_ops():
    ops = tf.distribute.ReductionToOneDevice()
    assert _private.get_cross_device_ops(logical_cpus.mirrored(2, ops)) is ops


def test_set_cross_device_ops():
    """The strategy reduces with what was set."""
    called = []

    def add(values):
        called.append(len(values))
        return tf.add_n(values)

    strategy = logical_cpus.mirrored(2, tf.distribute.ReductionToOneDevice())
    _private.set_cross_device_ops(strategy, ReductionToOneDevice(accumulation_fn=add))
    value = logical_cpus.per_replica([1.0, 2.0])
    with strategy.scope():
        (total,) = strategy.extended.batch_reduce_to(SUM, [(value, value)])
    assert called == [2]
    assert [float(v) for v in components(total)] == [3.0, 3.0]


def test_set_cross_device_ops_of_a_strategy_without():
    with pytest.raises(AttributeError, match="_cross_device_ops"):
        _private.set_cross_device_ops(tf.distribute.OneDeviceStrategy("CPU:0"), ReductionToOneDevice())


def test_compiled_by_xla():
    """Known while a function is traced, also in one inside it, and not of one beside it."""
    found = []

    @tf.function
    def inner() -> None:
        found.append(_private.compiled_by_xla())

    @tf.function(jit_compile=True)
    def outer() -> None:
        found.append(_private.compiled_by_xla())
        inner()

    outer()
    assert found == [True, True]
    found.clear()
    tf.function(lambda: found.append(_private.compiled_by_xla()))()
    assert found == [False]
    assert not _private.compiled_by_xla()
