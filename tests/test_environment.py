"""Reading the launch environment."""

import collectives
import numpy as np
import pytest
from collectives._environment import DEFAULT_HEAP, START_TIMEOUT, Environment, read_environment, read_symmetric_heap

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
