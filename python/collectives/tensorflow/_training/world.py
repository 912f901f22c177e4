"""The world of the training API: ``init``, ``shutdown``, and the rank of this process."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from ... import _world
from ...communicator import Communicator
from .._ops import Group
from .autograph import do_not_convert

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "group",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
]

_lock = threading.Lock()
# Empty before init(), then one entry: whether init() has made the group's communicator, and the world if it made that.
_owned: list[tuple[bool, Communicator | None]] = []
_groups: list[Group] = []  # at most one, kept after shutdown(): traced functions use it again after another init()


@do_not_convert
def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job of this process, as ``collectives.init`` does; does nothing if it has joined already.

    If the program has called ``collectives.init`` before, or made a strategy, this uses the same world and ``shutdown``
    leaves it open. All ranks make these calls in the same order. The collectives of this module are those of a group of
    their own, so they need no order with the program's. It may be called again after ``shutdown``; functions that were
    traced before then work again.

    Args:
        comm: a ``collectives.Communicator`` to use instead; ``shutdown`` does not close it.
        process_sets: for Horovod's programs; None and an empty list are accepted.

    Raises:
        TypeError: ``comm`` is something else, for example an MPI communicator.
        NotImplementedError: process sets were given.
        CollectivesError, ValueError: as ``collectives.init``.

    Example:
        >>> import collectives.tensorflow as hvd
        >>> hvd.init()
        >>> print(hvd.rank(), hvd.size())
    """
    if comm is not None and not isinstance(comm, Communicator):
        raise TypeError(
            f"init: comm is {comm!r}; a collectives.Communicator is accepted, or None for the job that this process "
            "was started in. For some of the ranks, use collectives.init().new_group(ranks)"
        )
    if process_sets:
        raise NotImplementedError(
            f"init: process_sets is {process_sets!r}; process sets are not there yet. Use "
            "comm = collectives.init().new_group(ranks), whose calls take eager tensors"
        )
    with _lock:
        if _owned and not _groups[0].communicator.closed:
            return
        made, own_world = _join() if comm is None else (comm, None)
        if _groups and (_groups[0].rank, _groups[0].size) == (made.rank, made.size):
            _groups[0].replace(made)
        else:
            _groups[:] = [Group(made, renewable=True)]
        _owned[:] = [(comm is None, own_world)]


def _join() -> tuple[Communicator, Communicator | None]:
    """A group of all ranks of the world, and the world if it is ours to close."""
    world, fresh = _world.take("collectives.tensorflow.init()")
    own = world if fresh or any(one is world for _, one in _owned) else None
    try:
        return world.dup(), own
    except BaseException:
        if own is not None:
            own.close()
        raise


@do_not_convert
def shutdown() -> None:
    """Leaves the job, unless the program had joined it by itself before. A second call does nothing.

    Calls then raise ValueError until ``init`` is called again.
    """
    with _lock:
        for own_group, own_world in _owned:
            if own_group:
                _groups[0].communicator.close()
            if own_world is not None:
                own_world.close()
        _owned.clear()


@do_not_convert
def is_initialized() -> bool:
    """Whether ``init`` has been called, and ``shutdown`` not since."""
    return bool(_owned)


def group() -> Group:
    """The ranks of this job. Raises ``ValueError`` before ``init``."""
    if not _owned:
        raise ValueError("collectives.tensorflow has not been initialized; call init() first")
    return _groups[0]


@do_not_convert
def rank() -> int:
    """The number of this process, 0 to ``size() - 1``. As most functions below, raises ValueError before ``init``."""
    return group().rank


@do_not_convert
def size() -> int:
    """The number of processes."""
    return group().size


@do_not_convert
def local_rank() -> int:
    """The number of this process among those of its host, and so of the device that it should use."""
    return group().communicator.local_rank


@do_not_convert
def local_size() -> int:
    """The number of processes on this host."""
    return group().communicator.local_size


def _hosts_of_local_rank() -> list[int]:
    """The hosts that have a process with the local rank of this one, in their order."""
    hosts = group().communicator._host
    return [host for host in dict.fromkeys(hosts) if hosts.count(host) > local_rank()]


@do_not_convert
def cross_rank() -> int:
    """The number of this host among those that have a process with this local rank."""
    return _hosts_of_local_rank().index(group().communicator._host[rank()])


@do_not_convert
def cross_size() -> int:
    """How many hosts have a process with this local rank."""
    return len(_hosts_of_local_rank())


@do_not_convert
def is_homogeneous() -> bool:
    """Whether all hosts have the same number of processes."""
    hosts = group().communicator._host
    return len({hosts.count(host) for host in hosts}) == 1


def _number(value: int, name: str | None) -> Any:
    return tf.constant(value, tf.int32, name=name)


def _check_world(process_set_id: int) -> None:
    if process_set_id != 0:
        raise ValueError(f"process_set_id is {process_set_id!r}; there is only 0, the process set of all ranks")


@do_not_convert
def rank_op(name: str | None = None) -> Any:
    """``rank()`` as a tensor, int32."""
    return _number(rank(), name)


@do_not_convert
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """``size()`` as a tensor, int32."""
    _check_world(process_set_id)
    return _number(size(), name)


@do_not_convert
def local_rank_op(name: str | None = None) -> Any:
    """``local_rank()`` as a tensor, int32."""
    return _number(local_rank(), name)


@do_not_convert
def local_size_op(name: str | None = None) -> Any:
    """``local_size()`` as a tensor, int32."""
    return _number(local_size(), name)


@do_not_convert
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Whether this process is in the process set, as a tensor, int32: 1, since there is only that of all ranks."""
    _check_world(process_set_id)
    group()
    return _number(1, name)


@do_not_convert
def mpi_threads_supported() -> bool:
    """False: there is no MPI here. Several threads may call collectives all the same."""
    group()
    return False


@do_not_convert
def mpi_built() -> bool:
    """False: MPI is not used."""
    return False


@do_not_convert
def mpi_enabled() -> bool:
    """False: MPI is not used."""
    return False


@do_not_convert
def gloo_built() -> bool:
    """False: Gloo is not used; this library replaces it."""
    return False


@do_not_convert
def gloo_enabled() -> bool:
    """False: Gloo is not used."""
    return False


@do_not_convert
def nccl_built() -> int:
    """0: TensorFlow gives plug-ins no stream of its GPUs, so its tensors are reduced on the host."""
    return 0


@do_not_convert
def cuda_built() -> bool:
    """False, as ``nccl_built`` is 0."""
    return False


@do_not_convert
def rocm_built() -> bool:
    """False."""
    return False


@do_not_convert
def ddl_built() -> bool:
    """False."""
    return False


@do_not_convert
def ccl_built() -> bool:
    """False."""
    return False
