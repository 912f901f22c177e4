"""What the comparison of PyTorch's own tests (tools/torch_distributed_test.py) counts as wrong."""

from __future__ import annotations

import pytest
import torch_distributed_test as tool


def outcomes(**statuses: str) -> tool.Results:
    return {name: {"status": status, "text": f"of {name}", "seconds": 1.0} for name, status in statuses.items()}


def test_what_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tool, "EXPECTED", {"refused": "so it is", "mended": "it was not"})
    theirs = outcomes(good="passed", bad="passed", gone="passed", refused="passed", mended="passed", no="failed")
    ours = outcomes(good="passed", bad="failed", gone="skipped", refused="failed", mended="passed", no="failed")
    assert tool.report(ours, theirs, ["good"]) == 3
    text = capsys.readouterr().out
    assert "FAILS HERE: bad (failed)\n    of bad" in text
    assert "FAILS HERE: gone (skipped)" in text
    assert "expected: refused: so it is" in text
    assert "PASSES, although EXPECTED says: mended" in text
    assert "gloo: 1 failed, 5 passed" in text


def test_nothing_is_wrong() -> None:
    both = outcomes(**dict.fromkeys(("one", "other"), "passed"))
    assert tool.report(both, both, []) == 0
