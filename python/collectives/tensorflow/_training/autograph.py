"""Keeps AutoGraph from converting functions of this library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

__all__ = ["do_not_convert"]

Function = TypeVar("Function", bound=Callable[..., Any])


def do_not_convert(function: Function) -> Function:
    """Keeps AutoGraph from converting a function when a ``tf.function`` calls it.

    Our functions need no conversion, since their control flow depends on no tensor; AutoGraph would take seconds to
    find that out.
    """
    made: Function = tf.autograph.experimental.do_not_convert(function)
    return made
