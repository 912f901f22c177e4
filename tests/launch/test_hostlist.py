"""Which hosts and slots options and files of ``collectives run`` mean, and what it says about those that it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from collectives.launch._binding import cores_of_ranks
from collectives.launch._host import words
from collectives.launch._hostlist import Place, places, read_hostfile, read_hosts
from collectives.launch.cli import main


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a,b", [("a", 1), ("b", 1)]),
        ("a:4,ops@node-1.example.org:12", [("a", 4), ("ops@node-1.example.org", 12)]),
        ("[fd91::1]:2,fd91::2,[fe80::1%eth0]", [("fd91::1", 2), ("fd91::2", 1), ("fe80::1%eth0", 1)]),
    ],
)
def test_lists_of_hosts(text: str, found: list[tuple[str, int]]) -> None:
    assert read_hosts(text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--hosts '': '': '' is no name of a host; accepted are NAME, NAME:4 or [IPv6]:4"),
        ("a,,b", "'' is no name of a host"),
        ("a:0", "--hosts 'a:0': 'a:0': '0' is not a number of slots from 1 to 4096; accepted are"),
        ("a:many", "'many' is not a number of slots"),
        ("a:", "'' is not a number of slots"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is no name of a host"),
        ("a;b", "'a;b' is no name of a host"),
        ("[fd91::1", "'[fd91::1' cannot be read"),
        ("a:2,b,a", "'a' is there twice; name it once, with its slots: a:2"),
    ],
)
def test_lists_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_hosts(text)


def test_files_with_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# all of them\n\n a\nb slots=4 # fast\nc:2\n\td  slots = 3\n[fd91::1]:2\nfd91::2 slots=5\n")
    hosts = [("a", 1), ("b", 4), ("c", 2), ("d", 3), ("fd91::1", 2), ("fd91::2", 5)]
    assert read_hostfile(str(path)) == hosts
    assert read_hostfile(str(path), 8)[0] == ("a", 8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nb slots\n", "line 2: 'b slots' cannot be read; a line is a host: NAME, NAME:4 or NAME slots=4"),
        ("a\n\nb max_slots=4\n", "line 3: 'b max_slots=4' cannot be read"),
        ("a slots=0 # off\n", "line 1: 'a slots=0 # off': '0' is not a number of slots from 1 to 4096"),
        ("a\nb\na:2\n", "line 3: 'a:2': 'a' is in line 1 already; name it once, with all its slots"),
        ("a b c\n", "line 1: 'a b c' cannot be read"),
        ("\x00\xff\n", "line 1: "),
        ("# none\n", " names no host; a line is a host"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        read_hostfile(str(path))
    assert str(raised.value).startswith(str(path))


def test_hosts_are_filled_in_the_order_of_the_list() -> None:
    hosts = [("a", 2), ("b", 3), ("c", 1)]
    assert places(hosts, None) == [Place("a", range(2)), Place("b", range(2, 5)), Place("c", range(5, 6))]
    assert places(hosts, 3) == [Place("a", range(2)), Place("b", range(2, 3))]
    with pytest.raises(ValueError, match=re.escape("-n is 7, but the hosts have 6 slots (a:2, b:3, c:1)")):
        places(hosts, 7)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--hosts", "a", "--hostfile", "b"), "--hosts and --hostfile are both given; give one"),
        (("--hostfile", "/nowhere/hosts"), "No such file or directory: '/nowhere/hosts'"),
        (("-n", "9", "--hosts", "a:4,b:4"), "-n is 9, but the hosts have 8 slots"),
        (("--rsh", "ssh -p 2222"), "--rsh is for several hosts; give --hosts or --hostfile, too"),
        (("--hosts", "a", "--rsh", "ssh 'x"), '"ssh \'x" cannot be split into words'),
        (("--hosts", "a", "--rsh", ""), "it is empty; a command is accepted"),
        (("--hosts", "a", "--rendezvous", "b:x"), "host:port is accepted"),
        (("-n", "2", "--nproc-per-node", "2"), "on one host they mean the same"),
        (("--bind", "numa"), "invalid choice: 'numa'"),
    ],
)
def test_options_that_are_refused(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["run", *arguments, "program.py"])
    assert raised.value.code == 2
    assert said in capsys.readouterr().err


def test_what_reaches_a_host_is_the_same_to_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    module = ["-m", "collectives.launch._remote"]
    assert words(["ssh", "-p", "2"], "a", "/usr/bin/python3") == ["ssh", "-p", "2", "a", "/usr/bin/python3", *module]
    monkeypatch.setenv("PYTHONPATH", "/x:/y")
    assert words(["rsh"], "a", "python3") == ["rsh", "a", "env", "PYTHONPATH=/x:/y", "python3", *module]
    with pytest.raises(ValueError, match="--python '/my files/python' has characters that a shell on the other host"):
        words(["ssh"], "a", "/my files/python")


# Two sockets of two cores with two processors each, numbered as Linux does.
def identify(processor: int) -> tuple[int, int]:
    return processor % 4 // 2, processor % 2


@pytest.mark.parametrize(
    ("bind", "ranks", "allowed", "shares"),
    [
        ("none", 2, range(8), [[], []]),
        ("core", 4, range(8), [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("core", 2, range(8), [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("core", 3, range(8), [[0, 4], [1, 5], [2, 3, 6, 7]]),
        ("core", 3, (1, 6), [[1], [1], [6]]),
        ("socket", 4, range(8), [[0, 1, 4, 5]] * 2 + [[2, 3, 6, 7]] * 2),
        ("socket", 1, range(8), [[*range(8)]]),
        ("socket", 2, (0, 1, 5), [[0, 1, 5]] * 2),
    ],
)
def test_binding(bind: str, ranks: int, allowed: range | tuple[int, ...], shares: list[list[int]]) -> None:
    assert cores_of_ranks(bind, ranks, allowed, identify) == shares
