"""`collectives tune`: a short form of it, and what it makes of times."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
from collectives._startup import profile
from collectives._startup.overrides import parse
from collectives.launch import tune
from collectives.launch.cli import main
from collectives.launch.tune import Kind, Loss

LIMIT = 240  # seconds; it takes a few


def test_it_writes_a_profile_that_can_be_used(tmp_path):
    file = tmp_path / "new" / "profile.json"
    done = subprocess.run(
        [sys.executable, "-m", "collectives", "tune", "--output", str(file), "--ranks", "2", "--seconds", "1"],
        env={**os.environ, "COLLECTIVES_ALGORITHM": "all_reduce:0-=ring", "COLLECTIVES_RANK": "7"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"COLLECTIVES_PROFILE={file}" in done.stdout
    found = profile.read(str(file))
    assert found.problem == ""
    assert "copy_byte_ps" in found.costs
    for name in profile.COSTS:
        assert f"  {name} " in done.stdout
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_a_file_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["tune", "--output", str(tmp_path / "file" / "profile.json")]) == 1
    assert "collectives tune: " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--ranks", "1"], ["--ranks", "x"], ["--seconds", "0"]])
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["tune", *arguments])
    assert arguments[0] in capsys.readouterr().err


def test_where_it_writes(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert tune.default_path() == tmp_path / "collectives" / "profile.json"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tune.default_path() == tmp_path / ".config" / "collectives" / "profile.json"


def times_of(latency, rates):
    """Nanoseconds of the calls that are timed, where a byte of each algorithm takes so many."""
    found = {}
    for kind in (*tune._MAPPED, *tune._TCP, *tune._CROWDED):
        found[kind] = (
            latency * (2 if kind.algorithm == "ring" else 1) + kind.nbytes * rates[kind.algorithm, kind.symmetric]
        )
    return found


def test_costs_are_what_the_model_would_need_for_the_times():
    rates = {("one_shot", False): 0.05, ("one_shot", True): 0.08, ("two_shot", False): 0.04, ("ring", False): 0.2}
    times = times_of(1000, rates)
    mapped = tune.mapped_costs(times, 200, reduce_byte_ps=40)
    assert mapped["host_latency_ns"] == 200
    assert mapped["host_bytes_per_ms"] == pytest.approx(25_000_000)
    assert mapped["host_swapped_bytes_per_ms"] == pytest.approx(20_000_000)
    assert mapped["host_shared_bytes_per_ms"] == pytest.approx(12_500_000)
    assert mapped["mapped_byte_ps"] == pytest.approx((200 - 20) / 2)
    tcp = tune.tcp_costs(times_of(14_000, rates), 1000, reduce_byte_ps=40)
    assert tcp["send_message_ns"] + tcp["receive_message_ns"] == pytest.approx(11_000, rel=1e-3)
    assert tcp["send_byte_ps"] + tcp["receive_byte_ps"] == pytest.approx(180)
    crowded = tune.crowded_costs(times_of(4000, rates), 1000, ranks=4)
    assert crowded["crowded_latency_ns"] == pytest.approx(3000, rel=1e-3)
    assert crowded["crowded_bytes_per_ms"] == pytest.approx(1.5 * 25_000_000)
    assert crowded["crowded_shared_bytes_per_ms"] == pytest.approx(3 * 20_000_000)


def test_times_that_shrink_give_no_rate():
    times = {Kind("ring", 8): 5.0, Kind("ring", 16): 4.0}
    assert math.isnan(tune._per_byte(times, "ring", 8, 16))


def test_losses_become_overrides_around_their_sizes():
    losses = [
        Loss("all_reduce", tune._SIZES[0], "one_shot", 2.0, "ring", 1.0),
        Loss("all_reduce", 1 << 10, "one_shot", 2.0, "two_shot", 1.0),
        Loss("broadcast", tune._SIZES[-1], "one_shot", 2.0, "tree", 1.0),
    ]
    text = tune.overrides_of(losses)
    assert text == "all_reduce:0-256=ring,256-4096=two_shot;broadcast:1048576-=tree"
    assert len(parse(text)) == 3
