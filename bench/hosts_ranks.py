"""The processes of bench/hosts.py: one set of ranks for each launcher, which live as long as the shape of the hosts."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from host_rank import make_meeting
from hosts_cells import BURST, LATENCY
from hosts_network import Ports
from peers import openmpi
from ranks import end_with_parent

STARTING = 120.0  # seconds; eight processes that import PyTorch on two cores take twenty
ANSWERING = 120.0  # seconds, more than a call may take in any rank
CALL = 60.0  # seconds
_NETWORK = "COLLECTIVES_NETWORK"  # bits per second of the port of a host
_POLL = 0.1  # seconds
_GRACE = 10.0  # seconds for processes to end
_PROGRAM = str(Path(__file__).with_name("host_rank.py"))
_ports = itertools.count(29500)  # nothing else listens on these hosts, but a port stays in use for a while
_numbers = itertools.count()


class RanksError(Exception):
    """A rank failed, or said nothing."""


class Ranks:
    """A set of ranks on hosts, each of which answers lines with lines. Made by ``start_ours`` and ``start_mpi``.

    Args:
        commands: by process, what is started, and the variables for it.
        folder: for this set alone.
        size: how many ranks the processes become.
    """

    def __init__(self, commands: list[tuple[list[str], dict[str, str]]], folder: Path, size: int) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Any] = [None] * size  # by rank: a socket, and its lines
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.close)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(folder / "control"))
                listener.listen(size)
                for number, (command, variables) in enumerate(commands):
                    self._start(number, command, variables)
                self._accept(listener, size)
            on_error.pop_all()

    def ask(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """What each rank answers, by rank. Raises RanksError; the set is not to be used after that."""
        text = json.dumps(order) + "\n"
        answers = []
        try:
            for connection, _ in self._connections:
                connection.sendall(text.encode())
            for rank, (connection, lines) in enumerate(self._connections):
                connection.settimeout(ANSWERING)
                answer = json.loads(lines.readline())
                if "error" in answer:
                    raise RanksError(f"rank {rank}: {answer['error'].strip()}")
                answers.append(answer)
        except TimeoutError:
            raise RanksError(f"the ranks did not answer within {ANSWERING:g} s") from None
        except (OSError, ValueError):
            raise RanksError(f"a rank has ended; the ranks said:\n{self._said()}") from None
        return answers

    def close(self) -> None:
        """Ends the ranks."""
        for connection in filter(None, self._connections):
            for part in reversed(connection):
                with contextlib.suppress(OSError):
                    part.close()
        end = time.monotonic() + _GRACE
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        for process in self._processes:
            if process.poll() is None:
                process.terminate()  # on which mpirun ends its ranks
        for process in self._processes:
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, number: int, command: list[str], variables: dict[str, str]) -> None:
        with (self._folder / f"output{number}").open("wb") as output:
            try:
                process = subprocess.Popen(
                    command,
                    env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    preexec_fn=end_with_parent,
                )
            except OSError as error:
                raise RanksError(f"{command[0]}: {error.strerror}") from None
        self._processes.append(process)

    def _accept(self, listener: socket.socket, size: int) -> None:
        listener.settimeout(_POLL)
        end = time.monotonic() + STARTING
        for _ in range(size):
            connection = None
            while connection is None:
                with contextlib.suppress(TimeoutError):
                    connection, _address = listener.accept()
                if any(process.poll() is not None for process in self._processes):
                    raise RanksError(f"a rank did not start; the ranks said:\n{self._said()}")
                if time.monotonic() > end:
                    raise RanksError(f"the ranks did not start within {STARTING:g} s; they said:\n{self._said()}")
            lines = connection.makefile("r", encoding="utf-8")
            self._connections[json.loads(lines.readline())["rank"]] = (connection, lines)

    def _said(self) -> str:
        texts = (file.read_text(errors="replace").strip() for file in sorted(self._folder.glob("output*")))
        return "\n".join(filter(None, texts))


def _own_folder(folder: Path, options: dict[str, Any]) -> Path:
    """A folder for a set, with what its ranks read."""
    own = folder / f"set{next(_numbers)}"
    own.mkdir()
    make_meeting(own / "meeting", options["size"])
    (own / "options.json").write_text(json.dumps({"timeout": CALL, **options}), encoding="utf-8")
    return own


def start_ours(hosts: Ports, ranks: int, folder: Path, gloo: bool) -> Ranks:
    """Ranks of this library, and of Gloo if wanted. Raises RanksError."""
    size = ranks * len(hosts.names)
    own = _own_folder(folder, {"size": size, "ranks": ranks, "gloo": gloo, "token": secrets.token_hex(32)})
    commands = []
    for rank in range(size):
        host = rank // ranks
        # Gloo would look for a device by the name of the host.
        variables = {"GLOO_SOCKET_IFNAME": hosts.device(host)}
        program = [sys.executable, _PROGRAM, str(own), "ours", str(rank)]
        commands.append(([*hosts.inside(host), *program], variables))
    return Ranks(commands, own, size)


def join_ours(ranks: Ranks, hosts: Ports, rate: int | None) -> None:
    """Makes the ranks of this library a job that knows the rate of its ports, as a user would say it.

    Without a limit, and where the caller has set the variable, nothing is said.
    """
    said = os.environ.get(_NETWORK) or (None if rate is None else f"{rate},{LATENCY},{BURST}B")
    ranks.ask({"do": "join", "rendezvous": hosts.rendezvous(next(_ports)), "variables": {_NETWORK: said}})


def start_openmpi(hosts: Ports, ranks: int, folder: Path, environment: Path) -> Ranks:
    """Ranks of Open MPI. Raises RanksError."""
    size = ranks * len(hosts.names)
    own = _own_folder(folder, {"size": size})
    program = [_PROGRAM, str(own), openmpi.NAME]
    shell = hosts.shell(own)
    command, variables = openmpi.between_hosts(environment, hosts.names, ranks, shell, hosts.network, program)
    # Temporary files of the launcher go into our folder, and are removed with it.
    return Ranks([([*hosts.inside(0), *command], variables | {"TMPDIR": str(own)})], own, size)
