"""tools/mutant_list.py is true to the sources: each wrong line has its place, and each killer exists."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from mutant_list import MUTANTS, Mutant
from paths import ROOT

PROGRAMS = {
    path.stem for path in [*(ROOT / "tests" / "cpp").glob("*_test.cc"), ROOT / "tests" / "fuzz" / "frames_fuzz.cc"]
}
each = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


def test_there_are_forty() -> None:
    assert len(MUTANTS) == 40
    assert not [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1]


@each
def test_its_line_is_there_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1


@each
def test_it_changes_one_line(mutant: Mutant) -> None:
    old, new = mutant.old.splitlines(), mutant.new.splitlines()
    begin = next(i for i in range(len(old)) if i >= len(new) or old[i] != new[i])
    assert old[begin + 1 :] in (new[begin + 1 :], new[begin:])


@each
def test_its_killers_exist(mutant: Mutant) -> None:
    assert mutant.killers
    for killer in mutant.killers:
        if killer.startswith("ctest "):
            assert killer.removeprefix("ctest ") in PROGRAMS
            continue
        names, _, word = killer.partition(" -k ")
        file, *inner = names.split("::")
        text = (ROOT / file).read_text()
        for name in inner:
            assert re.search(rf"(?:def|class) {name}\b", text), f"{file} has no {name}"
        assert not word or word in text
