"""Ranks of the training API as real processes, which stay for many checks and leave by themselves.

The functions that they run are those of test modules, as with `tf_workers`, or are named by `Ranks.call`, so that the
process of the tests need not import TensorFlow. The ranks have called `init` when they run the first one.
"""

from __future__ import annotations

import importlib
import secrets
from typing import Any

from served import ServedJob, free_ports
from tf_workers import LEAVING, Worker

SECONDS = "60"  # which a rank waits for the others


def join() -> tuple[int, int]:
    """In a rank: calls `init`, as all checks find it."""
    hvd: Any = importlib.import_module("collectives.tensorflow")
    hvd.init()
    return hvd.rank(), hvd.size()


def said(function: Any, *args: Any, **kwargs: Any) -> str:
    """In a rank: the type and the text of the error that a call raises; "" for none."""
    tf: Any = importlib.import_module("tensorflow")
    try:
        function(*args, **kwargs)
    except Exception as error:
        text = error.message if isinstance(error, tf.errors.OpError) else str(error)
        return f"{type(error).__name__}: {text}"
    return ""


def call_by_name(module: str, name: str, *args: Any) -> Any:
    """In a rank: calls a function of a module."""
    return getattr(importlib.import_module(module), name)(*args)


class Ranks(ServedJob):
    """The processes of one job on this host.

    Args:
        size: how many.
        variables: of the environment.
    """

    def __init__(self, size: int, *, variables: dict[str, str] | None = None) -> None:
        self.variables = variables or {}
        self.ports = free_ports(1)
        job = {
            "COLLECTIVES_SIZE": str(size),
            "COLLECTIVES_RENDEZVOUS": f"127.0.0.1:{self.ports[0]}",
            "COLLECTIVES_TOKEN": secrets.token_hex(32),
            "COLLECTIVES_TIMEOUT": SECONDS,
            **self.variables,
        }
        super().__init__([Worker(("rank", r), 1, {"COLLECTIVES_RANK": str(r), **job}) for r in range(size)], LEAVING)
        try:
            assert self.run(join) == [(r, size) for r in range(size)]
        except BaseException:
            self.destroy()
            raise

    def call(self, module: str, name: str, *args: Any) -> list[Any]:
        """What a function of a module returns on each rank; raises what it raises on one."""
        return self.run(call_by_name, module, name, *args)
