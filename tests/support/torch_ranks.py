"""Ranks of torch.distributed as real processes, which stay for many checks and leave by themselves: see `served`."""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from typing import Any

from served import Served, ServedJob, answer, begin, free_ports

LIMIT = 60.0  # seconds for one call
# Seconds from the end of main to that of the process: it takes the interpreter one or two to unload torch, and several
# where ten processes do so on two cores. What this finds is a process that waits for another.
LEAVING = 30.0
# A machine of two cores has more ranks than it can run threads of torch.
QUIET = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TORCH_CPP_LOG_LEVEL": "ERROR"}
IMPORTED = ("torch", "torch.distributed.tensor", "collectives.torch._backend", "pytest", "torch_ranks")

# --- in the process of a rank ---------------------------------------------------------------------------------------

PLACE: dict[str, Any] = {}  # rank, size and init_method of this process


def init(backend: str = "collectives", *, seconds: float = 60.0, **options: Any) -> None:
    """Makes the default group."""
    dist: Any = importlib.import_module("torch.distributed")
    dist.init_process_group(
        backend,
        init_method=PLACE["init_method"],
        rank=PLACE["rank"],
        world_size=PLACE["size"],
        timeout=timedelta(seconds=seconds),
        **options,
    )


def serve(descriptor: int) -> None:
    """The life of a rank."""
    settings = begin(descriptor)
    PLACE.update(settings["place"])
    if settings["backend"]:
        init(settings["backend"], seconds=settings["seconds"])
    answer()


# --- in the test ----------------------------------------------------------------------------------------------------


class Ranks(ServedJob):
    """The processes of one job.

    Args:
        size: how many there are.
        backend: of the default group, which they make first; None for no group.
        seconds: its timeout.
        variables: of the environment.
        init_method: by which they meet; at a free port by default.
    """

    def __init__(
        self,
        size: int,
        backend: str | None = "collectives",
        *,
        seconds: float = LIMIT,
        variables: dict[str, str] | None = None,
        init_method: str | None = None,
    ) -> None:
        method = init_method or f"tcp://127.0.0.1:{free_ports(1)[0]}"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
        environ.update(QUIET, **(variables or {}))
        super().__init__(
            [
                Served(
                    f"rank {rank}",
                    serve,
                    IMPORTED,
                    environ,
                    QUIET,
                    {
                        "place": {"rank": rank, "size": size, "init_method": method},
                        "backend": backend,
                        "seconds": seconds,
                    },
                    LIMIT,
                )
                for rank in range(size)
            ],
            LEAVING,
        )
