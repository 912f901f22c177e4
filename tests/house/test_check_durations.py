"""What `.ci/run` asks of the time that tests take."""

from __future__ import annotations

import re
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


def test_a_slow_hour_counts_up_to_twice(report: str, capsys: pytest.CaptureFixture[str]) -> None:
    minute = [report, "--minutes", "1", "--processes", "2", "--slower"]
    assert check_durations.main([*minute, "1/3"]) == 1
    assert "more than 1 minutes" in capsys.readouterr().out
    assert check_durations.main([*minute, "9"]) == 1
    assert "more than 2 minutes" in capsys.readouterr().out
    assert check_durations.main([*minute[:2], "1.1", *minute[3:], "547/273"]) == 0


def test_the_budget_is_that_of_the_documents() -> None:
    run, page = (ROOT / ".ci" / "run").read_text(), (ROOT / "docs" / "testing.md").read_text()
    assert f"--minutes 31 --processes $(({WORKERS_OF_A_CORE} * $(nproc)))" in run
    assert "MOST=3600" in run
    usual = re.search(r"USUAL=(\d+)", run)
    assert usual
    assert re.search(rf"`readme_first` .* {usual[1]} \|", page)
    assert "`pytest` may take 31 minutes, `.ci/run` an hour" in page
