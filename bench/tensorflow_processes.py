"""Starts the processes of bench/tensorflow_step.py, and talks to them."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import tensorflow_child

START_TIMEOUT = 300.0  # seconds for loading TensorFlow and tracing
ANSWER_TIMEOUT = 120.0
_GRACE = 30.0  # seconds for processes to end, of which a busy machine takes ten
_SHOWN = 15  # lines of what a failed process wrote


class ChildError(Exception):
    """A process failed, or does not answer."""


def machine_seconds() -> float:
    """Processor seconds that all cores of this machine were busy, or were used by its host for others."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


class Children:
    """Processes that do the same at the same time: one, or a pair of workers.

    Args:
        kind: "2 replicas", "8 replicas", "tf", "shm" or "tcp".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._contenders: list[tuple[str, str]] = []
        context = multiprocessing.get_context("spawn")
        count = 1 if kind.endswith("replicas") else 2
        counters = context.RawArray("q", count) if count > 1 else None
        self._connections = []
        self._folder = tempfile.TemporaryDirectory(prefix="tensorflow_step_")
        self._logs = [Path(self._folder.name, f"{index}.txt") for index in range(count)]
        self._processes = []
        for index, environment in enumerate(_environments(kind, count)):
            connection, theirs = context.Pipe()
            process = context.Process(
                target=tensorflow_child.main,
                args=(theirs, environment, kind, counters, index, str(self._logs[index])),
                daemon=True,
            )
            process.start()
            theirs.close()  # so that this process notices the end of the child
            self._connections.append(connection)
            self._processes.append(process)

    def contenders(self) -> list[tuple[str, str]]:
        """Waits until they are ready; returns their contenders, by group and name."""
        if not self._contenders:
            self._contenders = list(self._answers(START_TIMEOUT)[0])
        return self._contenders

    def do(self, *command: Any) -> list[Any]:
        """Makes all of them execute a command; returns their answers. Raises ChildError."""
        for connection in self._connections:
            with contextlib.suppress(OSError):  # then it has failed, and its error is read below
                connection.send(command)
        return self._answers(ANSWER_TIMEOUT)

    def _answers(self, timeout: float) -> list[Any]:
        end = time.monotonic() + timeout
        answers = []
        for index, connection in enumerate(self._connections):
            who = f"process {index} of {self.kind!r}"
            if not connection.poll(max(0.0, end - time.monotonic())):
                raise ChildError(f"{who} has not answered for {timeout:g} s{self._log(index)}")
            try:
                state, answer = connection.recv()
            except (EOFError, ConnectionResetError):
                self._processes[index].join(_GRACE)
                raise ChildError(f"{who} ended with code {self._processes[index].exitcode}{self._log(index)}") from None
            if state != "done":
                raise ChildError(f"{who} failed:\n{answer}")
            answers.append(answer)
        return answers

    def _log(self, index: int) -> str:
        lines = self._logs[index].read_text(errors="replace").splitlines() if self._logs[index].exists() else []
        return "; the end of what it wrote:\n" + "\n".join(lines[-_SHOWN:]) if lines else ""

    def seconds(self) -> float:
        """Processor seconds that they have taken."""
        total = 0
        for process in self._processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def close(self) -> list[str]:
        """Ends them; returns the errors."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send(("stop",))
        problems = []
        end = time.monotonic() + _GRACE
        for index, process in enumerate(self._processes):
            process.join(max(0.1, end - time.monotonic()))
            if process.is_alive():
                problems.append(f"process {index} of {self.kind!r} did not end and was killed")
                process.kill()
                process.join()
            elif process.exitcode:
                problems.append(f"process {index} of {self.kind!r} ended with code {process.exitcode}")
        self._folder.cleanup()
        return problems


def _environments(kind: str, count: int) -> list[dict[str, str]]:
    # Everything is measured on CPUs; hides TensorFlow's messages about that.
    common = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3")}
    if kind in ("shm", "tcp"):
        common["COLLECTIVES_TRANSPORT"] = kind
    if count == 1:
        return [common]
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(count)]
    return [
        {
            **common,
            "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}),
        }
        for index in range(count)
    ]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
