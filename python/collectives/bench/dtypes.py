"""The element types by their names in nccl-tests, and which operations they have."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .. import _core

OPS = ("sum", "prod", "min", "max", "avg")

_OF_NCCL = {"half": "float16", "float": "float32", "double": "float64"}
_OF_NCCL |= {"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
_IN_TABLES = {own: theirs for theirs, own in _OF_NCCL.items()}

# By the name that tables show; those that nccl-tests does not have, by the name of NumPy.
DTYPES: dict[str, np.dtype[Any]] = {
    _IN_TABLES.get(name, name): np.dtype(getattr(ml_dtypes, name, name)) for name in _core._dtype_names()
}


def find(name: str) -> str:
    """The name in `DTYPES` of a type that is named as nccl-tests or as NumPy does.

    Raises:
        ValueError: there is none.
    """
    shown = _IN_TABLES.get(name, name)
    if shown not in DTYPES:
        also = ", ".join(f"{own} for {theirs}" for theirs, own in _OF_NCCL.items())
        raise ValueError(f"{name!r} is no type; there are all, {', '.join(DTYPES)} (or NumPy's names: {also})")
    return shown


def refusal(op: str, dtype: np.dtype[Any]) -> str:
    """Why values of a type cannot be reduced by an operation, or "none"; empty where they can."""
    if op == "avg" and dtype.kind in "biu":
        return f"avg needs floats, not {dtype}"
    if dtype.kind == "c" and op not in ("sum", "avg", "none"):
        return f"complex numbers have sum and avg only, not {op}"
    return ""
