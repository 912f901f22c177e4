"""Proof that a call does not take the way through Python that does anything."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

GENERAL = ("dense", "vector", "send", "recv")


def no_general_way() -> Callable[[], None]:
    """Makes the general way fail in this process; returns what undoes it."""
    device = importlib.import_module("collectives._devices.dispatch")
    before = {name: getattr(device, name) for name in GENERAL}

    def refuse(*_: Any) -> None:
        raise AssertionError("the call took the general way")

    for name in GENERAL:
        setattr(device, name, refuse)

    def undo() -> None:
        for name, function in before.items():
            setattr(device, name, function)

    return undo
