"""The names of TensorFlow that several workers need and that are not documented; each has a test of its name."""

from __future__ import annotations

import inspect
import threading

import logical_cpus
import pytest
import tensorflow as tf
from collectives.tensorflow import _private
from collectives.tensorflow.multi_worker import MultiWorkerMirroredStrategy


@pytest.fixture(scope="module")
def alone():
    """A strategy of this process alone."""
    return MultiWorkerMirroredStrategy(devices=logical_cpus.DEVICES)


def test_CollectiveAllReduce(alone):
    assert issubclass(_private.CollectiveAllReduce, tf.distribute.CrossDeviceOps)
    assert all(isinstance(ops, _private.CollectiveAllReduce) for ops in _private.get_extended_ops(alone.extended))


def test_CollectiveAllReduceExtended(alone):
    assert isinstance(alone.extended, _private.CollectiveAllReduceExtended)


@pytest.mark.parametrize("member", _private.EXTENDED_MEMBERS)
def test_EXTENDED_MEMBERS(member):
    assert callable(getattr(_private.CollectiveAllReduceExtended, member))


def test_CheckpointInitialValue(tmp_path):
    path = tf.train.Checkpoint(v=tf.Variable([1.0, 2.0])).save(str(tmp_path / "at"))
    waiting = tf.train.Checkpoint()
    waiting.restore(path)
    value = waiting._preload_simple_restoration("v")()  # what a variable made later gets
    assert isinstance(value, _private.CheckpointInitialValue)
    assert value.wrapped_value.numpy().tolist() == [1.0, 2.0]


def test_get_extended_ops(alone):
    ops, host = _private.get_extended_ops(alone.extended)
    assert len(_private.devices_of(ops)) == len(alone.extended.worker_devices)
    assert len(_private.devices_of(host)) == 1


def test_set_extended_ops(alone):
    ops, host = _private.get_extended_ops(alone.extended)
    _private.set_extended_ops(alone.extended, host, ops)
    assert _private.get_extended_ops(alone.extended) == (host, ops)
    _private.set_extended_ops(alone.extended, ops, host)


def test_number_of_workers(alone):
    assert _private.number_of_workers(alone.extended) == 1


def test_communication_options(alone):
    assert _private.communication_options(alone.extended).bytes_per_pack == 0


def test_mark_server_started():
    """The attribute that TensorFlow asks for before it starts a server."""
    source = inspect.getsource(_private.CollectiveAllReduceExtended._initialize_multi_worker)
    assert '"_std_server_started"' in source


def test_disable_health_check(alone):
    """The attribute that TensorFlow asks for before it starts to check the health of the others."""
    source = inspect.getsource(_private.CollectiveAllReduceExtended._initialize_multi_worker)
    assert "if self._enable_check_health" in source
    _private.disable_health_check(alone.extended)
    assert alone.extended._enable_check_health is False


def test_mark_as_unsaveable(tmp_path):
    module = tf.Module()

    @tf.function(input_signature=[])
    def function():
        _private.mark_as_unsaveable("for a reason")
        return tf.constant(1.0)

    module.function = function
    with pytest.raises(ValueError, match="for a reason"):
        tf.saved_model.save(module, str(tmp_path), signatures=function.get_concrete_function())
    _private.mark_as_unsaveable("outside of functions nothing is exported")


def test_coordination_is_configured(alone):
    assert _private.coordination_is_configured() is False  # one process needs none


def test_configure_coordination():
    context = inspect.getmodule(tf.config.list_logical_devices).context.context()
    accepted = inspect.signature(context.configure_coordination_service).parameters
    for name in ("service_leader", "coordinated_jobs", "cluster_register_timeout_in_ms", "heartbeat_timeout_in_ms"):
        assert name in accepted


def test_context_is_up(alone):
    assert _private.context_is_up() is True


@pytest.mark.parametrize("call", [lambda: _private.publish("a", "b"), lambda: _private.look_up("a", 0.1)])
def test_publish_and_look_up(alone, call):
    """Without a coordination service TensorFlow refuses; with one, the tests of workers use both."""
    with pytest.raises((tf.errors.InternalError, tf.errors.FailedPreconditionError)):
        call()


def test_merge_call_is_refused():
    assert not _private.merge_call_is_refused()
    found = []

    def in_thread():
        with tf.Graph().as_default() as graph:
            threading.current_thread().graph = graph
            found.append(_private.merge_call_is_refused())
            with tf.Graph().as_default():
                found.append(_private.merge_call_is_refused())

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert found == [False, True]


def test_adopt_devices(alone):
    ops, _ = _private.get_extended_ops(alone.extended)
    copied = tf.distribute.CrossDeviceOps()
    _private.adopt_devices(copied, ops)
    assert _private.devices_of(copied) == _private.devices_of(ops)


def test_devices_of(alone):
    ops, _ = _private.get_extended_ops(alone.extended)
    assert list(_private.devices_of(ops)) == list(alone.extended.worker_devices)
