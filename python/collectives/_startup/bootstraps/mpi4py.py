"""A communicator of mpi4py: rank 0 says by ``bcast`` where it listens. MPI has no deadlines, so neither has that."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from .. import recorder
from ..environment import Environment, read_environment, read_token
from ..launched import own_address
from ..published import publish, read_published
from . import agree


@dataclass(frozen=True)
class Job:
    """The ranks of a communicator."""

    RANK_VARIABLE: ClassVar[str] = "the rank of bootstrap="
    SIZE_VARIABLE: ClassVar[str] = "its size"
    place: ClassVar[str] = "the communicator of mpi4py"

    communicator: Any

    @property
    def rank(self) -> int:
        return int(self.communicator.Get_rank())

    @property
    def size(self) -> int:
        return int(self.communicator.Get_size())

    @contextlib.contextmanager
    def meet(self, *, token: str | bytes | None, timeout: float | None, **arguments: Any) -> Iterator[Environment]:
        """The launch environment, agreed with the other ranks; a context manager to be left when all have connected."""
        own = read_token(token)
        if self.size == 1:
            yield read_environment(rank=0, size=1, token=token, timeout=timeout, **arguments)
            return
        local = len(set(self.communicator.allgather(recorder.machine()))) == 1
        text, failure, listener = "", "", None
        with contextlib.ExitStack() as stack:
            if self.rank == 0:
                try:  # a failure is told to the others, which wait in bcast
                    interfaces = read_environment(rank=0, size=1).interfaces
                    listener, _, _, text = publish("127.0.0.1" if local else own_address(interfaces), 0, own)
                    stack.enter_context(listener)
                except (OSError, ValueError) as error:
                    failure = str(error)
            text, failure = self.communicator.bcast((text, failure), 0)
            if failure:
                raise ValueError(f"rank 0 cannot listen for the others: {failure}")
            where, secret = read_published(text, own)
            environment = read_environment(
                rank=self.rank, size=self.size, rendezvous=where, token=secret, timeout=timeout, **arguments
            )
            yield replace(environment, rendezvous_fd=_descriptor(listener))


def _descriptor(listener: socket.socket | None) -> int:
    return -1 if listener is None else listener.fileno()


class _Mpi4py:
    NAME: ClassVar[str] = "a communicator of mpi4py"

    def accepts(self, value: Any) -> bool:
        return any(kind.__module__ == "mpi4py.MPI" and kind.__name__ == "Comm" for kind in type(value).__mro__)

    def job(self, value: Any, rank: int | None, size: int | None) -> Job:
        job = Job(value)
        agree("the communicator", (job.rank, job.size), rank, size)
        return job


BOOTSTRAP = _Mpi4py()
