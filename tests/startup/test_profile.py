"""Profiles: what a file says of a kind of machine, and that all ranks count with the same."""

from __future__ import annotations

import json

import collectives
import numpy as np
import pytest
from collectives import _core
from collectives._startup import profile
from collectives._startup.environment import read_environment
from collectives._startup.overrides import Override
from collectives._startup.profile import COSTS, Machine, ProfileOverride, read, text_of
from joining import job

HERE = Machine("x86_64 Some CPU", 8)


def text(**keys: object) -> str:
    """A file with a key a line; keys that are None are left out."""
    has = {"format": 1, "made_by": "a test", "cpu": HERE.cpu, "cores": HERE.cores} | keys
    return json.dumps({key: value for key, value in has.items() if value is not None}, indent=2)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "profile.json"


def test_what_is_written_is_read(file):
    costs = {name: low + 7 for name, (low, _) in COSTS.items()}
    profile.write(file, text_of(HERE, "a test", costs, {2: "all_reduce:0-4k=ring", 0: "broadcast:0-=tree"}))
    found = read(str(file), HERE)
    assert found.problem == ""
    assert found.costs == costs
    assert found.machine == HERE
    assert found.overrides == (
        ProfileOverride(Override("all_reduce", 0, 4096, "ring"), 2),
        ProfileOverride(Override("broadcast", 0, 1 << 62, "tree"), 0),
    )
    lines = file.read_text().splitlines()
    assert len(lines) == len(costs) + 8
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_the_digest_is_of_the_contents(file):
    file.write_text(text())
    first = read(str(file), HERE).digest
    file.write_text(text(host_latency_ns=150))
    assert len({first, read(str(file), HERE).digest, ""}) == 3


@pytest.mark.parametrize(
    ("contents", "line", "words"),
    [
        ("", "line 1 is ''", "this is not JSON"),
        (
            '{\n  "format": 1,\n  "cores": 8x\n}',
            "line 3 is '\"cores\": 8x'",
            "this is not JSON: Expecting ',' delimiter",
        ),
        ("[" * 60_000, "line 1 is '[[[[", "nested too deeply"),
        ("[1]", "line 1 is '[1]'", "a profile is a JSON object"),
        (text(format=None), "line 1 is '{'", "no line says the format"),
        (text(format=2), "line 2 is '\"format\": 2,'", "reads the format 1; run `collectives tune`"),
        (text(format=True), "line 2 is '\"format\": true,'", "reads the format 1"),
        (text(host_latency=5), "line 6 is '\"host_latency\": 5'", "no such key; did you mean host_latency_ns?"),
        (text(send_byte_ps=0), "line 6 is '\"send_byte_ps\": 0'", "an integer from 1 to 100000"),
        (text(host_bytes_per_ms=-5), "line 6 is '\"host_bytes_per_ms\": -5'", "an integer from 100000 to"),
        (
            text(host_bytes_per_ms=10**15),
            "line 6 is '\"host_bytes_per_ms\": 1000000000000000'",
            "an integer from 100000 to",
        ),
        (text(resume_ns=1.5), "line 6 is '\"resume_ns\": 1.5'", "an integer from 1"),
        (text(resume_ns=True), "line 6 is '\"resume_ns\": true'", "an integer from 1"),
        (text(resume_ns="9"), 'line 6 is \'"resume_ns": "9"\'', "an integer from 1"),
        (text(cores=0), "line 5 is '\"cores\": 0'", "cores is an integer from 1 on"),
        (text(cpu=5), "line 4 is '\"cpu\": 5,'", "cpu is a text in quotes"),
        (text(cpu=None), "it has no line with 'cpu'", "run `collectives tune`"),
        (text(algorithm=5), "line 6 is '\"algorithm\": 5'", "algorithm is a text in quotes"),
        (text(algorithm="all_reduce:0-=rings"), 'line 6 is \'"algorithm": "all_reduce:0-=rings"\'', "no algorithm of"),
        (text(algorithm_2_ranks="ring"), 'line 6 is \'"algorithm_2_ranks": "ring"\'', "has no collective and colon"),
        (text(cores=2), "line 5 is '\"cores\": 2'", "this machine has 8; run `collectives tune`"),
        (
            text(cpu="Other"),
            'line 4 is \'"cpu": "Other",\'',
            "this machine has 'x86_64 Some CPU'; run `collectives tune`",
        ),
        (text()[:-2] + ',\n  "cores": 8\n}', "line 6 is '\"cores\": 8'", "'cores' is there twice"),
        (" " * 70_000, "it has 70000 bytes", "at most 65536"),
    ],
)
def test_what_cannot_be_used_is_quoted(file, contents, line, words):
    file.write_text(contents)
    found = read(str(file), HERE)
    assert found.problem.startswith(line)
    assert words in found.problem
    assert not found.costs
    assert not found.overrides


def test_a_world_of_one_refuses_it(file, monkeypatch):
    file.write_text(text(cores=0))
    monkeypatch.setenv("COLLECTIVES_PROFILE", str(file))
    with pytest.raises(ValueError, match=r"which cannot be used: line 5 is '\"cores\": 0'"):
        collectives.local_group(2)
    with pytest.raises(ValueError, match=r"which cannot be used: line 5 is '\"cores\": 0'"):
        collectives.init(size=1)


def test_a_file_that_is_not_there(tmp_path):
    found = read_environment(environ={"COLLECTIVES_PROFILE": str(tmp_path / "none")}).profile
    assert found.problem == "it cannot be read: No such file or directory"
    assert read_environment(environ={}).profile == profile.Profile()


def told(ranks):
    """The text of the error that all ranks raise alike."""
    reports = [rank.hear() for rank in ranks]
    assert {report["error"] for report in reports} == {"ValueError"}
    assert len({report["text"] for report in reports}) == 1
    assert {report["leaked"] for report in reports} == {0}
    return reports[0]["text"]


def here(**keys: object) -> str:
    return text(**{**profile.this_machine()._asdict(), **keys})


def test_all_ranks_are_told_of_different_profiles(tmp_path):
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path, latency in zip(paths, (150, 150, 160), strict=True):
        path.write_text(here(host_latency_ns=latency))
    digests = [read(str(path)).digest for path in paths]
    with job(4, profile=[*map(str, paths), ""]) as ranks:
        error = told(ranks)
    assert "ranks have different profiles" in error
    assert f"ranks 0, 1: '{paths[0]}' with digest {digests[0]}" in error
    assert f"rank 2: '{paths[2]}' with digest {digests[2]}" in error
    assert "rank 3: none" in error


def test_equal_contents_in_different_places_are_one_profile(tmp_path):
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_text(here())
    with job(2, profile=list(map(str, paths))) as ranks:
        assert [rank.hear()["rank"] for rank in ranks] == [0, 1]


def test_all_ranks_are_told_of_a_profile_of_another_machine(tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text(here())
    bad.write_text(here(cpu="Another CPU"))
    with job(2, profile=[str(good), str(bad)]) as ranks:
        error = told(ranks)
    assert error.startswith(f"COLLECTIVES_PROFILE of rank 1 is '{bad}' on host ")
    assert 'line 4 is \'"cpu": "Another CPU",\': this machine has ' in error
    assert "run `collectives tune`" in error


def chosen(monkeypatch, file, nbytes, contents, ranks=2):
    file.write_text(contents)
    monkeypatch.setenv("COLLECTIVES_PROFILE", str(file))
    group = collectives.local_group(ranks)
    found = group[0].explain("all_reduce", nbytes=nbytes)
    for comm in group:
        comm.close()
    return found


def test_costs_change_the_choice(monkeypatch, file):
    plain = chosen(monkeypatch, file, 64 << 10, here())
    assert plain.chosen == "two_shot"
    assert plain.profile == f"{file} (digest {read(str(file)).digest})"
    assert f"profile {plain.profile}" in str(plain)
    # Meetings are so dear that one of them is better than two, however much slower the bytes are. For either number
    # of cores.
    dear = chosen(monkeypatch, file, 64 << 10, here(host_latency_ns=90_000, crowded_latency_ns=90_000))
    assert dear.chosen == "one_shot"
    assert dear.override == ""


def test_costs_of_processors_change_times_between_hosts():
    def time_of(**costs):
        found = _core._predictions_for("all_reduce", 1 << 20, hosts=[0, 0, 1, 1], costs=costs)
        assert found["simulated"]
        return {entry["algorithm"]: entry["us"] for entry in found["candidates"]}

    plain, slow = time_of(), time_of(send_byte_ps=13_000)
    assert slow["ring"] > 3 * plain["ring"]


def test_overrides_count_for_their_number_of_ranks(monkeypatch, file):
    contents = here(algorithm="all_reduce:0-=two_shot", algorithm_2_ranks="all_reduce:0-4k=ring")
    small, large = (chosen(monkeypatch, file, nbytes, contents) for nbytes in (8, 4096))
    assert (small.chosen, large.chosen) == ("ring", "two_shot")
    assert str(small).count("chosen by the profile") == 1
    assert chosen(monkeypatch, file, 8, contents, ranks=3).chosen == "two_shot"
    monkeypatch.setenv("COLLECTIVES_ALGORITHM", "all_reduce:0-64=one_shot")
    found = chosen(monkeypatch, file, 8, contents)
    assert found.chosen == "one_shot"
    assert str(found).count("chosen by COLLECTIVES_ALGORITHM") == 1
    assert chosen(monkeypatch, file, 64, contents).chosen == "ring"


def test_calls_and_groups_take_what_the_profile_says(monkeypatch, file):
    file.write_text(here(algorithm_2_ranks="all_reduce:0-=ring"))
    monkeypatch.setenv("COLLECTIVES_PROFILE", str(file))
    a, b = collectives.local_group(2)
    with a, b:
        works = [comm.all_reduce(np.ones(2, np.float32), async_op=True) for comm in (a, b)]
        assert [work.result().tolist() for work in works] == [[2, 2], [2, 2]]
        assert works[0].algorithm == "ring"
        works = [comm.all_reduce(np.ones(2, np.float32), algorithm="one_shot", async_op=True) for comm in (a, b)]
        assert [work.result().tolist() for work in works] == [[2, 2], [2, 2]]
        assert works[0].algorithm == "one_shot"
