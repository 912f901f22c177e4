"""Slurm on this machine, for tests: munged, slurmctld and slurmd of Debian, in a folder of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc")
LIMIT = 60.0  # seconds until it is ready
TASKS = 4  # that it runs at a time, on however many cores

CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={tasks} State=UNKNOWN
PartitionName=tests Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why Slurm cannot be started here, or ""."""
    if not os.environ.get("LAUNCHERS"):
        return "LAUNCHERS is not set: `.ci/run launchers` installs Slurm and runs this"
    if os.geteuid() != 0:
        return "it needs root to start Slurm"
    missing = [name for name in PROGRAMS if _which(name) is None]
    return f"it needs {', '.join(missing)} (Debian packages slurmctld, slurmd, slurm-client, munge)" if missing else ""


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """Slurm with one node; yields the variables for its commands. What it has started ends with it.

    Args:
        folder: an empty one, that it may fill.
    """
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    # Slurm's own rule for the name of a node: that of this host, up to the first dot.
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    ports = {"controller": _free_port(), "node": _free_port()}
    configuration.write_text(CONFIGURATION.format(host=host, folder=folder, tasks=TASKS, **ports))
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    variables = {**os.environ, "SLURM_CONF": str(configuration)}
    daemons = [
        ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
        + [f"--{what}={folder}/munge.{what.partition('-')[0]}" for what in ("pid-file", "log-file", "seed-file")],
        ["slurmctld", "-D", "-f", str(configuration)],
        ["slurmd", "-D", "-f", str(configuration), "-N", host],
    ]
    with contextlib.ExitStack() as stack, (folder / "output.txt").open("wb") as output:
        for command in daemons:
            process = subprocess.Popen(
                [str(_which(command[0])), *command[1:]],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            stack.callback(_end, process)
            if command[0] == "munged":
                _await(lambda: (folder / "munge.socket").exists(), folder)
        _await(lambda: _state(variables) == "idle", folder)
        yield variables
        subprocess.run(["scancel", "--full", "--state=RUNNING"], env=variables, check=False, timeout=LIMIT)


def _state(variables: dict[str, str]) -> str:
    command = ["sinfo", "--noheader", "--format=%T"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=LIMIT)
    return done.stdout.strip()


def _await(condition, folder: Path) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            logs = [path.read_text(errors="replace")[-2000:] for path in (*folder.glob("*.log"), folder / "output.txt")]
            raise TimeoutError("Slurm is not ready:\n" + "\n".join(logs))
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(LIMIT / 4)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
