"""Pythons that lack calls of the system, and interpreters that the engine cannot work in."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest
from collectives import _system

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
    descriptors = [_system.pidfd_open(child.pid), _system.memfd_create("test"), _system.eventfd()]
    try:
        assert not any(os.get_inheritable(fd) for fd in descriptors)
        assert select.select([descriptors[0]], [], [], 0)[0] == []
        child.communicate(b"\n")
        assert select.select([descriptors[0]], [], [], 10)[0] == [descriptors[0]]
        assert os.write(descriptors[1], b"abc") == 3
        with pytest.raises(BlockingIOError):
            os.read(descriptors[2], 8)
        with pytest.raises(ProcessLookupError, match="pidfd_open"):
            _system.pidfd_open(child.pid)
    finally:
        for fd in descriptors:
            os.close(fd)


def test_ranks_of_a_python_that_lacks_them(tmp_path) -> None:
    """Shared memory and the watch of the peers are as elsewhere, and so is the launcher."""
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
        "import sys, traceback\nfrom collectives import _leaving\n"
        "def f(): raise KeyError('old')\n"
        "try:\n    f()\nexcept KeyError as e:\n    sys.last_value = e.with_traceback(e.__traceback__.tb_next)\n"
        "print(repr(_leaving._uncaught()))\n"
        "import atexit\natexit.register(lambda: print(repr(_leaving._uncaught())))\n"
        "sys.stderr.close()\nraise ValueError('new')\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["None", "ValueError('new')"]
