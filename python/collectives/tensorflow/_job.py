"""Makes the workers of a ``TF_CONFIG`` one job of the engine.

TensorFlow's coordination service, which runs on rank 0, has a key-value store. Rank 0 publishes the address of its
rendezvous there, and a token of the job unless the user gave one (``COLLECTIVES_TOKEN``); then the engine starts as
usual. Where the program has joined the same job by ``collectives.init`` before, that world is used. A process that can
reach the ports of TensorFlow's servers can read both, and can run any graph there: keep strangers out of the network of
the job.
"""

from __future__ import annotations

import contextlib
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
from ..communicator import Communicator
from . import _private
from ._errors import as_tensorflow
from ._ops import Group
from ._start import LateError, StartError, meet, name_of, no_answer
from ._tf_config import TFConfig

__all__ = ["join", "share", "start_context", "start_timeout"]

_log = logging.getLogger("collectives")
_KEY = "collectives/rendezvous"
_HAS_WORLD = "the world of this process"  # what rank 0 publishes, instead of an address, where it has joined before
_PAUSE = 0.05  # seconds between attempts
_ADVICE = (
    "Look at the output of the missing workers, or allow more time by timeout_seconds of the CommunicationOptions or "
    "by COLLECTIVES_TIMEOUT"
)

_lock = threading.Lock()
_jobs: list[tuple[TFConfig, Group]] = []  # at most one, kept until the process ends


def start_timeout(timeout: float | None) -> float:
    """Seconds in which all workers must come: the caller's, else ``COLLECTIVES_TIMEOUT``, else 600."""
    if timeout is not None and not timeout > 0:
        raise ValueError(
            f"timeout_seconds of the CommunicationOptions is {timeout!r}; a positive number of seconds is accepted, or "
            "None"
        )
    return timeout or read_environment(rank=0, size=1).timeout or _world.DEFAULT_TIMEOUT


def start_context(start: Callable[[float], None], config: TFConfig, timeout: float) -> None:
    """Runs `start(seconds)`, which starts TensorFlow's context and its server, when all workers are there.

    In `start` rank 0 waits for all others, and neither signals nor other Python threads are served meanwhile. So rank 0
    first waits here until their servers answer. The wait of the others in `start` is limited by the configuration of
    the coordination service, and so is that of rank 0 in versions of TensorFlow that have this limit
    (`_private.configure_coordination`). In other versions a worker that dies between the start of its server and its
    registration makes rank 0 wait without a limit.

    Raises:
        tf.errors.DeadlineExceededError: workers are missing.
        tf.errors.UnavailableError: the port of a worker is taken.
    """
    deadline = Deadline(timeout)
    try:
        meet(config, deadline)
    except LateError as error:
        raise tf.errors.DeadlineExceededError(
            None, None, f"{_describe_wait(config, timeout)}; {error}. {_ADVICE}"
        ) from None
    except StartError as error:
        raise tf.errors.UnavailableError(None, None, str(error)) from None
    absent = [rank for rank in range(config.size) if rank != config.rank]
    while config.rank == 0 and absent:
        if not no_answer(config, absent[0]):
            del absent[0]
        elif deadline.remaining() == 0:
            raise _timeout_error(config, timeout)
        else:
            time.sleep(_PAUSE)
    try:
        start(max(1.0, deadline.remaining()))
    except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError) as error:
        raise _timeout_error(config, timeout) from error


def join(config: TFConfig, devices: int, timeout: float) -> Group | None:
    """The group of all workers; each worker calls this when it makes a strategy.

    The first call joins the job. After a failed collective, a later call makes a new group if all workers still live;
    strategies that were made with the old one keep it.

    Args:
        config: the cluster; the same in all calls.
        devices: number of devices of this worker. If workers have different numbers, means over replicas are wrong.
        timeout: seconds that the call may take.

    Returns:
        ``None`` when this process is alone.

    Raises:
        ValueError: the workers have different numbers of devices.
        tf.errors.DeadlineExceededError: a worker did not come.
        tf.errors.UnavailableError: a worker died.
        tf.errors.InvalidArgumentError: workers were started with different settings.
        RuntimeError: this process is in the job of another cluster, or TensorFlow has no coordination service.
        CollectivesError: the world of this process is another one; the text says who made it.
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
            raise _to_tensorflow(error, config) from error
    if len(set(numbers)) > 1:
        listed = ", ".join(f"{name_of(config, rank)} has {number}" for rank, number in enumerate(numbers))
        raise ValueError(f"all workers must have the same number of devices: {listed}")
    return _jobs[0][1]


def share(config: TFConfig, group: Group, value: Any) -> Any:
    """The value of rank 0, on all workers.

    Raises:
        tf.errors.OpError: the others did not make the call.
    """
    try:
        return group.communicator.broadcast_object(value)
    except errors.CollectivesError as error:
        raise _to_tensorflow(error, config) from error


def _compare(group: Group, devices: int, end: float) -> list[int]:
    """The numbers of devices of all workers, by rank; over a new group if that of `_jobs` has failed."""
    config = _jobs[0][0]
    if not _has_failed(group):
        try:
            return _gather(group, devices, end)
        except (errors.MismatchError, errors.DeadlineError):
            raise
        except errors.CollectivesError:
            # An earlier collective has failed, which this worker did not know: the others make a new group, too.
            _log.info("the group of the workers has failed before a strategy was made", exc_info=True)
    communicator = group.communicator.shrink(_seconds_left(end))
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
    gathered = group.communicator.all_gather(np.array([number]), timeout=_seconds_left(end), name="numbers of devices")
    return [int(one) for one in gathered]


def _seconds_left(end: float) -> float:
    return max(1.0, end - time.monotonic())


def _connect(config: TFConfig, timeout: float) -> Communicator:
    """A group of all workers in the world of this process, which is made unless the program has done so.

    A group, so that the collectives of strategies need no order with those that the program makes in its world.
    """
    end = time.monotonic() + timeout
    world = _world.existing(config.rank, config.size)
    with contextlib.ExitStack() as unless_made:
        try:
            if world is None:
                world = unless_made.enter_context(_join(config, timeout, end))
            elif config.rank == 0:
                _private.publish(_KEY, _HAS_WORLD)
            elif _look_up(config, timeout) != _HAS_WORLD:
                raise _disagreement(config, without=0, having=config.rank)
            world.barrier(timeout=_seconds_left(end), name="a strategy")  # has a limit; the making of a group has none
            made = world.dup()
        except errors.CollectivesError as error:
            raise _to_tensorflow(error, config) from error
        unless_made.pop_all()
    _log.info("%s is rank %d of %d", name_of(config, config.rank), config.rank, config.size)
    return made


def _join(config: TFConfig, timeout: float, end: float) -> Communicator:
    """Publishes or looks up the address of rank 0, then makes the world."""
    own = read_token()
    listener: socket.socket | None = None
    try:
        if config.rank == 0:
            host, _, port = str(config.address).rpartition(":")
            listener, where, token, text = publish(host.strip("[]"), int(port), own)
            _private.publish(_KEY, text)
        else:
            text = _look_up(config, timeout)
            if text == _HAS_WORLD:
                raise _disagreement(config, without=config.rank, having=0)
            where, token = read_published(text, own)
        environment = read_environment(rank=config.rank, size=config.size, rendezvous=where, token=token)
        each = environment.timeout
        environment = dataclasses.replace(
            environment, timeout=_seconds_left(end), rendezvous_fd=-1 if listener is None else listener.fileno()
        )
        world = _world.join("a strategy of collectives.tensorflow", environment, each)
    finally:
        if listener is not None:
            listener.close()
    if (world.rank, world.size) != (config.rank, config.size):
        raise AssertionError(f"the engine has {world!r}, TF_CONFIG rank {config.rank} of {config.size}")
    return world


def _look_up(config: TFConfig, timeout: float) -> str:
    """What rank 0 has published."""
    try:
        return _private.look_up(_KEY, timeout)
    except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError) as error:
        raise tf.errors.DeadlineExceededError(
            None,
            None,
            f"{name_of(config, config.rank)} waited {timeout:g} s for {name_of(config, 0)} to publish its "
            "address. Look at what that worker does: every worker must make a strategy of "
            "collectives.tensorflow, or plug one in",
        ) from error


def _disagreement(config: TFConfig, *, without: int, having: int) -> RuntimeError:
    return RuntimeError(
        f"{name_of(config, having)} has made its world before its strategy, by collectives.init() or "
        f"collectives.tensorflow.init(), and {name_of(config, without)} has not; make both on all workers in one order"
    )


def _to_tensorflow(error: errors.CollectivesError, config: TFConfig) -> tf.errors.OpError:
    """The error of TensorFlow for one of the engine, with the names of the workers."""
    ranks = [r for r in dict.fromkeys((error.rank, error.peer)) if r is not None and 0 <= r < config.size]
    who = ", ".join(f"rank {rank} is {name_of(config, rank)}" for rank in ranks)
    return as_tensorflow(error, f" ({who})" if who else "")


def _timeout_error(config: TFConfig, timeout: float) -> Exception:
    others = [rank for rank in range(config.size) if rank != config.rank]
    missing = [f"{name_of(config, rank)} ({why})" for rank in others if (why := no_answer(config, rank))]
    text = f"nothing answers for {', '.join(missing)}" if missing else "all answer at their addresses now"
    result: Exception = tf.errors.DeadlineExceededError(
        None, None, f"{_describe_wait(config, timeout)}; {text}. {_ADVICE}"
    )
    return result


def _describe_wait(config: TFConfig, timeout: float) -> str:
    return f"{name_of(config, config.rank)} waited {timeout:g} s for the {config.size} workers of its cluster to start"
