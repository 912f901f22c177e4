"""The libraries whose arrays calls accept: a file each in this folder, found by being there.

A file has the name of the module that users import, and one object, ``ARRAYS``. Nothing is imported for a library: one
whose array a caller passes is loaded already. Objects of any other library are accepted by the protocols that they have
(buffers.py, device_interface.py).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

from ..adapted import Adapter
from ..device import Library


class Arrays:
    """The arrays of one library. ``module`` is the imported library itself."""

    def adapter(self, module: Any, x: Any) -> Adapter | None:
        """What adapts arrays of the type of `x` in the memory of the host; None when the library has no such type."""
        return None

    def on_devices(self, module: Any, x: Any) -> Library | None:
        """The same for the memory of devices, whether or not `x` itself is there."""
        return None


@functools.cache
def _known() -> dict[str, Arrays]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}").ARRAYS for name in names}


def _loaded() -> Iterator[tuple[Arrays, Any]]:
    for name, arrays in _known().items():
        if (module := sys.modules.get(name)) is not None:
            yield arrays, module


def find_adapter(x: Any) -> Adapter | None:
    """The adapter for arrays of the type of `x`, None when no library that is loaded knows it."""
    return next((found for arrays, module in _loaded() if (found := arrays.adapter(module, x)) is not None), None)


def find_on_devices(x: Any) -> Library | None:
    """The library of arrays of the type of `x` for those on devices, None when none that is loaded has any."""
    return next((found for arrays, module in _loaded() if (found := arrays.on_devices(module, x)) is not None), None)
