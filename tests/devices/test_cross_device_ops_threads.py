"""The threads behind CrossDeviceOps: they change no result, and stand concurrent callers, forks and the end."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import zlib
from typing import Any

import numpy as np
import pytest
from collectives import _core
from collectives.cross_device_ops import HierarchicalCopyAllReduce, ReductionToOneDevice, RingAllReduce
from conformance import bits, values

CLASSES: list[type[Any]] = [RingAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice]
LARGE = 300_001  # elements
LIMIT = 60.0  # seconds


@pytest.fixture(autouse=True)
def threads_as_before() -> Any:
    yield
    _core._limit_threads(0)


def program(text: str, **variables: str) -> str:
    """Runs a program in a process of its own; what it prints."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def digests() -> list[int]:
    """Of everything that can run on several threads."""
    found = []
    for kind in CLASSES:
        ops = kind()
        for n in (2, 3, 8):
            for dtype in ("float32", "float16"):
                xs = [values(dtype, False, LARGE, rank) for rank in range(n)]
                found.append(zlib.crc32(bits(ops.reduce("mean", xs)[-1])))
                pairs = [([x[i * 1000 : i * 1000 + 5000 * (i % 20)] for x in xs], [i % n]) for i in range(100)]
                found.append(zlib.crc32(b"".join(bits(r[0]) for r in ops.batch_reduce("sum", pairs))))
                found.append(zlib.crc32(bits(ops.gather([x.reshape(1, -1).T for x in xs], 1)[-1])))
                found.append(zlib.crc32(bits(ops.broadcast(xs[0], range(n))[-1])))
    return found


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_NUM_THREADS", "1")
    alone = digests()
    for threads in ("2", "3", "7", ""):
        monkeypatch.setenv("COLLECTIVES_NUM_THREADS", threads)
        assert digests() == alone, f"{threads} threads"


WORKERS = """
import os
import numpy as np
from collectives.cross_device_ops import RingAllReduce

def workers():
    tasks = [open(f"/proc/self/task/{t}/comm").read() for t in os.listdir("/proc/self/task")]
    return tasks.count("collectives\\n")
"""

COUNT = """

ops = RingAllReduce()
ops.reduce("sum", [np.ones(100)] * 8)
few = workers()
ops.reduce("sum", [np.ones(1_000_000)] * 8)
print(few, workers(), len(os.sched_getaffinity(0)))
"""


@pytest.mark.parametrize("threads", [1, 2, 5, None])
def test_threads_are_made_when_they_are_needed(threads: int | None) -> None:
    variables = {} if threads is None else {"COLLECTIVES_NUM_THREADS": str(threads)}
    few, many, cores = map(int, program(WORKERS + COUNT, **variables).split())
    assert few == 0
    assert many == (cores if threads is None else threads) - 1


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "100000"])
def test_bad_numbers_of_threads(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("COLLECTIVES_NUM_THREADS", value)
    with pytest.raises(ValueError, match=f"COLLECTIVES_NUM_THREADS is '{value}'; an integer from 1 to 1024"):
        RingAllReduce()


def test_callers_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_NUM_THREADS", "4")
    inputs = [[np.full(LARGE + i, float(i + r), np.float32) for r in range(3)] for i in range(6)]
    failures: list[str] = []
    start = threading.Barrier(len(inputs))

    def call(i: int) -> None:
        ops = CLASSES[i % 3]()
        start.wait(LIMIT)
        for _ in range(30):
            for result in ops.reduce("sum", inputs[i]):
                if not (result == 3 * i + 3).all():
                    failures.append(f"caller {i}: {np.unique(result)}")

    callers = [threading.Thread(target=call, args=(i,)) for i in range(len(inputs))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(LIMIT)
    assert not any(caller.is_alive() for caller in callers)
    assert not failures


def test_the_interpreter_is_unlocked_meanwhile() -> None:
    """The interpreter never asks for its lock, so another thread runs only when the reduction releases it."""
    xs = [np.ones(4_000_000)] * 2
    ops = RingAllReduce()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(LIMIT)
    try:
        for _ in range(50):  # the waiting thread may get the processor too late
            state = {"over": False}
            started = threading.Event()

            def call(state: dict[str, bool] = state, started: threading.Event = started) -> None:
                started.set()
                ops.reduce("sum", xs)
                state["over"] = True

            caller = threading.Thread(target=call)
            caller.start()
            started.wait(LIMIT)
            overtook = not state["over"]
            caller.join(LIMIT)
            if overtook:
                return
    finally:
        sys.setswitchinterval(interval)
    pytest.fail("no other thread ran during a long reduction")


FORK = """
import signal, threading

ops = RingAllReduce()
xs = [np.full(300_001, r, np.float32) for r in range(4)]

def check():
    assert all((r == 6).all() for r in ops.reduce("sum", xs))

check()
going = True

def keep_busy():
    while going:
        check()

other = threading.Thread(target=keep_busy, daemon=True)
other.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        assert workers() == 0
        for _ in range(3):
            check()
        assert workers() == 2
        if os.fork() == 0:
            signal.alarm(20)
            check()
            os._exit(7 if workers() == 2 else 2)
        _, status = os.wait()
        os._exit(7 if os.waitstatus_to_exitcode(status) == 7 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
    check()
going = False
other.join()
print("done")
"""


def test_fork() -> None:
    """While another thread has the workers; also from the child. Each process has workers of its own."""
    assert program(WORKERS + FORK, COLLECTIVES_NUM_THREADS="3").endswith("done\n")


EXIT = """
import threading
import numpy as np
from collectives.cross_device_ops import RingAllReduce

ops = RingAllReduce()
xs = [np.ones(500_000)] * 4
started = threading.Event()

def for_ever():
    while True:
        ops.reduce("sum", xs)
        started.set()

for _ in range(3):
    threading.Thread(target=for_ever, daemon=True).start()
started.wait()
print("end")
"""


def test_exit_in_the_middle() -> None:
    for _ in range(3):
        assert program(EXIT, COLLECTIVES_NUM_THREADS="4") == "end\n"


FLUSH = """
import ctypes, ctypes.util
import numpy as np
from collectives.cross_device_ops import ReductionToOneDevice

ops = ReductionToOneDevice()
large = [np.full(2_000_000, 1e-40, np.float32)] * 3  # with helpers
small = [np.full(20, 1e-40, np.float32)] * 3  # by the caller alone
libm = ctypes.CDLL(ctypes.util.find_library("m"))
environment = (ctypes.c_uint32 * 8)()  # fenv_t of x86-64; the last word is MXCSR
assert libm.fegetenv(environment) == 0
before = environment[7]
for flags in (0x8040, 0, 0x8040):  # flush results and inputs to zero, or not
    environment[7] = before | flags
    assert libm.fesetenv(environment) == 0
    reduced = [ops.reduce("sum", xs) for xs in (large, small) for _ in range(5)]
    now = (ctypes.c_uint32 * 8)()
    assert libm.fegetenv(now) == 0
    environment[7] = before
    assert libm.fesetenv(environment) == 0
    assert (now[7] ^ (before | flags)) & 0xFFC0 == 0, "the caller's settings are not given back"
    for results in reduced:
        assert all((r > 0).all() for r in results), f"subnormals are lost with the flags {flags:#x} of the caller"
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets the MXCSR register of x86-64")
def test_results_do_not_depend_on_what_the_caller_flushes() -> None:
    program(FLUSH, COLLECTIVES_NUM_THREADS="3")
