"""The cross-device ops of a multi-worker strategy: reduce over the replicas of this process, then between the workers.

Each worker sends one tensor for all its replicas. Dense tensors of one dtype are fused into few collectives. These are
formed when a step is traced, in the order of the variables, so all workers form the same ones.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _ops, _private, _replica_ops
from ._buckets import reduce_in_buckets
from ._dtypes import mean_of_sum
from ._worker_slices import gather_from_workers, sum_over_workers
from .cross_device_ops import NcclAllReduce

__all__ = ["WorkerOps"]

_log = logging.getLogger("collectives")
_warned_of_nccl: list[bool] = []


class WorkerOps(_replica_ops.CrossDeviceOps, _private.CollectiveAllReduce):  # type: ignore[misc, unused-ignore]
    """Replaces TensorFlow's ``CollectiveAllReduce``, of which a strategy requires it to be a subclass.

    Attributes:
        group: the workers; ``None``: this process is alone.
        algorithm: of the engine between workers, "auto" or the name of one.
    """

    def __init__(
        self,
        stock: Any,
        group: _ops.Group | None,
        options: Any,
        choice: _replica_ops.CrossDeviceOps | None = None,
        merge_indexed_slices: bool = False,
    ) -> None:
        """
        Args:
            stock: the ops that this one replaces; its devices are used.
            group: the workers, or None.
            options: the CommunicationOptions of the strategy; those of a call override them.
            choice: one of the classes of ``cross_device_ops``, for its combination, packs, algorithm and
                merge_indexed_slices.
            merge_indexed_slices: as the attribute; also True if that of ``choice`` is.
        """
        # Not __init__ of CollectiveAllReduce, which would set up TensorFlow's own collectives.
        tf.distribute.CrossDeviceOps.__init__(self)
        _private.adopt_devices(self, stock)
        self.group = group
        self.options = options
        self.merge_indexed_slices = merge_indexed_slices or (choice is not None and choice.merge_indexed_slices)
        if choice is not None:
            self.combination, self.packs, self.algorithm = choice.combination, choice.packs, choice.algorithm
        self._refusal = choice if isinstance(choice, NcclAllReduce) else None

    @property
    def _num_between_graph_workers(self) -> int:
        return 1 if self.group is None else self.group.size

    def batch_reduce_implementation(self, reduce_op: Any, value_destination_pairs: Sequence[Any], options: Any) -> Any:
        if not value_destination_pairs:
            return []
        mean = _replica_ops.is_mean(reduce_op)
        pairs = [(_replica_ops.components_of(value), where) for value, where in value_destination_pairs]
        names = [_replica_ops.name_of(i, values, where) for i, (values, where) in enumerate(pairs)]
        places = [self._places(where) for _, where in pairs]
        with self._scope(places[0][0]):
            results = self._reduce_over_workers([values for values, _ in pairs], names, mean, options)
        return [_replica_ops.on_each(result, devices) for result, devices in zip(results, places, strict=True)]

    def _gather_implementation(self, per_replica_value: Any, destinations: Any, axis: Any, options: Any) -> Any:
        values = _replica_ops.components_of(per_replica_value)
        name = _replica_ops.name_of(0, values, destinations)
        devices = self._places(destinations)
        with self._scope(devices[0]):
            gathered = self._gather_over_workers(values, axis, name, self._merge_options(options))
        return _replica_ops.on_each(gathered, devices)

    def _all_reduce(self, reduce_op: Any, value: Any, replica_id: int, options: Any) -> Any:
        if len(_private.devices_of(self)) > 1:
            return super()._all_reduce(reduce_op, value, replica_id, options)
        # A single replica needs no merge call, so this works inside tf.cond, too.
        mean = _replica_ops.is_mean(reduce_op)
        flat = [(v,) for v in tf.nest.flatten(value)]
        names = [_replica_ops.name_of(i, v, None) for i, v in enumerate(flat)]
        return tf.nest.pack_sequence_as(value, self._reduce_over_workers(flat, names, mean, options))

    def _merge_options(self, options: Any) -> Any:
        merged = self.options if options is None else self.options.merge(options)
        if merged.implementation == tf.distribute.experimental.CommunicationImplementation.NCCL and not _warned_of_nccl:
            _warned_of_nccl.append(True)
            _log.warning(
                "NCCL was asked for by the CommunicationOptions; TensorFlow gives plug-ins no stream of its GPUs, so "
                "the engine reduces over the memory of the host and chooses the algorithm itself"
            )
        return merged

    def _algorithm(self, options: Any) -> str:
        ring = options.implementation == tf.distribute.experimental.CommunicationImplementation.RING
        return "ring" if ring and self.algorithm == "auto" else self.algorithm

    def _reduce_over_workers(self, tensors: Sequence[Any], names: Sequence[str], mean: bool, options: Any) -> list[Any]:
        """Reduces over all replicas of all workers; one result for each of `tensors`."""
        if self._refusal is not None:
            self._refusal.reduce()  # raises
        if self.group is None:
            return self._reduce(tensors, names, mean)
        options = self._merge_options(options)
        sums = self._mean_is_of_sum(tensors) if mean else [True] * len(tensors)
        results: list[Any] = [None] * len(tensors)
        # A mean is the mean over workers of means over replicas: all workers have the same number of replicas.
        for summed in (True, False):
            chosen = [k for k in range(len(tensors)) if sums[k] == summed]
            if not chosen:
                continue
            local = self._reduce([tensors[k] for k in chosen], [names[k] for k in chosen], not summed)
            for k, value in zip(chosen, local, strict=True):
                results[k] = value
        dense = [k for k, value in enumerate(results) if not isinstance(value, tf.IndexedSlices)]
        for summed in (True, False):
            chosen = [k for k in dense if sums[k] == summed]
            reduced = reduce_in_buckets(
                self.group,
                [results[k] for k in chosen],
                "sum" if summed else "avg",
                names=[names[k] for k in chosen],
                bytes_per_bucket=options.bytes_per_pack,
                algorithm=self._algorithm(options),
                timeout=options.timeout_seconds,
            )
            for k, value in zip(chosen, reduced, strict=True):
                results[k] = value
        for k, value in enumerate(results):
            if not isinstance(value, tf.IndexedSlices):
                continue
            same = {"name": names[k], "timeout": options.timeout_seconds}
            if self.merge_indexed_slices:
                results[k] = sum_over_workers(self.group, value, algorithm=self._algorithm(options), **same)
            else:
                results[k] = gather_from_workers(self.group, value, **same)
        if mean:
            count = self.group.size * len(tensors[0])
            results = [_divide(value, count) if summed else value for value, summed in zip(results, sums, strict=True)]
        return results

    def all_true(self, values: Sequence[Any], name: str) -> Any:
        """Whether booleans, one for each replica of this process, are true on all replicas of all workers."""
        with self._scope("CPU:0"):
            own = tf.reduce_all(tf.stack([tf.identity(value) for value in values]))
            if self.group is None:
                return own
            (least,) = _ops.all_reduce(
                self.group, [tf.cast(own, tf.uint8)], "min", names=[name], timeout=self.options.timeout_seconds
            )
            return tf.cast(least, tf.bool)

    def _mean_is_of_sum(self, tensors: Sequence[Any]) -> list[bool]:
        """For each tensor, whether its mean is computed as a sum that is divided at the end, not by the engine."""
        return [
            isinstance(values[0], tf.IndexedSlices) or tf.convert_to_tensor(values[0]).dtype.is_integer
            for values in tensors
        ]

    def _gather_over_workers(self, values: Sequence[Any], axis: Any, name: str, options: Any) -> Any:
        values = [tf.convert_to_tensor(value) for value in values]
        if values[0].dtype in (tf.string, tf.resource, tf.variant):
            raise TypeError(
                f"'{name}' has dtype {values[0].dtype.name}, which cannot be gathered; cast or encode it first"
            )
        if values[0].shape.rank == 0:
            values = [tf.reshape(value, [1]) for value in values]
        joined = values[0] if len(values) == 1 else tf.concat(values, axis)
        if self.group is None:
            return joined
        timeout = options.timeout_seconds
        rank = joined.shape.rank
        if axis == 0 or (rank is not None and axis == -rank):
            return _ops.all_gather(self.group, joined, name=name, timeout=timeout)
        dimensions = tf.rank(joined) if rank is None else rank
        place = axis % dimensions
        order = tf.concat([[place], tf.range(place), tf.range(place + 1, dimensions)], 0)
        gathered = _ops.all_gather(self.group, tf.transpose(joined, order), name=name, timeout=timeout)
        back = tf.transpose(gathered, tf.math.invert_permutation(order))
        if rank is not None:
            shape = joined.shape.as_list()
            shape[place] = None
            back.set_shape(shape)
        return back


def _divide(value: Any, count: int) -> Any:
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(mean_of_sum(value.values, count), value.indices, value.dense_shape)
    return mean_of_sum(value, count)
