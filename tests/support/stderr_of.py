"""What tests about failures share: what ranks write to stderr, and a rank that is busy."""

from __future__ import annotations

import time
from typing import Any

import pool
import pytest

LIMIT = 60.0


def read(capfd: pytest.CaptureFixture[str], wanted: str) -> str:
    """What all processes have written, once it has the wanted words."""
    text, end = "", time.monotonic() + LIMIT
    while wanted not in text:
        assert time.monotonic() < end, f"no {wanted!r} in:\n{text}"
        text += capfd.readouterr().err
        time.sleep(0.01)  # a poll: what another process writes cannot be waited for
    return text


def a_function_that_never_stops(say: Any = None) -> None:
    """Python code that keeps the interpreter's lock busy until the rank is told something, which is taken.

    Args:
        say: what the test is told before.
    """
    if say is not None:
        pool.say(say)
    assert pool._parent is not None
    while not pool._parent.poll(0):
        sum(range(1000))
    pool.hear()
