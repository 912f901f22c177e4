"""The rank of a process that ``torchrun`` started, and the rendezvous by torchrun's store.

torchrun gives each process its rank and runs a key-value store (a ``TCPStore`` of torch) that lives as long as the job.
Any process that can reach the port of that store can read it; docs/security.md has the consequences.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from ..errors import CollectivesError, DeadlineError
from ..torch import _store
from .environment import MAX_SIZE, Environment, read_environment, read_token
from .published import Lookup, publish, read_published
from .wire import Deadline

_OURS = ("COLLECTIVES_RANK", "COLLECTIVES_SIZE", "COLLECTIVES_RENDEZVOUS")
_INSTEAD = f"Or set {', '.join(_OURS)} and COLLECTIVES_TOKEN yourself (docs/environment.md)"
_PAUSE = 0.05  # seconds between questions to the store


@dataclass(frozen=True)
class Job:
    """The variables of torchrun: rank and size, host and port of the store, and the name of the job."""

    rank: int
    size: int
    host: str
    port: int
    name: str


def find_job(environ: Mapping[str, str] | None = None) -> Job | None:
    """The torchrun job that this process is in; None where our own variables are set, or torchrun did not start it.

    Args:
        environ: the variables to read, ``os.environ`` by default.

    Raises:
        ValueError: torchrun started this process with others but gave them no common store; or its variables are not
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
    return Job(rank, size, host, port, variables["TORCHELASTIC_RUN_ID"])


@contextlib.contextmanager
def meet(job: Job, *, token: str | bytes | None, timeout: float | None, **arguments: Any) -> Iterator[Environment]:
    """The launch environment, agreed with the other ranks; a context manager to be left when all have connected.

    Rank 0 writes its address under one key for the whole job, over that of an earlier start. The key cannot have a
    number of the start: a start may fail on some ranks only, and torchrun's own count differs between nodes. So the
    others may find an old address. It leads to no process, or to one that does not know the token; they then ask again
    until rank 0 has written.

    Args:
        token, timeout, arguments: as for `read_environment`.

    Raises:
        CollectivesError: the connection to the store broke.
        DeadlineError: the store does not answer, or rank 0 writes nothing there.
        ValueError: an argument or variable is not acceptable, torch is missing, or rank 0 cannot listen.
    """
    deadline = Deadline(read_environment(rank=0, size=1, timeout=timeout).start_timeout)
    own = read_token(token)
    key = f"collectives/{job.name}"
    store = _connect(job, deadline)

    def made(where: str, secret: bytes, **more: Any) -> Environment:
        environment = read_environment(
            rank=job.rank, size=job.size, rendezvous=where, token=secret, timeout=timeout, **arguments
        )
        return replace(environment, deadline=deadline, **more)

    def look() -> Environment | None:
        with _store_call(job, store, deadline):
            text = store.get(key).decode()  # waits until the key exists
        return made(*read_published(text, own)) if text else None

    with contextlib.ExitStack() as stack:
        if job.rank == 0:
            try:
                listener, where, secret, text = publish(job.host, job.port, own)
            except OSError as error:
                raise ValueError(f"rank 0 cannot listen at torchrun's MASTER_ADDR {job.host}: {error}") from error
            fd = stack.enter_context(listener).fileno()
            with _store_call(job, store, deadline):
                store.set(key, text)
                store.check([key])  # waits for an answer; set() does not notice that the store is gone
            stack.callback(_erase, store, key, text)
            yield made(where, secret, rendezvous_fd=fd)
            return
        while (environment := look()) is None:
            if deadline.remaining() == 0:
                raise _no_answer(job, deadline)
            time.sleep(_PAUSE)
        yield replace(environment, lookup=Lookup(look, token_made=not own))


def _connect(job: Job, deadline: Deadline) -> Any:
    try:
        return _store.connect(job.host, job.port, _patience(deadline))
    except ImportError as error:
        raise ValueError(
            f"torchrun started this process as rank {job.rank} of {job.size}, but its store cannot be used, since "
            f"torch cannot be imported here ({error}). {_INSTEAD}"
        ) from None
    except RuntimeError as error:  # a torch.distributed.DistError
        raise DeadlineError(
            f"rank {job.rank} did not reach torchrun's store at {job.host}:{job.port} within {deadline.seconds:g} s",
            rank=job.rank,
        ) from error


@contextlib.contextmanager
def _store_call(job: Job, store: Any, deadline: Deadline) -> Iterator[None]:
    """Around a call of the store: sets its timeout to the time that is left, and translates its errors."""
    store.set_timeout(timedelta(seconds=_patience(deadline)))
    try:
        yield
    except RuntimeError as error:  # a torch.distributed.DistError
        if not _store.is_lost(error):
            raise _no_answer(job, deadline) from error
        raise CollectivesError(
            f"rank {job.rank} lost torchrun's store at {job.host}:{job.port} while the job was starting. Look at the "
            "output of torchrun and of rank 0",
            rank=job.rank,
        ) from error


def _no_answer(job: Job, deadline: Deadline) -> DeadlineError:
    place = f"torchrun's store at {job.host}:{job.port}"
    if job.rank == 0:
        return DeadlineError(f"{place} did not answer rank 0 within {deadline.seconds:g} s", rank=0)
    return DeadlineError(
        f"rank {job.rank} waited {deadline.seconds:g} s for rank 0 to write its address to {place}. Look at the output "
        "of rank 0: every rank must call collectives.init(). Or allow more time by COLLECTIVES_TIMEOUT (seconds)",
        rank=job.rank,
        peer=0,
    )


def _patience(deadline: Deadline) -> float:
    """Seconds for one call of the store: above 0, which means no timeout, and small enough for its 64-bit count."""
    return min(max(deadline.remaining(), 0.001), 1e9)


def _erase(store: Any, key: str, text: str) -> None:
    """Deletes the token from the store when all have connected, unless another start has written since."""
    with contextlib.suppress(RuntimeError):  # torchrun's agent has ended, and the store with it
        store.compare_set(key, text, "")
