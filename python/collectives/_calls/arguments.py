"""Checks of the arguments of collective calls, and arrays in the form that the core needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _core
from .._arrays.per_rank import PerRank
from .options import CallOptions

Array: TypeAlias = npt.NDArray[Any]
Arrays = TypeVar("Arrays", bound="Array | Sequence[Array]")  # of x
Out = TypeVar("Out", bound="Array | Sequence[Array] | PerRank")  # of out
Parts = TypeVar("Parts", bound="Array | Sequence[Array] | PerRank")  # of x, where a result has as many parts

_FOREVER = 1e9  # seconds; the core counts nanoseconds in 64 bits, and infinity is an accepted time limit
PREFIX = ("scan", "exscan")
REDUCING = ("all_reduce", "reduce", "reduce_scatter", *PREFIX)
DTYPES = _core._dtype_names()


def check_options(size: int, options: CallOptions) -> None:
    """Checks the options of a call in a group of so many ranks. Raises TypeError or ValueError."""
    # They are what the caller gave, of any type.
    _, timeout, name, _, algorithm, op, root, _, factor = options
    check_type("op", op, str)
    check_type("algorithm", algorithm, str)
    check_type("root", root, (int, np.integer))
    check_type("name", name, (str, type(None)))
    if not 0 <= root < size:
        raise ValueError(f"root {root} is out of range: the group has ranks 0 to {size - 1}")
    if timeout is not None and not (is_number(timeout) and timeout > 0):
        raise ValueError(f"timeout is {timeout!r}; a positive number of seconds is accepted")
    if isinstance(timeout, int) and timeout.bit_length() > 1024:
        raise ValueError(f"timeout is an int of {timeout.bit_length()} bits; a float, which it does not fit, is needed")
    if isinstance(name, str) and not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name):
        raise ValueError(f"name is {name!r}, which has half of a surrogate pair; text that UTF-8 can hold is accepted")
    if factor is not None and not is_number(factor):
        raise TypeError(f"factor is {factor!r} of type {type(factor).__name__}; a number is accepted")
    if isinstance(factor, int) and factor.bit_length() > 1024:
        raise ValueError(f"factor is an int of {factor.bit_length()} bits; a float, which it does not fit, is needed")
    if (op == "premul_sum") != (factor is not None):
        raise ValueError(f"op is {op!r} and factor is {factor!r}; op='premul_sum' takes a factor, and no other op does")


def check_type(name: str, value: object, accepted: type | tuple[type, ...]) -> None:
    """Raises TypeError unless the value is of an accepted type."""
    if not isinstance(value, accepted) or isinstance(value, bool):
        names = " or ".join(t.__name__ for t in (accepted if isinstance(accepted, tuple) else (accepted,)))
        raise TypeError(f"{name} is {value!r} of type {type(value).__name__}; {names} is accepted")


def patience_of(communicator: _core.Communicator, timeout: float | None) -> float:
    """The time limit of a call, by default that of the communicator, in seconds that the core can count."""
    if timeout is not None and not (is_number(timeout) and timeout > 0):
        raise ValueError(f"timeout is {timeout!r}; a positive number of seconds is accepted")
    patience: float = _core._describe(communicator)["timeout"] if timeout is None else timeout
    return float(min(patience, _FOREVER))


def is_number(value: object) -> bool:
    """Whether it is an int or a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_dtypes(inputs: list[Array], collective: str, op: str) -> None:
    """Raises TypeError unless the arrays have one element type that the collective supports."""
    for i, array in enumerate(inputs):
        if _core._dtype_of(array) < 0:
            raise TypeError(
                f"dtype {array.dtype} of tensor {i} cannot take part in a collective; accepted are {listed(DTYPES)}"
            )
        if array.dtype.newbyteorder("=") != inputs[0].dtype.newbyteorder("="):
            raise TypeError(
                f"tensor {i} has dtype {array.dtype} and tensor 0 has {inputs[0].dtype}; one call takes one dtype"
            )
    if collective in PREFIX and op == "avg":
        raise TypeError(f"{collective} has no op 'avg': each rank would divide by another number; divide its sum")
    if inputs and collective in REDUCING:
        check_op(op, DTYPES[_core._dtype_of(inputs[0])])


def gets_result(collective: str, root: int, rank: int) -> bool:
    """Whether a dense collective gives this rank a result; a rank of an exscan without one gets None."""
    return rank == root if collective == "reduce" else collective != "exscan" or rank > 0


def check_op(op: str, dtype: str) -> None:
    """Raises ValueError when there is no such op, TypeError when it has no meaning for the dtype."""
    if not _core._has_kernel(op, dtype):
        ops = [other for other in _core._op_names() if _core._has_kernel(other, dtype)]
        dtypes = [other for other in DTYPES if _core._has_kernel(op, other)]
        raise TypeError(
            f"op {op!r} has no meaning for dtype {dtype}: {dtype} takes {listed(ops)}; {op} takes {listed(dtypes)}"
        )


def listed(names: list[str]) -> str:
    """Names as an English list: "a, b and c"."""
    return f"{', '.join(names[:-1])} and {names[-1]}"


def check_outputs(inputs: list[Array], outputs: list[Array]) -> None:
    """Raises ValueError unless each output has the shape and dtype of its input."""
    if len(inputs) != len(outputs):
        raise ValueError(f"x has {len(inputs)} tensors and out has {len(outputs)}")
    for i, (source, target) in enumerate(zip(inputs, outputs, strict=True)):
        if source.shape != target.shape or source.dtype.newbyteorder("=") != target.dtype.newbyteorder("="):
            raise ValueError(
                f"out[{i}] has shape {target.shape} and dtype {target.dtype}, x[{i}] has {source.shape} and "
                f"{source.dtype}; they must be the same"
            )


def is_plain(a: Array) -> bool:
    """Whether the core can work on the array as it is."""
    return bool(a.flags.c_contiguous and a.flags.aligned and a.dtype.isnative)


def plain(a: Array) -> Array:
    """The array itself, or a contiguous copy in native byte order."""
    return a if is_plain(a) else np.array(a, dtype=a.dtype.newbyteorder("="), order="C")


def same_memory(a: Array, b: Array) -> bool:
    """Whether two arrays begin at the same address."""
    return bool(a.ctypes.data == b.ctypes.data)
