"""The launcher: ``collectives run``, ``collectives info`` and `spawn`."""

import contextlib
import importlib.util
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time

import pytest
from collectives.errors import CollectivesError, PeerError
from collectives.launch import cli
from collectives.launch.info import format_info, info
from collectives.launch.local import run_local
from collectives.launch.spawn import spawn

LIMIT = 30.0  # seconds that nothing here may reach
COMMAND = [sys.executable, "-m", "collectives"]

needs_core = pytest.mark.skipif(
    importlib.util.find_spec("collectives._core") is None, reason="the core is not built: pip install ."
)


class Launcher:
    """``collectives run`` as a process whose output is read line by line."""

    def __init__(self, *arguments, **settings):
        environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
        environ["OMP_NUM_THREADS"] = "1"  # else a line of the launcher says what it is
        self.process = subprocess.Popen(
            [*COMMAND, "run", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environ,
            bufsize=0,  # `select` must not be told of less than there is to read
            **settings,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(LIMIT)
        self.process.stdout.close()

    def lines_until(self, count, ending):
        """Reads until `count` lines ended so."""
        lines = []
        while sum(line.endswith(ending) for line in lines) < count:
            lines.append(self.line())
        return lines

    def line(self):
        assert select.select([self.process.stdout], [], [], LIMIT)[0], "no output"
        line = self.process.stdout.readline().decode()
        assert line, "the output ended"
        return line.rstrip("\n")

    def end(self):
        output, _ = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, output.decode()


def run(*arguments, **settings):
    with Launcher(*arguments, **settings) as launcher:
        return launcher.end()


@pytest.fixture
def program(tmp_path):
    def write(text):
        path = tmp_path / "prog.py"
        path.write_text("import os, signal, sys, time, subprocess\nrank = int(os.environ['COLLECTIVES_RANK'])\n" + text)
        return path

    return write


def gone(pid):
    """Waits until a process that is no child of ours has ended."""
    end = time.monotonic() + LIMIT
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], end - time.monotonic())[0])
    finally:
        os.close(fd)


def test_output_has_the_rank_before_each_line(program):
    path = program("print('out', rank, *sys.argv[1:]); print('err', file=sys.stderr); print('no newline', end='')")
    code, output = run("-n", 3, path, "-n", "7", "--flag", "a b")
    assert code == 0
    for rank in range(3):
        lines = [line for line in output.splitlines() if line.startswith(f"[{rank}] ")]
        assert f"[{rank}] out {rank} -n 7 --flag a b" in lines
        assert sorted(lines) == sorted(
            [f"[{rank}] out {rank} -n 7 --flag a b", f"[{rank}] err", f"[{rank}] no newline"]
        )


def test_streams_stay_apart(program):
    path = program("print('out'); print('err', file=sys.stderr)")
    result = subprocess.run([*COMMAND, "run", str(path)], capture_output=True, text=True, timeout=LIMIT)
    assert (result.returncode, result.stdout, result.stderr) == (0, "[0] out\n", "[0] err\n")


def test_long_and_odd_output(program):
    path = program("sys.stdout.buffer.write(b'\\xff' + b'x' * 200000 + b'\\n' + b'y\\n' * 50000)")
    result = subprocess.run([*COMMAND, "run", "-n", "2", str(path)], capture_output=True, timeout=LIMIT)
    assert result.returncode == 0
    assert result.stdout.count(b"y\n") == 100000
    assert result.stdout.count(b"x") == 400000
    assert all(line.startswith((b"[0] ", b"[1] ")) for line in result.stdout.splitlines())


def test_lines_appear_while_the_program_runs(program):
    with Launcher("-n", 2, program("print('here')\nwhile True: signal.pause()")) as launcher:
        assert sorted(launcher.lines_until(2, "here")) == ["[0] here", "[1] here"]


def test_environment(program):
    path = program(
        "import json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('COLLECTIVES_')}))\n"
        "if rank == 0:\n import socket\n s = socket.socket(fileno=int(os.environ['COLLECTIVES_RENDEZVOUS_FD']))\n"
        " assert '%s:%d' % s.getsockname() == os.environ['COLLECTIVES_RENDEZVOUS']\n"
        " assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)\n"
        "token = os.environ['COLLECTIVES_TOKEN']\n"
        "assert token.encode() not in open('/proc/self/cmdline', 'rb').read()\n"
        "assert token.encode() not in open('/proc/%d/cmdline' % os.getppid(), 'rb').read()\n"
    )
    code, output = run("-n", 2, "--transport", "tcp", "--timeout", "7.5", path)
    assert code == 0, output
    seen = [json.loads(line[4:]) for line in sorted(output.splitlines())]
    for rank, variables in enumerate(seen):
        assert variables["COLLECTIVES_RANK"] == str(rank)
        assert variables["COLLECTIVES_SIZE"] == "2"
        assert variables["COLLECTIVES_TRANSPORT"] == "tcp"
        assert variables["COLLECTIVES_TIMEOUT"] == "7.5"
        assert len(variables["COLLECTIVES_TOKEN"]) >= 32
    assert seen[0]["COLLECTIVES_TOKEN"] == seen[1]["COLLECTIVES_TOKEN"]
    assert seen[1]["COLLECTIVES_RENDEZVOUS_FD"] == ""


def test_module_and_executable():
    code, output = run("-n", 2, "-m", "platform", "--help-me-not")
    assert code == 0
    assert output.count("Linux") == 2
    code, output = run("-n", 2, "sh", "-c", "echo $COLLECTIVES_RANK of $COLLECTIVES_SIZE")
    assert (code, sorted(output.splitlines())) == (0, ["[0] 0 of 2", "[1] 1 of 2"])


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["/nowhere/prog.py"], 127, "/nowhere/prog.py"),
        (["no-such-command-here"], 127, "no-such-command-here"),
        (["/etc/passwd"], 126, "not executable"),
        (["-n", "0", "true"], 2, "1 to 4096"),
        (["-n", "x", "true"], 2, "1 to 4096"),
        (["--transport", "local", "true"], 2, "auto"),
        (["--timeout", "-1", "true"], 2, "positive"),
        ([], 2, "program"),
    ],
)
def test_bad_arguments(arguments, code, text):
    found, output = run(*arguments)
    assert found == code
    assert text in output


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        ("sys.exit(7)", 7, "rank 1 (pid"),
        ("raise RuntimeError('bad luck')", 1, "RuntimeError: bad luck"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "signal 11 (SIGSEGV)"),
    ],
)
def test_one_fails_and_all_end(program, failure, code, text):
    path = program(
        f"os.write(1, b'pid %d\\n' % os.getpid())\n"  # in one piece: a rank may be killed here
        f"if rank == 1:\n    sys.stdin.close(); {failure}\nwhile True: signal.pause()"
    )
    found, output = run("-n", 3, path)
    assert found == code
    assert text in output
    pids = [int(line.split()[-1]) for line in output.splitlines() if " pid " in line and line.startswith("[")]
    assert len(pids) >= 1
    assert all(gone(pid) for pid in pids)


def test_ranks_that_ignore_sigterm_are_killed(program):
    path = program(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('pid', os.getpid())\nwhile True: signal.pause()"
    )
    with Launcher("-n", 2, "--grace", "0.3", path) as launcher:
        pids = [int(line.split()[-1]) for line in launcher.lines_until(2, "") if "pid" in line]
        os.kill(pids[1], signal.SIGKILL)
        code, _ = launcher.end()
    assert code == 137
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_are_passed_on(program, number, code):
    """Once, and only by the launcher: ranks have sessions of their own."""
    path = program(
        "def note(number, frame):\n    print('got', number); sys.exit(5)\n"
        f"signal.signal({int(number)}, note)\nprint('ready')\nwhile True: signal.pause()"
    )
    with Launcher("-n", 3, path, start_new_session=True) as launcher:
        launcher.lines_until(3, "ready")
        os.killpg(launcher.process.pid, number)  # as the terminal does on Ctrl-C
        found, output = launcher.end()
    assert found == code
    assert sorted(line for line in output.splitlines() if " got " in line) == [
        f"[{r}] got {int(number)}" for r in range(3)
    ]


def test_asked_to_end_while_ranks_go_on_without_one(program):
    path = program("print('ready', flush=True)\nif rank == 0: os.kill(os.getpid(), 9)\nwhile True: signal.pause()")
    with Launcher("-n", 3, "--keep-going", path) as launcher:
        launcher.lines_until(1, "the others go on")
        os.kill(launcher.process.pid, signal.SIGTERM)
        assert launcher.end()[0] == 143


@needs_core
def test_an_infinite_time_limit_of_shrink(program):
    path = program(
        "import collectives\n"
        "comm = collectives.init()\n"
        "if rank: time.sleep(0.3)\n"  # the other waits for it, and does not go on alone
        "print('size', comm.shrink(timeout=float('inf')).size)"
    )
    code, output = run("-n", 2, "--keep-going", path)
    assert (code, output.count("size 2")) == (0, 2), output


def test_a_third_ctrl_c_kills(program):
    path = program(
        "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready')\nwhile True: signal.pause()"
    )
    with Launcher("-n", 2, "--grace", "1000", path) as launcher:
        launcher.lines_until(2, "ready")
        for times in range(3):
            launcher.process.send_signal(signal.SIGINT)
            if times < 2:
                launcher.lines_until(1, "ending all ranks")
        assert launcher.end()[0] == 130


def test_signals_of_others_reach_them(program):
    """A program that reads signals from a descriptor, as asyncio does, gets those not for the launcher; later all."""
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    user = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        path = program("os.kill(os.getppid(), signal.SIGUSR1)")
        assert run_local([sys.executable, str(path)], ranks=2) == 0
        assert signal.SIGUSR1 in ours.recv(64)
        assert signal.set_wakeup_fd(theirs.fileno()) == theirs.fileno()
        assert {number: signal.getsignal(number) for number in handlers} == handlers
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, user)
        ours.close()
        theirs.close()


def test_no_orphans_when_the_launcher_is_killed(program):
    with Launcher("-n", 3, program("print('pid', os.getpid())\nwhile True: signal.pause()")) as launcher:
        pids = [int(launcher.line().split()[-1]) for _ in range(3)]
        launcher.process.kill()
        assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("ending", ["pass", "sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_no_grandchildren_are_left(program, ending):
    """What a rank started in its group ends with it and does not hold up the launcher by keeping the output open."""
    path = program(f"child = subprocess.Popen(['sleep', '1000'])\nprint('pid', child.pid)\n{ending}")
    code, output = run("-n", 2, path)
    pids = [int(line.split()[-1]) for line in output.splitlines() if "] pid " in line]
    assert pids
    assert all(gone(pid) for pid in pids)
    assert (code == 0) == (ending == "pass")


def test_info(capsys):
    assert cli.main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"version", "isa", "build", "transports", "cuda", "nccl", "tensorflow", "torch", "jax"} <= found.keys()
    for entry in [
        *found["transports"].values(),
        *(found[name] for name in ("cuda", "nccl", "tensorflow", "torch", "jax")),
    ]:
        assert entry["found"] or entry["why"]
    assert {"ring", "two_shot"} <= set(found["algorithms"]["all_reduce"])
    text = format_info(info())
    assert f"  all_reduce       {', '.join(found['algorithms']['all_reduce'])}\n" in text
    for word in ("instruction set", "shm", "tcp", "cuda", "nccl", "tensorflow"):
        assert word in text


def test_info_imports_no_framework():
    program = (
        "import sys; from collectives.launch.info import info; info()\n"
        "assert not {'tensorflow', 'torch', 'jax'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LIMIT)


# spawn. The functions must be importable by the new processes, so they stand at the top of this file's module.


def _rank_and(comm, value):
    return comm.rank, value


def _raise_value_error(comm, suspect):
    if comm.rank == suspect:
        raise ValueError(f"rank {suspect} does not like it")
    comm.barrier()


class _NotPicklableError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def _raise_odd_error(comm):
    raise _NotPicklableError("this", "that")


def _kill_one(comm, suspect):
    if comm.rank == suspect:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def _exit_one(comm):
    sys.exit(4)


def _return_lambda(comm):
    return lambda: None


@pytest.mark.parametrize("n", [0, -1])
def test_spawn_needs_a_rank(n):
    with pytest.raises(ValueError, match="at least 1"):
        spawn(_rank_and, n)


def test_spawn_of_something_that_cannot_be_pickled():
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError), match=r"pickle|local object|lambda"):
        spawn(lambda comm: None, 2)
    after = len(os.listdir("/proc/self/fd"))
    assert after <= before + 1  # multiprocessing's resource tracker, once per process


@needs_core
class TestSpawn:
    """With communicators."""

    @pytest.mark.parametrize("n", [1, 3])
    def test_results(self, n):
        assert spawn(_rank_and, n, ("x",)) == [(rank, "x") for rank in range(n)]

    def test_large_results(self):
        text = "x" * 5_000_000
        assert spawn(_rank_and, 2, (text,)) == [(0, text), (1, text)]

    def test_the_original_exception(self):
        with pytest.raises(ValueError, match="rank 1 does not like it") as caught:
            spawn(_raise_value_error, 3, (1,), timeout=LIMIT)
        assert "in rank 1" in str(caught.value.__cause__)
        assert "_raise_value_error" in str(caught.value.__cause__)

    def test_an_exception_that_cannot_be_pickled(self):
        with pytest.raises(CollectivesError, match="this and that"):
            spawn(_raise_odd_error, 2)

    def test_a_killed_rank(self):
        with pytest.raises(PeerError, match=r"rank 2 .*SIGKILL") as caught:
            spawn(_kill_one, 3, (2,), timeout=LIMIT)
        assert caught.value.peer == 2

    def test_a_rank_that_exits(self):
        with pytest.raises(CollectivesError, match="SystemExit"):
            spawn(_exit_one, 2)

    def test_a_result_that_cannot_be_pickled(self):
        with pytest.raises((AttributeError, TypeError, CollectivesError), match="lambda"):
            spawn(_return_lambda, 1)

    def test_nothing_is_left(self):
        spawn(_rank_and, 2, (1,))
        before = sorted(os.listdir("/proc/self/fd"))
        spawn(_rank_and, 2, (1,))
        with contextlib.suppress(ValueError):
            spawn(_raise_value_error, 2, (0,))
        assert sorted(os.listdir("/proc/self/fd")) == before

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_no_orphans_when_the_parent_ends(self, tmp_path, number):
        path = tmp_path / "prog.py"
        path.write_text(
            "import os, signal, collectives\n"
            "def idle(comm):\n    os.write(1, b'pid %d\\n' % os.getpid())\n    while True: signal.pause()\n"
            "if __name__ == '__main__':\n    collectives.spawn(idle, 3)\n"
        )
        with contextlib.ExitStack() as stack:
            process = stack.enter_context(
                subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)
            )
            stack.callback(process.kill)
            pids = []
            while len(pids) < 3:
                assert select.select([process.stdout], [], [], LIMIT)[0], "no output"
                pids.append(int(process.stdout.readline().split()[1]))
            process.send_signal(number)
            assert process.wait(LIMIT) != 0
            assert all(gone(pid) for pid in pids)
