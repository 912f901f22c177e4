"""The place of a process that ``torchrun`` started, and the meeting by its store.

torchrun gives each process its rank and leads a key-value store (a ``TCPStore`` of torch) that lives as long as the
job. Whoever can reach the port of that store can read it; docs/security.md says what follows.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .._environment import MAX_SIZE, Environment, read_environment, read_token
from .._published import publish, read_published
from ..errors import DeadlineError

_OURS = ("COLLECTIVES_RANK", "COLLECTIVES_SIZE", "COLLECTIVES_RENDEZVOUS")
_INSTEAD = f"Or say yourself who this process is: set {', '.join(_OURS)} and COLLECTIVES_TOKEN (docs/environment.md)"
_meetings = itertools.count()  # every rank counts the same: all make the same calls


@dataclass(frozen=True)
class Job:
    """What torchrun told this process: its place, where the store is, and a name for this start of the job."""

    rank: int
    size: int
    host: str
    port: int
    name: str


def find_job(environ: Mapping[str, str] | None = None) -> Job | None:
    """The job of torchrun that this process is in, when our own variables name none.

    Args:
        environ: the variables to read, ``os.environ`` by default.

    Raises:
        ValueError: torchrun started this process with others, but shares no store with them; or its variables are not
            numbers.
    """
    variables = os.environ if environ is None else environ
    if "TORCHELASTIC_RUN_ID" not in variables or any(variables.get(name) for name in _OURS):
        return None
    try:
        rank, size, port = (int(variables[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        host = variables["MASTER_ADDR"]
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"torchrun started this process (TORCHELASTIC_RUN_ID is set) but RANK, WORLD_SIZE, MASTER_ADDR and "
            f"MASTER_PORT are not as it sets them ({type(error).__name__}: {error}). {_INSTEAD}"
        ) from None
    if size == 1:
        return None
    if not 0 <= rank < size <= MAX_SIZE:
        raise ValueError(f"torchrun's variables are RANK {rank} and WORLD_SIZE {size}, which cannot be. {_INSTEAD}")
    if variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise ValueError(
            f"torchrun started this process as rank {rank} of {size}, but without a store that it shares with the "
            "others (TORCHELASTIC_USE_AGENT_STORE is not True): update torch, and unset "
            f"TORCH_DISABLE_SHARE_RDZV_TCP_STORE. {_INSTEAD}"
        )
    start = variables.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Job(rank, size, host, port, f"{variables['TORCHELASTIC_RUN_ID']}/{start}")


@contextlib.contextmanager
def meet(job: Job, *, token: str | bytes | None, timeout: float | None, **arguments: Any) -> Iterator[Environment]:
    """The launch environment, made with the other ranks; a context manager, which is left when all have met.

    Args:
        token, timeout, arguments: as for `read_environment`.

    Raises:
        DeadlineError: the store does not answer, or rank 0 says nothing there.
        ValueError: an argument or variable is not acceptable, torch is missing, or rank 0 cannot listen.
    """
    seconds = read_environment(rank=0, size=1, timeout=timeout).start_timeout
    own = read_token(token)
    key = f"collectives/{job.name}/{next(_meetings)}"
    store = _connect(job, seconds)
    with contextlib.ExitStack() as stack:
        fd = -1
        if job.rank == 0:
            try:
                listener, where, secret, text = publish(job.host, job.port, own)
            except OSError as error:
                raise ValueError(f"rank 0 cannot listen at torchrun's MASTER_ADDR {job.host}: {error}") from error
            fd = stack.enter_context(listener).fileno()
            store.set(key, text)
            stack.callback(_forget, store, key)
        else:
            try:
                text = store.get(key).decode()
            except RuntimeError as error:  # a torch.distributed.DistError
                raise DeadlineError(
                    f"rank {job.rank} waited {seconds:g} s for rank 0 to say in torchrun's store at {job.host}:"
                    f"{job.port} where it listens. Look at the output of rank 0: every rank calls collectives.init(). "
                    "Or allow more time by COLLECTIVES_TIMEOUT (seconds)",
                    rank=job.rank,
                    peer=0,
                ) from error
            where, secret = read_published(text, own)
        environment = read_environment(
            rank=job.rank, size=job.size, rendezvous=where, token=secret, timeout=timeout, **arguments
        )
        yield replace(environment, rendezvous_fd=fd)


def _connect(job: Job, seconds: float) -> Any:
    from ..torch import _store

    try:
        return _store.connect(job.host, job.port, seconds)
    except ImportError as error:
        raise ValueError(
            f"torchrun started this process as rank {job.rank} of {job.size}, but its store cannot be used, since "
            f"torch is not to be had here ({error}). {_INSTEAD}"
        ) from None
    except RuntimeError as error:  # a torch.distributed.DistError
        raise DeadlineError(
            f"rank {job.rank} did not reach torchrun's store at {job.host}:{job.port} within {seconds:g} s",
            rank=job.rank,
        ) from error


def _forget(store: Any, key: str) -> None:
    """The secret need not be there when all have met."""
    with contextlib.suppress(RuntimeError):  # the agent has gone, and the store with it
        store.delete_key(key)
