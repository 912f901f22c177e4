"""The base of the cross-device ops: passes the values of a strategy to native ops, and the results to every device.

All replicas are in one memory, so one op reduces a batch for all destinations, in the order of the strategy. Each
destination gets the result by an identity op, which on CPUs copies nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from . import _ops, _private
from ._dtypes import check_reducible, mean_of_sum
from ._indexed_slices import join, merge

__all__ = ["CrossDeviceOps", "components_of", "is_mean", "name_of", "on_each"]

_warned_of_gpus = threading.Event()

_Pair: TypeAlias = "tuple[Any, Any]"  # a PerReplica and its destinations


class CrossDeviceOps(tf.distribute.CrossDeviceOps):  # type: ignore[misc, unused-ignore]
    """The base of the classes in ``cross_device_ops``; abstract.

    Attributes:
        combination: the order in which the engine combines the values of replicas.
        packs: the number of packs for "chain".
        algorithm: of the engine, between workers.
        merge_indexed_slices: whether equal indices of IndexedSlices become one row.
    """

    combination = "canonical"
    packs = 1
    algorithm = "auto"
    merge_indexed_slices = False

    def __deepcopy__(self, memo: dict[int, Any]) -> CrossDeviceOps:
        # Copying a strategy copies its ops. They hold settings only, so a shallow copy will do.
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(self.__dict__)
        return made

    @property
    def _num_between_graph_workers(self) -> int:
        return 1

    def reduce(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any = None) -> Any:
        return self._merged_alone(super().reduce(reduce_op, per_replica_value, destinations, options))

    def batch_reduce(self, reduce_op: Any, value_destination_pairs: Sequence[_Pair], options: Any = None) -> Any:
        return [self._merged_alone(r) for r in super().batch_reduce(reduce_op, value_destination_pairs, options)]

    def _merged_alone(self, result: Any) -> Any:
        """Merges equal indices of a result of one replica, which TensorFlow passes on without calling our reduction."""
        alone = self._num_between_graph_workers == 1 and isinstance(result, tf.IndexedSlices)
        return merge([result]) if alone and self.merge_indexed_slices else result

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:
        return self.batch_reduce_implementation(reduce_op, [(per_replica_value, destinations)], options)[0]

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Sequence[_Pair], options: Any
    ) -> Any:
        del options  # about collectives between workers
        mean = is_mean(reduce_op)
        pairs = [(components_of(value), destinations) for value, destinations in value_destination_pairs]
        if not pairs:
            return []
        names = [name_of(i, values, destinations) for i, (values, destinations) in enumerate(pairs)]
        places = [self._places(destinations) for _, destinations in pairs]
        with self._scope(places[0][0]):
            results = self._reduce([values for values, _ in pairs], names, mean)
        return [on_each(result, devices) for result, devices in zip(results, places, strict=True)]

    def _gather_implementation(self, per_replica_value: Any, destinations: Any, axis: Any, options: Any) -> Any:
        del options
        devices = self._places(destinations)
        with self._scope(devices[0]):
            gathered = tf.concat(components_of(per_replica_value), axis)
        return on_each(gathered, devices)

    def _all_reduce(self, reduce_op: Any, value: Any, replica_id: int, options: Any) -> Any:
        """Reduces in replica context. Strategies call it only where they need no merge call, which is rare."""
        del replica_id  # the merge call knows the replica

        def merged(_: Any, *flat: Any) -> Any:
            return self.batch_reduce(reduce_op, [(v, v) for v in flat], options)

        context = tf.distribute.get_replica_context()
        return tf.nest.pack_sequence_as(value, context.merge_call(merged, args=tuple(tf.nest.flatten(value))))

    def _places(self, destinations: Any) -> tuple[str, ...]:
        """The devices that get the result. Those of function arguments are unknown; then they are the strategy's."""
        devices = tuple(_private.get_devices_from(destinations, getattr(self, _private.CANONICALIZE_DEVICES)))
        if not all(devices) and tf.distribute.has_strategy():
            workers = tf.distribute.get_strategy().extended.worker_devices
            if len(workers) == len(devices):
                devices = tuple(device or worker for device, worker in zip(devices, workers, strict=True))
        return devices

    @contextlib.contextmanager
    def _scope(self, device: str) -> Iterator[None]:
        """The device scope for the reduction of a batch whose first result goes to `device`."""
        with tf.device(device), _silent():
            yield

    def _reduce(self, tensors: Sequence[Sequence[Any]], names: Sequence[str], mean: bool) -> list[Any]:
        """Reduces each of `tensors`, the values of all replicas, to one tensor or IndexedSlices."""
        results: list[Any] = [None] * len(tensors)
        dense: dict[tuple[str, int], list[int]] = {}  # (op, number of replicas): which of the tensors
        plain: list[Sequence[Any]] = list(tensors)
        for k, values in enumerate(tensors):
            if all(isinstance(value, tf.IndexedSlices) for value in values):
                for value in values:
                    check_reducible(value.dtype, f"the IndexedSlices of {names[k]}")
                together = merge if self.merge_indexed_slices else join
                results[k] = together(values, len(values) if mean else None)
                continue
            plain[k] = _alike([tf.convert_to_tensor(value) for value in values], names[k])
            # Means of integers are sums that are divided below; all others go into one op.
            kind = "avg" if mean and not plain[k][0].dtype.is_integer else "sum"
            dense.setdefault((kind, len(values)), []).append(k)
        for (kind, replicas), chosen in dense.items():
            made = self._reduce_dense([plain[k] for k in chosen], [names[k] for k in chosen], kind)
            for k, result in zip(chosen, made, strict=True):
                integral = mean and kind == "sum"
                results[k] = mean_of_sum(result, replicas) if integral else result
        return results

    def _reduce_dense(self, tensors: Sequence[Sequence[Any]], names: Sequence[str], kind: str) -> list[Any]:
        return _ops.reduce_replicas(tensors, kind, self.combination, self.packs, names=names)


def is_mean(reduce_op: Any) -> bool:
    if reduce_op not in (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN):
        raise ValueError(f"reduce_op is {reduce_op!r}; tf.distribute.ReduceOp.SUM and .MEAN are accepted")
    return bool(reduce_op == tf.distribute.ReduceOp.MEAN)


def components_of(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tf.distribute.DistributedValues) or not value.values:
        raise TypeError(f"a value to reduce or gather is {value!r}; one with a component for each replica is needed")
    return tuple(value.values)


def name_of(number: int, values: Sequence[Any], destinations: Any) -> str:
    """The name of a tensor in errors: that of its variable if it goes to one, else that of the tensor in its graph.

    In eager mode a tensor has no name; then its dtype and its position in the call are used, but not its shape: the
    name is an attribute of the op, so each shape would make another op.
    """
    for named in (destinations, values[0]):
        if isinstance(named, tf.Variable) or (tf.is_tensor(named) and not tf.executing_eagerly()):
            with contextlib.suppress(AttributeError, ValueError):  # of IndexedSlices without a name
                return str(named.name)
    dtype = getattr(getattr(values[0], "dtype", None), "name", type(values[0]).__name__)
    return f"unnamed {dtype} tensor {number} of the call"


def _alike(values: list[Any], name: str) -> list[Any]:
    """The values of all replicas, after a check of their dtypes and static shapes."""
    first = values[0]
    for r, value in enumerate(values):
        check_reducible(value.dtype, f"'{name}' of replica {r}")
        if value.dtype != first.dtype:
            raise TypeError(
                f"'{name}' has dtype {first.dtype.name} on replica 0 and {value.dtype.name} on replica {r}; all "
                "replicas must give the same"
            )
        if not value.shape.is_compatible_with(first.shape):
            raise ValueError(
                f"'{name}' has shape {first.shape} on replica 0 and {value.shape} on replica {r}; all replicas must "
                "give the same"
            )
    return values


def on_each(result: Any, devices: Sequence[str]) -> Any:
    """The result with a component on each device; not wrapped for a single device, as strategies expect."""
    _warn_of_gpus(devices)
    return _private.regroup([_identity(result, device) for device in devices], wrap_class=_private.Mirrored)


def _warn_of_gpus(devices: Sequence[str]) -> None:
    """Warns once that tensors on GPUs are reduced in the memory of the host."""
    if _warned_of_gpus.is_set() or not any(":GPU:" in device.upper() for device in devices):
        return
    _warned_of_gpus.set()
    tf.get_logger().warning(
        "collectives: tensors on GPUs are copied to the host, reduced there, and copied back, since TensorFlow gives "
        "plug-ins no stream of its GPUs; where all replicas of a job are on GPUs of one process, "
        "tf.distribute.NcclAllReduce keeps them there"
    )


def _identity(value: Any, device: str) -> Any:
    with tf.device(device), _silent():
        if not isinstance(value, tf.IndexedSlices):
            return tf.identity(value)
        shape = None if value.dense_shape is None else tf.identity(value.dense_shape)
        return tf.IndexedSlices(tf.identity(value.values), tf.identity(value.indices), shape)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Allows tensors to move between devices, whatever the device policy of the program is."""
    policy = tf.config.experimental.get_device_policy()
    if policy == "silent":
        yield
        return
    tf.config.experimental.set_device_policy("silent")
    try:
        yield
    finally:
        tf.config.experimental.set_device_policy(policy)
