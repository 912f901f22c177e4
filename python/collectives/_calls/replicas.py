"""Checks of the arguments of ``cross_device_ops``.

Errors begin with `where`, which names the pair of a batch ("pair 3: "), or is empty.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import _core
from .._arrays import adapt
from .arguments import DTYPES, listed, plain

Array: TypeAlias = npt.NDArray[Any]

OPS = {"sum": "sum", "mean": "avg", "min": "min", "max": "max", "prod": "prod"}  # TensorFlow's name: the core's


def as_arrays(values: object, where: str, what: str = "value {}", copied: bool = False) -> list[Array]:
    """The values as plain arrays.

    Args:
        values: one array per replica.
        where: the start of error messages.
        what: the name of a value in them.
        copied: they are only copied, so every dtype without Python objects is accepted.
    """
    arrays = []
    for i, value in enumerate(as_sequence(values, where)):
        array = adapt(value, f"{where}{what.format(i)}").array
        if copied and array.dtype.hasobject:
            raise TypeError(f"{where}{what.format(i)} has dtype {array.dtype}, which holds Python objects")
        arrays.append(plain(array))
    if not copied:
        check_reducible(arrays, where, what)
    return arrays


def check_reducible(arrays: Sequence[Array], where: str, what: str = "value {}") -> None:
    """Raises TypeError for arrays whose dtype the core does not know."""
    for i, array in enumerate(arrays):
        if _core._dtype_of(array) < 0:
            raise TypeError(
                f"{where}{what.format(i)} has dtype {array.dtype}, which cannot be reduced; "
                f"accepted are {listed(DTYPES)}"
            )


def in_kind_of(value: object, results: list[Array]) -> list[Any]:
    """New arrays as arrays of the library of `value`. Arrays on devices are so already."""
    if isinstance(value, np.ndarray) or not all(isinstance(result, np.ndarray) for result in results):
        return results
    wrap = adapt(value, "value 0").wrap
    return [wrap(result) for result in results]


def as_alike(values: object, name: str, replicas: int, where: str) -> list[Array]:
    """The values as plain arrays, checked to be of one shape and dtype that the op `name` can reduce."""
    arrays = as_arrays(values, where)
    check_alike(arrays, name, replicas, where)
    return arrays


def check_alike(arrays: Sequence[Array], name: str, replicas: int, where: str) -> None:
    """Raises TypeError or ValueError unless the arrays are of one shape and dtype that the op `name` can reduce."""
    first = arrays[0]
    if len(arrays) != replicas:
        raise ValueError(f"{where}there are {len(arrays)} values and pair 0 has {replicas}; one per replica is needed")
    for i, array in enumerate(arrays):
        check_dtype(array, first, i, where)
        if array.shape != first.shape:
            raise ValueError(
                f"{where}value {i} has shape {array.shape} and value 0 has {first.shape}; they must be the same"
            )
    if first.dtype.kind == "b" and name in ("sum", "mean"):
        raise TypeError(
            f"{where}{name} of bool has no meaning; use max for a logical or, min for a logical and, or another dtype"
        )


def check_dtype(array: Array, first: Array, number: int, where: str) -> None:
    if array.dtype != first.dtype:
        raise TypeError(
            f"{where}value {number} has dtype {array.dtype} and value 0 has {first.dtype}; they must be the same"
        )


def as_sequence(values: object, where: str) -> Sequence[Any]:
    """The list of values of a tensor, checked to be a list and not empty."""
    # Lists and tuples first: asking the abstract class is slow.
    if not isinstance(values, (list, tuple)) and (
        not isinstance(values, Sequence) or isinstance(values, (str, bytes, bytearray, memoryview))
    ):
        raise TypeError(
            f"{where}values is of type {type(values).__name__}; a list or tuple with one array per replica is accepted"
        )
    if not values:
        raise ValueError(f"{where}values is empty; one array per replica is needed")
    return values


def count_destinations(destinations: Sequence[int] | None, replicas: int | None, where: str) -> int:
    """The number of destinations, checked to exist; where `replicas` is None, any number from 0 on is accepted."""
    if destinations is None and replicas is not None:
        return replicas
    if not isinstance(destinations, (Sequence, np.ndarray)) or isinstance(destinations, (str, bytes)):
        raise TypeError(
            f"{where}destinations is of type {type(destinations).__name__}; a sequence of replica numbers is accepted"
        )
    if len(destinations) == 0:
        raise ValueError(f"{where}destinations is empty; at least one replica number is needed")
    for i, number in enumerate(destinations):
        what = f"{where}destinations[{i}]"
        if integer(number, what) < 0 or (replicas is not None and number >= replicas):
            exist = "from 0 on" if replicas is None else f"0 to {replicas - 1}"
            raise ValueError(f"{what} is {number}; the number of a replica is accepted, {exist}")
    return len(destinations)


def numbers_of(destinations: Sequence[int] | None, replicas: int) -> list[int]:
    """The replicas that get a result, after `count_destinations`."""
    return list(range(replicas)) if destinations is None else [integer(d, "destination") for d in destinations]


def integer(value: object, what: str) -> int:
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} is {value!r} of type {type(value).__name__}; an integer is accepted") from None


def pack_number(num_packs: int) -> int:
    number = integer(num_packs, "num_packs")
    if not 1 <= number < 1 << 31:
        raise ValueError(f"num_packs is {number}; a number from 1 to {(1 << 31) - 1} is accepted")
    return number


def parse_op(op: object) -> str:
    name = op if isinstance(op, str) else getattr(op, "name", None)
    accepted = "sum, mean, min, max and prod are accepted, or an object of such a name like tf.distribute.ReduceOp.SUM"
    if not isinstance(name, str):
        raise TypeError(f"op is {op!r} of type {type(op).__name__}; {accepted}")
    if name.lower() not in OPS:
        raise ValueError(f"op is {op!r}; {accepted}")
    return name.lower()
