"""The classes of ``tf.distribute.CrossDeviceOps`` over the engine of this library.

>>> import tensorflow as tf, collectives.tensorflow
>>> ops = collectives.tensorflow.RingAllReduce()
>>> strategy = tf.distribute.MirroredStrategy(cross_device_ops=ops)

Names, arguments and meaning are those of TensorFlow's classes of these names; ``RingAllReduce`` is new. For a strategy
that exists already, or whose constructor takes no ops, see ``plug``.

One batch of gradients is one or a few native ops, in the order of the variables. SUM and MEAN work on integers of 8 to
64 bits, floating tensors of 16 bits and more (16 bits are summed in float32), and complex tensors. The mean of integers
is floating: float64 for 32 and 64 bits, float32 for 8 and 16. bool and string tensors are a ``TypeError``. Gathering
works for every dtype and axis.

IndexedSlices, the gradients of embeddings, are concatenated in the order of replicas, as TensorFlow does and as one
process has them for the global batch. With ``merge_indexed_slices=True`` the result has one row for each distinct
index, the sum of its rows; an optimizer then makes the same step as with the dense gradient.

``MirroredStrategy`` does some reductions without its cross-device ops: all of int32 tensors, all under XLA, and on CPUs
those of ``strategy.reduce``. Gradients use the cross-device ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .. import errors
from ._dtypes import mean_of_sum
from ._replica_ops import CrossDeviceOps

__all__ = ["HierarchicalCopyAllReduce", "NcclAllReduce", "ReductionToOneDevice", "RingAllReduce"]


class RingAllReduce(CrossDeviceOps):
    """Ring all-reduce: values are added one replica after another; each part of the data starts at another replica.

    The tensors of one dtype in a batch are one buffer, split into ``num_packs`` packs, and each pack into as many parts
    as there are replicas. 16-bit floats are rounded after each addition.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

    Args:
        num_packs: how many packs a batch is split into; 0 means 1.
        merge_indexed_slices: see the module.
    """

    combination = "chain"
    algorithm = "ring"

    def __init__(self, num_packs: int = 1, *, merge_indexed_slices: bool = False) -> None:
        super().__init__()
        self.packs = _pack_number(num_packs)
        self.merge_indexed_slices = checked_merging(merge_indexed_slices)


class HierarchicalCopyAllReduce(CrossDeviceOps):
    """Hierarchical copy: two halves of the replicas are summed, then the two sums are.

    The halves are the first ceil(n/2) and the last floor(n/2) replicas. (TensorFlow takes n // 2 for both, so with an
    odd number of replicas the last one is missing in the sum.) All replicas are in one memory, so neither results nor
    time depend on the number of packs.

    Source: TensorFlow, ``tf.distribute.HierarchicalCopyAllReduce``.

    Args:
        num_packs: as in TensorFlow, 0 or more.
        merge_indexed_slices: see the module.
    """

    combination = "halves"
    algorithm = "hierarchical_copy"

    def __init__(self, num_packs: int = 1, *, merge_indexed_slices: bool = False) -> None:
        super().__init__()
        self.packs = _pack_number(num_packs)
        self.merge_indexed_slices = checked_merging(merge_indexed_slices)


class ReductionToOneDevice(CrossDeviceOps):
    """Reduction on one device, then copies: replicas 0 to n-1 along one binary tree, rounded once.

    Source: TensorFlow, ``tf.distribute.ReductionToOneDevice``.

    Args:
        reduce_to_device: the name of the device where results are made before they are copied, for example
            ``"/device:CPU:0"``; ``None``: the first destination. Fields that the name lacks come from the device scope
            of the call.
        accumulation_fn: sums the list of the tensors of all replicas, instead of the engine; called on
            ``reduce_to_device`` for each dense tensor. ``None`` and ``tf.add_n``: the engine.
        merge_indexed_slices: see the module.
    """

    combination = "canonical"
    algorithm = "reduce_to_one"

    def __init__(
        self,
        reduce_to_device: str | tf.DeviceSpec | None = None,
        accumulation_fn: Callable[[list[Any]], Any] | None = None,
        *,
        merge_indexed_slices: bool = False,
    ) -> None:
        super().__init__()
        self.merge_indexed_slices = checked_merging(merge_indexed_slices)
        self.reduce_to_device = _device_name(reduce_to_device)
        if accumulation_fn is not None and not callable(accumulation_fn):
            raise TypeError(f"accumulation_fn is {accumulation_fn!r}; a function of a list of tensors is accepted")
        self.accumulation_fn = tf.add_n if accumulation_fn is None else accumulation_fn

    def _scope(self, device: str) -> Any:
        return super()._scope(self.reduce_to_device or device)

    def _reduce_dense(self, tensors: Sequence[Sequence[Any]], names: Sequence[str], kind: str) -> list[Any]:
        if self.accumulation_fn is tf.add_n:
            made = super()._reduce_dense(tensors, names, kind)
            # The op runs on the host; this names the device of the result.
            return made if self.reduce_to_device is None else [tf.identity(result) for result in made]
        made = [tf.convert_to_tensor(self.accumulation_fn(list(values))) for values in tensors]
        if kind == "sum":
            return made
        return [mean_of_sum(result, len(values)) for result, values in zip(made, tensors, strict=True)]


class _NoNcclError(errors.BackendError):
    """A BackendError that keeps its type through ``tf.function``, which rebuilds errors by calling their class."""

    __init__ = Exception.__init__
    rank = peer = collective = sequence = name = age = None


class NcclAllReduce(CrossDeviceOps):
    """NCCL all-reduce, which no plug-in can do for tensors of TensorFlow: each use raises ``collectives.BackendError``.

    NCCL needs the streams of the GPUs, and TensorFlow does not give its own to plug-ins. Use TensorFlow's class of this
    name, or for arrays on GPUs ``collectives.cross_device_ops.NcclAllReduce``. The constructor works, so that a program
    that makes this object but uses it only if there are GPUs runs without them.

    Args:
        num_packs: as in TensorFlow, 0 or more.
    """

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__()
        self.packs = _pack_number(num_packs)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise _NoNcclError(
            "collectives.tensorflow.NcclAllReduce: TensorFlow gives plug-ins no stream of its GPUs, so NCCL cannot "
            "reduce its tensors from here. Use tf.distribute.NcclAllReduce() for replicas on GPUs of one process, or "
            "collectives.tensorflow.RingAllReduce(), which reduces over the memory of the host, on any devices and "
            "between workers. (collectives.cross_device_ops.NcclAllReduce reduces arrays, not tensors of a strategy.)"
        )

    reduce = batch_reduce = broadcast = _gather = _all_reduce = _refuse


def checked_merging(merge_indexed_slices: object) -> bool:
    """The argument of that name. Raises TypeError unless it is a bool."""
    if not isinstance(merge_indexed_slices, bool):
        raise TypeError(f"merge_indexed_slices is {merge_indexed_slices!r}; True or False is accepted")
    return merge_indexed_slices


def _pack_number(num_packs: int) -> int:
    if isinstance(num_packs, bool) or not isinstance(num_packs, int):
        raise TypeError(f"num_packs is {num_packs!r} of type {type(num_packs).__name__}; an int is accepted")
    if num_packs < 0:
        raise ValueError(f"num_packs is {num_packs}; 0 and more are accepted")
    return max(num_packs, 1)


def _device_name(device: object) -> str | None:
    if device is None:
        return None
    if not isinstance(device, (str, tf.DeviceSpec)):
        raise TypeError(
            f"reduce_to_device is {device!r} of type {type(device).__name__}; the name of a device is accepted, for "
            "example '/device:CPU:0'"
        )
    try:
        spec = tf.DeviceSpec.from_string(device) if isinstance(device, str) else device
    except ValueError as e:
        raise ValueError(
            f"reduce_to_device is {device!r}; the name of a device is accepted, for example '/device:CPU:0'"
        ) from e
    return str(spec.to_string()) or None
