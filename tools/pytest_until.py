"""A plugin of pytest: skips tests that have not begun when the time is up, and those of a file that has had its share.

The end is in the variable QUICK_TESTS_END, on the monotonic clock, which all processes share.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

# The share of the time for one file, since others wait behind it.
SHARE = 0.4

_END = float(os.environ.get("QUICK_TESTS_END", "inf"))
_BEGIN = time.monotonic()
_spent: Counter[str] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    share = SHARE * (_END - _BEGIN)
    if time.monotonic() > _END or _spent[item.location[0]] > share:
        pytest.skip("no time was left")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> object:
    begin = time.monotonic()
    try:
        return (yield)
    finally:
        _spent[item.location[0]] += time.monotonic() - begin
