"""``collectives run --hosts`` over ssh: to this machine by two names, and between two network namespaces."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import namespaces
import own_sshd
import pytest
from host_jobs import FOREVER, SUM, children, gone, parent, pids, run, started

pytestmark = pytest.mark.skipif(own_sshd.REASON is not None, reason=str(own_sshd.REASON))


@pytest.fixture(scope="module")
def rsh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys = own_sshd.Keys(tmp_path_factory.mktemp("keys"), own_sshd.free_port())
    with own_sshd.listening(keys):
        yield keys.rsh


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(FOREVER)
    return path


def test_four_ranks_over_ssh(rsh: str, program: Path) -> None:
    program.write_text(f"{SUM}\nimport sys\nprint(sys.argv[1:], os.environ['COLLECTIVES_SIZE'])\n")
    odd = ["a b", "'$HOME'", "*", '"']
    code, output = run("--hosts", "localhost,127.0.0.1", "--nproc-per-node", 2, "--rsh", rsh, program, *odd)
    assert code == 0, output
    assert output.count(" sum 4 at ") == 4
    assert output.count(f"] {odd} 4") == 4


def test_a_user_whom_the_host_does_not_let_in(rsh: str, program: Path) -> None:
    code, output = run("--hosts", "nobody-there@localhost", "--rsh", rsh, program)
    assert code == 1
    assert "host nobody-there@localhost: it cannot be used: `ssh -F " in output
    assert "Permission denied (publickey)" in output


@pytest.mark.parametrize("victim", ["command", "ssh"])
def test_nothing_outlives_a_kill(rsh: str, program: Path, victim: str) -> None:
    with started("--hosts", "localhost,127.0.0.1", "--rsh", rsh, "--grace", 1, program) as process:
        ranks = pids(process, 2)
        (launcher,) = children(process.pid)
        ours = [parent(ranks[0][0]), parent(ranks[1][0])]
        ssh = children(launcher)
        assert len(ssh) == 2
        os.kill(process.pid if victim == "command" else ssh[1], signal.SIGKILL)
        left = [*ranks[0], *ranks[1], *ours, *map(parent, ours), launcher, *ssh]
        assert all(gone(pid) for pid in left)
        output, _ = process.communicate(timeout=60)
        if victim == "ssh":
            assert process.returncode == 1
            assert "the connection has ended (ssh died of signal 9 (SIGKILL)); ending the " in output


@pytest.mark.skipif(namespaces.REASON is not None, reason=str(namespaces.REASON))
def test_a_network_that_breaks(program: Path, tmp_path: Path) -> None:
    keys = own_sshd.Keys(tmp_path, 2222)
    with (
        namespaces.two_hosts() as (here, there),
        own_sshd.listening(keys, ("ip", "netns", "exec", here)),
        own_sshd.listening(keys, ("ip", "netns", "exec", there)),
        started(
            *("--hosts", "10.91.0.1,10.91.0.2", "--rsh", keys.rsh, "--grace", 1, "--host-timeout", 4, program),
            prefix=("ip", "netns", "exec", here),
        ) as process,
    ):
        ranks = pids(process, 2)
        far = parent(ranks[1][0])
        namespaces.ip("-n", here, "link", "set", "clv0", "down")
        try:
            assert all(gone(pid) for pid in [*ranks[1], far, *ranks[0]])
            output, _ = process.communicate(timeout=60)
        finally:
            namespaces.ip("-n", here, "link", "set", "clv0", "up")  # so that sshd learns that its clients are gone
        assert process.returncode == 1
        assert "host 10.91.0.2: it said nothing for 4 s; is it reachable?" in output
