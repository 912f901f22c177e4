"""``collectives run --hosts`` over a given command, on hosts that are network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import namespaces
import pytest
from host_jobs import FOREVER, SUM, gone, parent, pids, run, started

pytestmark = pytest.mark.skipif(namespaces.REASON is not None, reason=str(namespaces.REASON))

RSH = ("--rsh", "ip netns exec", "--grace", "1")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    with namespaces.two_hosts() as names:
        yield names


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


def test_ranks_are_numbered_by_host_and_meet_where_all_reach(hosts, write, tmp_path):
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"# two hosts\n\n{hosts[0]} slots=2  # the first\n{hosts[1]}:2\n")
    code, output = run("--hostfile", hostfile, *RSH, "--log-dir", tmp_path / "logs", write(SUM))
    assert code == 0, output
    words = {line[1]: line.split() for line in output.splitlines() if " sum 4 " in line}
    assert sorted(words) == ["0", "1", "2", "3"], output
    assert {line[4].rpartition(":")[0] for line in words.values()} == {"10.91.0.1"}
    assert words["0"][6] == words["1"][6] != words["2"][6] == words["3"][6]
    logged = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert sorted(logged) == sorted(f"rank-{rank}.{kind}" for rank in range(4) for kind in ("err", "out"))
    assert logged["rank-3.out"] == " ".join(words["3"][1:]) + "\n"


# Rank 0 looks for the token on the command lines of all processes, and in what others may read of them.
SECRET = """
import os, pathlib
token = os.environ["COLLECTIVES_TOKEN"].encode()
found = []
for folder in pathlib.Path("/proc").iterdir():
    if folder.name.isdigit():
        try: found += [folder.name] if token in (folder / "cmdline").read_bytes() else []
        except OSError: pass
print("found", found, len(token), os.environ["SENT"], os.getcwd(), os.environ["COLLECTIVES_SIZE"])
"""


def test_the_environment_and_the_folder_are_sent_and_the_token_is_on_no_command_line(
    hosts, write, tmp_path, monkeypatch
):
    monkeypatch.setenv("SENT", "a b'$HOME")
    program = write(SECRET)
    code, output = run("--hosts", ":2,".join(hosts) + ":2", "-n", "3", "--no-prefix", *RSH, program, cwd=tmp_path)
    assert code == 0, output
    assert output.splitlines() == [f"found [] 64 a b'$HOME {tmp_path} 3"] * 3


def processes(ranks: dict[int, list[int]], process: subprocess.Popen[str]) -> dict[str, int]:
    """Who is who: our parts on both hosts are the commands that reach them, since `ip` executes what it is given."""
    guardians = [parent(ranks[0][0]), parent(ranks[2][0])]
    fronts = [parent(guardian) for guardian in guardians]
    assert parent(fronts[0]) == parent(fronts[1])
    return {
        "command": process.pid,
        "launcher": parent(fronts[0]),
        "front": fronts[1],
        "guardian": guardians[1],
        "rank": ranks[2][0],
    }


@pytest.mark.parametrize(
    ("victim", "number", "code", "said"),
    [
        ("command", signal.SIGKILL, -9, "the command was killed: ending all ranks"),
        ("command", signal.SIGINT, 130, "signal 2 (SIGINT): ending all ranks"),
        ("command", signal.SIGTERM, 143, "signal 15 (SIGTERM): ending all ranks"),
        ("launcher", signal.SIGKILL, 137, "its guardian was killed by signal 9 (SIGKILL)"),
        ("front", signal.SIGKILL, 137, "{host}: what was started there was killed; ending the 3 ranks that run"),
        ("guardian", signal.SIGKILL, 1, "{host}: the connection has ended"),
        ("rank", signal.SIGKILL, 137, "on {host}) was killed by signal 9 (SIGKILL); ending the other 2"),
    ],
)
def test_nothing_outlives_a_kill(hosts, write, victim, number, code, said):
    program = write(FOREVER)
    with started("--hosts", f"{hosts[0]}:2,{hosts[1]}", *RSH, program) as process:
        ranks = pids(process, 3)
        everyone = processes(ranks, process)
        os.kill(everyone[victim], number)
        left = [*(pid for own in ranks.values() for pid in own), *everyone.values()]
        assert all(gone(pid) for pid in left if pid != process.pid)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == code, output
        assert said.format(host=hosts[1]) in output


def test_the_exit_code_is_that_of_the_first_failure(hosts, write):
    program = write("import os, signal, sys\nif os.environ['COLLECTIVES_RANK'] == '1': sys.exit(7)\nsignal.pause()\n")
    code, output = run("--hosts", ",".join(hosts), *RSH, program)
    assert code == 7
    assert f"on {hosts[1]}) ended with exit code 7; ending the other 1" in output


# Rank 0 leaves a process behind and ends well; rank 1 fails when the launcher has been told so.
LEAVING = """
import os, subprocess, sys
from collectives._startup.ended import EndedRanksReader
if os.environ["COLLECTIVES_RANK"] == "0":
    null = subprocess.DEVNULL
    left = subprocess.Popen(["sleep", "1000"], stdout=null, stderr=null, start_new_session=True)
    print("pids", left.pid, flush=True)
    sys.exit()
ended = EndedRanksReader(int(os.environ["COLLECTIVES_LAUNCHER_FD"]), 2, os.environ["COLLECTIVES_TOKEN"].encode())
while not ended.new(): pass
sys.exit(5)
"""


def test_what_an_ended_rank_has_left_is_ended_when_another_host_fails(hosts, write):
    with started("--hosts", ",".join(hosts), *RSH, write(LEAVING)) as process:
        (left,) = pids(process, 1)[0]
        assert gone(left)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 5, output


@pytest.mark.parametrize("victim", ["launcher", "guardian"])
def test_a_side_that_says_nothing_is_lost(hosts, write, victim):
    program = write(FOREVER)
    with started("--hosts", f"{hosts[0]}:2,{hosts[1]}", *RSH, "--host-timeout", "4", program) as process:
        ranks = pids(process, 3)
        everyone = processes(ranks, process)
        os.kill(everyone[victim], signal.SIGSTOP)
        try:
            far = ranks[2] if victim == "launcher" else ranks[0]  # on a host whose part is not stopped
            assert all(gone(pid) for pid in far)
        finally:
            os.kill(everyone[victim], signal.SIGCONT)
        assert all(gone(pid) for own in ranks.values() for pid in own)
        output, _ = process.communicate(timeout=60)
        assert process.returncode not in (0, None)
        if victim == "guardian":
            assert f"{hosts[1]}: it said nothing for 4 s; is it reachable?" in output


SHRINK = """
import os, sys, signal, collectives, numpy
comm = collectives.init()
comm.barrier()
print("pids", os.getpid(), os.getppid(), flush=True)
try:
    while True: comm.all_reduce(numpy.ones(8))
except collectives.PeerError:
    comm = comm.shrink()
print("left", comm.size, int(comm.all_reduce(numpy.ones(1))[0]))
"""


@pytest.mark.parametrize("victim", ["rank", "host"])
def test_the_others_go_on_without_a_rank_or_a_host(hosts, write, victim):
    with started("--hosts", f"{hosts[0]}:2,{hosts[1]}:2", *RSH, "--keep-going", write(SHRINK)) as process:
        ranks = pids(process, 4)
        rank, guardian = ranks[2]
        os.kill(rank if victim == "rank" else guardian, signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        left = 3 if victim == "rank" else 2
        assert output.count(f"left {left} {left}") == left
        assert ("the others go on" if victim == "rank" else "the ranks of other hosts go on") in output


def test_where_ranks_meet_can_be_said(hosts, write):
    program = write(SUM)
    where = f"10.91.0.1:{namespaces.PORT}"
    code, output = run("--hosts", ",".join(hosts), *RSH, "--rendezvous", where, program)
    assert code == 0, output
    assert output.count(f"sum 2 at {where} in") == 2
    code, output = run("--hosts", ",".join(hosts), *RSH, "--rendezvous", "10.91.0.9", program)
    assert code == 2
    assert f"{hosts[0]}: cannot listen on --rendezvous 10.91.0.9:0: " in output


def test_one_host_meets_on_loopback(hosts, write, tmp_path):
    code, output = run("--hosts", f"{hosts[1]}:2", *RSH, "--bind", "core", write(SUM))
    assert code == 0, output
    assert output.count("sum 2 at 127.0.0.1:") == 2
    assert "bound to CPUs: rank 0 to " in output
    code, output = run("--hosts", hosts[1], *RSH, "--log-dir", tmp_path / "program.py" / "logs", write(SUM))
    assert code == 2
    assert "--log-dir '" in output and "cannot be written: Not a directory" in output


def test_hosts_that_do_not_reach_each_other(write):
    with namespaces.two_empty("apart") as apart:
        code, output = run("--hosts", ",".join(apart), *RSH, write(SUM))
    assert code == 1
    assert f"host {apart[1]}: it reaches none of the addresses of {apart[0]}" in output
    assert "--rendezvous HOST:PORT" in output


def test_a_host_that_cannot_be_used(hosts, write, tmp_path):
    program = write(SUM)
    code, output = run("--hosts", f"{hosts[0]},nowhere", *RSH, program)
    assert code == 1
    assert "host nowhere: it cannot be used: `ip netns exec nowhere " in output
    assert 'ended with exit code 255 and said:\n  Cannot open network namespace "nowhere"' in output
    code, output = run("--hosts", ",".join(hosts), *RSH, "--python", "/nowhere/python", program)
    assert code == 1
    assert "/nowhere/python -m collectives.launch._remote` ended with exit code" in output
    assert "No such file or directory" in output
    code, output = run("--hosts", ",".join(hosts), "--rsh", "/nowhere/rsh", program)
    assert code == 127
    assert f"cannot start '/nowhere/rsh', by which host {hosts[0]} is reached: No such file or directory" in output
    code, output = run("--hosts", ",".join(hosts), *RSH, "nowhere.py")
    assert code == 127
    assert "cannot start 'nowhere.py': no such file" in output


OTHER = """#!{python}
import importlib.metadata, runpy
importlib.metadata.version = lambda name: "0.0.7"
runpy.run_module("collectives.launch._remote", run_name="__main__")
"""


def test_another_release_there(hosts, write, tmp_path):
    other = tmp_path / "python"
    other.write_text(OTHER.format(python=sys.executable))
    other.chmod(0o755)
    code, output = run("--hosts", ",".join(hosts), *RSH, "--python", other, write(SUM))
    assert code == 1
    assert "has release 0.0.7 of this package there, and here it is " in output


def test_a_folder_that_is_not_there(hosts, write, tmp_path):
    program = write(SUM)
    folder = tmp_path / "folder"
    folder.mkdir()
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nrmdir {folder} 2>&-\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    code, output = run("--hosts", ",".join(hosts), *RSH, "--python", other, program, cwd=folder)
    assert code == 127
    assert f"there is no folder '{folder}', in which the job was started" in output


def test_all_lines_come_also_to_a_slow_reader(hosts, write):
    program = write("import sys\nfor number in range(100_000): print('line', number, 'y' * 40)\nsys.exit(3)\n")
    with started("--hosts", ",".join(hosts), *RSH, "--keep-going", program) as process:
        output, _ = process.communicate(timeout=60)
    for rank in (0, 1):
        lines = [line.split()[2] for line in output.splitlines() if line.startswith(f"[{rank}] line ")]
        assert lines == [str(number) for number in range(100_000)]
    assert process.returncode == 3
