"""``MultiWorkerMirroredStrategy`` on the engine: training on several workers, configured by ``TF_CONFIG`` alone."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _callbacks, _job, _keras, _ops, _private
from ._devices import find_devices, read_devices
from ._replica_ops import CrossDeviceOps
from ._tf_config import TFConfig, from_cluster, read_tf_config
from ._worker_ops import WorkerOps
from .cross_device_ops import checked_merging

__all__ = ["MultiWorkerMirroredStrategy", "plug_into"]


class MultiWorkerMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc, unused-ignore]
    """TensorFlow's strategy of this name; the engine does all communication between the workers.

    Make it in every worker, before anything else of TensorFlow runs. ``TF_CONFIG`` lists the workers; without it this
    process trains alone on its devices. Addresses and the token of the job go through TensorFlow's own coordination
    service, so keep strangers out of the network, as for TensorFlow itself.

    As in TensorFlow, the GPUs of a worker are its replicas, and a worker without a GPU is one replica, on its CPU;
    ``devices=`` names others. Every worker has the same number of them.

    It differs from TensorFlow's where that one fails: Keras 3's ``fit``, ``evaluate`` and ``predict`` work; callbacks
    and ``model.save`` get the same path on all workers, and the chief writes there; every wait has a limit.

    All processes must live as long as they train together: if a worker only drops its strategy, the others wait for it
    until their deadline. After an error of a collective this strategy cannot be used any more. While all processes
    live, each can make another one, and its model and functions again under it; otherwise restart all of them.
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        communication_options: Any = None,
        cross_device_ops: CrossDeviceOps | None = None,
        *,
        merge_indexed_slices: bool = False,
        devices: Sequence[str] | None = None,
    ) -> None:
        """Joins the workers.

        Args:
            cluster_resolver: a ``tf.distribute.cluster_resolver.ClusterResolver``; ``TF_CONFIG`` by default.
            communication_options: a ``tf.distribute.experimental.CommunicationOptions``. ``timeout_seconds`` limits the
                start and each collective; by default ``COLLECTIVES_TIMEOUT`` or 600. ``bytes_per_pack`` splits batches
                into several collectives; by default 0, one for each dtype. ``implementation`` is a hint.
            cross_device_ops: a ``RingAllReduce``, ``HierarchicalCopyAllReduce`` or ``ReductionToOneDevice``, to choose
                the algorithm; by default the engine chooses.
            merge_indexed_slices: whether equal indices in the gradients of embeddings become one row, their sum, before
                they are sent. An optimizer then makes the same step as with the dense gradient; by default it makes
                that of one process with the global batch.
            devices: names of logical devices of this worker, of one type; each becomes a replica. For example
                ``["CPU:0", "CPU:1"]``. By default all its GPUs or, without one, ``CPU:0``.

        Raises:
            ValueError: ``TF_CONFIG`` or the resolver is malformed, or a device does not exist; the text quotes it.
            TypeError: an argument is of the wrong type.
            tf.errors.DeadlineExceededError: a worker did not come in time.
        """
        if communication_options is None:
            communication_options = tf.distribute.experimental.CommunicationOptions()
        _check_choice(cross_device_ops)
        merge = checked_merging(merge_indexed_slices)
        _job.start_timeout(communication_options.timeout_seconds)  # raises ValueError if it is invalid
        tf.distribute.Strategy.__init__(
            self,
            _Extended(self, cluster_resolver, communication_options, cross_device_ops, merge, read_devices(devices)),
        )

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """As TensorFlow's, but also for nested values, and for scalars with an axis, which then has no effect."""
        if _keras.asks_for_shapes(sys._getframe(1)):
            return _keras.local_batch(value)  # batches may differ in length between workers, or hold no numbers
        if axis is None:
            return super().reduce(reduce_op, value, None)
        return tf.nest.map_structure(
            lambda one: super(MultiWorkerMirroredStrategy, self).reduce(
                reduce_op, one, None if _is_scalar(one) else axis
            ),
            value,
        )


class _Extended(_private.CollectiveAllReduceExtended):  # type: ignore[misc, unused-ignore]
    """The extended part of TensorFlow's strategy, with our ops."""

    def __init__(
        self,
        strategy: Any,
        resolver: Any,
        options: Any,
        choice: CrossDeviceOps | None,
        merge_indexed_slices: bool,
        devices: list[Any] | None,
    ) -> None:
        self._choice = choice
        self._merge_indexed_slices = merge_indexed_slices
        self._named = devices
        self._group: _ops.Group | None = None
        self.collectives_writer: _callbacks.Writer | None = None  # for `_callbacks`
        self._config = _config_of(resolver)
        super().__init__(strategy, cluster_resolver=resolver, communication_options=options)

    def _initialize_strategy(self, cluster_resolver: Any, devices: Any) -> None:
        # An evaluator works alone, and its cluster often does not list it.
        alone = self._config is None or self._config.task_type == "evaluator"
        if devices or alone:
            self._initialize_local(cluster_resolver, devices=devices)
        else:
            self._initialize_multi_worker(cluster_resolver)

    def _initialize_local(self, cluster_resolver: Any, devices: Any = None) -> None:
        super()._initialize_local(cluster_resolver, devices=devices)
        self._take_ops()

    def _initialize_multi_worker(self, cluster_resolver: Any) -> None:
        config = self._config
        if config is None:  # the caller has set the cluster by `configure`
            config = _config_of(cluster_resolver)
        if config is None or not config.trains:
            job = None if config is None else config.task_type
            raise ValueError(f"the task of this process is {job!r}; chief, worker and evaluator can make this strategy")
        timeout = _job.start_timeout(_private.communication_options(self).timeout_seconds)
        end = time.monotonic() + timeout
        _private.disable_health_check(self)
        initialize = super()._initialize_multi_worker
        if _private.context_is_up():
            _private.mark_server_started(self)  # by an earlier strategy; if not, _job.join raises an error
            initialize(cluster_resolver)
        elif config.size == 1:
            initialize(cluster_resolver)
        else:
            jobs = {str(job): len(config.cluster[job]) for job in ("chief", "worker") if job in config.cluster}

            def start(seconds: float) -> None:
                _private.configure_coordination(cluster_resolver.cluster_spec(), jobs, seconds)
                initialize(cluster_resolver)

            _job.start_context(start, config, timeout)
        self._group = _job.join(config, len(self.worker_devices), max(1.0, end - time.monotonic()))
        self._take_ops()
        if (group := self._group) is not None:
            self.collectives_writer = _callbacks.Writer(
                f"{config.task_type}-{config.task_index}",
                chief=config.rank == 0,
                share=lambda value: _job.share(config, group, value),
            )

    def _take_ops(self) -> None:
        _replace_ops(self, self._group, self._choice, self._merge_indexed_slices)

    def _initialize_local_devices(self, cluster_resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        if self._named is None:
            devices, kind = super()._initialize_local_devices(cluster_resolver, worker_device)
            return devices, kind
        return find_devices(self._named, worker_device)

    def _get_variable_creator_initial_value(self, replica_id: int, device: str, primary_var: Any, **kwargs: Any) -> Any:
        _callbacks.patch_keras()
        group = self._group
        if group is not None:
            _keras.refuse_jit_compile(sys._getframe(1))
        if replica_id > 0 or group is None:
            # Skips the method of the direct base, which would broadcast by TensorFlow's ops.
            return super(_private.CollectiveAllReduceExtended, self)._get_variable_creator_initial_value(
                replica_id=replica_id, device=device, primary_var=primary_var, **kwargs
            )
        timeout = _private.communication_options(self).timeout_seconds

        def initial_value() -> Any:
            with tf.device(device):
                value = kwargs["initial_value"]
                if callable(value):
                    value = value()
                if isinstance(value, _private.CheckpointInitialValue):
                    value = value.wrapped_value
                value = tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))
                name = kwargs.get("name") or "a variable"
                if value.dtype in (tf.string, tf.resource, tf.variant):
                    raise TypeError(f"the variable {name!r} has dtype {value.dtype.name}, which cannot be sent")
                (result,) = _ops.broadcast(group, [value], 0, names=[f"initial value of {name}"], timeout=timeout)
                result.set_shape(value.shape)
                return result

        return initial_value

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if not tf.nest.is_nested(value):
            return super()._reduce_to(reduce_op, value, destinations, options)
        return tf.nest.map_structure(lambda one: self._reduce_to(reduce_op, one, destinations, options), value)

    def _use_merge_call(self) -> bool:
        # One replica needs no merge call, so it can reduce where TensorFlow refuses merge calls.
        alone = len(self.worker_devices) == 1
        return bool(super()._use_merge_call()) and not (alone and _private.merge_call_is_refused())

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        ops, _ = _private.get_extended_ops(self)
        return ops._all_reduce(reduce_op, value, 0, options)


def plug_into(strategy: Any, cross_device_ops: CrossDeviceOps | None) -> None:
    """Makes a ``tf.distribute.MultiWorkerMirroredStrategy`` that exists reduce by the engine. All workers do so.

    Variables keep their values.

    Args:
        strategy: TensorFlow's or ours.
        cross_device_ops: as for ``MultiWorkerMirroredStrategy``.

    Raises:
        As ``MultiWorkerMirroredStrategy``.
    """
    _check_choice(cross_device_ops)
    extended = strategy.extended
    group = None
    if _private.number_of_workers(extended) > 1:
        config = _config_of(strategy.cluster_resolver)
        assert config is not None  # it has more than one worker
        timeout = _job.start_timeout(_private.communication_options(extended).timeout_seconds)
        group = _job.join(config, len(extended.worker_devices), timeout)
    _replace_ops(extended, group, cross_device_ops)


def _replace_ops(
    extended: Any, group: _ops.Group | None, choice: CrossDeviceOps | None, merge_indexed_slices: bool = False
) -> None:
    options = _private.communication_options(extended)
    stock = _private.get_extended_ops(extended)
    made = (WorkerOps(ops, group, options, choice, merge_indexed_slices) for ops in stock)
    _private.set_extended_ops(extended, *made)
    extended.call_for_each_replica = types.MethodType(_call_for_each_replica, extended)


def _call_for_each_replica(extended: Any, fn: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Lets all workers decide together where Keras would use the answer of one replica for all."""
    answers = type(extended).call_for_each_replica(extended, fn, args, kwargs)
    if not _keras.asks_whether_finite(fn):
        return answers
    each = answers.values if isinstance(answers, tf.distribute.DistributedValues) else [answers]
    ops, _ = _private.get_extended_ops(extended)
    return ops.all_true(each, "whether the gradients are finite")


def _config_of(resolver: Any) -> TFConfig | None:
    """The cluster of a resolver, or of ``TF_CONFIG``; ``None``: this process is alone."""
    if resolver is None:
        return read_tf_config()
    if not isinstance(resolver, tf.distribute.cluster_resolver.ClusterResolver):
        raise TypeError(
            f"cluster_resolver is {resolver!r}; a tf.distribute.cluster_resolver.ClusterResolver is accepted, or None "
            "for TF_CONFIG"
        )
    if isinstance(resolver, tf.distribute.cluster_resolver.TFConfigClusterResolver) and read_tf_config() is None:
        return None
    cluster = resolver.cluster_spec().as_dict()
    if not cluster:
        return None
    return from_cluster(cluster, resolver.task_type, resolver.task_id)


def _check_choice(choice: Any) -> None:
    if choice is not None and not isinstance(choice, CrossDeviceOps):
        raise TypeError(
            f"cross_device_ops is {choice!r}; one of the classes of collectives.tensorflow is accepted, or None"
        )
    if getattr(choice, "accumulation_fn", tf.add_n) is not tf.add_n:
        raise ValueError(
            "ReductionToOneDevice with an accumulation_fn works on the replicas of one process; between workers the "
            "engine sums. Leave accumulation_fn out"
        )


def _is_scalar(value: Any) -> bool:
    first = value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value
    return not hasattr(first, "shape") or tf.TensorShape(first.shape).rank == 0
