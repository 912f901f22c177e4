"""How the workers of a ``TF_CONFIG`` become one job of the engine.

TensorFlow's coordination service, which runs on rank 0, has a key-value store. There rank 0 leaves the address of its
rendezvous and a secret of the job, unless the user gave one (``COLLECTIVES_TOKEN``); what follows is the ordinary
start of the engine. Whoever can reach the ports of TensorFlow's servers can read both, as they can run any graph there:
keeping strangers out is the business of whoever starts the job.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .. import _core, _world, errors
from .._startup.environment import read_environment, read_token
from .._startup.published import publish, read_published
from .._startup.wire import Deadline
from . import _private
from ._errors import as_tensorflow
from ._ops import Group
from ._start import LateError, StartError, meet, name_of, no_answer
from ._tf_config import TFConfig

__all__ = ["join", "share", "start_context", "start_timeout"]

_log = logging.getLogger("collectives")
_KEY = "collectives/rendezvous"
_PAUSE = 0.05  # seconds between two looks
_ADVICE = (
    "Look at the output of the missing workers, or allow more time by timeout_seconds of the CommunicationOptions or "
    "by COLLECTIVES_TIMEOUT"
)

_lock = threading.Lock()
_jobs: list[tuple[TFConfig, Group]] = []  # at most one, kept until the process ends


def start_timeout(timeout: float | None) -> float:
    """Seconds that all workers have to come: the caller's, else ``COLLECTIVES_TIMEOUT``, else 600."""
    if timeout is not None and not timeout > 0:
        raise ValueError(
            f"timeout_seconds of the CommunicationOptions is {timeout!r}; a positive number of seconds is accepted, or "
            "None"
        )
    return timeout or read_environment(rank=0, size=1).timeout or _world.DEFAULT_TIMEOUT


def start_context(start: Callable[[float], None], config: TFConfig, timeout: float) -> None:
    """Runs `start(seconds)`, which brings up TensorFlow's context and its server, when all workers are there.

    In there rank 0 waits for all others, and no signal and no thread of Python gets through. So it waits for their
    servers first. The others wait in there, for as long as the coordination service was configured to, and rank 0 too
    where TensorFlow has a limit for it (`_private.configure_coordination`). Elsewhere a worker that dies between the
    start of its server and its registration holds up rank 0.

    Raises:
        tf.errors.DeadlineExceededError: workers are missing.
        tf.errors.UnavailableError: the port of a worker is taken.
    """
    deadline = Deadline(timeout)
    try:
        meet(config, deadline)
    except LateError as error:
        raise tf.errors.DeadlineExceededError(None, None, f"{_waited(config, timeout)}; {error}. {_ADVICE}") from None
    except StartError as error:
        raise tf.errors.UnavailableError(None, None, str(error)) from None
    absent = [rank for rank in range(config.size) if rank != config.rank]
    while config.rank == 0 and absent:
        if not no_answer(config, absent[0]):
            del absent[0]
        elif deadline.remaining() == 0:
            raise _late(config, timeout)
        else:
            time.sleep(_PAUSE)
    try:
        start(max(1.0, deadline.remaining()))
    except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError) as error:
        raise _late(config, timeout) from error


def join(config: TFConfig, devices: int, timeout: float) -> Group | None:
    """The group of all workers, each of which makes this call when it makes a strategy.

    Joins the job when this process has not done so. After a collective has failed the group is renewed, when all
    workers are there; what was made with the old one keeps it.

    Args:
        config: the cluster. A later call needs the same.
        devices: of this worker. Where these numbers differ means over replicas would be wrong.
        timeout: seconds that all this may take.

    Returns:
        ``None`` when this process is alone.

    Raises:
        ValueError: the workers have different numbers of devices.
        tf.errors.DeadlineExceededError: workers did not come.
        tf.errors.UnavailableError: one died.
        tf.errors.InvalidArgumentError: they were started differently.
        RuntimeError: this process is in the job of another cluster, or TensorFlow has no coordination service.
    """
    if config.size == 1:
        return None
    end = time.monotonic() + timeout
    with _lock:
        if not _jobs:
            if not _private.coordination_is_configured():
                raise RuntimeError(
                    "TensorFlow's coordination service does not run in this process, so the workers cannot find each "
                    "other. Make the strategy in eager mode, as the first thing of the program that uses TensorFlow"
                )
            _jobs.append((config, Group(_connect(config, timeout))))
        joined, group = _jobs[0]
        if joined != config:
            raise RuntimeError(
                f"this process is {name_of(joined, joined.rank)} of a cluster of {joined.size} and cannot also be "
                f"{name_of(config, config.rank)} of another, of {config.size}; use one cluster in a process"
            )
        try:
            numbers = _compare(group, devices, end)
        except errors.CollectivesError as error:
            raise _translated(error, config) from error
    if len(set(numbers)) > 1:
        listed = ", ".join(f"{name_of(config, rank)} has {number}" for rank, number in enumerate(numbers))
        raise ValueError(f"all workers must have the same number of devices: {listed}")
    return _jobs[0][1]


def share(config: TFConfig, group: Group, value: Any) -> Any:
    """The value of rank 0, on all workers.

    Raises:
        tf.errors.OpError: the others did not come to this.
    """
    try:
        return group.communicator.broadcast_object(value)
    except errors.CollectivesError as error:
        raise _translated(error, config) from error


def _compare(group: Group, devices: int, end: float) -> list[int]:
    """The numbers of devices of all workers, by rank; by a new group where that of `_jobs` has failed."""
    config = _jobs[0][0]
    if not _has_failed(group):
        try:
            return _gather(group, devices, end)
        except (errors.MismatchError, errors.DeadlineError):
            raise
        except errors.CollectivesError:
            # Of another collective, of which this worker had not heard: the others renew the group.
            _log.info("the group of the workers has failed before a strategy was made", exc_info=True)
    communicator = group.communicator.shrink(_left(end))
    made = Group(communicator)
    if made.size < config.size:
        there = _gather(made, config.rank, end)
        missing = ", ".join(name_of(config, rank) for rank in range(config.size) if rank not in there)
        raise errors.PeerError(f"{missing} is not there any more; start all workers again")
    _jobs[0] = config, made
    _log.info("%s has renewed the group of the %d workers", name_of(config, config.rank), config.size)
    return _gather(made, devices, end)


def _has_failed(group: Group) -> bool:
    return bool(_core._describe(group.communicator)["failed"])


def _gather(group: Group, number: int, end: float) -> list[int]:
    gathered = group.communicator.all_gather(np.array([number]), timeout=_left(end), name="numbers of devices")
    return [int(one) for one in gathered]


def _left(end: float) -> float:
    return max(1.0, end - time.monotonic())


def _connect(config: TFConfig, timeout: float) -> Any:
    """Publishes or looks up where to meet, then meets."""
    end = time.monotonic() + timeout
    own = read_token()
    listener: socket.socket | None = None
    try:
        if config.rank == 0:
            host, _, port = str(config.address).rpartition(":")
            listener, where, token, text = publish(host.strip("[]"), int(port), own)
            _private.publish(_KEY, text)
        else:
            try:
                text = _private.look_up(_KEY, timeout)
            except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError) as error:
                raise tf.errors.DeadlineExceededError(
                    None,
                    None,
                    f"{name_of(config, config.rank)} waited {timeout:g} s for {name_of(config, 0)} to say where to "
                    "meet. Look at what that worker does: every worker makes a strategy of collectives.tensorflow, or "
                    "plugs one in",
                ) from error
            where, token = read_published(text, own)
        left = _left(end)
        environment = read_environment(rank=config.rank, size=config.size, rendezvous=where, token=token)
        each = environment.timeout
        environment = dataclasses.replace(
            environment, timeout=left, rendezvous_fd=-1 if listener is None else listener.fileno()
        )
        communicator = _world.join(environment, each)
    except errors.CollectivesError as error:
        raise _translated(error, config) from error
    finally:
        if listener is not None:
            listener.close()
    if (communicator.rank, communicator.size) != (config.rank, config.size):
        raise AssertionError(f"the engine numbers {communicator!r}, TF_CONFIG rank {config.rank} of {config.size}")
    _log.info("%s is rank %d of %d", name_of(config, config.rank), config.rank, config.size)
    return communicator


def _translated(error: errors.CollectivesError, config: TFConfig) -> tf.errors.OpError:
    """As TensorFlow's programs expect it."""
    ranks = [r for r in dict.fromkeys((error.rank, error.peer)) if r is not None and 0 <= r < config.size]
    who = ", ".join(f"rank {rank} is {name_of(config, rank)}" for rank in ranks)
    return as_tensorflow(error, f" ({who})" if who else "")


def _late(config: TFConfig, timeout: float) -> Exception:
    others = [rank for rank in range(config.size) if rank != config.rank]
    missing = [f"{name_of(config, rank)} ({why})" for rank in others if (why := no_answer(config, rank))]
    text = f"nothing answers for {', '.join(missing)}" if missing else "all answer at their addresses now"
    result: Exception = tf.errors.DeadlineExceededError(None, None, f"{_waited(config, timeout)}; {text}. {_ADVICE}")
    return result


def _waited(config: TFConfig, timeout: float) -> str:
    return f"{name_of(config, config.rank)} waited {timeout:g} s for the {config.size} workers of its cluster to start"
