"""Decides how a call runs, by where its arrays are.

Calls on host arrays go on to ``_calls``. Those on device arrays run by NCCL (``nccl_calls``), or directly between
devices where the ranks can address each other's memory (``peers``), or else staged: copied into pinned host memory in
the order of the caller's stream, run there as an ordinary collective, and copied back in the order of that stream. The
host waits for the first copies, never for a whole stream or device.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .. import _core
from .._arrays.device import DeviceArray, New
from .._arrays.device_operands import DeviceOperands, any_on_device, check_writable, items, stand_ins
from .._calls import dense as _dense
from .._calls import messages
from .._calls import vector as _vector
from .._calls.arguments import Array, check_dtypes, check_factor, check_options, check_outputs
from ..errors import CollectivesError
from ..work import Work
from . import nccl_calls, staging
from . import peers as _peers
from . import vector as _device_vector

if TYPE_CHECKING:
    from .._calls.layout import Counts
    from ..communicator import Communicator

# Makes of what the call on the host copies returned: the result of the call, and the arrays that were written.
_Finish: TypeAlias = "Callable[[Any], tuple[Any, Sequence[DeviceArray]]]"


def dense(
    comm: Communicator,
    collective: str,
    x: Any,
    op: Any,
    root: Any,
    out: Any,
    algorithm: Any,
    deterministic: Any,
    async_op: Any,
    timeout: Any,
    name: Any,
    factor: Any,
    stream: Any,
) -> Any:
    """all_reduce, broadcast, reduce and barrier, with any arguments."""
    rest = (algorithm, deterministic, async_op, timeout, name, factor)
    if collective == "barrier" or not _on_device(x, out, stream):
        return _dense.start(comm, collective, x, op, root, out, *rest)
    op = "sum" if op is None else op
    root = 0 if root is None else root
    check_options(comm.size, op, root, "auto" if algorithm is None else algorithm, timeout, name)
    check_factor(op, factor)
    operands = DeviceOperands(x, out, stream)
    alike = stand_ins(operands.inputs)
    check_dtypes(alike, collective, op)
    if operands.outs is not None:
        check_outputs(alike, stand_ins(operands.outs))
    shapes = [a.shape for a in operands.inputs]
    written = collective != "reduce" or root == comm.rank
    targets = operands.targets(written)
    ours = algorithm not in (None, "auto") or bool(deterministic)  # options that NCCL does not have
    if not ours and nccl_calls.wanted(comm, collective, op, operands.inputs):
        giving = collective != "broadcast" or root == comm.rank
        call = nccl_calls.run(
            comm,
            collective,
            operands.inputs if giving else [],
            [_memory(t) for t in targets] if written else [],
            {"op": op, "root": int(root), "timeout": timeout, "name": name, "factor": factor, "shapes": shapes},
        )
        result = _finished(x, out, targets) if written else _untouched(x, out)
        return nccl_calls.NcclWork(call, result, stream) if async_op else result
    staging.refuse_graphs(operands.inputs)
    device = max((a.device for a in operands.inputs), default=-1)
    if algorithm in (None, "auto") and (peers := _peers.find(comm, device)) is not None:
        outputs = [_memory(t) for t in targets]
        one = _peers.dense(
            comm,
            peers,
            collective,
            operands.inputs,
            outputs if written else [],
            op=op,
            root=int(root),
            factor=factor,
            timeout=timeout,
            name=name,
        )
        if one is not None:
            result = _finished(x, out, targets) if written else _untouched(x, out)
            return _peers.PeersWork(one, [*operands.inputs, *outputs], result, stream) if async_op else result
    if collective != "broadcast" or root == comm.rank:
        hosts = staging.copy_to_host(operands.inputs, _patience(comm, timeout))
    else:
        hosts = staging.empty_like(operands.inputs)
    # In place in the copies, also where the caller's call is not in place.
    begun = _dense.start(comm, collective, hosts, op, root, None, *rest)

    def finish(_: Any) -> tuple[Any, Sequence[DeviceArray]]:
        return _delivered(x, out, hosts, targets) if written else (_untouched(x, out), [])

    return _end(begun, finish, bool(async_op), stream)


def vector(
    comm: Communicator, collective: str, x: Any, out: Any, counts: Counts, options: _vector.Options, stream: Any
) -> Any:
    """all_gather, gather, scatter, reduce_scatter and all_to_all, with any arguments."""
    run: Callable[..., Any] = getattr(_vector, collective)
    here = comm.rank == options.root
    given = None if collective == "scatter" and not here else x  # x of scatter, out of gather: used on the root only
    target = None if collective == "gather" and not here else out
    if not _on_device(given, target, stream):
        return run(comm, x, out, counts, options)
    check_options(comm.size, options.op, options.root, options.algorithm, options.timeout, options.name)
    check_factor(options.op, options.factor)
    operands = DeviceOperands(given, target, stream)
    check_dtypes(stand_ins(operands.inputs), collective, options.op)
    if operands.outs is not None:
        check_writable(operands.outs, True)
    arrays = [*operands.inputs, *(operands.outs or [])]
    # In scatter, ranks other than the root may pass no array, so they do not know where those of the root are.
    direct = options.algorithm == "auto" and collective != "scatter"
    rest = (run, given, target, operands, counts, options, _in_container)
    if direct and not options.deterministic and nccl_calls.wanted(comm, collective, options.op, arrays):
        by_nccl = functools.partial(nccl_calls.vector, comm)
        result, call, _ = _device_vector.run(comm, *rest, by_nccl)
        return nccl_calls.NcclWork(call, result, stream) if options.async_op else result
    staging.refuse_graphs(arrays)
    device = max((a.device for a in arrays), default=-1)
    if direct and (peers := _peers.find(comm, device)) is not None:
        with contextlib.suppress(_device_vector.NotDoneError):
            straight = functools.partial(_peers.vector, comm, peers)
            result, one, written = _device_vector.run(comm, *rest, straight)
            return _peers.PeersWork(one, written, result, stream) if options.async_op else result
    hosts = staging.copy_to_host(operands.inputs, _patience(comm, options.timeout))
    results = None if operands.outs is None else staging.empty_like(operands.outs)
    begun = run(
        comm,
        None if given is None else _in_container(given, hosts),
        None if results is None else _in_container(target, results),
        counts,
        replace(options, empty=staging.empty),
    )

    def finish(returned: Any) -> tuple[Any, Sequence[DeviceArray]]:
        if results is not None:
            assert operands.outs is not None
            staging.copy_to_device(results, operands.outs)
            return out, operands.outs
        if returned is None:
            return None, []
        came = [np.asarray(r) for r in items(returned)]
        made = [a.library.new(a, r.shape, r.dtype) for a, r in zip(operands.inputs, came, strict=True)]
        staging.copy_to_device(came, [m.array for m in made])
        return _in_container(given, [m.finish() for m in made]), [m.array for m in made]

    return _end(begun, finish, options.async_op, stream)


def send(comm: Communicator, x: Any, dest: Any, tag: Any, async_op: bool, timeout: Any, name: Any, stream: Any) -> Any:
    """See ``Communicator.send``."""
    if not _on_device(x, None, stream):
        return messages.send(comm, x, dest, tag, async_op, timeout, name)
    messages.check(comm, "dest", dest, tag, timeout, name)
    operands = DeviceOperands(x, None, stream)
    check_dtypes(stand_ins(operands.inputs), "send", "sum")
    hosts = staging.copy_to_host(operands.inputs, _patience(comm, timeout))
    return messages.send(comm, hosts, dest, tag, async_op, timeout, name)


def recv(
    comm: Communicator, x: Any, source: Any, tag: Any, async_op: bool, timeout: Any, name: Any, stream: Any
) -> Any:
    """See ``Communicator.recv``."""
    if not _on_device(x, None, stream):
        return messages.recv(comm, x, source, tag, async_op, timeout, name)
    messages.check(comm, "source", source, tag, timeout, name)
    operands = DeviceOperands(x, None, stream)
    check_dtypes(stand_ins(operands.inputs), "recv", "sum")
    targets = operands.targets(True)
    hosts = staging.empty_like(operands.inputs)
    begun = messages.recv(comm, hosts, source, tag, async_op, timeout, name)
    return _end(begun, lambda _: _delivered(x, None, hosts, targets), async_op, stream)


class _DeviceWork(Work):
    """A staged call in flight. Its results are ready in stream order; the host does not wait for the streams."""

    def __init__(self, begun: Work, finish: _Finish, stream: Any) -> None:
        events: list[tuple[DeviceArray, Any]] = []

        def end() -> Any:
            result, written = finish(begun.result())
            events.extend(staging.record_events(written))
            return result

        super().__init__(begun._work, end)
        self._events = events
        self._stream = stream

    def done(self) -> bool:
        """True when the collective is over; this call then queues the copies of its results in the streams."""
        if not super().done():
            return False
        with contextlib.suppress(CollectivesError):  # wait() raises it
            super().wait()
        return True

    def wait(self, timeout: float | None = None) -> None:
        """See ``Work.wait``. The current stream waits for the results, too."""
        super().wait(timeout)
        if self._stream is None:
            _order_current_streams(self._events)


def _order_current_streams(events: Sequence[tuple[DeviceArray, Any]]) -> None:
    """Makes the current streams of the arrays' libraries wait for the events, where they are not the call's own."""
    for array, event in events:
        current = array.library.current_stream(array.device)
        if current not in (None, array.stream):
            event.stream_wait(current, array.device)


def _end(begun: Any, finish: _Finish, async_op: bool, stream: Any) -> Any:
    """`begun` is what the call on the host copies returned, its result or its Work."""
    return _DeviceWork(begun, finish, stream) if async_op else finish(begun)[0]


def _delivered(
    x: Any, out: Any, hosts: Sequence[Array], targets: Sequence[DeviceArray | New]
) -> tuple[Any, Sequence[DeviceArray]]:
    """Queues the copies of the results to `targets`, which are those of `out` or of `x`."""
    written = [_memory(t) for t in targets]
    staging.copy_to_device(hosts, written)
    return _finished(x, out, targets), written


def _memory(target: DeviceArray | New) -> DeviceArray:
    return target.array if isinstance(target, New) else target


def _finished(x: Any, out: Any, targets: Sequence[DeviceArray | New]) -> Any:
    """What a call returns when the copies of its results are queued in the streams."""
    if out is not None or not any(isinstance(t, New) for t in targets):
        return _untouched(x, out)
    return _in_container(x, [t.finish() if isinstance(t, New) else t.owner for t in targets])


def _untouched(x: Any, out: Any) -> Any:
    """What a call without new arrays returns."""
    return x if out is None else out


def _on_device(x: Any, out: Any, stream: Any) -> bool:
    """Whether an array of the call is on a device. Raises TypeError for a stream without one."""
    if any_on_device(x, out):
        return True
    if stream is not None:
        raise TypeError(
            "stream= is for arrays in the memory of a CUDA device, and this call has none; leave stream= away"
        )
    return False


def _in_container(like: Any, arrays: list[Any]) -> Any:
    """The arrays as `like` has them: as a list, as a tuple, or one array alone."""
    if isinstance(like, list):
        return arrays
    return tuple(arrays) if isinstance(like, tuple) else arrays[0]


def _patience(comm: Communicator, timeout: float | None) -> float:
    """The seconds that a call may take."""
    return float(_core._describe(comm)["timeout"]) if timeout is None else timeout
