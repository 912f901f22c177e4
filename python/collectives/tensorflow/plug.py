"""Puts our ops into an existing strategy."""

from __future__ import annotations

import copy
from typing import TypeVar

import tensorflow as tf

from . import _private
from ._replica_ops import CrossDeviceOps

__all__ = ["plug"]

_Strategy = TypeVar("_Strategy", bound=tf.distribute.Strategy)

_V1 = tf.compat.v1.distribute
_MIRRORED = (tf.distribute.MirroredStrategy, _V1.MirroredStrategy)
_CENTRAL = (tf.distribute.experimental.CentralStorageStrategy, _V1.experimental.CentralStorageStrategy)
_TPU = (
    tf.distribute.TPUStrategy,
    tf.distribute.experimental.TPUStrategy,
    _V1.experimental.TPUStrategy,
)
_SINGLE = (tf.distribute.OneDeviceStrategy, _V1.OneDeviceStrategy, _private.DefaultStrategy)


def plug(strategy: _Strategy, cross_device_ops: CrossDeviceOps) -> _Strategy:
    """Makes a strategy reduce and broadcast through this library.

    Call it before the first ``tf.function`` is traced under the strategy: traced functions keep the ops they have.

    Args:
        strategy: one of

            - ``tf.distribute.MirroredStrategy``;
            - ``tf.distribute.MultiWorkerMirroredStrategy``: on all workers alike;
            - ``tf.distribute.experimental.CentralStorageStrategy``;
            - ``tf.distribute.ParameterServerStrategy``. Functions that a coordinator schedules run in the processes of
              the workers, so each of these must import ``collectives.tensorflow`` before it makes its
              ``tf.distribute.Server``;
            - ``tf.distribute.OneDeviceStrategy`` and the default strategy, which have nothing to reduce and are not
              changed.
        cross_device_ops: an object of a class of ``collectives.tensorflow``, for example ``RingAllReduce()``.

    Returns:
        The strategy.

    Raises:
        TypeError: another strategy, TPUStrategy among them, or ops that are not of this library.
    """
    if not isinstance(cross_device_ops, CrossDeviceOps):
        raise TypeError(
            f"cross_device_ops is {cross_device_ops!r}; an object of a class of collectives.tensorflow is accepted, "
            "for example collectives.tensorflow.RingAllReduce()"
        )
    if isinstance(strategy, (*_MIRRORED, *_CENTRAL)):
        _private.set_cross_device_ops(strategy, cross_device_ops)
    elif isinstance(strategy, tf.distribute.ParameterServerStrategy):
        # Its functions are traced here and run in a worker, so names of devices must not get our own job and task. That
        # setting goes into a copy, so that the caller can use the object for other strategies.
        ops = copy.deepcopy(cross_device_ops)
        setattr(ops, _private.CANONICALIZE_DEVICES, False)
        _private.set_cross_device_ops(strategy, ops)
    elif isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        from . import multi_worker

        multi_worker.plug_into(strategy, cross_device_ops)
    elif isinstance(strategy, _TPU):
        raise TypeError(
            "TPUStrategy reduces over the interconnect of the TPU by XLA's own collectives, and collectives cannot "
            "replace them. Use it as it is; or, on CPUs and GPUs, tf.distribute.MirroredStrategy or "
            "collectives.tensorflow.MultiWorkerMirroredStrategy"
        )
    elif not isinstance(strategy, _SINGLE):
        raise TypeError(
            f"strategy is {strategy!r}; accepted are MirroredStrategy, MultiWorkerMirroredStrategy, "
            "CentralStorageStrategy, ParameterServerStrategy, OneDeviceStrategy and the default strategy"
        )
    return strategy
