"""What AutoGraph leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

__all__ = ["as_written"]

Function = TypeVar("Function", bound=Callable[..., Any])


def as_written(function: Function) -> Function:
    """A function of this library as it is, where a ``tf.function`` calls it.

    Nothing in it depends on the value of a tensor. To find that out takes AutoGraph seconds for each program.
    """
    made: Function = tf.autograph.experimental.do_not_convert(function)
    return made
