"""Pythons that lack calls of the system, and interpreters that the engine cannot work in."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest
from collectives._startup import system

LACKING = """
import os
for name in ("pidfd_open", "memfd_create", "eventfd"):
    delattr(os, name)  # as in conda's builds
"""


def run(program: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    kept["OMP_NUM_THREADS"] = "1"
    done = subprocess.run([sys.executable, "-c", program], env=kept, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_calls_that_python_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pidfd_open", "memfd_create", "eventfd"):
        monkeypatch.delattr(os, name)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    descriptors = [system.pidfd_open(child.pid), system.memfd_create("test"), system.eventfd()]
    try:
        assert not any(os.get_inheritable(fd) for fd in descriptors)
        assert select.select([descriptors[0]], [], [], 0)[0] == []
        child.communicate(b"\n")
        assert select.select([descriptors[0]], [], [], 10)[0] == [descriptors[0]]
        assert os.write(descriptors[1], b"abc") == 3
        with pytest.raises(BlockingIOError):
            os.read(descriptors[2], 8)
        with pytest.raises(ProcessLookupError, match="pidfd_open"):
            system.pidfd_open(child.pid)
    finally:
        for fd in descriptors:
            os.close(fd)


def test_ranks_of_a_python_that_lacks_them(tmp_path) -> None:
    """Shared memory and the checks of the peers are as elsewhere, and so is the launcher."""
    program = tmp_path / "ranks.py"
    program.write_text(
        f"{LACKING}\nimport collectives, numpy\ncomm = collectives.init()\nx = numpy.ones(9)\ncomm.all_reduce(x)\n"
        "print(x[0], *comm.bytes_by_transport())\n"
    )
    out = run(
        f"{LACKING}\nfrom collectives.launch.local import run_local\nimport sys\n"
        f"sys.exit(run_local([sys.executable, {str(program)!r}], 2))"
    )
    assert sorted(out.splitlines()) == ["[0] 2.0 shm", "[1] 2.0 shm"]
    assert "'shm': {'found': True, 'where'" in run(f"{LACKING}\nimport collectives; print(collectives.info())")


def test_a_subinterpreter_is_refused() -> None:
    """Importing hung there."""
    out = run(
        "import _xxsubinterpreters as interpreters\nother = interpreters.create()\n"
        "interpreters.run_string(other, '''if True:\n"
        "    try:\n        import collectives\n"
        "    except ImportError as error:\n        print(error, flush=True)\n''')\n"
        "import collectives; print(collectives.__version__)"
    )
    assert out.startswith("collectives cannot be imported in a subinterpreter; import it in the main interpreter\n")
    assert out.count("\n") == 2


def test_an_exception_that_was_caught_long_ago_did_not_end_the_program(tmp_path) -> None:
    """A test runner, or a console, leaves it in sys.last_value."""
    program = tmp_path / "old.py"
    program.write_text(
        "import sys, traceback\nfrom collectives._startup import at_exit as _leaving\n"
        "def f(): raise KeyError('old')\n"
        "try:\n    f()\nexcept KeyError as e:\n    sys.last_value = e.with_traceback(e.__traceback__.tb_next)\n"
        "print(repr(_leaving._uncaught()))\n"
        "import atexit\natexit.register(lambda: print(repr(_leaving._uncaught())))\n"
        "sys.stderr.close()\nraise ValueError('new')\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["None", "ValueError('new')"]


# A filter of system calls, as sandboxes have one: memfd_create is not permitted.
REFUSING = """
import ctypes, errno, platform, struct
def refuse_memfd_create(number={"x86_64": 319, "aarch64": 279}[platform.machine()]):
    code = b"".join(struct.pack("HBBI", *step) for step in [
        (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | errno.EPERM), (0x06, 0, 0, 0x7FFF0000)])
    steps = ctypes.create_string_buffer(code)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(steps)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()  # PR_SET_SECCOMP
"""


@pytest.mark.parametrize(
    ("refused", "replicas", "hosts"),  # ranks that share memory have the same number there
    [((0, 1, 2), 1, [0, 1, 2]), ((1,), 1, [0, 0, 1]), ((0, 1), 2, [0, 1, 2, 3, 4, 4])],
)
def test_memory_that_a_sandbox_refuses(tmp_path, refused: tuple[int, ...], replicas: int, hosts: list[int]) -> None:
    program = tmp_path / "ranks.py"
    program.write_text(
        f"{REFUSING}\nimport os, numpy, threading, collectives\n"
        f"if int(os.environ['COLLECTIVES_RANK']) in {refused}: refuse_memfd_create()\n"
        f"comms = collectives.init(replicas={replicas})\n"
        "def work(comm):\n"
        "    x = numpy.full(9, comm.rank + 1.0)\n    comm.all_reduce(x)\n    comm.barrier()\n"
        "    print(f'{comm.rank} {x[0]} {list(comm._host)}\\n', end='', flush=True)\n"
        "threads = [threading.Thread(target=work, args=[comm]) for comm in comms]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()\nfor comm in comms: comm.close()\n"
    )
    done = launch("-n", "3", str(program))
    assert done.returncode == 0, done.stderr
    size = len(hosts)
    lines = sorted(line.partition("] ")[2] for line in done.stdout.splitlines())
    assert lines == [f"{rank} {size * (size + 1) / 2} {hosts}" for rank in range(size)]
    said = sorted(line for line in done.stderr.splitlines() if "no shared memory" in line)
    why = "memfd_create: Operation not permitted"
    assert said == [
        f"[{rank}] no shared memory, so rank {rank} uses TCP also within its host: {why}" for rank in refused
    ]


def test_shared_memory_that_was_asked_for_and_is_refused(tmp_path) -> None:
    program = tmp_path / "ranks.py"
    program.write_text(f"{REFUSING}\nimport collectives\nrefuse_memfd_create()\ncollectives.init()\n")
    done = launch("-n", "2", "--transport", "shm", str(program))
    assert done.returncode == 1
    assert (
        "PermissionError: [Errno 1] memfd_create (a sandbox may refuse it, and Linux has it since 3.17; set "
        in done.stderr
    )
    assert "COLLECTIVES_TRANSPORT to auto or tcp): Operation not permitted" in done.stderr
    assert "open files" not in done.stderr


def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    return subprocess.run(
        [sys.executable, "-m", "collectives", "run", *arguments],
        env={**kept, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
