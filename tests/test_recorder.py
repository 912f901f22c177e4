"""The recorder: what it keeps of the last calls, how it is dumped, and what errors carry."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import collectives
import numpy as np
import pool
import pytest
from pool import Pools
from stderr_of import a_function_that_never_stops, read

LIMIT = 60.0
TIMEOUT = 6.0  # so long that no rank is taken for missing because it was not run for a moment
PROCESSES = ["shm", "tcp"]


def record(comm: Any) -> list[dict[str, Any]]:
    began = time.time()
    comm.all_reduce(np.ones(10, np.float32), op="max")
    comm.all_reduce([np.ones(3), np.ones((2, 2))], name="a list, " + "named " * 20)
    comm.all_reduce(np.ones(70_000), async_op=True, name='"quoted\\ \n\u00e9').wait()
    comm.broadcast(np.ones(5, np.int8), 1, algorithm="auto")
    comm.barrier()
    if comm.rank == 0:
        comm.send(np.ones(7, np.int16), 1, tag=5)
    else:
        comm.recv(np.ones(7, np.int16), 0, tag=5)
    found: list[dict[str, Any]] = comm.recorder()[-6:]  # of perhaps a thousand
    assert all(began - 1 <= entry["posted"] <= time.time() + 1 for entry in found)
    return found


@pytest.mark.parametrize("transport", ["local", *PROCESSES])
def test_entries(pools: Pools, transport: str) -> None:
    for rank, entries in enumerate(pools.get(2, transport).run(record)):
        first, fused, asynchronous, broadcast, barrier, message = entries
        assert [e["sequence"] for e in entries[:5]] == list(range(first["sequence"], first["sequence"] + 5))
        assert {e["state"] for e in entries} == {"done"}
        assert {e["communicator"] for e in entries} == {0}
        assert (first["collective"], first["op"], first["dtype"]) == ("all_reduce", "max", "float32")
        assert (first["elements"], first["bytes"], first["tensors"], first["name"]) == (10, 40, 1, None)
        assert isinstance(first["algorithm"], str)
        assert (fused["elements"], fused["bytes"], fused["tensors"]) == (7, 56, 2)
        assert fused["name"] == ("a list, " + "named " * 20)[:47]
        assert asynchronous["name"] == '"quoted\\ \n\u00e9'
        assert asynchronous["posted"] <= asynchronous["started"] <= asynchronous["ended"]
        assert (broadcast["op"], broadcast["root"], broadcast["dtype"]) == (None, 1, "int8")
        assert (barrier["dtype"], barrier["bytes"]) == (None, 0)
        assert (message["collective"], message["sequence"]) == (["send", "recv"][rank], None)
        assert (message["peer"], message["tag"], message["bytes"]) == (1 - rank, 5, 14)


def call_often(comm: Any) -> list[list[Any]]:
    """Ordinary calls that are alike, mixed with others that differ from them in their descriptions alone."""
    x, y = np.ones(2), np.ones(3)
    for i in range(1500):
        if i % 3 == 0:
            comm.all_reduce(x)
        elif i % 3 == 1:
            comm.all_reduce(x if i % 2 else y, name=f"call {i}")
        else:
            comm.all_reduce(x, async_op=True, name=f"call {i}").wait()
    return [[e["sequence"], e["name"], e["elements"], e["state"]] for e in comm.recorder()]


def test_the_last_thousand_are_kept(groups: Any) -> None:
    for entries in groups(2, "shm").run(call_often):
        wanted = [[i, f"call {i}" if i % 3 else None, 3 if i % 6 == 4 else 2, "done"] for i in range(500, 1500)]
        assert entries == wanted


def call_the_same_after_many(comm: Any) -> list[list[Any]]:
    """The description of the call that is made again is older than all that is kept."""
    x = np.ones(2)
    comm.all_reduce(x)
    for i in range(2500):
        comm.all_reduce(np.ones(3), async_op=True, name=f"call {i}").wait()
    for _ in range(3):
        comm.all_reduce(x)
    return [[e["sequence"], e["name"], e["elements"]] for e in comm.recorder()[-4:]]


def test_a_call_like_one_long_ago(groups: Any) -> None:
    wanted = [[2500, "call 2499", 3], [2501, None, 2], [2502, None, 2], [2503, None, 2]]
    assert groups(2, "shm").run(call_the_same_after_many) == [wanted, wanted]


def groups_too(comm: Any) -> list[list[Any]]:
    group = comm.dup()
    group.all_reduce(np.ones(1))
    comm.all_reduce(np.ones(1))
    result = [[e["communicator"] > 0, e["collective"]] for e in group.recorder()[-2:]]
    assert [e["sequence"] for e in group.recorder()] == [e["sequence"] for e in comm.recorder()]
    group.close()
    return result


def test_groups_share_the_recorder(groups: Any) -> None:
    assert groups(2, "shm").run(groups_too)[0] == [[True, "all_reduce"], [False, "all_reduce"]]


def test_read_while_it_is_written() -> None:
    """What a reader gets is whole, whatever the writer does."""
    comm = collectives.local_group(1)[0]
    stop = threading.Event()
    written = [0]

    def write() -> None:
        while not stop.is_set():
            for n in (1, 2, 3):
                comm.all_reduce(np.ones(n, np.float64), name=f"{n} elements", async_op=True).wait()
                comm.all_reduce(np.ones(n, np.int8))
            written[0] += 6

    writer = threading.Thread(target=write)
    writer.start()
    try:
        end = time.monotonic() + LIMIT
        looks = 0
        while (looks < 30 or written[0] < 3000) and time.monotonic() < end:
            looks += 1
            entries = comm.recorder()
            numbers = [e["sequence"] for e in entries]
            assert numbers == sorted(set(numbers))
            for entry in entries:
                if entry["name"] is not None:
                    assert entry["name"] == f"{entry['elements']} elements"
                    assert entry["dtype"] == "float64"
                else:
                    assert entry["dtype"] == "int8"
    finally:
        stop.set()
        writer.join()
    assert written[0] >= 3000
    comm.close()


def test_dump_recorder(tmp_path: Path) -> None:
    group = collectives.local_group(2)
    threads = [threading.Thread(target=comm.all_reduce, args=(np.ones(4),), kwargs={"name": "g"}) for comm in group]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    collectives.dump_recorder(tmp_path / "dump.json")
    text = io.StringIO()
    collectives.dump_recorder(text)
    for ranks in (json.loads((tmp_path / "dump.json").read_text()), json.loads(text.getvalue())):
        mine = [r for r in ranks if r["size"] == 2 and r["entries"] and r["entries"][-1]["name"] == "g"]
        assert [r["rank"] for r in mine] == [0, 1]
        assert {r["pid"] for r in mine} == {os.getpid()}
    for comm in group:
        comm.close()


# --- signals --------------------------------------------------------------------------------------------------------


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


def await_file(folder: Path, rank: int) -> dict[str, Any]:
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        for path in folder.glob(f"collectives-recorder-rank{rank}-pid*.json"):
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        time.sleep(0.01)  # a poll: what another process writes cannot be waited for
    raise AssertionError(f"no dump of rank {rank} in {os.listdir(folder)}")


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
    """A dump has no stack then, whoever has taken the handler away; the old one must not be called."""
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
    raise AssertionError("the kernel does not tell which signals a process catches")


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
    """Whenever one reads the file it is whole, and each world of the process has its own."""
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


# --- failures -------------------------------------------------------------------------------------------------------


def fail(comm: Any, timeout: float) -> list[Any]:
    comm.all_reduce(np.ones(3), name="before")
    x = np.ones(1 << 20, np.float32)
    if comm.rank == 1:
        pool.say("ready")
        pool.hear()
    try:
        comm.all_reduce(x, name="gradient", timeout=timeout)
    except collectives.CollectivesError as error:
        return [type(error).__name__, str(error), error.host, error.pid, error.bytes_done]
    return ["returned"]


@pytest.mark.parametrize("transport", PROCESSES)
def test_dump_and_error_after_a_failure(groups: Any, transport: str, tmp_path: Path) -> None:
    group = groups(3, transport, variables={"COLLECTIVES_RECORDER_DIR": str(tmp_path)})
    group.start(fail, TIMEOUT)
    assert group.ranks[1].event() == "ready"
    end = time.monotonic() + LIMIT
    outcomes = [group.ranks[r].outcome(end) for r in (0, 2)]
    waited = []
    for rank, outcome in zip((0, 2), outcomes, strict=True):
        name, text, host, pid, done = outcome.value
        assert name == "DeadlineError", outcome
        assert (host, pid) == (os.uname().nodename, group.ranks[1].pid)
        assert 0 <= done < 4 << 20
        assert "of 4.0 MiB were done" in text
        dumped = await_file(tmp_path, rank)
        assert "gradient" in dumped["why"]
        states = [(e["name"], e["state"]) for e in dumped["entries"]]
        assert states[-2:] == [("before", "done"), ("gradient", "failed")]
        waited.append(dumped["entries"][-1]["ended"] - dumped["entries"][-1]["posted"])
    assert max(waited) >= TIMEOUT - 0.1  # the other may have come later
    assert not list(tmp_path.glob("*.part"))


def fail_alone(comm: Any) -> list[Any]:
    if comm.rank == 1:
        return []
    with pytest.raises(collectives.DeadlineError) as info:
        comm.all_reduce(np.ones(3), timeout=0.3)
    return [info.value.host, info.value.pid, info.value.bytes_done]


def test_threads_are_peers_of_this_process(groups: Any) -> None:
    assert groups(2, "local").run(fail_alone)[0] == [os.uname().nodename, os.getpid(), 12]  # its own part


def receive_half(comm: Any) -> list[Any]:
    x = np.ones(1 << 20, np.int8)
    if comm.rank == 1:
        comm.send(x[: 1 << 19], 0, tag=1)
        pool.say("ready")
        pool.hear()
        return []
    comm.recv(x[: 1 << 19], 1, tag=1)
    with pytest.raises(collectives.DeadlineError, match=r"0 B of 1\.0 MiB were done") as info:
        comm.recv(x, 1, tag=2, timeout=0.5)
    return [info.value.collective, info.value.peer, info.value.bytes_done]


@pytest.mark.parametrize("transport", PROCESSES)
def test_messages_carry_it_too(groups: Any, transport: str) -> None:
    group = groups(2, transport)
    group.start(receive_half)
    assert group.ranks[1].event() == "ready"
    assert group.ranks[0].outcome(time.monotonic() + LIMIT).value == ["recv", 1, 0]
