"""The two tiers of the tests: the short one, which `pytest` runs, and the full one of `pytest --full`.

Where tests walk a product of settings, the short tier runs a sample in which every pair of values that the product has
still occurs: most faults need no more than two settings to show (D. R. Kuhn, D. R. Wallace and A. M. Gallo, "Software
fault interactions and implications for software testing", IEEE Transactions on Software Engineering 30(6), 2004).
Another seed gives another sample: `pytest --seed 5`.

    @pytest.mark.pairwise       on a test with several parameters: thinned when tests are collected
    tiers.thinned(cases)        of a list of cases that one test runs
    tiers.few(3, full=10)       how many repetitions of what is drawn at random
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")

LOOK = 16  # candidates looked at before one is taken: more make the sample smaller by a few percent, and slower to draw

_full = False
_seed = 0


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--full", action="store_true", help="the full products, and what is drawn at random more often")
    group.addoption("--seed", type=int, default=0, metavar="N", help="which sample of the products to run (default: 0)")


def configure(config: pytest.Config) -> None:
    global _full, _seed
    _full, _seed = config.getoption("--full"), config.getoption("--seed")
    config.addinivalue_line("markers", "pairwise: of the product of the parameters, every pair of values is enough")


def full() -> bool:
    return _full


def seed() -> int:
    return _seed


def few(short: int, *, full: int) -> int:
    """How often the present tier does something."""
    return full if _full else short


def thinned(
    cases: Sequence[Case],
    key: Callable[[Case], Sequence[Hashable]] = tuple,
    salt: object = "",  # type: ignore[assignment]
) -> list[Case]:
    """All cases in the full tier; else as few as still have every pair of values, in their order.

    Args:
        key: the values of a case, one for each setting; by default the case is a tuple of them.
        salt: what makes this sample another one than that of other tests with the same cases.
    """
    return list(cases) if _full else pairwise(cases, key, f"{_seed} {salt}")


def pairwise(cases: Sequence[Case], key: Callable[[Case], Sequence[Hashable]], seed: object) -> list[Case]:
    """A small part of the cases in which every pair of values of two settings occurs that occurs in any of them.

    Greedy: as long as a pair is missing, some of the cases that have it are looked at, and the one is taken that brings
    most of what is missing. The same seed gives the same part.
    """
    rng = random.Random(str(seed))
    pairs = [list(itertools.combinations(enumerate(key(case)), 2)) for case in cases]
    having: dict[Any, list[int]] = {}
    for index, own in enumerate(pairs):
        for pair in own:
            having.setdefault(pair, []).append(index)
    missing = set(having)
    order = list(having)
    rng.shuffle(order)
    taken = set()
    for pair in order:
        if pair in missing:
            candidates = having[pair]
            looked_at = rng.sample(candidates, min(LOOK, len(candidates)))
            best = max(looked_at, key=lambda index: sum(p in missing for p in pairs[index]))
            taken.add(best)
            missing.difference_update(pairs[best])
    if not having:  # with fewer than two settings there are no pairs, and nothing is left out
        return list(cases)
    return [case for index, case in enumerate(cases) if index in taken]


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thins the tests marked `pairwise`, each function by itself."""
    if _full:
        return
    functions: dict[tuple[str, str], list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairwise") and hasattr(item, "callspec"):
            name = item.nodeid.partition("::")[2].partition("[")[0]
            functions.setdefault((item.path.name, name), []).append(item)
    left_out = set()
    for (file, name), own in functions.items():
        if len(own) > 1:
            # The seed names no room: a file that moves keeps its sample.
            kept = pairwise(own, _parameters, f"{_seed} tests/{file}::{name}")
            left_out |= {id(item) for item in own} - {id(item) for item in kept}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
        items[:] = [item for item in items if id(item) not in left_out]


def _parameters(item: pytest.Function) -> list[str]:
    """The values of the parameters, as text: values need not be hashable."""
    return [f"{name}={value!r}" for name, value in sorted(item.callspec.params.items())]
