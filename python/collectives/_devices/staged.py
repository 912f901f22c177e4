"""Calls on device arrays that are copied into pinned memory of the host, run there, and copied back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import _core
from .._arrays.device import DeviceArray, New
from .._arrays.device_operands import items
from .._calls.arguments import Array
from .._calls.options import CallOptions
from . import staging
from .backend import Backend, DeviceCall, Events, VectorCall


class OnHost:
    """A call of the engine on copies in pinned memory."""

    in_stream = False

    def __init__(self, work: _core.Work | None, copy: Callable[[], Sequence[DeviceArray]]) -> None:
        """``work``: None where it is over. ``copy`` queues the copies of the results, and returns what they go to."""
        self._work = work
        self._copy = copy
        self._written: Sequence[DeviceArray] = []

    @property
    def algorithm(self) -> str:
        """Of the engine."""
        return "" if self._work is None else self._work.algorithm

    def wait(self, timeout: float) -> bool:
        """Waits for the end on the host."""
        return self._work is None or self._work.wait(timeout)

    def done(self) -> bool:
        """Whether it is over on the host."""
        return self._work is None or self._work.done()

    def add_done_callback(self, handle: object, function: object) -> None:
        """For the end on the host."""
        assert self._work is not None, "a blocking call has no handle"
        self._work.add_done_callback(handle, function)

    def finish(self) -> None:
        """Queues the copies."""
        self._written = self._copy()

    def events(self) -> Events:
        """Behind the copies."""
        return staging.record_events(self._written)


class Staged(Backend):
    """A call through the memory of the host, in the order of the streams of the arrays.

    The host waits for the copies of what it sends, never for a whole stream or device.
    """

    def __init__(self, comm: _core.Communicator) -> None:
        self._comm = comm
        self._made: list[New] = []

    def start(self, call: DeviceCall) -> OnHost:
        """See ``Backend``. In place in the copies, also where the caller's call is not in place."""
        if call.gives:
            hosts = staging.copy_to_host(call.inputs, patience(self._comm, call.options))
        else:
            hosts = staging.empty_like(call.inputs)
        work = self._comm._start(call.collective, hosts, hosts, None, call.options)
        return OnHost(work, lambda: copy(hosts, call.outputs))

    def start_vector(self, call: VectorCall) -> OnHost:
        """See ``Backend``."""
        inputs = staging.copy_to_host(call.operands.inputs, patience(self._comm, call.options))
        outs = staging.empty_like(call.operands.outs or [])
        begun = call.run(inputs, outs, call.options, replace(call.means, empty=staging.empty))

        def bring(result: Any) -> Sequence[DeviceArray]:
            if call.operands.outs is not None:
                return copy(outs, call.operands.outs)
            came = [np.asarray(r) for r in items(result)]
            # None has come where this rank gets no result.
            like = call.operands.inputs[: len(came)]
            self._made = [a.library.new(a, r.shape, r.dtype) for a, r in zip(like, came, strict=True)]
            return copy(came, [m.array for m in self._made])

        if call.options.async_op:
            return OnHost(begun._work, lambda: bring(begun.result()))
        return OnHost(None, lambda: bring(begun))

    def results(self) -> list[Any]:
        """See ``Backend``."""
        return [m.finish() for m in self._made]


def copy(hosts: Sequence[Array], arrays: Sequence[DeviceArray]) -> Sequence[DeviceArray]:
    """Queues copies to those of the arrays that there are, and returns them."""
    if arrays:
        staging.copy_to_device(hosts, arrays)
    return arrays


def patience(comm: _core.Communicator, options: CallOptions) -> float:
    """The seconds that a call may take."""
    return float(_core._describe(comm)["timeout"]) if options.timeout is None else options.timeout
