"""Shared by peers that the launcher of this package starts, and that find each other by ports."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from . import PeerMissingError, install

if TYPE_CHECKING:
    from cases import Config

_PORTS = "COLLECTIVES_BENCH_PORTS"


def locate(name: str, directory: Path | None) -> Path:
    """See `peers.Peer`; `name` is also that of the package."""
    environment = directory or install.default_directory(name)
    if (environment / "bin" / "collectives").exists() and any(environment.glob(f"lib/python*/site-packages/{name}")):
        return environment
    option = f" {directory}" if directory else ""
    raise PeerMissingError(f"{name} is not in {environment}; get it by: python bench/peers/{name}.py --install{option}")


def command(
    environment: Path, config: Config, program: list[str], variables: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """What `peers.Peer.command` returns. Variables that the caller has set are not changed."""
    arguments = [str(environment / "bin" / "collectives"), "run", "-n", str(config.ranks)]
    variables = {name: value for name, value in variables.items() if name not in os.environ}
    ports = ",".join(str(port) for port in _free_ports(config.ranks))
    return [*arguments, *program], variables | {_PORTS: ports}


def place() -> tuple[int, int, list[int]]:
    """In a rank, once: its number, the number of ranks, and a free port for each of them."""
    ports = [int(port) for port in os.environ[_PORTS].split(",")]
    return (*rank_and_size(), ports)


def rank_and_size() -> tuple[int, int]:
    """In a rank, once: its number and the number of ranks, by the launcher, whose variables are gone then."""
    rank, size = int(os.environ["COLLECTIVES_RANK"]), int(os.environ["COLLECTIVES_SIZE"])
    for name in [name for name in os.environ if name.startswith("COLLECTIVES_")]:
        del os.environ[name]  # the bench connects the ranks by itself
    return rank, size


def abort() -> None:
    """See `peers.Peer`."""
    os._exit(1)  # the launcher ends the others


def cores_each(ranks: int) -> int:
    """How many cores there are for each rank, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
