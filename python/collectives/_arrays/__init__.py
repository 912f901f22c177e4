"""Arrays of other libraries in the public calls: views of their memory, and results of the caller's kind.

Each library has a file in ``libraries/``.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from . import buffers, libraries
from .adapted import ACCEPTED, Adapted, Adapter, empty, same, type_name

__all__ = ["Adapted", "adapt", "empty"]

_adapters: weakref.WeakKeyDictionary[type, Adapter] = weakref.WeakKeyDictionary()


def adapt(x: Any, what: str) -> Adapted:
    """A view of the memory of ``x``, and a function that makes an array of its kind from a result.

    Args:
        x: an array of any library.
        what: its name in errors: "x", "x[2]", "out".

    Raises:
        TypeError: its memory cannot be used; the text says why and what to pass.
    """
    kind = type(x)
    if kind is np.ndarray:
        return Adapted(x, True, same)
    adapter = _adapters.get(kind)
    if adapter is None:
        adapter = _find(x, what)
        _adapters[kind] = adapter
    return adapter(x, what)


def _find(x: Any, what: str) -> Adapter:
    """The adapter for the type of ``x``."""
    if isinstance(x, np.ma.MaskedArray):
        return _refuse_masked
    if isinstance(x, np.ndarray):
        return _numpy
    if isinstance(x, np.generic):
        return _refuse_scalar
    found = libraries.find_adapter(x) or buffers.find(x)
    if found is None:
        advice = "; numpy.asarray(x) makes an array of it" if hasattr(x, "__array__") else ""
        raise TypeError(f"{what} is of type {type_name(x)}; {ACCEPTED} is accepted{advice}")
    return found


def _numpy(x: Any, what: str) -> Adapted:
    """Subclasses of numpy.ndarray: matrix, memmap, recarray."""
    return Adapted(np.asarray(x), True, same)


def _refuse_masked(x: Any, what: str) -> Adapted:
    raise TypeError(f"{what} is a masked array, whose mask a collective would ignore; pass x.data or x.filled(value)")


def _refuse_scalar(x: Any, what: str) -> Adapted:
    raise TypeError(
        f"{what} is a scalar of type {type_name(x)}, which cannot be written; pass a numpy.ndarray: numpy.array(x)"
    )
