"""The names of Keras that are not documented: a release that moves one fails the test named after it."""

from __future__ import annotations

import importlib

import logical_cpus  # noqa: F401  before TensorFlow starts
from collectives.tensorflow import _keras


def test_TRAINER_MODULE_and_BUILD_METHOD():
    """The frame that asks for shapes is that of the trainer which every model of the TensorFlow backend has."""
    import keras

    method = getattr(importlib.import_module(_keras.TRAINER_MODULE).TensorFlowTrainer, _keras.BUILD_METHOD)
    assert method.__globals__["__name__"] == _keras.TRAINER_MODULE
    assert method.__code__.co_name == _keras.BUILD_METHOD
    assert getattr(keras.Model, _keras.BUILD_METHOD) is method
