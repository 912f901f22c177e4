"""A rank of a run with a peer: started by the peer's launcher, it takes part with both libraries.

    python bench/peer_rank.py FOLDER

reads `config.json` there and leaves `report.json` or `error.json`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import secrets
import socket
import sys
from pathlib import Path
from typing import Any

import collectives
import measure
import peers
from cases import BadRequestError, Config


def main(folder: Path) -> int:
    """The main function of a rank."""
    config = Config.from_json(json.loads((folder / "config.json").read_text()))
    assert config.peer is not None
    peer = peers.load(config.peer)
    try:
        rank, size, share = peer.join()
        comm = _connect(rank, size, share, config)
        report = measure.run(comm, config, peer)
        if report is not None:
            report["versions"] |= _versions(peer)
            _leave(folder, "report.json", report)
        comm.close()
    except Exception as error:
        expected = isinstance(error, (collectives.CollectivesError, BadRequestError))
        if not (folder / "error.json").exists():
            _leave(
                folder,
                "error.json",
                {
                    "bad_request": isinstance(error, BadRequestError),
                    "text": str(error) if expected else f"{type(error).__name__}: {error}",
                },
            )
        peer.abort()
        return 1
    return 0


def _connect(rank: int, size: int, share: Any, config: Config) -> collectives.Communicator:
    port = None
    if rank == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        os.environ["COLLECTIVES_RENDEZVOUS_FD"] = str(listener.detach())
    address, token = share((f"127.0.0.1:{port}", secrets.token_hex(32)))
    return collectives.init(
        rank=rank, size=size, rendezvous=address, token=token, transport=config.transport, timeout=config.timeout
    )


def _versions(peer: peers.Peer) -> dict[str, str]:
    """The versions of the packages of the peer."""
    names = [re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in peer.REQUIREMENTS]
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _leave(folder: Path, name: str, value: dict[str, Any]) -> None:
    new = folder / f"{name}.{os.getpid()}"
    new.write_text(json.dumps(value), encoding="utf-8")
    new.replace(folder / name)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
