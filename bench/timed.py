"""One call of a case: how it is made from Python or from C++, on which arrays, and how it is timed.

Whoever calls, a round is the same: the buffers are rewritten, the ranks meet, the clock is read, the collective runs
once or several times, the clock is read. The two levels are never compared with each other.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import collectives
import numpy as np
from cases import REDUCING, Array, Case, Config, tensor_lengths
from collectives import _core
from collectives._calls.options import CallOptions
from collectives.bench.memory import on_huge_pages
from peers import Peer

LEVELS = ("python", "c")
_ALIGNMENT = 64  # of tensors, in bytes: what allocators of frameworks give


def _nothing(_: Array) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Timed:
    """A case that is ready to be called.

    Attributes:
        call: one call on what the buffers hold; what a user would write where the level is Python.
        rounds: nanoseconds of each of a number of rounds, of a number of calls each.
        put: gives the call the values of `x`, where it does not work on `x` itself.
        fetch: copies the result of the last call into `x`, where it is not there.
    """

    call: Callable[..., Any]
    rounds: Callable[[int, int], Array]
    put: Callable[[Array], None] = _nothing
    fetch: Callable[[Array], None] = _nothing


def ours(comm: collectives.Communicator, config: Config, case: Case, x: Array, out: Array | None = None) -> Timed:
    """A call of this library on `x`, or on as many tensors as the case wants; into `out` where there is one."""
    lists = _lists(x, case.tensors) if case.tensors > 1 else None
    arrays = lists.arrays if lists else [x] if config.rewrites else []
    if case.level == "c":
        op = config.op if config.collective in REDUCING else "sum"
        options = CallOptions(algorithm=case.algorithm, op=op)
        timed = _from_c(_core._time_collective, comm, arrays, config.collective, out, options)
    else:
        timed = _from_python(comm, arrays, _method(comm, config, case, arrays, out))
    if out is not None:
        return dataclasses.replace(timed, fetch=_into(out))
    return dataclasses.replace(timed, put=lists.put, fetch=lists.fetch) if lists else timed


def _into(out: Array) -> Callable[[Array], None]:
    def fetch(x: Array) -> None:
        x[: len(out)] = out

    return fetch


def theirs(
    comm: collectives.Communicator, config: Config, case: Case, x: Array, peer: Peer, out: Array | None = None
) -> Timed:
    """A call of a peer on `x`, into `out` where there is one."""
    arrays = [x] if config.rewrites else []
    more = () if out is None else (out,)
    if case.level == "c":
        c_call = peer.prepare_c(case.algorithm, config.collective, x, config.op, *more)
        rewritten = [] if c_call.before else arrays
        # The last argument of the function only keeps the arrays alive.
        timed = _from_c(
            _core._time_function, comm, rewritten, c_call.address, c_call.arguments, c_call.before, c_call.keep
        )
    else:
        timed = _from_python(comm, arrays, peer.prepare(case.algorithm, config.collective, x, config.op, *more))
    return dataclasses.replace(timed, fetch=peer.fetch if out is None else _into(out))


def _from_python(comm: collectives.Communicator, arrays: list[Array], call: Callable[..., Any]) -> Timed:
    def rounds(number: int, batch: int) -> Array:
        times = np.zeros(number, np.int64)
        now = time.perf_counter_ns
        for i in range(number):
            for array in arrays:
                array.fill(0)  # stays 0 with every op, so that nothing overflows
            comm.barrier()
            if batch == 1:
                begin = now()
                call()
            else:
                begin = now()
                for _ in itertools.repeat(None, batch):
                    call()
            times[i] = now() - begin
        return times

    return Timed(call, rounds)


def _from_c(
    function: Callable[..., list[int]], comm: collectives.Communicator, arrays: list[Array], *rest: object
) -> Timed:
    def rounds(number: int, batch: int) -> Array:
        return np.array(function(comm, arrays, number, batch, *rest), np.int64)

    return Timed(functools.partial(function, comm, arrays, 0, 1, *rest), rounds)


def _method(
    comm: collectives.Communicator, config: Config, case: Case, arrays: list[Array], out: Array | None
) -> Callable[..., Any]:
    """The collective as a function without arguments: what a user would write, and no more."""
    positional: list[Any] = [arrays if case.tensors > 1 else arrays[0]] if arrays else []
    if config.collective in REDUCING and config.op != "sum":
        positional.append(config.op)
    keywords: dict[str, Any] = {} if case.algorithm == "auto" else {"algorithm": case.algorithm}
    if out is not None:
        keywords["out"] = out
    if config.collective == "all_gather":
        keywords["counts"] = len(arrays[0])
    return functools.partial(getattr(comm, config.collective), *positional, **keywords)


class _Lists:
    """Tensors with the elements of `x`, in memory of the same kind, to compare many tensors with one."""

    def __init__(self, count: int, dtype: str, tensors: int) -> None:
        lengths = tensor_lengths(count, tensors)
        element = np.dtype(dtype)
        line = max(1, _ALIGNMENT // element.itemsize)
        starts = np.cumsum([0, *((n + line - 1) // line * line for n in lengths)])
        memory = on_huge_pages(int(starts[-1]), element)
        memory.fill(0)  # first touch
        self.arrays = [memory[start : start + n] for start, n in zip(starts, lengths, strict=False)]
        ends = np.cumsum(lengths)
        self._places = [slice(end - n, end) for end, n in zip(ends, lengths, strict=True)]

    def put(self, x: Array) -> None:
        for array, place in zip(self.arrays, self._places, strict=True):
            array[:] = x[place]

    def fetch(self, x: Array) -> None:
        for array, place in zip(self.arrays, self._places, strict=True):
            x[place] = array


# Memory that no core has touched would be slow, so the last ones are kept.
_make_lists = functools.lru_cache(maxsize=2)(_Lists)


def _lists(x: Array, tensors: int) -> _Lists:
    return _make_lists(len(x), str(x.dtype), tensors)
