"""The short tier leaves out no pair of values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import tiers
from hypothesis import given
from hypothesis import strategies as st
from paths import SUPPORT

pytest_plugins = ["pytester"]


def pairs(cases: Sequence[Sequence[Any]]) -> set[Any]:
    return {pair for case in cases for pair in itertools.combinations(enumerate(case), 2)}


@given(cases=st.lists(st.tuples(*[st.integers(0, 3)] * 4), max_size=60), seed=st.integers(0, 5))
def test_every_pair_occurs(cases: list[tuple[int, ...]], seed: int) -> None:
    kept = tiers.pairwise(cases, tuple, seed)
    assert pairs(kept) == pairs(cases)
    rest = iter(cases)
    assert all(case in rest for case in kept), "the order is another one"
    assert kept == tiers.pairwise(cases, tuple, seed)


def test_most_of_a_product_is_left_out() -> None:
    product = list(itertools.product(range(10), range(10), range(4), range(4), range(4)))
    samples = [tiers.pairwise(product, tuple, seed) for seed in range(3)]
    assert all(100 <= len(sample) <= 130 for sample in samples)
    assert len({tuple(sample) for sample in samples}) == 3


def test_two_settings_are_a_product() -> None:
    product = list(itertools.product(range(5), range(6)))
    assert tiers.pairwise(product, tuple, 0) == product
    assert tiers.pairwise([(1,), (2,)], tuple, 0) == [(1,), (2,)]


PROGRAM = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("c", range(4))
@pytest.mark.parametrize("b", range(4))
@pytest.mark.parametrize("a", range(4))
def test_thinned(a, b, c):
    pass

@pytest.mark.parametrize("c", range(4))
@pytest.mark.parametrize("b", range(4))
def test_whole(b, c):
    pass
"""
PLUGIN = """
import sys
sys.path.insert(0, {folder!r})
import tiers
pytest_addoption = tiers.add_options
pytest_configure = tiers.configure

def pytest_collection_modifyitems(config, items):
    tiers.deselect(config, items)
"""


@pytest.mark.parametrize(("options", "least", "most"), [([], 16, 24), (["--seed", "3"], 16, 24), (["--full"], 64, 64)])
def test_marked_tests_are_thinned(pytester: pytest.Pytester, options: list[str], least: int, most: int) -> None:
    pytester.makeconftest(PLUGIN.format(folder=str(SUPPORT)))
    pytester.makepyfile(PROGRAM)
    done = pytester.runpytest_subprocess(*options, "-p", "no:cacheprovider", "-p", "no:randomly")
    counts = done.parseoutcomes()
    assert least <= counts["passed"] - 16 <= most
    assert counts.get("deselected", 0) == 80 - counts["passed"]
