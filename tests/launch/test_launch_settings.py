"""What the launchers set for the ranks, and odd places to start from."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import collectives
import pytest
from collectives.launch._job import Job, forwarding
from collectives.launch._process import share_of_cores

LIMIT = 60  # seconds
CORES = len(os.sched_getaffinity(0))
SAID = "OMP_NUM_THREADS is {} in each rank"


def start(*command: str, threads: str = "", program: str | None = None) -> tuple[str, str]:
    """What a program prints, which must end with 0."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COLLECTIVES_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, *command],
        env={**kept, "OMP_NUM_THREADS": threads},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        input=program,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(("ranks", "threads"), [(2, max(1, CORES // 2)), (CORES + 1, 1), (10 * CORES, 1)])
def test_share_of_a_rank(ranks: int, threads: int) -> None:
    said: list[str] = []
    assert share_of_cores(ranks, {"OMP_NUM_THREADS": ""}, said.append) == {"OMP_NUM_THREADS": str(threads)}
    assert said == [f"{SAID.format(threads)} ({CORES} cores, {ranks} ranks); set it for another number"]
    assert share_of_cores(ranks, {"OMP_NUM_THREADS": "3"}, said.append) == {}
    for name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        assert share_of_cores(ranks, {name: "2"}, said.append) == {}
    assert share_of_cores(1, {}, said.append) == {}  # which has them all
    assert len(said) == 1


SHOW = "import os, sys; print(os.environ['OMP_NUM_THREADS'])"


def test_ranks_share_the_cores(tmp_path: Path) -> None:
    program = tmp_path / "show.py"
    program.write_text(SHOW)
    run = ("-m", "collectives", "run", "-n", "2", str(program))
    share = str(max(1, CORES // 2))
    out, err = start(*run)
    assert sorted(out.splitlines()) == [f"[0] {share}", f"[1] {share}"]
    assert SAID.format(share) in err
    assert err.count("\n") == 1
    out, err = start(*run, threads="7")
    assert sorted(out.splitlines()) == ["[0] 7", "[1] 7"]
    assert err == ""


def test_names_of_options_as_other_launchers_have_them(tmp_path: Path) -> None:
    program = tmp_path / "sized.py"
    program.write_text("import os, sys; print(os.environ['COLLECTIVES_SIZE'], sys.argv[1:])\n")
    for option in ("-np", "--nproc-per-node"):
        out, _ = start("-m", "collectives", "run", option, "2", "--no-prefix", str(program), "-n", "5", threads="1")
        assert out.splitlines() == ["2 ['-n', '5']"] * 2
    for command in (("--version",), ("run", "--version")):
        assert start("-m", "collectives", *command)[0] == f"collectives {collectives.__version__}\n"


# NumPy reads the variable when it is loaded, which is when a rank imports the module of its function.
SPAWNING = """
import os
found = os.environ.get("OMP_NUM_THREADS")
def seen(comm): return found
if __name__ == "__main__":
    import collectives
    print(*collectives.spawn(seen, 2), os.environ.get("OMP_NUM_THREADS", "-"))
"""


def test_spawned_ranks_share_the_cores(tmp_path: Path) -> None:
    program = tmp_path / "spawning.py"
    program.write_text(SPAWNING)
    share = str(max(1, CORES // 2))
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, program], env=kept, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{share} {share} -\n"  # and the parent has what it had
    assert SAID.format(share) in done.stderr
    assert start(str(program), threads="5")[0] == "5 5 5\n"


def test_output_of_ranks_when_stdout_is_closed(tmp_path: Path) -> None:
    program = tmp_path / "hello.py"
    program.write_text("import sys; print('out'); print('err', file=sys.stderr)")
    run = f"exec {sys.executable} -m collectives run -n 2 {program}"
    kept = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["sh", "-c", f"{run} >&-"], env=kept, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stderr.splitlines()) == ["[0] err", "[1] err"]
    del kept["OMP_NUM_THREADS"]  # of which the launcher says a line, and not to stdout
    done = subprocess.run(["sh", "-c", f"{run} 2>&-"], env=kept, stdout=subprocess.PIPE, text=True, timeout=LIMIT)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[0] out", "[1] out"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="a network of its own needs root and `ip`")
def test_a_host_whose_loopback_has_no_ipv4(tmp_path: Path) -> None:
    program = tmp_path / "sum.py"
    program.write_text(
        "import collectives, numpy\ncomm = collectives.init()\nprint(comm.all_reduce(numpy.ones(1))[0], flush=True)\n"
    )
    run = f"{sys.executable} -m collectives run -n 2 {program}"
    both = f"ip link set lo up; ip addr del 127.0.0.1/8 dev lo; {run} && {run} --transport tcp"
    kept = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", both], env=kept, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 2.0"] * 2 + ["[1] 2.0"] * 2


NO_FILE = """
import functools
import collectives
def f(comm, x=1): return x
for fn in (f, functools.partial(f, x=2)):
    try:
        collectives.spawn(fn, 2)
    except ValueError as error:
        print(error)
"""


@pytest.mark.parametrize("way", [("-c", NO_FILE), ("-",)], ids=["-c", "stdin"])
def test_a_function_of_no_file_cannot_be_spawned(way: tuple[str, ...]) -> None:
    out, err = start(*way, threads="1", program=NO_FILE if way == ("-",) else "")
    assert len(out.splitlines()) == 2
    assert all("is defined where no new process can import it" in line for line in out.splitlines())
    assert "__main__" not in err


def test_a_function_of_a_module_can_be_spawned_from_anywhere() -> None:
    program = "import collectives, operator; print(collectives.spawn(operator.attrgetter('rank'), 2))"
    assert start("-c", program, threads="1")[0] == "[0, 1]\n"


def test_a_signal_that_comes_at_the_very_end_reaches_others() -> None:
    """When the last rank has ended and no thread waits any more."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    ours.settimeout(0)
    before = signal.set_wakeup_fd(theirs.fileno())
    user = signal.signal(signal.SIGUSR1, lambda *_: None)
    job = Job(1.0, False)
    try:
        with forwarding(job):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert ours.recv(64) == bytes([signal.SIGUSR1])
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, user)
        job.close()
        ours.close()
        theirs.close()
