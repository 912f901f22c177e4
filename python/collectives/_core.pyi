# Written by tools/make_stub.py; do not edit.
"""The engine of collectives. Use the package, not this module."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, final, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Self, disjoint_base

from ._calls.options import CallOptions
from .work import Work as _PublicWork

_Arrays = TypeVar("_Arrays", bound=npt.NDArray[Any] | Sequence[npt.NDArray[Any]])
_Out = TypeVar("_Out", bound=npt.NDArray[Any] | Sequence[npt.NDArray[Any]])

@disjoint_base
class Communicator:
    """The engine's side of collectives.Communicator."""

    def __new__(cls, handle: object, /) -> Self: ...
    def _exchange_layouts(
        self,
        collective: str,
        arrays: list[npt.NDArray[Any]],
        rows: Sequence[Sequence[int]] | npt.NDArray[np.int64] | None,
        expected: Sequence[Sequence[int]] | npt.NDArray[np.int64] | None,
        is_list: bool,
        known: npt.NDArray[np.int64] | None,
        options: CallOptions,
    ) -> tuple[npt.NDArray[np.int64], int, bool]: ...
    def _run_message(
        self,
        sending: object,
        x: object,
        peer: object,
        tag: object,
        async_op: object = False,
        timeout: object = None,
        name: object = None,
        stream: object = None,
    ) -> Any: ...
    def _run_vector(
        self,
        collective: object,
        x: object,
        out: object,
        counts: object,
        async_op: object = False,
        timeout: object = None,
        name: object = None,
        stream: object = None,
        algorithm: object = "auto",
        op: object = "sum",
        root: object = 0,
        deterministic: object = False,
        factor: object = None,
    ) -> Any: ...
    def _start(
        self,
        collective: str,
        inputs: list[npt.NDArray[Any]],
        outputs: list[npt.NDArray[Any]],
        lengths: list[int] | None,
        options: CallOptions,
    ) -> Work: ...
    def _start_message(
        self, sending: bool, arrays: list[npt.NDArray[Any]], peer: int | None, tag: int, options: CallOptions
    ) -> Work: ...
    def _start_negotiated(
        self,
        collective: str,
        inputs: list[npt.NDArray[Any]],
        rows: Sequence[Sequence[int]] | npt.NDArray[np.int64] | None,
        expected: Sequence[Sequence[int]] | npt.NDArray[np.int64] | None,
        targets: list[npt.NDArray[Any]] | None,
        is_list: bool,
        per_rank: tuple[bool, bool],
        known: npt.NDArray[np.int64] | None,
        options: CallOptions,
    ) -> Work: ...
    @overload
    def all_reduce(
        self,
        x: _Arrays,
        op: str = "sum",
        *,
        out: None = None,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _Arrays:
        """Reduces ``x`` over all ranks; every rank gets the result, with the same bits.

        Args:
            x: an array, or a list of arrays of one dtype, which is one fused collective; of the same shapes on all ranks.
                It is reduced in place where it can be: arrays that never change, as those of JAX, give a new array.
            op: "sum", "avg" (not for integers), "prod", "min", "max", "premul_sum"; and, as NumPy has them, "logical_and",
                "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor".
            out: where the result goes, of the same shapes and dtype; ``x`` is then left alone.
            factor: for "premul_sum", by which ``x`` of this rank is multiplied first.
            algorithm: "auto", or the name of one; docs/using.md has a table.
            deterministic: whether values are combined in one order that does not depend on sizes, lists or transports.
            async_op: whether a ``Work`` is returned at once. Leave the arrays alone until it is done.
            timeout: seconds; by default that of the communicator.
            name: what errors and the recorder call it.
            stream: of CUDA, for arrays on a device, in whose order they are read and written; by default the current one
                of their library.

        Returns:
            ``out`` where it is given, else ``x`` (or the new array); with ``async_op`` a ``Work`` whose ``result()`` is that.

        Raises:
            TypeError, ValueError: the call is wrong by itself. Nothing was sent, and the communicator goes on.
            MismatchError: ranks disagree about the call; all of them raise it.
            PeerError: a rank died or left. DeadlineError: one did not come within ``timeout``.
            ClosedError, ForkedError: the communicator is closed, or belongs to the parent of this process.
            After these the communicator cannot be used any more, but for ``shrink``.

        Example:
            >>> gradient = np.full(1000, comm.rank, np.float32)
            >>> comm.all_reduce(gradient, op="avg")
            >>> total = comm.all_reduce([w, b], out=[np.empty_like(w), np.empty_like(b)])
        """
    @overload
    def all_reduce(
        self,
        x: _Arrays,
        op: str = "sum",
        *,
        out: _Out,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _Out: ...
    @overload
    def all_reduce(
        self,
        x: _Arrays,
        op: str = "sum",
        *,
        out: None = None,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[True],
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _PublicWork[_Arrays]: ...
    @overload
    def all_reduce(
        self,
        x: _Arrays,
        op: str = "sum",
        *,
        out: _Out,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[True],
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _PublicWork[_Out]: ...
    @overload
    def barrier(
        self,
        *,
        algorithm: str = "auto",
        async_op: Literal[False] = False,
        timeout: float | None = None,
        name: str | None = None,
    ) -> None:
        """Returns when all ranks have called it."""
    @overload
    def barrier(
        self, *, algorithm: str = "auto", async_op: Literal[True], timeout: float | None = None, name: str | None = None
    ) -> _PublicWork[None]: ...
    @overload
    def broadcast(
        self,
        x: _Arrays,
        root: int | np.integer[Any] = 0,
        *,
        out: None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _Arrays:
        """Copies ``x`` of rank ``root`` into ``x`` (or ``out``) of every rank. See ``all_reduce``."""
    @overload
    def broadcast(
        self,
        x: _Arrays,
        root: int | np.integer[Any] = 0,
        *,
        out: _Out,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _Out: ...
    @overload
    def broadcast(
        self,
        x: _Arrays,
        root: int | np.integer[Any] = 0,
        *,
        out: None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[True],
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _PublicWork[_Arrays]: ...
    @overload
    def broadcast(
        self,
        x: _Arrays,
        root: int | np.integer[Any] = 0,
        *,
        out: _Out,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[True],
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _PublicWork[_Out]: ...
    @overload
    def exscan(
        self,
        x: _Arrays,
        op: str = "sum",
        *,
        out: None = None,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _Arrays | None:
        """The exclusive prefix reduction: rank r gets what ``x`` of ranks 0 to r - 1 combine to, in ``x`` or ``out``.

        Nothing comes before rank 0: the call returns None there and leaves ``x`` and ``out`` as they are, whatever the
        op. See ``scan``.

        Example:
            >>> before = comm.exscan(np.array([len(rows)]))
            >>> begin = 0 if before is None else before[0]  # of the rows of this rank among those of all
        """
    @overload
    def exscan(
        self,
        x: _Arrays,
        op: str = "sum",
        *,
        out: _Out,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _Out | None: ...
    @overload
    def exscan(
        self,
        x: _Arrays,
        op: str = "sum",
        *,
        out: None = None,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[True],
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _PublicWork[_Arrays | None]: ...
    @overload
    def exscan(
        self,
        x: _Arrays,
        op: str = "sum",
        *,
        out: _Out,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[True],
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _PublicWork[_Out | None]: ...
    @overload
    def reduce(
        self,
        x: _Arrays,
        op: str = "sum",
        root: int | np.integer[Any] = 0,
        *,
        out: None = None,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _Arrays:
        """Reduces ``x`` over all ranks; only ``root`` gets the result, in ``x`` or ``out``. See ``all_reduce``."""
    @overload
    def reduce(
        self,
        x: _Arrays,
        op: str = "sum",
        root: int | np.integer[Any] = 0,
        *,
        out: _Out,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _Out: ...
    @overload
    def reduce(
        self,
        x: _Arrays,
        op: str = "sum",
        root: int | np.integer[Any] = 0,
        *,
        out: None = None,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[True],
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _PublicWork[_Arrays]: ...
    @overload
    def reduce(
        self,
        x: _Arrays,
        op: str = "sum",
        root: int | np.integer[Any] = 0,
        *,
        out: _Out,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[True],
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _PublicWork[_Out]: ...
    @overload
    def scan(
        self,
        x: _Arrays,
        op: str = "sum",
        *,
        out: None = None,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _Arrays:
        """The inclusive prefix reduction: rank r gets what ``x`` of ranks 0 to r combine to, in ``x`` or ``out``.

        Values are combined from rank 0 upwards where ``deterministic`` is true, each partial result rounded to the
        dtype. Otherwise the order may depend on the length, but is the same in every run. "avg" is a TypeError. For
        the rest see ``all_reduce``.

        Example:
            >>> end = comm.scan(np.array([len(rows)]))[0]  # of the rows of this rank among those of all
        """
    @overload
    def scan(
        self,
        x: _Arrays,
        op: str = "sum",
        *,
        out: _Out,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _Out: ...
    @overload
    def scan(
        self,
        x: _Arrays,
        op: str = "sum",
        *,
        out: None = None,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[True],
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _PublicWork[_Arrays]: ...
    @overload
    def scan(
        self,
        x: _Arrays,
        op: str = "sum",
        *,
        out: _Out,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: Literal[True],
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> _PublicWork[_Out]: ...

@final
class Nccl:
    """One rank of a communicator of NCCL, on one device."""

    @property
    def device(self) -> int: ...
    @property
    def failed(self) -> bool: ...
    def run(self, call: tuple[Any, ...]) -> NcclWork: ...

@final
class NcclWork:
    """A collective in flight on a device."""

    def done(self) -> bool: ...
    def wait(self, timeout: float = -1.0) -> bool: ...

@final
class Reservation:
    """What a rank has reserved for a group that is being made."""

    def cancel(self) -> None: ...
    def make(self, segments: Sequence[tuple[bool, int]]) -> object: ...
    def state(self) -> tuple[bool, bool, bool, int]: ...

@final
class Work:
    """The engine's side of collectives.Work."""

    def add_done_callback(self, handle: object, function: object) -> None: ...
    @property
    def algorithm(self) -> str: ...
    def done(self) -> bool: ...
    def outcome(self) -> tuple[list[Any], list[list[int]], list[int], bool]: ...
    @property
    def peer(self) -> int | None: ...
    @property
    def sequence(self) -> int: ...
    def wait(self, timeout: float = -1.0) -> bool: ...

@final
class _DeviceEvent:
    """The end of all work that a stream holds when this is made."""

    def __init__(self, stream: int, device: int) -> None: ...
    def done(self) -> bool: ...
    def stream_wait(self, stream: int, device: int) -> None: ...
    def wait(self, timeout: float) -> None: ...

@final
class _DeviceMemory:
    """Memory of a device."""

    @property
    def pointer(self) -> int: ...

@final
class _DevicePeers:
    """This rank among ranks that address each other's device memory."""

    def __init__(self, rank: int, size: int, device: int) -> None: ...
    def check(self, headers: bytes) -> list[int]: ...
    def connect(self, endpoints: bytes) -> str: ...
    @property
    def device(self) -> int: ...
    def endpoint(self) -> bytes: ...
    def finish(self) -> None: ...
    def header(
        self,
        collective: str,
        inputs: Sequence[tuple[int, int]],
        outputs: Sequence[tuple[int, int]],
        counts: Sequence[int],
        dtype: str,
        shapes: Sequence[Sequence[int]],
        count: int,
        options: object,
    ) -> bytes: ...
    def rest(self) -> bytes: ...
    def run(self, rests: bytes) -> None: ...
    def wait(self, timeout: float) -> bool: ...

@final
class _PinnedBuffer:
    """Pinned memory of the host, as bytes by the buffer protocol. It is used again for another buffer when this one is gone and all copies from and to it are done."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __init__(self, nbytes: int) -> None: ...
    def copy_in(self, offset: int, source: int, nbytes: int, stream: int, device: int) -> None: ...
    def copy_out(self, offset: int, destination: int, nbytes: int, stream: int, device: int) -> None: ...
    def wait(self, timeout: float) -> None: ...

def _abandon(arg0: object, arg1: str, /) -> None: ...
def _algorithms(collective: str) -> list[Any]: ...
def _algorithms_digest() -> int: ...
def _all_recorders_json(why: str) -> list[str]: ...
def _best_isa() -> str: ...
def _bytes_by_transport(arg0: object, /) -> dict[str, Any]: ...
def _call_options() -> list[str]: ...
def _check_alike(arg0: object, arg1: object, arg2: int, arg3: str, /) -> None: ...
def _close(arg0: object, /) -> None: ...
def _describe(arg0: object, /) -> dict[str, Any]: ...
def _describe_arrays(arg0: list[Any], /) -> object: ...
def _device_bus_id(device: int) -> str: ...
def _device_capturing(stream: int, device: int) -> bool: ...
def _device_collective(
    collective: str,
    ranks: list[Any],
    counts: Sequence[int],
    dtype: str,
    count: int,
    options: object,
    chunk_bytes: int = 4194304,
) -> None: ...
def _device_copy(destination: int, source: int, nbytes: int, stream: int, device: int) -> None: ...
def _device_drop_caches() -> None: ...
def _device_empty(device: int, bytes: int) -> _DeviceMemory: ...
def _device_endpoint_bytes() -> int: ...
def _device_of(pointer: int) -> int: ...
def _device_status() -> dict[str, Any]: ...
def _device_table() -> int: ...
def _dlpack_codes() -> list[int]: ...
def _dtype_name(arg0: int, /) -> str: ...
def _dtype_names() -> list[str]: ...
def _dtype_of(arg0: object, /) -> int: ...
def _dump_on_signal() -> None: ...
def _flag_latency(arg0: object, arg1: int, arg2: int, arg3: float, /) -> float: ...
def _gather_replicas(arrays: list[Any], axis: int, results: list[Any]) -> None: ...
def _has_kernel(op: str, dtype: str) -> bool: ...
def _heap(arg0: object, /) -> tuple[int, int]: ...
def _isas() -> list[str]: ...
def _limit_threads(threads: int) -> None: ...
def _meet(parent: object, members: Sequence[int], high: int, low: int, patience: float) -> tuple[object, list[int]]: ...
def _memory_is_counted() -> bool: ...
def _mutations(
    collective: str,
    algorithm: str,
    size: int,
    root: int = 0,
    count: int = 1,
    dtype: str = "float32",
    memory: str = "private",
    hosts: Sequence[int] = [],
    lengths: Sequence[int] = [],
    slots: int = 4,
    slot_bytes: int = 524288,
    segment_bytes: int = 524288,
    inline_bytes: int = 40,
    read_bytes: int = 0,
    swap_buffers: bool = True,
    rank: int = 0,
) -> list[str]: ...
def _nccl_close(ranks: Sequence[Nccl]) -> None: ...
def _nccl_connect(communicator: object, paths: Sequence[str], id: bytes, device: int, timeout: float) -> Nccl: ...
def _nccl_connect_devices(paths: Sequence[str], devices: Sequence[int], timeout: float) -> list[Nccl]: ...
def _nccl_lacks(paths: Sequence[str], collective: str, op: str, dtype: str) -> str: ...
def _nccl_run_group(ranks: Sequence[Nccl], calls: Sequence[tuple[Any, ...]]) -> list[NcclWork]: ...
def _nccl_status(paths: Sequence[str]) -> dict[str, Any]: ...
def _nccl_unique_id(paths: Sequence[str]) -> bytes: ...
def _number_of(arg0: object, /) -> int: ...
def _op_names() -> list[str]: ...
def _open_stack_page(machine: str) -> int: ...
def _predictions(arg0: object, arg1: str, arg2: int, arg3: int, /) -> dict[str, Any]: ...
def _predictions_for(
    collective: str,
    bytes: int,
    root: int = 0,
    hosts: Sequence[int] = [],
    machine: Sequence[int] = [],
    cores: Sequence[int] = [],
    bytes_per_ms: int = 1250000,
    latency_ns: int = 20000,
    burst_bytes: int = 0,
    costs: Mapping[str, int] = {},
) -> dict[str, Any]: ...
def _probe(communicator: object, source: int | None, tag: int, timeout: float) -> tuple[Any, ...] | None: ...
def _profile_costs() -> dict[str, Any]: ...
def _propose(arg0: object, /) -> int: ...
def _read_dlpack(capsule: object) -> dict[str, Any]: ...
def _recorder_json(arg0: object, /) -> str: ...
def _reduce(
    isa: str,
    dtype: str,
    op: str,
    finish: bool,
    divisor: float,
    sources: Sequence[int],
    destinations: Sequence[int],
    count: int,
) -> None: ...
def _reduce_device_replicas(
    combination: str, packs: int, algorithm: str, tensors: list[Any], devices: Sequence[int], streams: Sequence[int]
) -> None: ...
def _reduce_replicas(combination: str, packs: int, pairs: list[Any]) -> list[Any] | None: ...
def _renumber(arg0: int, arg1: object, /) -> None: ...
def _replica_bytes() -> int: ...
def _reserve(arg0: object, arg1: int, arg2: Sequence[int], /) -> Reservation: ...
def _reserve_heap(arg0: object, arg1: int, arg2: int, /) -> None: ...
def _scale(isa: str, dtype: str, factor: float, source: int, destination: int, count: int) -> None: ...
def _schedule_text(
    collective: str,
    algorithm: str,
    size: int,
    root: int = 0,
    count: int = 1,
    dtype: str = "float32",
    memory: str = "private",
    hosts: Sequence[int] = [],
    lengths: Sequence[int] = [],
    slots: int = 4,
    slot_bytes: int = 524288,
    segment_bytes: int = 524288,
    inline_bytes: int = 40,
    read_bytes: int = 0,
    swap_buffers: bool = True,
    rank: int = 0,
) -> str: ...
def _set_recorder_folder(folder: str) -> None: ...
def _shrink(communicator: object, patience: float) -> object: ...
def _signal_is_free(signal: int) -> bool: ...
def _stack_place() -> str: ...
def _stack_signal() -> int: ...
def _stop_callbacks() -> None: ...
def _survivors(
    collective: str,
    algorithm: str,
    size: int,
    root: int = 0,
    count: int = 1,
    dtype: str = "float32",
    memory: str = "private",
    hosts: Sequence[int] = [],
    lengths: Sequence[int] = [],
    slots: int = 4,
    slot_bytes: int = 524288,
    segment_bytes: int = 524288,
    inline_bytes: int = 40,
    read_bytes: int = 0,
    swap_buffers: bool = True,
    repeats: int = 3,
) -> tuple[Any, ...]: ...
def _take_over_stack_signal() -> None: ...
def _time_collective(
    arg0: object, arg1: Sequence[object], arg2: int, arg3: int, arg4: str, arg5: object, arg6: object, /
) -> list[int]: ...
def _time_function(
    arg0: object,
    arg1: Sequence[object],
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: Sequence[int],
    arg6: int,
    arg7: object,
    /,
) -> list[int]: ...
def _to_dlpack(
    owner: object, pointer: int, device_type: int, device: int, shape: Sequence[int], code: int, bits: int
) -> object: ...
def _unsupported(
    collective: str,
    algorithm: str,
    size: int,
    root: int = 0,
    count: int = 1,
    dtype: str = "float32",
    memory: str = "private",
    hosts: Sequence[int] = [],
    lengths: Sequence[int] = [],
    slots: int = 4,
    slot_bytes: int = 524288,
    segment_bytes: int = 524288,
    inline_bytes: int = 40,
    read_bytes: int = 0,
    swap_buffers: bool = True,
) -> str: ...
def _use_heap(arg0: object, arg1: int, /) -> None: ...
def _verify(
    collective: str,
    algorithm: str,
    size: int,
    root: int = 0,
    count: int = 1,
    dtype: str = "float32",
    memory: str = "private",
    hosts: Sequence[int] = [],
    lengths: Sequence[int] = [],
    slots: int = 4,
    slot_bytes: int = 524288,
    segment_bytes: int = 524288,
    inline_bytes: int = 40,
    read_bytes: int = 0,
    swap_buffers: bool = True,
    in_place: bool = False,
    repeats: int = 2,
    mutate_rank: int = -1,
    mutation: int = -1,
) -> dict[str, Any]: ...
def build_info() -> dict[str, Any]: ...
def connect(
    arg0: int,
    arg1: Sequence[int],
    arg2: tuple[int, Sequence[int], Sequence[int], int, int, int],
    arg3: Sequence[int],
    arg4: Sequence[int],
    arg5: Sequence[tuple[Sequence[int], str, int, Sequence[int], Sequence[int], Sequence[int], Sequence[int], str]],
    arg6: Sequence[Sequence[int]],
    arg7: str,
    arg8: dict[str, Any],
    /,
) -> list[Any]: ...
def create_segment(arg0: int, arg1: dict[str, Any], /) -> int: ...
def environment_variables() -> list[dict[str, str]]: ...
def isa() -> str: ...
def local_group(arg0: int, arg1: dict[str, Any], /) -> list[Any]: ...
def segment_bytes(arg0: int, arg1: dict[str, Any], /) -> int: ...
def transports() -> dict[str, Any]: ...
