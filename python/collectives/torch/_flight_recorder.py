"""What the groups of torch.distributed called last, in the format of torch's flight recorder.

The format is that which ``torchfrtrace`` of PyTorch reads (``torch/distributed/flight_recorder``), version 2.10 of it:
a pickled dict for each rank, in a folder of files ``PREFIX0``, ``PREFIX1`` and so on.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import _core
from .._startup import recorder
from ..errors import CollectivesError
from . import _job

VERSION = "2.10"
PREFIX = "collectives_trace_rank_"
# torchfrtrace takes entries of the backends in a list of its own only. Those of Gloo have no devices either.
_LIBRARY = "gloo"
_STATES = {"queued": "scheduled", "active": "started", "done": "completed", "failed": "started"}
_DTYPES = {
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "uint8": "Byte",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "bool": "Bool",
}
# torchfrtrace takes a message and a collective for one coalesced call where their numbers are equal.
_FIRST_MESSAGE = 1 << 40
_DIVIDED_INPUT, _DIVIDED_OUTPUT = {"all_gather", "gather"}, {"reduce_scatter", "scatter"}


def dump_flight_recorder(folder: str | os.PathLike[str]) -> Path:
    """Writes what the groups of this process called last, for ``torchfrtrace FOLDER``.

    Each rank calls it, when it likes: it is no collective. Useful where a call of torch.distributed has raised an
    error, or from another thread while one waits. The recorder holds the last 1000 calls (docs/recorder.md).

    Of a call the recorder knows the elements of the longer of input and output: the other is that divided by the number
    of ranks where the call says so. A receive from any rank that has no message yet is left out, since the format has
    no place for it.

    Args:
        folder: made where it is not there; all ranks give the same, or their files are put together afterwards.

    Returns:
        the file, ``collectives_trace_rank_`` and the rank of torch.distributed.

    Raises:
        CollectivesError: this process has no open group of the backend.
        OSError: the file cannot be written.

    >>> try:
    ...     dist.all_reduce(x)
    ... except dist.DistBackendError:
    ...     collectives.torch.dump_flight_recorder("traces")
    ...     raise
    """
    opened = {_core._describe(group.comm)["id"]: group for group in _job.opened()}
    if not opened:
        raise CollectivesError(
            'this process has no open group of the backend "collectives": dump_flight_recorder() writes what such '
            "groups have called, and is called before destroy_process_group()"
        )
    first = next(iter(opened.values()))
    entries = list(_entries(opened, recorder.entries(first.comm)))
    text = pickle.dumps(
        {
            "version": VERSION,
            "pg_config": {
                group.name: {"name": group.name, "desc": group.name, "ranks": str(group.members)}
                for group in opened.values()
            },
            "pg_status": {group.name: _status(entries, group.name) for group in opened.values()},
            "entries": entries,
        }
    )
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    file = path / f"{PREFIX}{first.members[first.comm.rank]}"
    file.write_bytes(text)
    return file


def _entries(opened: dict[int, _job.Opened], found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those of the groups, the oldest first."""
    calls = [call for call in found if call["communicator"] in opened]
    # The numbers of entries line up between ranks, of which each has its last 1000: exact in jobs with one group.
    start = next((call["sequence"] for call in calls if call["sequence"] is not None), 0)
    messages = dict.fromkeys(opened, _FIRST_MESSAGE)
    for index, call in enumerate(calls, start):
        group = opened[call["communicator"]]
        name, is_message = call["collective"], call["sequence"] is None
        if is_message:
            if call["peer"] is None:
                continue
            messages[call["communicator"]] += 1
            name += f" {group.comm.rank}{'->' if name == 'send' else '<-'}{call['peer']}"
        inputs, outputs = _lengths(call, group.comm.size)
        dtype = _DTYPES.get(call["dtype"], str(call["dtype"]))
        yield {
            "record_id": index,
            "pg_id": call["communicator"],
            "process_group": (group.name, group.name),
            "collective_seq_id": 0 if is_message else call["sequence"] + 1,
            "p2p_seq_id": messages[call["communicator"]],
            "op_id": index,
            "profiling_name": f"{_LIBRARY}:{name}",
            "time_created_ns": _nanoseconds(call["posted"]),
            "time_discovered_started_ns": _nanoseconds(call["started"]),
            "time_discovered_completed_ns": _nanoseconds(call["ended"]),
            "duration_ms": _milliseconds(call["started"], call["ended"]),
            "input_sizes": [[inputs]],
            "input_dtypes": [dtype],
            "output_sizes": [[outputs]],
            "output_dtypes": [dtype],
            "state": _STATES[call["state"]],
            "retired": call["state"] in ("done", "failed"),
            "timeout_ms": round(1e3 * _job.timeout_of(group.comm)),
            "is_p2p": is_message,
            "frames": [],
        }


def _lengths(call: dict[str, Any], size: int) -> tuple[int, int]:
    """Elements of input and output."""
    longer = call["elements"] or 0
    shorter = longer // size
    if call["collective"] in _DIVIDED_INPUT:
        return shorter, longer
    if call["collective"] in _DIVIDED_OUTPUT:
        return longer, shorter
    return longer, longer


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def _milliseconds(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else (end - begin) * 1e3


def _status(entries: list[dict[str, Any]], name: str) -> dict[str, int]:
    """The last collectives of a group that were begun and completed; -1 for none."""

    def last(*states: str) -> int:
        numbers = [
            entry["collective_seq_id"]
            for entry in entries
            if entry["process_group"][0] == name and not entry["is_p2p"] and entry["state"] in states
        ]
        return max(numbers, default=-1)

    return {
        "last_enqueued_collective": last("scheduled", "started", "completed"),
        "last_started_collective": last("started", "completed"),
        "last_completed_collective": last("completed"),
    }
