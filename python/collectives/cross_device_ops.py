"""Reductions over the replicas of one process: the classes of ``tf.distribute.CrossDeviceOps``, for arrays.

>>> import numpy as np
>>> from collectives.cross_device_ops import RingAllReduce
>>> ops = RingAllReduce()
>>> sums = ops.reduce("sum", [np.ones(3), np.full(3, 2.0)])  # one array per replica, before and after

A *replica* is one of n copies of a model that one process trains, each on a device of its own. All replicas of a
process share its memory, so no data travels: each input is read once, each output is written once, and several threads
share the work on large arrays. The three algorithms differ only in the order in which they combine values, hence in how
sums are rounded. Every class gives the same bits in every run and for every number of threads
(``COLLECTIVES_NUM_THREADS``).

Arrays on CUDA devices stay there: a replica is on the device of its array, and work is queued in the streams of the
arrays' libraries.

Names, arguments and meaning are those of TensorFlow's classes. Devices are numbers: replica r is device r.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np

from . import _core
from ._arrays.device_operands import any_on_device, stand_ins
from ._calls.replicas import (
    OPS,
    Array,
    as_alike,
    as_arrays,
    as_sequence,
    check_dtype,
    count_destinations,
    in_kind_of,
    integer,
    numbers_of,
    pack_number,
    parse_op,
)
from ._devices import nccl_replicas
from ._devices import replicas as _device_replicas
from ._startup.environment import read_num_threads

__all__ = ["CrossDeviceOps", "HierarchicalCopyAllReduce", "NcclAllReduce", "ReductionToOneDevice", "RingAllReduce"]

_SHORT_RUN = 8  # bytes in a row; NumPy copies shorter ones faster, by loops for fixed sizes


class _NamedOp(Protocol):
    @property
    def name(self) -> str: ...


Op: TypeAlias = "str | _NamedOp"
_Pair: TypeAlias = "tuple[Sequence[Array], Sequence[int] | None]"


class CrossDeviceOps(abc.ABC):
    """The base of the classes below. Inputs are never changed, and every output has memory of its own.

    ``op`` is ``"sum"``, ``"mean"``, ``"min"``, ``"max"`` or ``"prod"``, or an object with such a ``name``, as
    ``tf.distribute.ReduceOp`` has it; case does not matter. Sums and products of integers wrap. The mean of integers is
    their (wrapped) sum, divided: float64 for 32 and 64 bits, float32 for 8 and 16, as TensorFlow has it. All other
    results have the dtype of the inputs. 16-bit floats are combined in float32. sum and mean of bool are a TypeError.

    Raises (all methods):
        TypeError: a value is no array, dtypes differ, or ``op`` has no meaning for the dtype.
        ValueError: ``op`` is unknown, shapes or numbers of replicas differ, a list is empty, or a destination is out of
            range.
    """

    def __init__(self) -> None:
        _core._limit_threads(read_num_threads())

    @abc.abstractmethod
    def _combination(self, replicas: int) -> tuple[str, int]:
        """The name of the order in which the core combines values, and into how many packs it splits a batch."""

    def reduce(self, op: Op, values: Sequence[Array], destinations: Sequence[int] | None = None) -> list[Array]:
        """Reduces one tensor over all replicas.

        Args:
            op: see the class.
            values: one array per replica, of the same shape and dtype.
            destinations: numbers of the replicas that get the result; ``None``: all.

        Returns:
            One array per destination, in their order.
        """
        return self._reduce(op, [(values, destinations)], [""])[0]

    def batch_reduce(self, op: Op, pairs: Sequence[_Pair]) -> list[list[Array]]:
        """Reduces several tensors in one pass.

        Args:
            op: see the class.
            pairs: ``(values, destinations)`` for each tensor, as ``reduce`` takes them. Shapes, dtypes and destinations
                may differ between pairs, the number of replicas may not.

        Returns:
            What ``reduce`` returns, for each pair.
        """
        if not isinstance(pairs, (list, tuple)):
            raise TypeError(
                f"pairs is of type {type(pairs).__name__}; a list of (values, destinations) pairs is accepted"
            )
        for i, pair in enumerate(pairs):
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise TypeError(f"pair {i} is of type {type(pair).__name__}; a (values, destinations) pair is accepted")
        if not pairs:
            raise ValueError("the batch is empty; at least one (values, destinations) pair is needed")
        return self._reduce(op, pairs, [f"pair {i}: " for i in range(len(pairs))])

    def broadcast(self, value: Array, destinations: Sequence[int]) -> list[Array]:
        """Copies one array, of any dtype without Python objects, to several replicas.

        Copies of an array on a CUDA device are on that device.

        Args:
            value: the array.
            destinations: numbers of the replicas that get a copy.

        Returns:
            One array per destination, in their order.
        """
        if any_on_device(value):
            return _device_replicas.broadcast(value, count_destinations(destinations, None, ""))
        (array,) = as_arrays([value], "", "value", copied=True)
        return in_kind_of(value, _copies(array, count_destinations(destinations, None, "")))

    def gather(self, values: Sequence[Array], axis: int, destinations: Sequence[int] | None = None) -> list[Array]:
        """Concatenates the arrays of all replicas.

        Args:
            values: one array per replica, of one dtype (any without Python objects) and at least one dimension; shapes
                may differ along ``axis`` only.
            axis: from ``-ndim`` to ``ndim - 1``.
            destinations: numbers of the replicas that get the result; ``None``: all.

        Returns:
            One array per destination, in their order.
        """
        on_devices = _device_replicas.seen(values, "") if any_on_device(list(as_sequence(values, ""))) else None
        arrays = as_arrays(values, "", copied=True) if on_devices is None else stand_ins(on_devices)
        first = arrays[0]
        number = integer(axis, "axis")
        if not -first.ndim <= number < first.ndim:
            accepted = f"{-first.ndim} to {first.ndim - 1} are accepted" if first.ndim else "there is none"
            raise ValueError(f"axis is {number} and value 0 has {first.ndim} dimensions; {accepted}")
        number %= first.ndim
        for i, array in enumerate(arrays):
            check_dtype(array, first, i, "")
            if array.ndim != first.ndim or any(
                a != b for d, (a, b) in enumerate(zip(array.shape, first.shape, strict=True)) if d != number
            ):
                raise ValueError(
                    f"value {i} has shape {array.shape} and value 0 has {first.shape}; they may differ along axis "
                    f"{number} only"
                )
        if on_devices is not None:
            count_destinations(destinations, len(arrays), "")
            return _device_replicas.gather(on_devices, number, numbers_of(destinations, len(arrays)))
        shape = list(first.shape)
        shape[number] = sum(array.shape[number] for array in arrays)
        results = [np.empty(shape, first.dtype) for _ in range(count_destinations(destinations, len(arrays), ""))]
        runs = math.prod(shape[:number]) * len(arrays)
        if results[0].nbytes >= _SHORT_RUN * runs:
            _core._gather_replicas(arrays, number, results)
        else:
            np.concatenate(arrays, number, out=results[0])
            _core._gather_replicas(results[:1], 0, results[1:])
        return in_kind_of(values[0], results)

    def _reduce(self, op: Op, pairs: Sequence[_Pair], where: list[str]) -> list[list[Array]]:
        """`where` names each pair in errors."""
        name = parse_op(op)
        lists: list[Sequence[Array]] = [values for values, _ in pairs]
        replicas = len(as_sequence(lists[0], where[0]))
        order = self._combination(replicas)
        counts = [
            replicas if destinations is None else count_destinations(destinations, replicas, w)
            for (_, destinations), w in zip(pairs, where, strict=True)
        ]
        results = _run(name, order, lists, counts)
        if results is None and any_on_device(*map(list, map(as_sequence, lists, where))):
            owners = [numbers_of(destinations, replicas) for _, destinations in pairs]
            return _device_replicas.reduce(name, order, lists, owners, where)
        if results is None:  # an argument is wrong, or needs a copy
            lists = [as_alike(values, name, replicas, w) for values, w in zip(lists, where, strict=True)]
            results = _run(name, order, lists, counts)
            assert results is not None
        return [in_kind_of(values[0], made) for (values, _), made in zip(pairs, results, strict=True)]


class RingAllReduce(CrossDeviceOps):
    """Ring all-reduce: one replica after another, each part of the data starting at another replica.

    The arrays of one dtype in a batch are one buffer, in the given order. It is split into ``num_packs`` packs by
    number of elements (the remainder goes to the last), and each pack into n parts. Part p is
    ``((x[p] + x[p+1]) + x[p+2]) + ...`` around the ring of replicas; 16-bit floats are rounded after each addition,
    as in a ring that sends them on. With one pack the results have the bits of
    ``comm.all_reduce(arrays, algorithm="ring")``.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

    Args:
        num_packs: number of packs, at least 1.
    """

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__()
        self._num_packs = pack_number(num_packs)

    def _combination(self, replicas: int) -> tuple[str, int]:
        return "chain", self._num_packs


class HierarchicalCopyAllReduce(CrossDeviceOps):
    """Hierarchical copy: two halves of the replicas are summed, then the two sums are.

    The halves are the first ceil(n/2) and the last floor(n/2) replicas, and each is combined along a binary tree.
    (TensorFlow takes n // 2 for both, which drops the last replica when n is odd.) 16-bit floats are rounded when a
    half is done and again at the end. The results have the bits of
    ``comm.all_reduce(x, algorithm="hierarchical_copy")``.

    In TensorFlow, pack i is summed on the main devices i % n and (i + n // 2) % n. For even n that decides only which
    of the two sums is the first operand of the last addition, which is commutative. So the number of packs changes
    neither the results nor, in one memory, the time.

    Source: TensorFlow, ``tf.distribute.HierarchicalCopyAllReduce``.

    Args:
        num_packs: number of packs, at least 1.
    """

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__()
        self._num_packs = pack_number(num_packs)

    def _combination(self, replicas: int) -> tuple[str, int]:
        return "halves", self._num_packs


class ReductionToOneDevice(CrossDeviceOps):
    """Reduction on one device, then copies: replicas 0 to n-1 along one binary tree, rounded once.

    The results have the bits of ``comm.all_reduce(x, algorithm="reduce_to_one")``, and of every algorithm with
    ``deterministic=True``.

    Source: TensorFlow, ``tf.distribute.ReductionToOneDevice``.

    Args:
        reduce_to_device: number of the replica that does the work; ``None``: any. It must exist; in one memory it makes
            no other difference.
    """

    def __init__(self, reduce_to_device: int | None = None) -> None:
        super().__init__()
        self._device = None if reduce_to_device is None else integer(reduce_to_device, "reduce_to_device")
        if self._device is not None and self._device < 0:
            raise ValueError(f"reduce_to_device is {self._device}; the number of a replica is accepted, from 0 on")

    def _combination(self, replicas: int) -> tuple[str, int]:
        if self._device is not None and self._device >= replicas:
            raise ValueError(
                f"reduce_to_device is {self._device} and there are {replicas} values; 0 to {replicas - 1} are accepted"
            )
        return "canonical", 1


class NcclAllReduce(CrossDeviceOps):
    """All-reduce by NCCL over arrays on GPUs of this process, each on a device of its own.

    Calls are queued in the current streams of the arrays' library, or in the streams that the arrays name; the host
    waits for no device. Results are new arrays of the kind of the inputs, on the devices of the replicas. NCCL chooses
    the order in which values are combined.

    Arrays in the memory of the host are a TypeError: use the other classes for them. So is the mean of integers.
    BackendError: NCCL is missing, has failed or lacks the reduction, or two arrays are on one device.

    Source: TensorFlow, ``tf.distribute.NcclAllReduce``.

    Args:
        num_packs: how many NCCL calls a batch is packed into, at least 1.
    """

    def __init__(self, num_packs: int = 1) -> None:
        self._num_packs = pack_number(num_packs)

    def _combination(self, replicas: int) -> tuple[str, int]:
        raise NotImplementedError  # NCCL decides

    def _reduce(self, op: Op, pairs: Sequence[_Pair], where: list[str]) -> list[list[Array]]:
        return nccl_replicas.reduce(parse_op(op), pairs, where, self._num_packs)

    def broadcast(self, value: Array, destinations: Sequence[int]) -> list[Array]:
        """Copies one array to the devices with these numbers."""
        return nccl_replicas.broadcast(value, destinations)

    def gather(self, values: Sequence[Array], axis: int, destinations: Sequence[int] | None = None) -> list[Array]:
        """Concatenates the arrays of all replicas along axis 0, the only one that NCCL can do without copies."""
        return nccl_replicas.gather(values, axis, destinations)


def _run(
    name: str, order: tuple[str, int], lists: Sequence[Sequence[Array]], counts: list[int]
) -> list[list[Array]] | None:
    """Reduces each list into `counts` new arrays; None where the core cannot (shapes differ, or a copy is needed)."""
    request: list[tuple[Sequence[Array], str, int]] = []
    integers = []  # lists whose sum is still to be divided
    for i, (values, count) in enumerate(zip(lists, counts, strict=True)):
        if not isinstance(values, (list, tuple)) or not values:
            return None
        kind = getattr(getattr(values[0], "dtype", None), "kind", "")
        if kind == "b" and name in ("sum", "mean"):
            return None
        if kind and kind in "iu" and name == "mean":
            integers.append(i)
            request.append((values, "sum", 1))
        else:
            request.append((values, OPS[name], count))
    results: list[list[Array]] | None = _core._reduce_replicas(*order, request)
    if results is not None:
        for i in integers:
            results[i] = _mean(results[i][0], len(lists[i]), counts[i])
    return results


def _mean(total: Array, replicas: int, count: int) -> list[Array]:
    """`count` arrays with the sum of integers divided by the number of replicas."""
    mean = np.empty(total.shape, np.float64 if total.dtype.itemsize >= 4 else np.float32)
    np.true_divide(total, replicas, out=mean, dtype=mean.dtype)
    return [mean, *_copies(mean, count - 1)]


def _copies(array: Array, count: int) -> list[Array]:
    copies = [np.empty(array.shape, array.dtype) for _ in range(count)]
    if copies:
        _core._gather_replicas([array], 0, copies)
    return copies
