"""What all calls of a group have in common, and its calls on one tensor: reductions, broadcast, messages, barrier."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch._C._distributed_c10d as c10d
from torch import Tensor
from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function
from torch.distributed import AllreduceOptions, ReduceOp, Work

from ..communicator import Communicator
from ..errors import CollectivesError
from . import _job, _sparse
from ._errors import raised, translated
from ._futures import Completions
from ._tensors import OPS, operation, plain, single
from ._work import Finished, Pending, Together

_FINISHED = Finished()
# Of calls of dist.all_reduce, where the version of torch lets them say that they are blocking.
_OPTIONS = AllreduceOptions if hasattr(AllreduceOptions, "asyncOp") else None


def seconds_of(timeout: Any) -> float | None:
    """Of a timeout as torch gives it; None where it is not set."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    return seconds if seconds is not None and seconds > 0 else None


class Calls:
    """The calls of a group, with the names of torch.distributed and the arguments of all its forms.

    Attributes:
        comm: the communicator; another one in what hangs on futures (``Completions``).
        seconds: that a call may take, where that is not what the communicator has.
    """

    seconds: float | None

    def _begin(self, comm: Communicator, seconds: float | None) -> None:
        self.seconds = seconds
        self._comm = comm
        self._inner: Communicator | None = None
        self._making_inner = threading.Lock()
        self._completions = Completions()
        self._calls = 0
        self._batch: list[Pending] | None = None  # of calls that are coalesced

    @property
    def comm(self) -> Communicator:
        return self._comm if not self._completions.inside() else self._inner_comm()

    def _inner_comm(self) -> Communicator:
        """The communicator of what hangs on futures. All ranks come here in the same order of such calls."""
        with self._making_inner:
            if self._inner is None:
                ranks = list(range(self._comm.size))
                self._inner = _job.split(self._comm, ranks, "what hangs on futures", _job.timeout_of(self._comm))
            return self._inner

    def _leave(self) -> None:
        for comm in (self._inner, self._comm):
            if comm is not None:
                _job.leave(comm)

    def _call(
        self,
        name: str,
        opts: Any,
        tensors: Sequence[Any],
        start: Callable[[Any, Any], Any],
        *,
        timeout: Any = None,
        after: Callable[[], object] | None = None,
        ordered: bool = True,
    ) -> Work:
        """Makes a call of the engine.

        Args:
            name: of the call, for the profiler.
            opts: as torch gives them; what is no options means an asynchronous call.
            tensors: the result.
            start: is given whether the call is asynchronous, and its time limit; returns the engine's work if it is.
            timeout: instead of that of `opts`.
            after: see ``Pending``.
            ordered: see ``Pending``.
        """
        asynchronous = bool(getattr(opts, "asyncOp", True)) or self._batch is not None
        limit = seconds_of(getattr(opts, "timeout", None)) or seconds_of(timeout) or self.seconds
        self._calls += 1
        profiled = record_function(_title() or f"collectives:{name}") if _profiler_enabled() else None
        if profiled is not None:
            profiled.__enter__()
        work: Work = _FINISHED
        try:
            try:
                begun = start(asynchronous, limit)
            except CollectivesError as error:
                raise translated(error) from error.__cause__
            if asynchronous:
                work = pending = Pending(begun, tensors, self._completions, after, ordered)
                if self._batch is not None:
                    self._batch.append(pending)
            elif after is not None:
                after()
        finally:
            if profiled is not None:
                if work is _FINISHED:
                    profiled.__exit__(None, None, None)
                else:
                    profiled._call_end_callbacks_on_future(work.get_future())
        return work

    # --- dense collectives ---

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None) -> Work:
        """Of one tensor, in place."""
        if _OPTIONS is type(opts) and not opts.asyncOp and len(tensors) == 1 and not _profiler_enabled():
            # The call of dist.all_reduce, without all that others need.
            tensor = tensors[0]
            name = OPS[hash(opts.reduceOp)]
            if (
                name is not None
                and not tensor.is_sparse
                and tensor.is_contiguous()
                and self._batch is None
                and not self._completions.runners
            ):
                self._calls += 1
                try:
                    if self.seconds is None:
                        self._comm.all_reduce(tensor, name)
                    else:
                        self._comm.all_reduce(tensor, name, timeout=self.seconds)
                except CollectivesError as error:
                    raise translated(error) from error.__cause__
                return _FINISHED
        opts, op = _reduction(opts, op)
        tensor = single(tensors, "tensors")
        if tensor.is_sparse:
            return self.allreduce_sparse(tensors, opts, timeout=timeout, op=op)
        name, factor = operation(op)
        memory = plain(tensor, "the tensor")
        return self._call(
            "all_reduce",
            opts,
            [tensor],
            lambda asynchronous, limit: self.comm.all_reduce(
                memory, name, factor=factor, async_op=asynchronous, timeout=limit
            ),
            timeout=timeout,
        )

    def allreduce_sparse(self, tensors: Any, opts: Any = None, *, timeout: Any = None, op: Any = None) -> Work:
        """Of one sparse tensor of layout COO, in place."""
        opts, op = _reduction(opts, op)
        tensor = single(tensors, "tensors")
        return self._call(
            "all_reduce",
            opts,
            [tensor],
            lambda asynchronous, limit: _sparse.all_reduce(self.comm, tensor, operation(op)[0], asynchronous, limit),
            timeout=timeout,
        )

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        """Of several tensors, in place: one collective for those of each dtype."""
        opts, op = _reduction(opts, None)
        name, factor = operation(op)
        memory = [plain(tensor, f"tensors[{i}]") for i, tensor in enumerate(tensors)]
        devices = {tensor.device for tensor in memory}
        if len(devices) > 1:
            raise ValueError(f"the tensors are on devices {sorted(map(str, devices))}; one call takes one device")
        lists = [[t for t in memory if t.dtype == dtype] for dtype in dict.fromkeys(t.dtype for t in memory)]

        def start(asynchronous: Any, limit: float | None) -> Any:
            begun = [
                self.comm.all_reduce(alike, name, factor=factor, async_op=asynchronous, timeout=limit)
                for alike in lists
            ]
            return together(begun) if asynchronous else None

        return self._call("all_reduce", opts, tensors, start)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None) -> Work:
        """Of one tensor, from the root."""
        if isinstance(opts, int):
            opts, root = None, opts
        tensor = single(tensors, "tensors")
        memory = plain(tensor, "the tensor")
        source = opts.rootRank if root is None and opts is not None else root or 0
        return self._call(
            "broadcast",
            opts,
            [tensor],
            lambda asynchronous, limit: self.comm.broadcast(memory, source, async_op=asynchronous, timeout=limit),
            timeout=timeout,
        )

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> Work:
        """Of one tensor; only that of the root changes."""
        if isinstance(opts, int):
            opts, root = None, opts
        opts, op = _reduction(opts, op)
        name, factor = operation(op)
        tensor = single(tensors, "tensors")
        memory = plain(tensor, "the tensor")
        target = opts.rootRank if root is None and opts is not None else root or 0
        return self._call(
            "reduce",
            opts,
            [tensor],
            lambda asynchronous, limit: self.comm.reduce(
                memory, name, target, factor=factor, async_op=asynchronous, timeout=limit
            ),
            timeout=timeout,
        )

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        """Returns when all ranks have called it."""
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        return self._call(
            "barrier",
            opts,
            [],
            lambda asynchronous, limit: self.comm.barrier(async_op=asynchronous, timeout=limit),
            timeout=timeout,
        )

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """As ``barrier``, but blocking: the error of one that fails always says which ranks did not come."""
        limit = getattr(timeout, "timeout", timeout)  # it may be options
        with raised():
            self.comm.barrier(timeout=seconds_of(limit) or self.seconds, name="monitored_barrier")

    # --- messages ---

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Work:
        """A message to another rank."""
        memory = plain(single(tensors, "tensors"), "the tensor")
        return self._call(
            "send",
            None,
            [],
            lambda _, limit: self.comm.send(memory, dstRank, tag, async_op=True, timeout=limit),
            ordered=False,
        )

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Work:
        """A message from another rank."""
        return self._recv("recv", tensors, srcRank, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """A message from any rank; ``source_rank`` of its work says from which."""
        return self._recv("recv_anysource", tensors, None, tag)

    def _recv(self, name: str, tensors: Any, source: int | None, tag: int) -> Work:
        tensor = single(tensors, "tensors")
        memory = plain(tensor, "the tensor")
        return self._call(
            name,
            None,
            [tensor],
            lambda _, limit: self.comm.recv(memory, source, tag, async_op=True, timeout=limit),
            ordered=False,
        )

    # --- coalescing ---

    def start_coalescing(self, device: Any = None) -> None:
        """The works of the calls that follow, up to ``end_coalescing``, are one."""
        if self._batch is not None:
            raise RuntimeError("calls are being coalesced already; end that first")
        self._batch = []

    def end_coalescing(self, device: Any = None) -> Work:
        """The work of the calls since ``start_coalescing``."""
        if self._batch is None:
            raise RuntimeError("no calls are being coalesced")
        batch, self._batch = self._batch, None
        if len(batch) == 1:
            return batch[0]
        tensors = [tensor for work in batch for tensor in work.tensors]
        ordered = all(work.ordered for work in batch)
        finish = lambda: [work.wait() for work in batch]  # noqa: E731
        return Pending(Together([work.engine for work in batch]), tensors, self._completions, finish, ordered)

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing


def _title() -> str:
    """What the program has called its calls for the profiler, by ``torch.distributed.record_comm``."""
    title = getattr(c10d, "_get_comm_profiling_name", str)
    return str(title())


def together(works: list[Any]) -> Any:
    """One work of several."""
    return works[0] if len(works) == 1 else Together(works)


def _reduction(opts: Any, op: Any) -> tuple[Any, Any]:
    """The options and the operation of a reduction, whose second argument may be either."""
    if isinstance(opts, (ReduceOp, ReduceOp.RedOpType)):
        return None, opts
    if op is None:
        op = ReduceOp.SUM if opts is None else opts.reduceOp
    return opts, op
