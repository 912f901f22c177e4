"""The models of the shared-memory protocol hold, and each mutant is found to be wrong (tests/model/check_models.py)."""

from __future__ import annotations

import os
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor

import check_models as check
import pytest
import tiers
from paths import ROOT

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None, reason="it needs the commands `spin` and `gcc`"
)
MODELS = sorted(path.stem for path in check.FOLDER.glob("*.pml"))
# All that hold, and of the mutants in the short tier every sixth, which ones the seed says.
CASES = [case for case in check.HOLD if not case.long]
CASES += [case for number, case in enumerate(check.MUTANTS) if (number + tiers.seed()) % tiers.few(6, full=1) == 0]


@pytest.fixture(scope="module")
def outcomes() -> dict[check.Case, Future[tuple[bool, str]]]:
    """All cases, on all cores at once."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return {case: pool.submit(check.check, case) for case in CASES}


@needs_spin
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_model(case: check.Case, outcomes: dict[check.Case, Future[tuple[bool, str]]]) -> None:
    good, text = outcomes[case].result()
    assert good, text


@pytest.mark.parametrize("model", MODELS)
def test_every_step_is_taken_out_once(model: str) -> None:
    mutants = [set(case.defines.split()) for case in check.MUTANTS if case.model == model]
    tried = {define for defines in mutants for define in defines if define.startswith("NO_")}
    assert check.steps(model) == tried


@pytest.mark.parametrize("model", MODELS)
def test_functions_that_models_name_exist(model: str) -> None:
    """Comments say which function of the C++ a piece stands for."""
    comments = " ".join(re.findall(r"/\*.*?\*/", (check.FOLDER / f"{model}.pml").read_text(), re.DOTALL))
    sources = [path.read_text() for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cc")]
    names = re.findall(r"\b(?:([A-Z]\w+)::)?(\w+)\(\)", comments)
    assert names or model == "fifo"
    for owner, name in names:
        if (owner, name) != ("", "poll"):
            assert any(re.search(rf"\b{name}\(", text) and owner in text for text in sources), f"{owner}::{name}()"
