"""Ranks under launchers of others: a program that says what its rank found, and where the launchers are.

The MPIs of PyPI cannot be installed together. Each has an environment of its own, with mpi4py and NumPy, in the folder
that the variable LAUNCHERS names; `.ci/run launchers` makes them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import collectives
import pytest

LIMIT = 60.0  # seconds for a job, which takes a few
FOLDER = os.environ.get("LAUNCHERS", "")

PROGRAM = """
import os, sys
before, after = "mpi4py before" in sys.argv, "mpi4py after" in sys.argv
if before:
    from mpi4py import MPI
import numpy as np
import collectives

for _ in range(2):  # a program may start again
    comm = collectives.init()
    place = comm.rank, comm.size
    assert comm.all_reduce(np.array([comm.rank + 1.0])) == sum(range(1, comm.size + 1))
    comm.close()
if after:
    from mpi4py import MPI
if before or after:
    assert (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) == place
    assert MPI.COMM_WORLD.allreduce(1) == place[1]
os.write(1, b"rank %d of %d\\n" % place)
"""
# Open MPI asks for a word from root, and has fewer places than ranks on a small machine.
OPEN_MPI = {f"{prefix}_ALLOW_RUN_AS_ROOT{more}": "1" for prefix in ("OMPI", "PRTE") for more in ("", "_CONFIRM")}
MPIS = {
    "openmpi": ("openmpi", "mpirun", "--oversubscribe"),
    "openmpi of Debian": ("openmpi-debian", "/usr/bin/mpirun", "--oversubscribe"),
    "mpich": ("mpich", "mpiexec"),
    "impi": ("impi", "mpiexec"),
}


def launcher(name: str) -> tuple[list[str], str]:
    """The command of an MPI, up to the number of ranks, and the Python of its environment; skips where it is not."""
    folder, program, *options = MPIS[name]
    home = Path(FOLDER, folder, "bin")
    command = Path(program) if program.startswith("/") else home / program
    if not FOLDER or not (home / "python").exists() or not command.exists():
        pytest.skip(f"{name} is not in the folder that LAUNCHERS names: `.ci/run launchers` installs it")
    return [str(command), *options], str(home / "python")


def needs(name: str) -> str:
    """The Python of an environment in that folder; skips where it is not."""
    python = Path(FOLDER, name, "bin", "python")
    if not FOLDER or not python.exists():
        pytest.skip(f"{name} is not in the folder that LAUNCHERS names: `.ci/run launchers` installs it")
    return str(python)


def package(folder: Path) -> str:
    """A folder with nothing but this package, for the PYTHONPATH of an interpreter with other packages."""
    home = folder / "package"
    if not home.exists():
        home.mkdir()
        (home / "collectives").symlink_to(Path(collectives.__file__).parent)
    return str(home)


def run(
    command: Sequence[str], folder: Path, *, limit: float = LIMIT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command with none of our settings but these; everything that it has started ends with it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    environ = {**kept, **OPEN_MPI, "I_MPI_FABRICS": "shm", "PYTHONPATH": package(folder), "OMP_NUM_THREADS": "1"}
    if timeout := shutil.which("timeout"):
        command = [timeout, "--kill-after=5", str(limit), *command]
    return subprocess.run(
        command,
        env={**environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit + 30,
        cwd=folder,
        check=False,
    )


def program(folder: Path, text: str = PROGRAM) -> str:
    """The path of a program of this text."""
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def check(done: subprocess.CompletedProcess[str], ranks: int = 4) -> None:
    """Whether all ranks of the program have found each other."""
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert done.returncode == 0, done.stderr
    assert said == [f"rank {rank} of {ranks}" for rank in range(ranks)], done.stderr


def four(folder: Path, text: str, variables: Sequence[dict[str, str]], python: str = sys.executable) -> list[str]:
    """Runs a program in a process for each entry of `variables`, all at once; returns what each has written to stderr.

    Raises:
        AssertionError: one failed.
    """
    path = program(folder, text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    processes = [
        subprocess.Popen([python, path], env={**kept, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for own in variables
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), [error for _, error in outputs]
    said = sorted(line for output, _ in outputs for line in output.splitlines())
    assert said == [f"rank {rank} of {len(processes)}" for rank in range(len(processes))]
    return [error for _, error in outputs]
