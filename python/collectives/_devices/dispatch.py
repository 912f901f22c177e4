"""Calls on arrays in the memory of devices: what they need is decided here, and how they run.

By NCCL (``nccl_calls``), or straight from device to device where the ranks reach each other's memory (``peers``).
Else staged: the arrays are copied into pinned memory of the host in the order of the caller's stream, the ordinary
collective runs on the copies, and the results are copied back in the order of that stream. The host waits for the
first copies, never for a whole stream or device. Calls without such arrays go on to ``_calls``.
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
from .._calls import messages
from .._calls import parts as _parts
from .._calls import whole as _whole
from .._calls.arguments import Array, check_dtypes, check_factor, check_options, check_outputs
from ..errors import CollectivesError
from ..work import Work
from . import nccl_calls, staging
from . import parts as _device_parts
from . import peers as _peers

if TYPE_CHECKING:
    from .._calls.layout import Counts
    from ..communicator import Communicator

# From what the call on the copies returned to its result, and the arrays that were written.
_Finish: TypeAlias = "Callable[[Any], tuple[Any, Sequence[DeviceArray]]]"


def whole(
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
    if collective == "barrier" or not _concerned(x, out, stream):
        return _whole.start(comm, collective, x, op, root, out, *rest)
    op = "sum" if op is None else op
    root = 0 if root is None else root
    check_options(comm.size, op, root, "auto" if algorithm is None else algorithm, timeout, name)
    check_factor(op, factor)
    operands = DeviceOperands(x, out, stream)
    alike = stand_ins(operands.inputs)
    check_dtypes(alike, collective, op)
    if operands.outs is not None:
        check_outputs(alike, stand_ins(operands.outs))
    told = [a.shape for a in operands.inputs]
    written = collective != "reduce" or root == comm.rank
    targets = operands.targets(written)
    ours = algorithm not in (None, "auto") or bool(deterministic)  # what NCCL has not got
    if not ours and nccl_calls.wanted(comm, collective, op, operands.inputs):
        giving = collective != "broadcast" or root == comm.rank
        call = nccl_calls.run(
            comm,
            collective,
            operands.inputs if giving else [],
            [_memory(t) for t in targets] if written else [],
            {"op": op, "root": int(root), "timeout": timeout, "name": name, "factor": factor, "shapes": told},
        )
        result = _finished(x, out, targets) if written else _untouched(x, out)
        return nccl_calls.NcclWork(call, result, stream) if async_op else result
    staging.refuse_graphs(operands.inputs)
    device = max((a.device for a in operands.inputs), default=-1)
    if algorithm in (None, "auto") and (peers := _peers.find(comm, device)) is not None:
        outputs = [_memory(t) for t in targets]
        one = _peers.whole(
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
        hosts = staging.bring(operands.inputs, _patience(comm, timeout))
    else:
        hosts = staging.empty_like(operands.inputs)
    # In place in the copies, whatever the caller's arrays are.
    begun = _whole.start(comm, collective, hosts, op, root, None, *rest)

    def finish(_: Any) -> tuple[Any, Sequence[DeviceArray]]:
        return _delivered(x, out, hosts, targets) if written else (_untouched(x, out), [])

    return _end(begun, finish, bool(async_op), stream)


def parts(
    comm: Communicator, collective: str, x: Any, out: Any, counts: Counts, options: _parts.Options, stream: Any
) -> Any:
    """all_gather, gather, scatter, reduce_scatter and all_to_all, with any arguments."""
    run: Callable[..., Any] = getattr(_parts, collective)
    here = comm.rank == options.root
    given = None if collective == "scatter" and not here else x  # what does not count elsewhere
    target = None if collective == "gather" and not here else out
    if not _concerned(given, target, stream):
        return run(comm, x, out, counts, options)
    check_options(comm.size, options.op, options.root, options.algorithm, options.timeout, options.name)
    check_factor(options.op, options.factor)
    operands = DeviceOperands(given, target, stream)
    check_dtypes(stand_ins(operands.inputs), collective, options.op)
    if operands.outs is not None:
        check_writable(operands.outs, True)
    arrays = [*operands.inputs, *(operands.outs or [])]
    # Who gets from scatter may have shown no array, and does not know where the others are.
    direct = options.algorithm == "auto" and collective != "scatter"
    rest = (run, given, target, operands, counts, options, _in_container)
    if direct and not options.deterministic and nccl_calls.wanted(comm, collective, options.op, arrays):
        by_nccl = functools.partial(nccl_calls.parts, comm)
        result, call, _ = _device_parts.run(comm, *rest, by_nccl)
        return nccl_calls.NcclWork(call, result, stream) if options.async_op else result
    staging.refuse_graphs(arrays)
    device = max((a.device for a in arrays), default=-1)
    if direct and (peers := _peers.find(comm, device)) is not None:
        with contextlib.suppress(_device_parts.NotDoneError):
            straight = functools.partial(_peers.parts, comm, peers)
            result, one, written = _device_parts.run(comm, *rest, straight)
            return _peers.PeersWork(one, written, result, stream) if options.async_op else result
    hosts = staging.bring(operands.inputs, _patience(comm, options.timeout))
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
            staging.deliver(results, operands.outs)
            return out, operands.outs
        if returned is None:
            return None, []
        came = [np.asarray(r) for r in items(returned)]
        made = [a.library.new(a, r.shape, r.dtype) for a, r in zip(operands.inputs, came, strict=True)]
        staging.deliver(came, [m.array for m in made])
        return _in_container(given, [m.finish() for m in made]), [m.array for m in made]

    return _end(begun, finish, options.async_op, stream)


def send(comm: Communicator, x: Any, dest: Any, tag: Any, async_op: bool, timeout: Any, name: Any, stream: Any) -> Any:
    """See ``Communicator.send``."""
    if not _concerned(x, None, stream):
        return messages.send(comm, x, dest, tag, async_op, timeout, name)
    messages.check(comm, "dest", dest, tag, timeout, name)
    operands = DeviceOperands(x, None, stream)
    check_dtypes(stand_ins(operands.inputs), "send", "sum")
    hosts = staging.bring(operands.inputs, _patience(comm, timeout))
    return messages.send(comm, hosts, dest, tag, async_op, timeout, name)


def recv(
    comm: Communicator, x: Any, source: Any, tag: Any, async_op: bool, timeout: Any, name: Any, stream: Any
) -> Any:
    """See ``Communicator.recv``."""
    if not _concerned(x, None, stream):
        return messages.recv(comm, x, source, tag, async_op, timeout, name)
    messages.check(comm, "source", source, tag, timeout, name)
    operands = DeviceOperands(x, None, stream)
    check_dtypes(stand_ins(operands.inputs), "recv", "sum")
    targets = operands.targets(True)
    hosts = staging.empty_like(operands.inputs)
    begun = messages.recv(comm, hosts, source, tag, async_op, timeout, name)
    return _end(begun, lambda _: _delivered(x, None, hosts, targets), async_op, stream)


class _DeviceWork(Work):
    """A call in flight. Its results are there in the order of the streams, of which the host does not wait."""

    def __init__(self, begun: Work, finish: _Finish, stream: Any) -> None:
        marks: list[tuple[DeviceArray, Any]] = []

        def end() -> Any:
            result, written = finish(begun.result())
            marks.extend(staging.marks(written))
            return result

        super().__init__(begun._work, end)
        self._marks = marks
        self._given = stream

    def done(self) -> bool:
        """True when the collective is over; then its results are put into the streams."""
        if not super().done():
            return False
        with contextlib.suppress(CollectivesError):  # wait() raises it
            super().wait()
        return True

    def wait(self, timeout: float | None = None) -> None:
        """See ``Work.wait``. What is put into the present stream from now on comes after the results, too."""
        super().wait(timeout)
        if self._given is None:
            _follow(self._marks)


def _follow(marks: Sequence[tuple[DeviceArray, Any]]) -> None:
    """Lets the present streams of the arrays' libraries wait, where these are not the streams of the call."""
    for array, event in marks:
        current = array.library.current_stream(array.device)
        if current not in (None, array.stream):
            event.stream_wait(current, array.device)


def _end(begun: Any, finish: _Finish, async_op: bool, stream: Any) -> Any:
    """`begun`: what the call on the copies returned, its result or its Work."""
    return _DeviceWork(begun, finish, stream) if async_op else finish(begun)[0]


def _delivered(
    x: Any, out: Any, hosts: Sequence[Array], targets: Sequence[DeviceArray | New]
) -> tuple[Any, Sequence[DeviceArray]]:
    """Puts the copies back into the streams. `targets`: where to, of `out` or of `x`."""
    written = [_memory(t) for t in targets]
    staging.deliver(hosts, written)
    return _finished(x, out, targets), written


def _memory(target: DeviceArray | New) -> DeviceArray:
    return target.array if isinstance(target, New) else target


def _finished(x: Any, out: Any, targets: Sequence[DeviceArray | New]) -> Any:
    """What a call returns whose results were put into the streams."""
    if out is not None or not any(isinstance(t, New) for t in targets):
        return _untouched(x, out)
    return _in_container(x, [t.finish() if isinstance(t, New) else t.owner for t in targets])


def _untouched(x: Any, out: Any) -> Any:
    """What a call returns that makes no new arrays."""
    return x if out is None else out


def _concerned(x: Any, out: Any, stream: Any) -> bool:
    """Whether the call is one on arrays in the memory of a device."""
    if any_on_device(x, out):
        return True
    if stream is not None:
        raise TypeError(
            "stream= is for arrays in the memory of a CUDA device, and this call has none; leave stream= away"
        )
    return False


def _in_container(like: Any, arrays: list[Any]) -> Any:
    """The arrays as `like` has them: in a list, in a tuple, or one alone."""
    if isinstance(like, list):
        return arrays
    return tuple(arrays) if isinstance(like, tuple) else arrays[0]


def _patience(comm: Communicator, timeout: float | None) -> float:
    """Seconds that a call may take."""
    return float(_core._describe(comm)["timeout"]) if timeout is None else timeout
