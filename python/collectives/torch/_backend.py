"""The group of torch.distributed: itself a Python class, or, where it has other backends too, one of its backends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
from torch import distributed as dist

from ..communicator import Communicator
from . import _job
from ._calls import seconds_of
from ._entry import NAME
from ._errors import raised
from ._vector_calls import VectorCalls

_DEVICES = [torch.device("cpu"), torch.device("cuda")]


def _backend_has_constructor() -> bool:
    try:
        type("Probe", (c10d.Backend,), {"__init__": lambda self: c10d.Backend.__init__(self, 0, 1)})()
    except TypeError:
        return False
    return True


# From 2.14 on, Python classes can derive from torch's Backend; before, one of ProcessGroup is always the group. Around
# the works of a Backend torch puts a class of its own: what hangs on their futures runs in no order that ranks share
# (the hook PowerSGD waits forever), and errors and sources of messages are lost. So it is for mixed groups only.
IS_BACKEND = _backend_has_constructor()


def _has_others(group: Any) -> bool:
    """Whether a group that torch is making takes another backend for some devices: that names its default then."""
    return IS_BACKEND and group is not None and group.name() != "custom"


class Group(VectorCalls):
    """What both kinds of class have.

    Attributes:
        members: the ranks of the group, as ranks of torch.distributed.
    """

    members: list[int]

    def _set_up(self, comm: Communicator, timeout: timedelta, members: list[int]) -> None:
        self._begin(comm, None)
        self.members = members
        self.set_timeout(timeout)

    def getBackendName(self) -> str:
        return NAME

    def set_timeout(self, timeout: timedelta) -> None:
        """The time limit of calls that follow."""
        seconds = seconds_of(timeout)
        self.seconds = None if seconds == _job.timeout_of(self.comm) else seconds

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_sequence_number_for_group(self) -> None:
        """The engine numbers calls by itself."""

    def shutdown(self) -> None:
        """Leaves the group, when its calls are over."""
        self._leave()

    def abort(self) -> None:
        """As ``shutdown``: calls in flight end as their deadlines say."""
        self.shutdown()

    def eager_connect_single_device(self, device: Any) -> None:
        """The ranks are connected."""

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_coalescing(self) -> bool:
        return True

    @property
    def supports_time_estimate(self) -> bool:
        return False

    @property
    def supports_shrinking(self) -> bool:
        return False

    @property
    def supports_reconfigure(self) -> bool:
        return False

    @property
    def supports_window(self) -> bool:
        return False

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False


class ProcessGroup(Group, dist.ProcessGroup):
    """The group itself."""

    def __init__(self, store: Any, comm: Communicator, timeout: timedelta, members: list[int]) -> None:
        dist.ProcessGroup.__init__(self, comm.rank, comm.size)
        self._store = store
        self._names = ["", ""]
        self._set_up(comm, timeout, members)

    # torch's own class keeps its name and its description in its backends, of which there are none here.

    @property
    def group_name(self) -> str:
        return self._names[0]

    @property
    def group_desc(self) -> str:
        return self._names[1]

    def getGroupName(self) -> str:
        return self._names[0]

    def getGroupDesc(self) -> str:
        return self._names[1]

    def _set_group_name(self, name: str) -> None:
        self._names[0] = name

    def _set_group_desc(self, text: str) -> None:
        self._names[1] = text

    setGroupName = _set_group_name
    setGroupDesc = _set_group_desc

    @property
    def _device_types(self) -> list[torch.device]:
        return _DEVICES if torch.cuda.is_available() else _DEVICES[:1]

    def _get_backend(self, device: Any) -> ProcessGroup:
        """The group takes tensors of all devices itself."""
        return self

    def get_group_store(self) -> Any:
        return self._store

    @property
    def options(self) -> Any:
        made = c10d.Backend.Options(NAME, timedelta(seconds=self.seconds or _job.timeout_of(self.comm)))
        made.global_ranks_in_group = self.members
        return made

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """A group of some of the ranks, made by these alone; None on the others."""
        if self.comm.rank not in new_ranks:
            return None
        limit = timedelta(seconds=self.seconds or _job.timeout_of(self.comm)) if timeout is None else timeout
        name = f"{self.group_name}:split:{new_ranks}" if group_name is None else group_name
        with raised():
            comm = _job.split(self.comm, new_ranks, name, limit.total_seconds())
        store = dist.PrefixStore(f"{name}/", self._store)
        made = ProcessGroup(store, comm, limit, [self.members[rank] for rank in new_ranks])
        made._set_group_name(name)
        made._set_group_desc(group_desc or "undefined")
        return made


class Backend(Group, c10d.Backend):
    """What makes the calls of a group of torch, for the devices that it is registered for."""

    def __init__(self, comm: Communicator, timeout: timedelta, members: list[int], name: str) -> None:
        c10d.Backend.__init__(self, comm.rank, comm.size)
        self._set_up(comm, timeout, members)
        self._options = c10d.Backend.Options(NAME, timeout)
        self._options.global_ranks_in_group = members
        self._options.group_name = name

    @property
    def options(self) -> Any:
        return self._options

    def split(self, store: Any, ranks: list[int], opts: Any) -> Backend:
        """See ``ProcessGroup.split_group``."""
        timeout = opts._timeout if opts is not None else self._options._timeout
        name = opts.group_name if opts is not None else f"{self._options.group_name}:split:{ranks}"
        with raised():
            comm = _job.split(self.comm, list(ranks), name, timeout.total_seconds())
        return _kept(Backend(comm, timeout, [self.members[rank] for rank in ranks], name))


_backends: list[Backend] = []  # torch keeps only the C++ side of one in some places


def _kept(backend: Backend) -> Backend:
    _backends[:] = [one for one in _backends if not one.comm.closed]
    _backends.append(backend)
    return backend


def make(options: Any, backend_options: Any) -> Any:
    """Makes the backend of a group, on each of its members.

    Args:
        options: store, rank, size, timeout, name and members of the group; no members mean all ranks.
        backend_options: the ``pg_options`` of the program; there are none for this backend.
    """
    members = list(options.global_ranks_in_group) or list(range(options.group_size))
    timeout, name = options.timeout, options.group_id
    with raised():
        comm = _job.join(options.store, options.group_rank, options.group_size, timeout.total_seconds(), name, members)
    if _has_others(getattr(options, "process_group", None)):
        return _kept(Backend(comm, timeout, members, name))
    return ProcessGroup(options.store, comm, timeout, members)
