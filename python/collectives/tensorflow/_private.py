"""All undocumented names of TensorFlow that this package uses.

No other module uses such names, so a release of TensorFlow that moves one breaks only this file, and the test of that
name tells which. Each has a comment that says why the documented API does not suffice.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy as _collective_strategy
from tensorflow.python.distribute import cross_device_ops as _cross_device_ops
from tensorflow.python.distribute import distribute_lib as _distribute_lib
from tensorflow.python.distribute import distribute_utils as _distribute_utils
from tensorflow.python.distribute import multi_worker_util as _multi_worker_util
from tensorflow.python.distribute import values as _values
from tensorflow.python.eager import context as _context
from tensorflow.python.ops import control_flow_util as _control_flow_util
from tensorflow.python.trackable import base as _trackable

# What a strategy hands to its cross-device ops; there is no documented way to make or recognise one.
PerReplica: Any = _values.PerReplica

# What a strategy expects back: the same value on each device.
Mirrored: Any = _values.Mirrored

# Joins the components of a result, tensors or IndexedSlices; does not wrap a result on one device, as callers expect.
regroup: Any = _distribute_utils.regroup

# The devices of a destination, which may be a distributed value, a variable, a tensor or the name of a device.
get_devices_from: Any = _cross_device_ops.get_devices_from

# The type of the strategy outside every scope; `plug` accepts it, and it has no documented name.
DefaultStrategy: Any = _distribute_lib._DefaultDistributionStrategy

# Members of tf.distribute.CrossDeviceOps that strategies use and our classes override: gathering, reduction in replica
# context, the number of workers between which a strategy reduces, and whether names of devices get the job and task.
CROSS_DEVICE_OPS_MEMBERS = ("_gather", "_gather_implementation", "_all_reduce", "_num_between_graph_workers")
CANONICALIZE_DEVICES = "_canonicalize_devices"


def must_run(op: tf.Operation) -> None:
    """Makes an op of a function run even if nothing uses its results, without ordering it among stateful ops.

    TensorFlow drops ops without known effects: errors would be lost, and a barrier would not wait.
    """
    op.graph.control_outputs.append(op)


def get_cross_device_ops(strategy: tf.distribute.Strategy) -> Any:
    """The cross-device ops of a mirrored, central storage or parameter server strategy; no documented getter exists."""
    return strategy.extended._cross_device_ops


def set_cross_device_ops(strategy: tf.distribute.Strategy, ops: tf.distribute.CrossDeviceOps) -> None:
    """Replaces the ops of a strategy; only the mirrored one has an argument for them, and only when it is made."""
    get_cross_device_ops(strategy)  # fails here if a release has renamed the attribute
    strategy.extended._cross_device_ops = ops


# Names for several workers. TensorFlow's strategy for them has no argument for its ops; ours replaces them by these.

# The strategy asserts that its ops are of this class.
CollectiveAllReduce: Any = _cross_device_ops.CollectiveAllReduce

# The class that makes devices, variables and ops of MultiWorkerMirroredStrategy; ours overrides some methods.
CollectiveAllReduceExtended: Any = _collective_strategy.CollectiveAllReduceExtended

# The methods that ours overrides.
EXTENDED_MEMBERS = (
    "_initialize_strategy",
    "_initialize_local",
    "_initialize_multi_worker",
    "_initialize_local_devices",
    "_get_variable_creator_initial_value",
    "_reduce_to",
    "_replica_ctx_all_reduce",
    "_use_merge_call",
)

# Seconds without a heartbeat after which TensorFlow's coordination service considers a worker dead. It then fails only
# TensorFlow's own collectives, which are not used here; the engine notices a death itself, and sooner.
COORDINATION_HEARTBEAT = 600.0

# Whether that service can limit the time in which all workers must register. If not, rank 0 waits for them for an hour.
COORDINATION_HAS_BARRIER = "cluster_register_with_barrier" in {
    field.name for field in _context.coordination_config_pb2.CoordinationServiceConfig.DESCRIPTOR.fields
}

# A value of a checkpoint that stands in for the initial value of a variable.
CheckpointInitialValue: Any = _trackable.CheckpointInitialValue


def get_extended_ops(extended: Any) -> tuple[Any, Any]:
    """The ops of a multi-worker strategy for its devices and for its host."""
    return extended._cross_device_ops, extended._host_cross_device_ops


def set_extended_ops(extended: Any, ops: Any, host_ops: Any) -> None:
    """Replaces both."""
    get_extended_ops(extended)  # fails here if a release has renamed an attribute
    extended._cross_device_ops, extended._host_cross_device_ops = ops, host_ops


def number_of_workers(extended: Any) -> int:
    """The number of workers of a strategy."""
    return int(extended._num_workers)


def communication_options(extended: Any) -> Any:
    """The CommunicationOptions that a strategy was made with."""
    return extended._communication_options


def mark_server_started(extended: Any) -> None:
    """Prevents another strategy from starting TensorFlow's server of this process a second time."""
    extended._std_server_started = True


def disable_health_check(extended: Any) -> None:
    """Prevents another strategy from running a collective of TensorFlow, which waits for all workers for ever."""
    assert isinstance(extended._enable_check_health, bool)  # fails here if a release has renamed the attribute
    extended._enable_check_health = False


def mark_as_unsaveable(reason: str) -> None:
    """Makes TensorFlow raise a ``ValueError`` with this text when the function that is being traced is exported.

    Its own error names a captured tensor, which does not help users.
    """
    if tf.inside_function():
        tf.compat.v1.get_default_graph().mark_as_unsaveable(reason)


def coordination_is_configured() -> bool:
    """Whether TensorFlow's coordination service has been set up, which happens once in a process."""
    return _context.context().coordination_service is not None


def configure_coordination(cluster_spec: Any, jobs: dict[str, int], register_timeout: float) -> None:
    """Sets up TensorFlow's coordination service before its context starts; by default it waits for an hour.

    Args:
        cluster_spec: of the resolver.
        jobs: the number of tasks of each job that takes part.
        register_timeout: seconds in which all tasks must register.
    """
    make_job = _context.coordination_config_pb2.CoordinatedJob
    _context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=_multi_worker_util.coordination_leader(cluster_spec),
        coordinated_jobs=[make_job(name=name, num_tasks=tasks) for name, tasks in jobs.items()],
        cluster_register_timeout_in_ms=int(register_timeout * 1000),
        heartbeat_timeout_in_ms=int(COORDINATION_HEARTBEAT * 1000),
    )
    service = _context.context().coordination_service
    if COORDINATION_HAS_BARRIER:
        service.cluster_register_with_barrier = True


def context_is_up() -> bool:
    """Whether TensorFlow's context has started."""
    return bool(_context.context()._initialized)


def publish(key: str, value: str) -> None:
    """Writes into the key-value store of the coordination service."""
    _context.context().set_config_key_value(key, value)


def look_up(key: str, timeout: float) -> str:
    """Reads from that store; waits until the key exists.

    Raises:
        tf.errors.DeadlineExceededError: it did not exist in time.
    """
    return str(_context.context().get_config_key_value(key, timeout_in_ms=max(1, int(timeout * 1000))))


def merge_call_is_refused() -> bool:
    """Whether the current graph is nested in that of a replica's function, as a branch of ``tf.cond`` is.

    TensorFlow refuses to merge replicas there, and has no documented way to ask before.
    """
    outer = getattr(threading.current_thread(), "graph", None)
    return outer is not None and not tf.executing_eagerly() and tf.compat.v1.get_default_graph() is not outer


def compiled_by_xla() -> bool:
    """Whether the current graph, or one around it, is of a ``tf.function`` with ``jit_compile=True``."""
    return not tf.executing_eagerly() and bool(
        _control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )


def adopt_devices(ops: Any, stock: Any) -> None:
    """Gives cross-device ops the devices and settings of the CollectiveAllReduce that they replace."""
    for name in ("_devices", "_group_size", "_options", "_collective_keys", "_canonicalize_devices"):
        setattr(ops, name, getattr(stock, name))


def devices_of(ops: Any) -> tuple[str, ...]:
    """The devices of a CollectiveAllReduce, one for each replica of this process."""
    return tuple(ops._devices)
