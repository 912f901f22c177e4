"""Whatever becomes of ``collectives run``, nothing that its ranks have started is left; and what ends is reaped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_jobs import gone, parent

LIMIT = 30.0  # seconds that nothing here may reach
FOREVER = "import signal\nwhile True: signal.pause()\n"


@contextlib.contextmanager
def command(
    *arguments: str, prefix: tuple[str, ...] = (), out: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "collectives", "run", *arguments],
        env={**kept, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT)


def pids(process: subprocess.Popen[str], count: int) -> list[int]:
    """What so many lines "[rank] pid N" say."""
    assert process.stdout is not None
    found: list[int] = []
    while len(found) < count:
        line = process.stdout.readline()
        assert line, "the output ended"
        found += [int(line.split()[-1])] if " pid " in line else []
    return found


# What each rank starts, all of which print their numbers: a shell that waits for the program; a worker in a session of
# its own, whose parent has ended, and which does not mind SIGTERM.
SCRIPT = "#!/bin/sh\n{python} {program}\necho the program has ended\n"
PROGRAM = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, f"pid {os.getpid()}\\n".encode())  # at once: two processes of a rank write
while True: signal.pause()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT.format(python=sys.executable, program=program))
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("victim", ["command", "guardian"])
def test_nothing_outlives_a_kill(script: str, victim: str) -> None:
    with command("-n", "2", "--grace", "0.5", script) as process:
        everything = pids(process, 4)
        shells = {parent(pid) for pid in everything} - {1}
        guardian = next(found for pid in shells if parent(found := parent(pid)) == process.pid)
        os.kill(process.pid if victim == "command" else guardian, signal.SIGKILL)
        assert all(gone(pid) for pid in [*everything, guardian])
        output, _ = process.communicate(timeout=LIMIT)
        if victim == "command":
            assert "the command was killed: ending all ranks" in output
        else:
            assert "its guardian was killed by signal 9 (SIGKILL); all ranks were ended" in output
            assert process.returncode == 137


def test_nothing_outlives_a_rank_that_failed(tmp_path: Path, script: str) -> None:
    program = tmp_path / "one.sh"
    program.write_text(f'#!/bin/sh\n[ "$COLLECTIVES_RANK" = 1 ] || exec {script}\nread line < {tmp_path}/go; exit 3\n')
    program.chmod(0o755)
    os.mkfifo(tmp_path / "go")
    with command("-n", "2", "--grace", "0.5", str(program)) as process:
        everything = pids(process, 2)
        (tmp_path / "go").write_text("\n")
        assert all(gone(pid) for pid in everything)
        assert process.wait(LIMIT) == 3


def test_what_a_program_leaves_running_on_purpose_stays(tmp_path: Path) -> None:
    """A server, say, in a session of its own; as with other launchers, where all is well."""
    program = tmp_path / "leaves.py"
    program.write_text(
        "import os, subprocess\n"
        "server = subprocess.Popen(['sleep', '1000'], start_new_session=True, stdout=-3, stderr=-3)\n"
        "print('pid', server.pid)\n"
    )
    with command("-n", "1", str(program)) as process:
        (server,) = pids(process, 1)
        try:
            assert process.wait(LIMIT) == 0
            os.kill(server, 0)
        finally:
            os.kill(server, signal.SIGKILL)


ORPHANS = """
import os, time
for _ in range(40):
    if os.fork() == 0:
        if os.fork() == 0:
            os.write(1, b"pid %d\\n" % os.getpid())
        os._exit(0)
for _ in range(40):
    os.wait()
input_fifo = open({fifo!r}).read()
"""


@pytest.mark.parametrize("prefix", [(), ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")])
def test_orphans_are_reaped(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    """Also where the command is the first process of a container, with no other process to do it."""
    if prefix and os.geteuid() != 0:
        pytest.skip("a namespace of processes needs root")
    os.mkfifo(tmp_path / "go")
    program = tmp_path / "orphans.py"
    program.write_text(ORPHANS.format(fifo=str(tmp_path / "go")))
    with command("-n", "1", str(program), prefix=prefix) as process:
        orphans = pids(process, 40)
        root = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0] if prefix else "self"
        end = time.monotonic() + LIMIT
        # A poll: who reaps them is no child of ours. Seen from their own namespace, where they have these numbers.
        while zombies := [pid for pid in orphans if Path(f"/proc/{root}/root/proc/{pid}/stat").exists()]:
            assert time.monotonic() < end, f"{len(zombies)} zombies"
            time.sleep(0.01)
        (tmp_path / "go").write_text("")
        assert process.wait(LIMIT) == 0


def test_a_parent_that_ignores_sigchld(tmp_path: Path) -> None:
    program = tmp_path / "hello.py"
    program.write_text("import sys; print('hello'); sys.exit(4 if '0' in sys.argv[1:] else 0)")
    run = f"{sys.executable} -m collectives run -n 2 {program}"
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv('/bin/sh', ['sh', '-c', {!r}])"
    )
    for argument, code in (("", 0), ("0", 4)):
        done = subprocess.run(
            [sys.executable, "-c", ignoring.format(f"exec {run} {argument}")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == code, done.stderr
        assert "hello" in done.stdout


def test_spawn_in_a_process_that_ignores_sigchld() -> None:
    """Which gets it back as it was."""
    program = (
        "import collectives, operator, os, signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "print(collectives.spawn(operator.attrgetter('rank'), 2), signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN)\n"
        "try:\n    collectives.spawn(operator.methodcaller('no_such_method'), 2)\n"
        "except AttributeError as error:\n    print('no_such_method' in str(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.stdout == "[0, 1] True\nTrue\n", done.stderr


# A shell that waits for a program ends at once when it is asked to; the program takes its time.
SAVING = """
import os, signal, sys, time
shell = os.pidfd_open(os.getppid())
def save(*_):
    __import__("select").select([shell], [], [])
    time.sleep(0.3)
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("pid", os.getpid(), flush=True)
while True: signal.pause()
"""


@pytest.mark.parametrize("asked", [False, True])
def test_programs_below_a_shell_have_the_grace_period_too(tmp_path: Path, asked: bool) -> None:
    (tmp_path / "save.py").write_text(SAVING)
    program = tmp_path / "train.sh"
    program.write_text(
        f'#!/bin/sh\n[ "$COLLECTIVES_RANK" = 0 ] || {{ read line < {tmp_path}/go; exit 3; }}\n'
        f"{sys.executable} {tmp_path}/save.py\necho the program has ended\n"
    )
    program.chmod(0o755)
    os.mkfifo(tmp_path / "go")
    with command("-n", "2", "--grace", str(LIMIT), str(program)) as process:
        everything = pids(process, 1)
        if asked:
            process.terminate()
        else:
            (tmp_path / "go").write_text("\n")
        assert all(gone(pid) for pid in everything)
        output, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == (143 if asked else 3)
        assert "[0] saved" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_all_ends_though_nobody_reads_the_output(tmp_path: Path, number: int) -> None:
    os.mkfifo(tmp_path / "pids")
    program = tmp_path / "loud.py"
    program.write_text(
        "import os, sys\nfor _ in range(17): print('y' * 4000)\n"
        f"with open({str(tmp_path / 'pids')!r}, 'w') as file: print('pid', os.getpid(), file=file)\n"
        "while True: print('y' * 4000)\n"
    )
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, bytes(4096))
    os.set_blocking(full, True)
    with command("-n", "1", "--grace", "0.2", str(program), out=full) as process:
        # The rank has written more than its pipe holds, so the launcher has read some of it, and cannot pass it on.
        rank = int((tmp_path / "pids").read_text().split()[-1])
        guardian = parent(rank)
        process.send_signal(number)
        assert all(gone(pid) for pid in [rank, guardian])
        assert process.wait(LIMIT) == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    os.close(unread)
    os.close(full)


def test_whom_it_may_not_end_is_named() -> None:
    if os.geteuid() != 0:
        pytest.skip("other users need root")
    # Root that may not signal other users, and a rank that becomes one of these.
    humble = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill")
    other = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    program = ("sh", "-c", "echo pid $$; exec sleep 1000")
    with command("-n", "1", "--grace", "0.2", *other, *program, prefix=humble) as process:
        (sleep,) = pids(process, 1)
        try:
            process.terminate()
            output, _ = process.communicate(timeout=LIMIT)
            assert process.returncode == 143
            assert f"left running, since it cannot be ended: process {sleep} (sleep 1000) of user nobody" in output
        finally:
            os.kill(sleep, signal.SIGKILL)
