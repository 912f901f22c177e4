"""The table of environment variables, and reading the launch environment."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import collectives
import numpy as np
import pytest
from collectives import _core
from collectives._startup.environment import (
    DEFAULT_HEAP,
    MAX_SIZE,
    START_TIMEOUT,
    VARIABLES,
    Environment,
    read_environment,
    read_log,
    read_num_threads,
    read_recorder_dir,
    read_signals,
    read_symmetric_heap,
    unknown_variables,
    variables_set,
    warn_of_unknown_variables,
)
from collectives._startup.launchers import launchers
from collectives._startup.settings import TRANSPORTS
from collectives._world import DEFAULT_TIMEOUT
from collectives.launch.info import format_info, info
from paths import ROOT

TABLE = {entry["name"]: entry for entry in _core.environment_variables()}

JOB = {
    "COLLECTIVES_RANK": "1",
    "COLLECTIVES_SIZE": "4",
    "COLLECTIVES_RENDEZVOUS": "127.0.0.1:29400",
    "COLLECTIVES_TOKEN": "secret",
    "COLLECTIVES_TRANSPORT": "tcp",
    "COLLECTIVES_TIMEOUT": "2.5",
}


def test_a_world_of_one():
    environment = read_environment(environ={})
    assert environment == Environment()
    assert (environment.rank, environment.size, environment.rendezvous) == (0, 1, None)
    assert environment.start_timeout == START_TIMEOUT


@pytest.mark.parametrize("variables", [{"COLLECTIVES_RANK": "0"}, {"COLLECTIVES_RENDEZVOUS": "node1:29400"}])
def test_a_place_without_a_size_is_no_world_of_one(variables):
    [(name, value)] = variables.items()
    said = f"{name} is '{value}' but the number of ranks is not given: set COLLECTIVES_SIZE"
    with pytest.raises(ValueError, match=said):
        read_environment(environ=variables)
    assert read_environment(size=1, environ=variables).size == 1


def test_names_and_heaps_that_are_too_long():
    with pytest.raises(ValueError, match="COLLECTIVES_RENDEZVOUS names a host by 5000 characters; at most 253"):
        read_environment(environ={**JOB, "COLLECTIVES_RENDEZVOUS": f"{'x' * 5000}:1"})
    with pytest.raises(ValueError, match="COLLECTIVES_SYMMETRIC_HEAP is '99999999T'; at most 16T are accepted"):
        read_symmetric_heap({"COLLECTIVES_SYMMETRIC_HEAP": "99999999T"})


@pytest.mark.parametrize("name", [launcher.size_variable for launcher in launchers() if launcher.size_variable])
def test_ranks_of_other_launchers_are_no_worlds_of_one(name):
    with pytest.raises(ValueError, match=rf"^{name} is 3: .* COLLECTIVES_RENDEZVOUS.* init\(size=1\)"):
        read_environment(environ={name: "3"})
    for opted in ({"environ": {name: "1"}}, {"environ": {name: "no number"}}, {"environ": {name: "3"}, "size": 1}):
        assert read_environment(**opted).size == 1
    assert read_environment(environ={**JOB, name: "3"}).size == 4


def test_a_rank_of_mpirun_is_no_world_of_one():
    """By the way of a user, in a process of its own."""
    environ = {**os.environ, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
    program = "import collectives; print(collectives.init({}).size)"
    refused = run_program(program.format(""), environ)
    assert refused.returncode == 1
    assert "ValueError: mpirun of Open MPI has started this process as rank 1 of 2" in refused.stderr
    assert run_program(program.format("size=1"), environ).stdout == "1\n"


def run_program(program, environ):
    return subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60)


def test_the_start_has_a_timeout_of_its_own():
    assert read_environment(environ={"COLLECTIVES_TIMEOUT": "7"}).start_timeout == 7
    both = {"COLLECTIVES_TIMEOUT": "7", "COLLECTIVES_START_TIMEOUT": "9.5"}
    assert (read_environment(environ=both).start_timeout, read_environment(environ=both).timeout) == (9.5, 7)
    assert read_environment(timeout=3, environ=both).start_timeout == 9.5
    with pytest.raises(ValueError, match="COLLECTIVES_START_TIMEOUT is 'soon'; a positive number of seconds"):
        read_environment(environ={"COLLECTIVES_START_TIMEOUT": "soon"})


def test_levels_of_logging():
    assert [read_log({"COLLECTIVES_LOG": text}) for text in ("", "info", "error")] == ["", "info", "error"]
    with pytest.raises(ValueError, match="COLLECTIVES_LOG is 'loud'; accepted are error, warning, info, debug"):
        read_log({"COLLECTIVES_LOG": "loud"})


def test_empty_variables_are_not_set():
    assert read_environment(environ=dict.fromkeys(JOB, "")) == Environment()


def test_variables():
    environment = read_environment(environ=JOB)
    assert environment == Environment(1, 4, ("127.0.0.1", 29400), b"secret", "tcp", 2.5)
    assert environment.start_timeout == 2.5


def test_arguments_win():
    environment = read_environment(
        rank=np.int64(2), size=3, rendezvous="[::1]:80", token=b"other", transport="shm", timeout=9, environ=JOB
    )
    assert environment == Environment(2, 3, ("::1", 80), b"other", "shm", 9.0)


def test_the_token_is_not_shown():
    assert "secret" not in repr(read_environment(environ=JOB))


def test_the_descriptor_is_for_rank_0_only():
    variables = {**JOB, "COLLECTIVES_RENDEZVOUS_FD": "5"}
    assert read_environment(environ=variables).rendezvous_fd == -1
    assert read_environment(rank=0, environ=variables).rendezvous_fd == 5


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"COLLECTIVES_RANK": "x"}, ["COLLECTIVES_RANK", "'x'", "integer from 0 to 3"]),
        ({"COLLECTIVES_RANK": "4"}, ["COLLECTIVES_RANK", "'4'", "from 0 to 3"]),
        ({"COLLECTIVES_RANK": "-1"}, ["COLLECTIVES_RANK", "'-1'", "from 0 to 3"]),
        ({"COLLECTIVES_RANK": ""}, ["COLLECTIVES_SIZE", "'4'", "COLLECTIVES_RANK", "0 to 3"]),
        ({"COLLECTIVES_SIZE": ""}, ["COLLECTIVES_RANK", "'1'", "COLLECTIVES_SIZE"]),
        ({"COLLECTIVES_SIZE": "0"}, ["COLLECTIVES_SIZE", "'0'", "from 1"]),
        ({"COLLECTIVES_RENDEZVOUS": ""}, ["COLLECTIVES_RENDEZVOUS", "host:port"]),
        ({"COLLECTIVES_RENDEZVOUS": "host"}, ["COLLECTIVES_RENDEZVOUS", "'host'", "host:port"]),
        ({"COLLECTIVES_RENDEZVOUS": "::1:80"}, ["COLLECTIVES_RENDEZVOUS", "'::1:80'", "[fd00::1]:29400"]),
        ({"COLLECTIVES_RENDEZVOUS": ":80"}, ["COLLECTIVES_RENDEZVOUS", "':80'"]),
        ({"COLLECTIVES_RENDEZVOUS": "a:99999"}, ["COLLECTIVES_RENDEZVOUS", "'a:99999'", "1 to 65535"]),
        ({"COLLECTIVES_TRANSPORT": "udp"}, ["COLLECTIVES_TRANSPORT", "'udp'", "auto, shm, tcp"]),
        ({"COLLECTIVES_TRANSPORT": "local"}, ["COLLECTIVES_TRANSPORT", "'local'", "local_group"]),
        ({"COLLECTIVES_TIMEOUT": "soon"}, ["COLLECTIVES_TIMEOUT", "'soon'", "positive number of seconds"]),
        ({"COLLECTIVES_TIMEOUT": "0"}, ["COLLECTIVES_TIMEOUT", "'0'", "positive"]),
        ({"COLLECTIVES_TIMEOUT": "nan"}, ["COLLECTIVES_TIMEOUT", "'nan'", "positive"]),
        ({"COLLECTIVES_RANK": "0", "COLLECTIVES_RENDEZVOUS_FD": "y"}, ["COLLECTIVES_RENDEZVOUS_FD", "'y'"]),
    ],
)
def test_bad_variables(changes, parts):
    with pytest.raises(ValueError) as caught:
        read_environment(environ={**JOB, **changes})
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "kind", "part"),
    [
        ({"rank": 9}, ValueError, "rank= is 9"),
        ({"rank": 1.0}, TypeError, "rank= is 1.0"),
        ({"rank": True}, TypeError, "rank= is True"),
        ({"rendezvous": 80}, TypeError, "rendezvous= is 80"),
        ({"token": 80}, TypeError, "token= is of type int"),
        ({"timeout": "x"}, ValueError, "timeout= is 'x'"),
        ({"timeout": []}, TypeError, "timeout= is []"),
        ({"transport": "local"}, ValueError, "local_group"),
    ],
)
def test_bad_arguments(arguments, kind, part):
    with pytest.raises(kind) as caught:
        read_environment(environ=JOB, **arguments)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (None, DEFAULT_HEAP),
        ("", DEFAULT_HEAP),
        ("0", 0),
        ("4096", 4096),
        ("3k", 3 << 10),
        ("16M", 16 << 20),
        ("2G", 2 << 30),
        ("1t", 1 << 40),
    ],
)
def test_the_symmetric_heap(text, size):
    assert read_symmetric_heap({} if text is None else {"COLLECTIVES_SYMMETRIC_HEAP": text}) == size


@pytest.mark.parametrize("text", ["K", "-1", "1.5G", "1GB", "lots", "\u0661"])
def test_a_bad_symmetric_heap(text):
    with pytest.raises(ValueError) as caught:
        read_symmetric_heap({"COLLECTIVES_SYMMETRIC_HEAP": text})
    for part in ("COLLECTIVES_SYMMETRIC_HEAP", repr(text), "K, M, G or T"):
        assert part in str(caught.value)


def test_the_symmetric_heap_of_this_process(monkeypatch):
    monkeypatch.setenv("COLLECTIVES_SYMMETRIC_HEAP", "12M")
    assert read_symmetric_heap() == 12 << 20
    monkeypatch.setenv("COLLECTIVES_SYMMETRIC_HEAP", "some")
    with pytest.raises(ValueError, match="COLLECTIVES_SYMMETRIC_HEAP is 'some'"):
        collectives.local_group(1)


# --- the table ------------------------------------------------------------------------------------------------------


def variables_in(sources: dict[Path, str]) -> dict[Path, set[str]]:
    """Names with our prefix in each file, without those of macros."""
    macros = {m for text in sources.values() for m in re.findall(r"#\s*define\s+(COLLECTIVES_\w+)", text)}
    assert not macros & TABLE.keys()
    # The last letter leaves out the prefix by itself, from which names are put together; what follows a point is a
    # switch of the build (cmake.define.COLLECTIVES_CUDA).
    return {
        path: set(re.findall(r"(?<!\.)\bCOLLECTIVES_[A-Z_]*[A-Z]\b", text)) - macros for path, text in sources.items()
    }


def test_every_variable_that_is_mentioned_is_in_the_table():
    sources = {path: path.read_text() for path in (ROOT / "csrc").rglob("*") if path.suffix in (".cc", ".h")}
    modules = {path: path.read_text() for path in (ROOT / "python").rglob("*.py")}
    for names in (variables_in(sources), variables_in(modules)):
        assert set().union(*names.values()) & TABLE.keys(), "the search finds nothing"
        unknown = {str(path): sorted(found - TABLE.keys()) for path, found in names.items() if found - TABLE.keys()}
        assert not unknown


class Recorder(dict):
    """An environment that remembers which variables were asked for."""

    def __init__(self):
        super().__init__(JOB, COLLECTIVES_RANK="0", COLLECTIVES_RENDEZVOUS_FD="5")
        self.read = set()

    def get(self, name, default=None):
        self.read.add(name)
        return super().get(name, default)


def test_every_variable_is_read_where_the_table_says():
    recorder = Recorder()
    read_environment(environ=recorder)
    read_symmetric_heap(recorder)
    read_num_threads(recorder)
    read_recorder_dir(recorder)
    read_signals(recorder)
    read_log(recorder)
    readers = dict.fromkeys(recorder.read, "python/collectives/_startup/environment.py")
    for path in (ROOT / "csrc").rglob("*.cc"):
        for name in re.findall(r'\benvironment(?:_integer)?\("(\w+)"', path.read_text()):
            assert name not in readers, f"{name} is read in two places"
            readers[name] = path.relative_to(ROOT).as_posix()
    assert readers == {name: entry["reader"] for name, entry in TABLE.items()}


def test_the_table_says_what_the_readers_do():
    assert tuple(TABLE) == VARIABLES
    heap = "COLLECTIVES_SYMMETRIC_HEAP"
    assert read_symmetric_heap({heap: TABLE[heap]["default"].strip("`")}) == DEFAULT_HEAP
    named = re.findall(r"`(\w+)`", TABLE["COLLECTIVES_TRANSPORT"]["accepted"])
    assert {"auto", "shm", "tcp", "nccl"} == set(named) <= set(TRANSPORTS)
    assert TABLE["COLLECTIVES_TRANSPORT"]["default"] == f"`{Environment().transport}`"
    assert TABLE["COLLECTIVES_SIZE"]["accepted"] == f"integer from 1 to {MAX_SIZE}"
    wanted = f"{START_TIMEOUT:g} for starting, {DEFAULT_TIMEOUT:g} for a collective"
    assert TABLE["COLLECTIVES_TIMEOUT"]["default"] == wanted
    accepted = re.findall(r"`(\w+)`", TABLE["COLLECTIVES_ISA"]["accepted"])
    assert set(_core._isas()) <= set(accepted)
    sources = "".join(path.read_text() for path in (ROOT / "csrc" / "reduce").glob("*.cc"))
    assert set(accepted) == set(re.findall(r'RegisterReducer \w+\(\{"(\w+)"', sources))


def test_a_variable_outside_the_table_is_refused():
    with pytest.raises(AssertionError, match="COLLECTIVES_NEW is not in the table"):
        collectives._startup.environment._lookup({"COLLECTIVES_NEW": "1"}, "COLLECTIVES_NEW")


def test_the_page_is_that_of_the_table():
    command = [sys.executable, ROOT / "tools" / "make_environment_page.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"run tools/make_environment_page.py\n{done.stdout}{done.stderr}"


# --- variables that are not in the table ---------------------------------------------------------------------------

TYPOS = {"COLLECTIVES_TIMOUT": "COLLECTIVES_TIMEOUT", "COLLECTIVES_rank": "COLLECTIVES_RANK", "COLLECTIVES_QQQ": ""}


def test_unknown_variables():
    assert unknown_variables({**JOB, **dict.fromkeys(TYPOS, "1"), "OTHER": "1"}) == TYPOS
    assert unknown_variables(JOB) == {}


def test_one_warning_for_all_unknown_variables():
    with pytest.warns(RuntimeWarning) as caught:
        warn_of_unknown_variables(stacklevel=1, environ=dict.fromkeys(TYPOS, "a secret"))
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "COLLECTIVES_TIMOUT (did you mean COLLECTIVES_TIMEOUT?)" in text
    assert "COLLECTIVES_QQQ, " in text
    assert all(name in text for name in TABLE)  # since one of them resembles nothing
    assert "a secret" not in text


def test_init_warns(monkeypatch):
    monkeypatch.setenv("COLLECTIVES_TIMOUT", "1")
    with pytest.warns(
        RuntimeWarning, match=r"unknown.* COLLECTIVES_TIMOUT \(did you mean COLLECTIVES_TIMEOUT"
    ) as caught:
        collectives.init(rank=0, size=1).close()
    assert [Path(w.filename) for w in caught] == [Path(__file__)]  # where init is called


def test_init_does_not_warn_of_what_it_knows(monkeypatch):
    for name in TABLE:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("COLLECTIVES_TIMEOUT", "9")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collectives.init().close()


def test_info_shows_the_variables(monkeypatch):
    for name in TABLE:
        monkeypatch.delenv(name, raising=False)
    assert info()["environment"] == {}
    assert "no variable of collectives is set" in format_info(info())
    monkeypatch.setenv("COLLECTIVES_TIMEOUT", "9")
    monkeypatch.setenv("COLLECTIVES_TOKEN", "a secret")
    monkeypatch.setenv("COLLECTIVES_RANK", "")
    monkeypatch.setenv("COLLECTIVES_TOKE", "another secret")
    found = info()
    assert found["environment"] == {"COLLECTIVES_TOKEN": "(not shown)", "COLLECTIVES_TIMEOUT": "9"} == variables_set()
    assert found["unknown_environment"] == {"COLLECTIVES_TOKE": "COLLECTIVES_TOKEN"}
    text = format_info(found)
    assert re.search(r"COLLECTIVES_TIMEOUT +9\n", text)
    assert re.search(r"COLLECTIVES_TOKE +unknown.*did you mean COLLECTIVES_TOKEN\?", text)
    assert "secret" not in f"{text}{found}"
