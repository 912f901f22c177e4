"""Starts the ranks: processes of `collectives.spawn`, threads of one process, or processes of a peer's launcher."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import collectives
import measure
import peers
import progress
from cases import BadRequestError, Config

_PR_SET_PDEATHSIG = 1
_POLL = 0.1  # seconds
_GRACE = 5.0
# Threads switch the interpreter lock; at the default interval of 5 ms that would dominate the measurement.
_SWITCH_INTERVAL = 20e-6

_libc = ctypes.CDLL(None)


class LaunchError(Exception):
    """The ranks of a run with a peer failed."""


def run(config: Config, environment: Path | None = None) -> dict[str, Any]:
    """The report of rank 0.

    Raises:
        BadRequestError: the run is not possible.
        CollectivesError, LaunchError: a rank failed.
    """
    if environment is not None:
        return _under_launcher(config, environment)
    show = "-" if progress.wanted() else ""
    config = dataclasses.replace(config, show=show)
    if config.transport == "local":
        return _threads(config)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # nothing that is measured uses OpenMP threads
    results = collectives.spawn(
        measure.run, config.ranks, (config,), transport=config.transport, timeout=config.timeout
    )
    assert results[0] is not None
    return results[0]


def _threads(config: Config) -> dict[str, Any]:
    comms = collectives.local_group(config.ranks, timeout=config.timeout)
    reports: list[Any] = [None] * config.ranks
    errors: list[BaseException] = []

    def rank_main(comm: collectives.Communicator) -> None:
        try:
            reports[comm.rank] = measure.run(comm, config)
        except BaseException as error:
            errors.append(error)
            comm.close()  # so that the others do not wait for this one

    # Daemons, so that Ctrl-C ends them with the process.
    threads = [threading.Thread(target=rank_main, args=(comm,), daemon=True) for comm in comms]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
    for comm in comms:
        comm.close()
    return dict(reports[0])


def _under_launcher(config: Config, environment: Path) -> dict[str, Any]:
    assert config.peer is not None
    peer = peers.load(config.peer)
    with tempfile.TemporaryDirectory(prefix="collectives-bench-") as name:
        folder = Path(name)
        fraction = folder / "progress"
        bar = progress.make("-" if progress.wanted() else "")
        config = dataclasses.replace(config, show=str(fraction))
        (folder / "config.json").write_text(json.dumps(config.to_json()), encoding="utf-8")
        program = [str(Path(__file__).with_name("peer_rank.py")), name]
        command, variables = peer.command(environment, config, program)
        # Temporary files of the launcher go into our folder, and are removed with it.
        variables |= {"TMPDIR": name, "OMP_NUM_THREADS": "1"}
        with (folder / "output").open("wb") as output:
            try:
                process = subprocess.Popen(
                    command,
                    env=os.environ | variables,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    preexec_fn=end_with_parent,
                )
            except OSError as error:
                raise LaunchError(f"{command[0]}: {error.strerror}") from None
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL)
                with contextlib.suppress(OSError, ValueError):
                    bar.update(float(fraction.read_text()))
        finally:
            bar.close()
            _end(process)
        return _outcome(folder, process.returncode)


def end_with_parent() -> None:
    """What a child calls before its program runs, so that it does not outlive this process."""
    # SIGTERM, on which launchers end their ranks.
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _outcome(folder: Path, status: int) -> dict[str, Any]:
    error = folder / "error.json"
    if error.exists():
        cause = json.loads(error.read_text())
        raise BadRequestError(cause["text"]) if cause["bad_request"] else LaunchError(cause["text"])
    report = folder / "report.json"
    if not report.exists():
        words = (folder / "output").read_text(errors="replace").strip()
        raise LaunchError(f"the ranks ended with exit code {status} and no result. They said:\n{words}")
    return dict(json.loads(report.read_text()))
