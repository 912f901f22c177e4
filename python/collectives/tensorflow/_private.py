"""Every name of TensorFlow that is not part of its documented interface.

Nothing else in this package reaches such a name, so a release of TensorFlow that moves one breaks this file, and the
test named after it says which. Each comes with the reason why the documented interface does not do.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops as _cross_device_ops
from tensorflow.python.distribute import distribute_lib as _distribute_lib
from tensorflow.python.distribute import distribute_utils as _distribute_utils
from tensorflow.python.distribute import values as _values

# What a strategy hands to its cross-device ops; there is no documented way to make or recognise one.
PerReplica: Any = _values.PerReplica

# What a strategy expects back: the same value on each device.
Mirrored: Any = _values.Mirrored

# Joins the components of a result, tensors or IndexedSlices; leaves a result on one device unwrapped, as callers
# expect.
regroup: Any = _distribute_utils.regroup

# The devices of a destination, which may be a distributed value, a variable, a tensor or the name of a device.
get_devices_from: Any = _cross_device_ops.get_devices_from

# The type of the strategy outside every scope; `plug` accepts it, and it has no documented name.
DefaultStrategy: Any = _distribute_lib._DefaultDistributionStrategy

# Members of tf.distribute.CrossDeviceOps that strategies use and our classes override: gathering, reduction in replica
# context, the number of workers between which a strategy reduces, and whether names of devices get the job and task.
CROSS_DEVICE_OPS_MEMBERS = ("_gather", "_gather_implementation", "_all_reduce", "_num_between_graph_workers")
CANONICALIZE_DEVICES = "_canonicalize_devices"


def get_cross_device_ops(strategy: tf.distribute.Strategy) -> Any:
    """What a mirrored, central storage or parameter server strategy reduces with; no documented getter exists."""
    return strategy.extended._cross_device_ops


def set_cross_device_ops(strategy: tf.distribute.Strategy, ops: tf.distribute.CrossDeviceOps) -> None:
    """Makes a strategy reduce with other ops, which only the mirrored one takes, and only when it is made."""
    get_cross_device_ops(strategy)  # so that a release that renames it fails here instead of being ignored
    strategy.extended._cross_device_ops = ops


# Names for several workers
