"""What `.ci/run` asks of the time that tests take."""

from __future__ import annotations

from pathlib import Path

import check_durations
import pytest
from paths import ROOT
from sharing import WORKERS_OF_A_CORE

REPORT = """<testsuites><testsuite time="99">
<testcase classname="tests.test_a" name="x" time="100.0"/>
<testcase classname="tests.test_a.TestThis" name="x[1]" time="20.5"/>
<testcase classname="tests.test_b" name="y" time="120.5"><failure message="no"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def report(tmp_path: Path) -> str:
    file = tmp_path / "report.xml"
    file.write_text(REPORT)
    return str(file)


def test_the_sum_over_the_processes_counts(report: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_durations.main([report, "--minutes", "2.00", "--processes", "2"]) == 1
    text = capsys.readouterr().out
    assert "120.5 s  tests/test_a.py" in text
    assert "more than 2 minutes" in text
    assert check_durations.main([report, "--minutes", "2.01", "--processes", "2"]) == 0
    assert "241.0 s in all, in 2 processes: 2.0 minutes each" in capsys.readouterr().out


def test_the_budget_is_that_of_the_documents() -> None:
    run, page = (ROOT / ".ci" / "run").read_text(), (ROOT / "docs" / "testing.md").read_text()
    assert f"--minutes 25 --processes $(({WORKERS_OF_A_CORE} * $(nproc)))" in run
    assert "MOST=3600" in run
    assert "`pytest` may take 25 minutes, `.ci/run` an hour" in page
