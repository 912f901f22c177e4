"""Results are of the types that the annotations of the public methods say; and the order of options is one."""

from __future__ import annotations

from typing import Any

import collectives
import numpy as np
import pytest
import typed_calls
from collectives import _core
from collectives._calls.options import CallOptions


def alike(result: Any, expected: Any) -> bool:
    """Whether a result is of the type, the structure and the values of another object."""
    if isinstance(expected, (list, tuple)):
        same = all(alike(r, e) for r, e in zip(result, expected, strict=True))
        return isinstance(result, type(expected)) and same
    return type(result) is type(expected) and bool(np.all(result == expected))


@pytest.mark.parametrize("calls", [typed_calls.dense, typed_calls.parts, typed_calls.messages, typed_calls.handles])
def test_results_have_the_types_that_are_said(calls: Any) -> None:
    (comm,) = collectives.local_group(1)
    with comm:
        pairs = calls(comm, np.arange(3, dtype=np.float32), np.arange(3, dtype=np.float64))
        for number, (result, expected) in enumerate(pairs):
            assert alike(result, expected), f"pair {number}: {result!r} is not like {expected!r}"


def test_options_have_one_order() -> None:
    assert list(CallOptions._fields) == _core._call_options()


def test_options_by_position_are_counted() -> None:
    (comm,) = collectives.local_group(1)
    with comm:
        with pytest.raises(TypeError, match=r"_run_vector\(\) takes 4 to 13 arguments, 3 were given"):
            comm._run_vector("all_gather", np.ones(1), None)
        with pytest.raises(TypeError, match=r"_run_message\(\) takes 4 to 13 arguments, 14 were given"):
            comm._run_message(True, np.ones(1), *range(12))
        with pytest.raises(TypeError, match="a CallOptions is needed, not dict"):
            comm._start("barrier", [], [], None, {})
