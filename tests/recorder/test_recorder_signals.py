"""The recorder and the stacks by signal: who asks, and who else has handlers, forks, or is at its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pool
import pytest
from recorder_files import await_file
from stderr_of import a_function_that_never_stops, read

LIMIT = 60.0
PROCESSES = ["shm", "tcp"]


def wait_or_compute(comm: Any, blocked: bool) -> str:
    comm.all_reduce(np.ones(3), name="before")
    pool.say("ready")
    if comm.rank == 1:
        if blocked:
            pool.hear()
        else:
            a_function_that_never_stops()
    comm.all_reduce(np.ones(300), name="waited for")
    return "done"


@pytest.mark.parametrize("transport", PROCESSES)
def test_sigusr2(groups: Any, transport: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rank 0 is blocked in a collective, rank 1 in Python code; both write a file and go on."""
    group = groups(2, transport, variables={"COLLECTIVES_RECORDER_DIR": str(tmp_path / "made")})
    group.start(wait_or_compute, False)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    for rank in group.ranks:
        rank.signal(signal.SIGUSR2)
    first, second = await_file(tmp_path / "made", 0), await_file(tmp_path / "made", 1)
    group.ranks[1].tell("go on")
    assert [o.value for o in group.collect()] == ["done", "done"]
    last = first["entries"][-1]
    assert (last["name"], last["state"], last["bytes"], last["ended"]) == ("waited for", "active", 2400, None)
    assert (first["rank"], first["size"], first["pid"]) == (0, 2, group.ranks[0].pid)
    assert "in wait_or_compute" in first["stack"]
    last = second["entries"][-1]
    assert (last["name"], last["state"]) == ("before", "done")
    assert "in a_function_that_never_stops" in second["stack"]
    said = capfd.readouterr().err
    for rank in (0, 1):
        assert f"collectives: rank {rank} wrote the recorder of its last collectives to {tmp_path}/made/" in said


# Blocking calls without a name, which are recorded later than others.
PLAIN = {
    "barrier": lambda comm: comm.barrier(),
    "all_reduce": lambda comm: comm.all_reduce(np.ones(2)),
    "broadcast": lambda comm: comm.broadcast(np.ones(100_000), 1),
}


def wait_in_a_plain_call(comm: Any, kind: str) -> Any:
    comm.all_reduce(np.ones(3), name="before")
    pool.say("ready")
    if comm.rank == 1:
        pool.hear()
    PLAIN[kind](comm)
    return comm.recorder()[-1]


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("transport", PROCESSES)
def test_a_plain_call_that_waits(groups: Any, transport: str, kind: str, tmp_path: Path) -> None:
    group = groups(2, transport, variables={"COLLECTIVES_RECORDER_DIR": str(tmp_path)})
    group.start(wait_in_a_plain_call, kind)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[0].signal(signal.SIGUSR2)
    last = await_file(tmp_path, 0)["entries"][-1]
    assert (last["collective"], last["name"], last["state"], last["ended"]) == (kind, None, "active", None)
    group.ranks[1].tell("go on")
    over = group.collect()[0].value
    assert (over["posted"], over["state"]) == (pytest.approx(last["posted"], abs=0.01), "done")
    assert over["posted"] < over["ended"]


def test_sigusr2_without_a_folder(groups: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    group = groups(2, "shm")
    group.start(wait_or_compute, True)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[0].signal(signal.SIGUSR2)
    text = read(capfd, "]}\n")
    group.ranks[1].tell("go on")
    assert [o.value for o in group.collect()] == ["done", "done"]
    line, _, rest = text.partition("\n")
    assert (
        "rank 0 writes the recorder of its last collectives to stderr (SIGUSR2); set COLLECTIVES_RECORDER_DIR" in line
    )
    assert json.loads(rest)["entries"][-1]["name"] == "waited for"


HANDLERS = """
import os, signal, sys
{before}
import collectives
comm = collectives.init()
{after}
os.kill(os.getpid(), signal.SIGUSR2)
print("alive")
"""
OWN = "signal.signal(signal.SIGUSR2, lambda *_: print('own handler'))"
FORK = """
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, b"x")  # what the library does after a fork is done
    signal.pause()
os.read(read, 1)
os.kill(child, signal.SIGUSR2)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Any]:
    def run(before: str, after: str, **variables: str) -> subprocess.CompletedProcess[str]:
        code = HANDLERS.format(before=before, after=after)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIVES_")}
        return subprocess.run(
            [sys.executable, "-c", code], env={**environ, **variables}, capture_output=True, text=True, timeout=LIMIT
        )

    yield run


def test_a_handler_of_the_program_is_left_alone(program: Any) -> None:
    for before, after in ((OWN, ""), ("", OWN)):
        done = program(before, after)
        assert (done.returncode, done.stdout, done.stderr) == (0, "own handler\nalive\n", "")


def test_signals_can_be_switched_off(program: Any) -> None:
    assert program("", "", COLLECTIVES_SIGNALS="0").returncode == -signal.SIGUSR2
    refused = program("", "", COLLECTIVES_SIGNALS="2")
    assert refused.returncode == 1
    assert "COLLECTIVES_SIGNALS is '2'" in refused.stderr


def test_a_forked_child_is_no_rank(program: Any) -> None:
    done = program("", FORK)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"child {-signal.SIGUSR2}\nalive\n"
    assert done.stderr.count("writes the recorder") == 1


STACK = "collectives._core._stack_signal()"
CLOSED = """
os.closerange(3, 64)
mine = [os.open({path!r}, os.O_RDWR | os.O_CREAT, 0o600) for _ in range(20)]
"""


def test_the_stack_handler_is_gone(program: Any) -> None:
    """A dump has no stack then, whatever has taken the handler away; the old one must not be called."""
    default = f"signal.signal({STACK}, signal.SIG_DFL)"
    unregistered = f"import faulthandler; faulthandler.unregister({STACK})"
    own = f"signal.signal({STACK}, lambda *_: print('foreign'))"
    for after, gone in (("", False), (default, True), (unregistered, True), (own, True)):
        done = program("", after)
        assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
        assert (json.loads(done.stderr.partition("\n")[2])["stack"] is None) == gone, done.stderr


def test_the_descriptor_of_the_stack_is_taken_for_something_else(program: Any, tmp_path: Path) -> None:
    for reopened in (True, False):
        path = tmp_path / "file of the program"
        code = CLOSED.format(path=str(path)) if reopened else "os.closerange(3, 64)"
        done = program("", code)
        assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
        assert json.loads(done.stderr.partition("\n")[2])["stack"] is None
        assert not reopened or path.read_bytes() == b""


AT_EXIT = """
import ctypes
import collectives
comm = collectives.init()
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.getchar, None, None)
print(collectives._core._stack_signal(), flush=True)
"""


def test_a_signal_after_the_interpreter_has_ended() -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIVES_")}
    with subprocess.Popen(
        [sys.executable, "-c", AT_EXIT], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        number = int(process.stdout.readline())
        end = time.monotonic() + LIMIT
        while catches(process.pid, number):  # until faulthandler has ended
            assert time.monotonic() < end
            time.sleep(0.01)  # a poll: /proc cannot be waited for
        assert catches(process.pid, signal.SIGUSR2)
        process.send_signal(signal.SIGUSR2)
        process.stdin.close()
        assert process.wait(LIMIT) == 0


def catches(pid: int, number: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    raise AssertionError("the kernel does not say which signals a process catches")


CHILDREN_THAT_END = """
import os, sys, threading
import collectives
import numpy as np

group = collectives.local_group(2)
other = threading.Thread(target=group[1].all_reduce, args=(np.ones(3),))
other.start()
group[0].all_reduce(np.ones(3))
other.join()
for work in [comm.all_reduce(np.ones(3), async_op=True) for comm in group]:
    work.wait()  # so that both have a thread that waits for more to do
if {failed}:
    try:
        group[0].all_reduce(np.ones(3), timeout=0.2)
    except collectives.DeadlineError:
        group[0].close()  # what explains the failure is over
full = collectives.local_group(1)[0]
for _ in range(1000):
    full.all_reduce(np.ones(3))  # so that reading takes a while
stop = threading.Event()

def read():
    while not stop.is_set():
        collectives._core._all_recorders_json("a test")

readers = [threading.Thread(target=read) for _ in range(2)]
for reader in readers:
    reader.start()
for i in range(6):
    child = os.fork()
    if child == 0:
        if i % 3 == 0:
            sys.exit()
        if i % 3 == 1:
            group.clear()
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    stop.set()
    for reader in readers:
        reader.join()
"""


@pytest.mark.parametrize("failed", [False, True])
def test_a_forked_child_ends_in_good_order(failed: bool) -> None:
    """Whatever the threads of its parent were at, which it does not have."""
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN_THAT_END.format(failed=failed)], capture_output=True, text=True, timeout=LIMIT
    )
    assert (done.returncode, done.stdout) == (0, "0\n" * 6), done.stderr


def test_a_folder_that_cannot_be_written(program: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = program("", "", COLLECTIVES_RECORDER_DIR=str(tmp_path / "file" / "below"))
    assert done.returncode == 0, done.stderr
    assert "rank 0 cannot write its recorder to" in done.stderr
    assert json.loads(done.stderr.partition("\n")[2])["entries"] == []


AT_ONCE = """
import json, os, pathlib, signal, threading
import collectives
import numpy as np
folder = pathlib.Path(os.environ["COLLECTIVES_RECORDER_DIR"])
first, comm = collectives.local_group(1)[0], collectives.local_group(1)[0]
for i in range(1000):
    comm.all_reduce(np.ones(3), name="a name that makes the file longer")
read, write = os.pipe()
threads = [threading.Thread(target=os.read, args=(read, 1)) for _ in range(4)]  # without the interpreter's lock
for thread in threads:
    thread.start()
path = folder / f"collectives-recorder-rank0-pid{os.getpid()}-world2.json"
counts = set()
for _ in range(60):
    for thread in threads:
        signal.pthread_kill(thread.ident, signal.SIGUSR2)
    while not path.exists():
        pass
    counts.add(len(json.loads(path.read_text())["entries"]))
os.write(write, b"four")
for thread in threads:
    thread.join()
first.close()
comm.close()
print(counts, sorted(p.name.partition(f"pid{os.getpid()}")[2] for p in folder.iterdir()))
"""


def test_several_dumps_at_once(tmp_path: Path) -> None:
    """The file is complete whenever it is read, and each world of the process has its own."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIVES_")}
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE],
        env={**environ, "COLLECTIVES_RECORDER_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "{1000} ['-world2.json', '.json']\n"
    assert "cannot be renamed" not in done.stderr
