"""The names of Keras that are not documented: a release that moves one fails the test named after it."""

from __future__ import annotations

import importlib
import inspect
import types

import keras
import logical_cpus  # noqa: F401  before TensorFlow starts
import tensorflow as tf
from collectives.tensorflow import MultiWorkerMirroredStrategy, _keras
from keras.optimizers import LossScaleOptimizer


def test_TRAINER_MODULE_and_BUILD_METHOD():
    """The frame that asks for shapes is that of the trainer which every model of the TensorFlow backend has."""
    method = getattr(importlib.import_module(_keras.TRAINER_MODULE).TensorFlowTrainer, _keras.BUILD_METHOD)
    assert method.__globals__["__name__"] == _keras.TRAINER_MODULE
    assert method.__code__.co_name == _keras.BUILD_METHOD
    assert getattr(keras.Model, _keras.BUILD_METHOD) is method


def test_COMPILE_MODULE():
    """The method of a model that has the argument."""
    compile_method = inspect.unwrap(keras.Model.compile)
    assert compile_method.__globals__["__name__"] == _keras.COMPILE_MODULE
    assert compile_method.__code__.co_name == "compile"
    assert "jit_compile" in compile_method.__code__.co_varnames


def test_LOSS_SCALE_MODULE_and_its_methods():
    """The optimizer asks through `call_for_each_replica`, and a subclass of it is known by its base."""
    optimizer = LossScaleOptimizer(keras.optimizers.SGD())
    assert type(optimizer).__module__ == _keras.LOSS_SCALE_MODULE
    assert _keras.asks_whether_finite(getattr(optimizer, _keras.FINITE_METHOD))
    assert not _keras.asks_whether_finite(optimizer.scale_loss)
    assert not _keras.asks_whether_finite(lambda: True)
    assert {"call_for_each_replica", _keras.FINITE_METHOD} <= set(names_in(LossScaleOptimizer._tf_apply.__code__))


def test_all_replicas_of_a_process_decide_together():
    """Keras would ask the first one only."""
    strategy = MultiWorkerMirroredStrategy(devices=["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    optimizer = LossScaleOptimizer(keras.optimizers.SGD())
    last = strategy.num_replicas_in_sync - 1

    def answer(bad: float) -> bool:
        gradients = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant([1.0, bad if context.replica_id_in_sync_group == last else 1.0])
        )
        return bool(strategy.extended.call_for_each_replica(optimizer.check_finite, args=([gradients],)))

    assert answer(2.0)
    assert not answer(float("inf"))


def names_in(code: types.CodeType) -> list[str]:
    """The names that a function and those inside it use."""
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in names_in(const)]
    return [*code.co_names, *inner]
