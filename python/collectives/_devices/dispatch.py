"""Decides how a call runs, by where its arrays are.

Calls on host arrays go on to ``_calls``. Those on device arrays run by one of three backends (``backend.py``): by NCCL
(``nccl_calls``), or directly between devices where the ranks can address each other's memory (``peers``), or else
staged: copied into pinned host memory in the order of the caller's stream, run there as an ordinary collective, and
copied back in the order of that stream (``staged``). The host waits for the first copies, never for a whole stream or
device. Messages are always staged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .._arrays.device import DeviceArray, New
from .._arrays.device_operands import DeviceOperands, any_on_device, check_writable, stand_ins
from .._arrays.per_rank import PerRank
from .._calls import dense as _dense
from .._calls import messages, per_rank
from .._calls import vector as _vector
from .._calls.arguments import PREFIX, check_dtypes, check_options, check_outputs, gets_result
from . import nccl_calls, staging
from . import peers as _peers
from .backend import Backend, DeviceCall, VectorCall, end, in_container
from .staged import OnHost, Staged, copy, patience

if TYPE_CHECKING:
    from .._calls.layout import Counts
    from .._calls.message_calls import MessageCalls
    from .._calls.options import CallOptions
    from ..communicator import Communicator


def dense(comm: Communicator, collective: str, x: Any, out: Any, options: CallOptions) -> Any:
    """all_reduce, broadcast, reduce, scan, exscan and barrier, with any arguments."""
    if collective == "barrier" or not _on_device(x, out, options.stream):
        return _dense.start(comm, collective, x, out, options)
    check_options(comm.size, options)
    operands = DeviceOperands(x, out, options.stream)
    alike = stand_ins(operands.inputs)
    check_dtypes(alike, collective, options.op)
    if operands.outs is not None:
        check_outputs(alike, stand_ins(operands.outs))
    written = gets_result(collective, options.root, comm.rank)
    nothing = None if collective in PREFIX else _untouched(x, out)  # of a rank that gets no result
    gives = collective != "broadcast" or options.root == comm.rank
    targets = operands.targets(written)
    outputs = [_memory(t) for t in targets] if written else []
    call = DeviceCall(collective, operands.inputs, outputs, gives, options)
    for backend in _backends(comm, collective, operands, options):
        if (started := backend.start(call)) is not None:
            return end(started, lambda: _finished(x, out, targets) if written else nothing, options)
    raise AssertionError("a staged call can always run")


def vector(
    comm: Communicator,
    collective: str,
    x: Any,
    out: Any,
    counts: Counts,
    options: CallOptions,
    means: _vector.Means = _vector.HOST,
) -> Any:
    """all_gather, gather, scatter, reduce_scatter and all_to_all, with any arguments."""
    here = comm.rank == options.root
    given = None if collective == "scatter" and not here else x  # x of scatter, out of gather: used on the root only
    target = None if collective == "gather" and not here else out
    if isinstance(given, PerRank) or isinstance(target, PerRank):
        return per_rank.run(comm, collective, given, target, counts, options)
    if not _on_device(given, target, options.stream):
        return getattr(_vector, collective)(comm, x, out, counts, options, means)
    check_options(comm.size, options)
    operands = DeviceOperands(given, target, options.stream)
    check_dtypes(stand_ins(operands.inputs), collective, options.op)
    if operands.outs is not None:
        check_writable(operands.outs, True)
    call = VectorCall(comm, collective, operands, counts, options, means)
    for backend in _backends(comm, collective, operands, options):
        if (started := backend.start_vector(call)) is not None:
            gets_new = target is None and (collective != "gather" or here)
            new = functools.partial(_new_results, given, backend) if gets_new else lambda: target
            return end(started, new, options)
    raise AssertionError("a staged call can always run")


def _backends(comm: Communicator, collective: str, operands: DeviceOperands, options: CallOptions) -> Iterator[Backend]:
    """Those by which the call may run, to be tried one after the other. The same on all ranks; the last is staged."""
    arrays = [*operands.inputs, *(operands.outs or [])]
    # In scatter, ranks other than the root may pass no array, so they do not know where those of the root are. Prefixes
    # are of the engine alone.
    direct = options.algorithm == "auto" and collective not in ("scatter", *PREFIX)
    # NCCL has neither algorithms nor an order of additions to choose.
    if direct and not options.deterministic and nccl_calls.wanted(comm, collective, options.op, arrays):
        yield nccl_calls.Nccl(comm)
        return
    staging.refuse_graphs(arrays)
    device = max((a.device for a in arrays), default=-1)
    if direct and (peers := _peers.find(comm, device)) is not None:
        yield _peers.Peers(comm, peers)
    yield Staged(comm)


def _new_results(x: Any, backend: Backend) -> Any:
    return in_container(x, backend.results())


def send(comm: MessageCalls, x: Any, dest: Any, tag: Any, options: CallOptions) -> Any:
    """See ``Communicator.send``."""
    if not _on_device(x, None, options.stream):
        return messages.send(comm, x, dest, tag, options)
    messages.check(comm, "dest", dest, tag, options)
    operands = DeviceOperands(x, None, options.stream)
    check_dtypes(stand_ins(operands.inputs), "send", "sum")
    hosts = staging.copy_to_host(operands.inputs, patience(comm, options))
    return messages.send(comm, hosts, dest, tag, options)


def recv(comm: MessageCalls, x: Any, source: Any, tag: Any, options: CallOptions) -> Any:
    """See ``Communicator.recv``."""
    if not _on_device(x, None, options.stream):
        return messages.recv(comm, x, source, tag, options)
    peer, number = messages.check(comm, "source", source, tag, options)
    operands = DeviceOperands(x, None, options.stream)
    check_dtypes(stand_ins(operands.inputs), "recv", "sum")
    targets = operands.targets(True)
    hosts = staging.empty_like(operands.inputs)
    work = comm._start_message(False, hosts, peer, number, options)
    started = OnHost(work, lambda: copy(hosts, [_memory(t) for t in targets]))
    return end(started, lambda: messages.received(_finished(x, None, targets), work, peer), options)


def sendrecv(
    comm: MessageCalls,
    x: Any,
    dest: Any,
    source: Any,
    out: Any,
    sendtag: Any,
    recvtag: Any,
    options: CallOptions,
) -> Any:
    """See ``Communicator.sendrecv``."""
    if not _on_device(x, out, options.stream):
        return messages.sendrecv(comm, x, dest, source, out, sendtag, recvtag, options)
    messages.check(comm, "dest", dest, sendtag, options, "sendtag")
    messages.check(comm, "source", source, recvtag, options, "recvtag")
    operands = DeviceOperands(x, out, options.stream)
    check_dtypes(stand_ins(operands.inputs), "sendrecv", "sum")
    targets: Sequence[DeviceArray | New]
    if operands.outs is None:
        targets = [a.library.new(a, a.shape, a.dtype) for a in operands.inputs]
    else:
        targets = operands.outs
        check_dtypes(stand_ins(operands.outs), "sendrecv", "sum")
        check_writable(operands.outs, True)
    memory = [_memory(t) for t in targets]
    received = staging.empty_like(memory)
    sent = staging.copy_to_host(operands.inputs, patience(comm, options))
    came = messages.sendrecv(comm, sent, dest, source, received, sendtag, recvtag, options)
    copy(received, memory)
    result = _finished(x, out, targets)
    return messages.Received(result, came.source) if source is None else result


def _memory(target: DeviceArray | New) -> DeviceArray:
    return target.array if isinstance(target, New) else target


def _finished(x: Any, out: Any, targets: Sequence[DeviceArray | New]) -> Any:
    """What a call returns when the copies of its results are queued in the streams."""
    if out is not None or not any(isinstance(t, New) for t in targets):
        return _untouched(x, out)
    return in_container(x, [t.finish() if isinstance(t, New) else t.owner for t in targets])


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
