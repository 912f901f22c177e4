"""What all backends of calls on device arrays have in common: the call that they get, how it runs, and its ``Work``.

A backend is an object for one call. Of a vector collective, ``_calls.vector`` computes shapes and cuts arrays into the
pieces of each rank. Backends give it host arrays: copies of those on the device, or arrays that only stand for them.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from .. import _core
from .._arrays.device import DeviceArray, New
from .._arrays.device_operands import DeviceOperands, stand_ins
from .._calls import vector
from .._calls.arguments import DTYPES, Array
from .._calls.options import CallOptions
from .._calls.spans import overlaps
from ..errors import CollectivesError
from ..work import Begun, Result, Work
from . import staging
from .stand_ins import StandIns

if TYPE_CHECKING:
    from .._calls.layout import Counts
    from ..communicator import Communicator

Events: TypeAlias = "Sequence[tuple[DeviceArray, _core._DeviceEvent]]"


@dataclass(frozen=True)
class DeviceCall:
    """One collective of one rank on device arrays, whose lengths are known.

    Attributes:
        collective: its name.
        inputs: the arrays of ``x``, all of one dtype.
        outputs: those for the results, which may be the inputs; none where this rank gets no result.
        gives: whether the values of this rank's inputs count.
        options: of the caller, checked.
        lengths: of vector collectives, see ``_calls.layout.lengths``; None of dense ones, in which each array is one
            piece.
        sources, targets: of vector collectives, the pieces of stand-ins for the arrays, in the order of the parts.
    """

    collective: str
    inputs: Sequence[DeviceArray]
    outputs: Sequence[DeviceArray]
    gives: bool
    options: CallOptions
    lengths: list[int] | None = None
    sources: Sequence[Array] = ()
    targets: Sequence[Array] = ()

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Those that ranks compare: none in vector collectives, which have compared them."""
        return [] if self.lengths is not None else [a.shape for a in self.inputs]


@dataclass(frozen=True)
class VectorCall:
    """A vector collective of one rank on device arrays.

    Attributes:
        comm, collective, counts, options, means: as ``_calls.vector`` takes them, checked.
        operands: the arrays.
    """

    comm: Communicator
    collective: str
    operands: DeviceOperands
    counts: Counts
    options: CallOptions
    means: vector.Means

    def run(self, inputs: list[Array], outs: list[Array], options: CallOptions, means: vector.Means) -> Any:
        """The collective on host arrays like those of ``x`` and of ``out``. Returns its result, or its Work."""
        x, out = self.operands.x, self.operands.out
        return getattr(vector, self.collective)(
            self.comm,
            None if x is None else in_container(x, inputs),
            None if out is None else in_container(out, outs),
            self.counts,
            options,
            means,
        )


class Started(Begun, Protocol):
    """A call that has begun, on the host or in a stream."""

    in_stream: bool  # it ends in stream order, and nothing on the host waits for it

    def finish(self) -> None:
        """Queues what is left to do on the device. Called once, when it is over for the host."""

    def events(self) -> Events:
        """After ``finish``: the end of the call in the streams of its arrays, each with an array of that stream."""


class Backend(abc.ABC):
    """How one call runs: by NCCL, directly between devices (peers), or staged through the host."""

    @abc.abstractmethod
    def start(self, call: DeviceCall) -> Started | None:
        """Starts a dense collective. None, on every rank, where it cannot run this way, and nothing was done."""

    @abc.abstractmethod
    def start_vector(self, call: VectorCall) -> Started | None:
        """The same for a vector collective."""

    @abc.abstractmethod
    def results(self) -> list[Any]:
        """Of a vector collective, the new arrays of the caller's library, when what fills them is queued."""


class InStream:
    """A call that is queued in the streams of all ranks. Nothing tells the host when a stream has come to its end."""

    in_stream = True

    def __init__(
        self, algorithm: str, array: DeviceArray, event: _core._DeviceEvent, work: _core.NcclWork | None = None
    ) -> None:
        """``event``: behind the call, in the stream of the array. ``work``: of NCCL, which knows when it has failed."""
        self.algorithm = algorithm
        self._events = [(array, event)]
        self._work = work

    def wait(self, timeout: float) -> bool:
        """True at once. Raises the error of the call where it has failed by now."""
        if self._work is not None and self._work.done():
            self._work.wait(0.0)
        return True

    def done(self) -> bool:
        """Whether the device has finished the call."""
        return self._work.done() if self._work is not None else all(event.done() for _, event in self._events)

    def add_done_callback(self, handle: object, function: object) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError(
            f"a call by {self.algorithm} ends in the order of its stream, which calls nobody back; use wait(), after "
            "which the current stream has the result, or done()"
        )

    def finish(self) -> None:
        """Nothing is left to do."""

    def events(self) -> Events:
        """See ``Started``."""
        return self._events

    def add(self, array: DeviceArray, event: _core._DeviceEvent) -> None:
        """Makes ``event``, in the stream of the array, a part of the end of the call."""
        self._events.append((array, event))


class DeviceWork(Work[Result]):
    """A call on device arrays in flight. Its results are ready in stream order; the host waits for no stream.

    Where the call is in a stream, ``wait`` only makes the current stream wait, and ``add_done_callback``, ``future``
    and ``await`` raise NotImplementedError while ``done`` is false.
    """

    def __init__(self, started: Started, result: Callable[[], Result], stream: object) -> None:
        """``stream``: as the caller gave it; without one, ``wait`` makes the current stream wait for the results."""
        events: list[tuple[DeviceArray, _core._DeviceEvent]] = []

        def end() -> Result:
            started.finish()
            made = result()
            events.extend(started.events())
            return made

        super().__init__(started, end)
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
        for array, event in self._events if self._stream is None else []:
            current = array.library.current_stream(array.device)
            if current not in (None, array.stream):
                event.stream_wait(current, array.device)


def end(started: Started, result: Callable[[], Result], options: CallOptions) -> Result | Work[Result]:
    """What the public method returns.

    Args:
        started: the call.
        result: makes the result, when what fills it is queued.
        options: of the caller.
    """
    if started.in_stream:
        made = result()
        return DeviceWork(started, lambda: made, options.stream) if options.async_op else made
    if options.async_op:
        return DeviceWork(started, result, options.stream)

    started.wait(-1.0)
    started.finish()
    return result()


class _NotDoneError(Exception):
    """The call cannot run this way; raised on every rank, before anything was done."""


class Direct(Backend):
    """The backends whose devices move the data themselves: the host arrays are stand-ins, and never read or written."""

    def __init__(self) -> None:
        self.stand_ins = StandIns()
        self._made: list[New] = []

    @abc.abstractmethod
    def launch(self, call: DeviceCall) -> InStream | None:
        """Queues the call in the streams of its arrays; see ``start``."""

    def start(self, call: DeviceCall) -> InStream | None:
        """See ``Backend``."""
        return self.launch(call)

    def start_vector(self, call: VectorCall) -> InStream | None:
        """See ``Backend``."""
        operands, outs = call.operands, call.operands.outs or []
        inputs = [self.stand_ins.add(a) for a in operands.inputs]
        # An output that overlaps an input gets new memory: other ranks may still read the input when it is written.
        shared = {i for i, _ in overlaps(_spans(outs), _spans(operands.inputs))}
        apart = [a.library.new(a, a.shape, a.dtype).array if i in shared else a for i, a in enumerate(outs)]
        begun: list[InStream] = []

        def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            like = operands.inputs[len(self._made) % len(operands.inputs)]
            self._made.append(like.library.new(like, shape, dtype))
            return self.stand_ins.add(self._made[-1].array)

        def start(
            name: str, sources: Sequence[Array], targets: Sequence[Array], lengths: list[int], _: CallOptions
        ) -> InStream:
            outputs = apart if operands.outs is not None else [m.array for m in self._made]
            what = DeviceCall(name, operands.inputs, outputs, True, call.options, lengths, sources, targets)
            started = self.launch(what)
            if started is None:
                raise _NotDoneError
            begun.append(started)
            return started

        try:
            call.run(
                inputs,
                [self.stand_ins.add(a) for a in apart],
                call.options._replace(async_op=True),  # its Work is not used
                replace(call.means, empty=empty, start=start),
            )
        except _NotDoneError:
            return None
        for to, source in zip(outs, apart, strict=True):
            if to is not source and to.nbytes:
                with staging.OneStream(to.device, [to, source]) as one:
                    _core._device_copy(to.pointer, source.pointer, to.nbytes, one.stream, to.device)
                begun[0].add(to, one.event)
        return begun[0]

    def results(self) -> list[Any]:
        """See ``Backend``."""
        return [m.finish() for m in self._made]


def in_container(like: Any, arrays: list[Any]) -> Any:
    """The arrays as `like` has them: as a list, as a tuple, or one array alone."""
    if isinstance(like, list):
        return arrays
    return tuple(arrays) if isinstance(like, tuple) else arrays[0]


def dtype_of(array: DeviceArray) -> str:
    """The core's name of the dtype."""
    return DTYPES[_core._dtype_of(stand_ins([array])[0])]


def _spans(arrays: Sequence[DeviceArray]) -> list[tuple[int, int]]:
    return [(a.pointer, a.pointer + a.nbytes) for a in arrays]
