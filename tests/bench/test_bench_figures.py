"""The table of published figures, and what is made of it: rows of runs, tables, pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ABOUT = {
    "command": "python bench/allreduce.py --vs all --tries 1 --json run1.json",
    "date": "2030-01-02T03:04:05+00:00",
    "versions": {"numpy": "2", "impi-rt": "1.2"},
}


def pairs(ours: float, **times: float) -> list[dict[str, object]]:
    """Rows of a run at 8 B: ours, and of each library against ours."""
    shape = {"collective": "all_reduce", "transport": "tcp", "memory": "private", "ranks": 2, "tensors": 1}
    place = {"section": "TCP loopback", "bytes": 8, "level": "c", "placement": "near", "algorithm": "auto"}
    found: list[dict[str, object]] = []
    for name, time_us in times.items():
        for peer, us in ((None, ours), (name, time_us)):
            found.append({**shape, **place, "against": name, "peer": peer, "time_us": us, "time_us_p99": 2 * us})
    return found


@pytest.fixture
def figures(bench_module):
    return bench_module("figures")


@pytest.fixture
def rows(bench_module):
    runs = [{"about": ABOUT, "rows": pairs(ours, impi=3.0, mpich=8.0)} for ours in (1.0, 2.0, 4.0)]
    return bench_module("suite_report").rows_of_runs(runs, "m", "abc", "runs/*.json")


def test_rows_are_medians_of_ratios_within_runs(rows) -> None:
    (row,) = rows
    said = {"machine": "m", "date": "2030-01-02", "engine": "abc", "command": "allreduce.py --vs all --tries 1"}
    assert row.items() >= {**said, "versions": "impi-rt 1.2", "raw": "runs/*.json", "runs": "3"}.items()
    assert row.items() >= {"median": "2.00", "p99": "4.00", "unit": "us", "against": "impi", "ratio": "1.50"}.items()
    assert row["others"] == "mpich 4.00"


def test_lists_are_compared_with_one_tensor(bench_module) -> None:
    place = {"section": "fused 300 tensors", "bytes": 10**8, "level": "c", "placement": "far", "against": None}
    of_run = [
        {**place, "peer": None, "tensors": n, "time_us": us, "time_us_p99": us} for n, us in ((1, 9.0), (300, 10.0))
    ]
    (row,) = bench_module("suite_report").rows_of_runs([{"about": ABOUT, "rows": of_run}], "m", "", "")
    assert (row["what"], row["against"], row["ratio"]) == ("all_reduce of 300 tensors", "one tensor", "0.90")


def test_rows_are_written_and_read_back(figures, rows, tmp_path: Path) -> None:
    file = tmp_path / "figures.csv"
    figures.write(file, rows)
    assert file.read_text().splitlines()[0] == ",".join(figures.FIELDS)
    assert figures.read(file) == rows


def test_rows_of_a_machine_take_the_place_of_older_ones(figures, bench_module, tmp_path, monkeypatch, capsys) -> None:
    file, run = tmp_path / "figures.csv", tmp_path / "run.json"
    other = dict.fromkeys(figures.FIELDS, "") | {"page": "gpu", "machine": "m", "transport": "shm"}
    figures.write(file, [dict(other, page="performance"), other, dict(other, page="performance", transport="")])
    run.write_text(json.dumps({"about": ABOUT, "rows": pairs(1.0, impi=3.0)}))
    report = bench_module("suite_report")
    monkeypatch.setattr(figures, "FIGURES", file)
    monkeypatch.setattr("sys.argv", ["suite_report.py", str(run), "--rows", "m", "--engine", "abc"])
    assert report.main() == 0
    assert [(row["page"], row["ratio"]) for row in figures.read(file)] == [
        *(("performance", "3.00"), ("gpu", ""), ("performance", "")),
    ]
    assert "| 3.00 |" in capsys.readouterr().out


def test_tables_name_the_closest_and_whoever_is_faster(figures, rows) -> None:
    page = "before\n<!-- bench/figures.py: m -->\nold\n<!-- end -->\nafter\n"
    shown = [dict(rows[0], machine="m", page="performance"), dict(rows[0], cores="far", ratio="0.97")]
    text = figures.with_tables(page, shown)
    assert "| 8 B |  |  |  |  | 2.00; 1.50 impi | 2.00; **0.97 impi** |\n" in text
    assert "- TCP loopback, far: 8 B 0.97 impi\n" in text
    assert "near: 8 B" not in text
    assert "old" not in text
    assert text.endswith("<!-- end -->\nafter\n")
    assert figures.with_tables(text, shown) == text


def test_a_picture(figures, rows, tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    figures.draw(rows, file)
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size < 130_000


def test_those_with_whom_nobody_competes_are_never_the_closest(figures) -> None:
    assert figures.closest({"limit": 0.5, "bare": 0.6, "mpich": 8.0, "impi": 3.0}) == "impi"
    assert figures.closest({"limit": 0.5}) == ""
