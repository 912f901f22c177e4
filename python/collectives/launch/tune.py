"""``collectives tune``: measures what a profile holds (`_startup.profile`), by small jobs of real ranks on this host.

Every cost is what its place in the model makes of measured calls, mostly a difference between two calls, in which what
both have in common cancels. Others use the machine, too, so calls are timed in short blocks, those of all kinds in
turn, and of each kind the median block counts. A cost for which that gives a number that no machine has is left out, so
the built-in one stays."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import _core
from .._distribution import library_version
from .._startup import profile
from .._startup.environment import PREFIX
from .spawn import spawn

if TYPE_CHECKING:
    from ..communicator import Communicator

SECONDS = 40.0  # that measurements may take, beside the starts of ranks
CLEARLY = 1.15  # auto loses where another algorithm is faster by more than this, in blocks again and again
_BLOCKS = 7
_BLOCK = 4e-3  # seconds of calls, or one call
_MOST_CALLS = 100
_CROWD = 4  # ranks that share two cores
_SMALL, _LARGE = 64 << 10, 1 << 20  # bytes; the time of a further byte is the slope between two sizes
_LOOPBACK_NS = 2000  # from one process to another, in the kernel
# The sender's shares of what both sides do for a message and for a byte, as in csrc/predict/machine.h.
_OF_MESSAGE, _OF_BYTE = 5 / 9, 10 / 26
_COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all")
_SIZES = (64, 1 << 10, 16 << 10, 256 << 10, 4 << 20)  # bytes; each stands for those up to four times as far

Call = Callable[[], object]
Say = Callable[[str], None]


class Kind(NamedTuple):
    """An all_reduce that is timed."""

    algorithm: str
    nbytes: int
    symmetric: bool = False


_LONE = Kind("one_shot", 8)
_MAPPED = (
    _LONE,
    Kind("ring", 8),
    *(Kind("one_shot", nbytes) for nbytes in (4 << 10, _SMALL)),
    *(Kind("one_shot", nbytes, symmetric=True) for nbytes in (4 << 10, _SMALL)),
    *(Kind(algorithm, nbytes) for algorithm in ("two_shot", "ring") for nbytes in (_SMALL, _LARGE)),
)
_TCP = (_LONE, *(Kind("ring", nbytes) for nbytes in (_SMALL, _LARGE)))
_CROWDED = (
    _LONE,
    *(Kind("one_shot", nbytes) for nbytes in (4 << 10, _SMALL)),
    *(Kind("two_shot", nbytes) for nbytes in (_SMALL, _LARGE)),
)
Times = Mapping[Kind, float]  # nanoseconds


class Loss(NamedTuple):
    """A call for which another algorithm than that of auto is clearly faster.

    Attributes:
        auto_us, us: of one call, of auto and of the other.
    """

    collective: str
    nbytes: int
    auto: str
    auto_us: float
    algorithm: str
    us: float


def tune(output: Path | None, ranks: int | None, seconds: float, say: Say = print) -> Path:
    """Measures this host and writes a profile.

    Args:
        output: the file; by default `default_path`.
        ranks: of the job in which algorithms are compared; by default one for each core, from 2 to 8.
        seconds: that the measurements may take.
        say: gets lines about what was measured.

    Returns:
        the file.

    Raises:
        OSError: the file cannot be written.
        CollectivesError: ranks cannot start.
    """
    path = default_path() if output is None else output
    path.parent.mkdir(parents=True, exist_ok=True)  # a mistake in it shows before a minute has passed
    machine = profile.this_machine()
    cores = sorted(os.sched_getaffinity(0))
    count = min(8, max(2, len(cores))) if ranks is None else ranks
    say(f"{machine.cpu}, {machine.cores} processors, of which {len(cores)} may be used")
    if os.getloadavg()[0] > len(cores) / 2:
        say("others use this machine, too: what is measured now may be wrong; better run this again when it is idle")
    costs = measure_costs(cores, seconds / 2, say)
    made_by = f"collectives {library_version()}, {time.strftime('%Y-%m-%d')}"
    losses = compare(profile.text_of(machine, made_by, costs, {}), count, seconds / 2)
    say(f"{count} ranks: auto loses clearly in {len(losses)} of the calls that were compared")
    for loss in losses:
        say(
            f"  {loss.collective} of {loss.nbytes} bytes: {loss.auto} {loss.auto_us:.1f} us, "
            f"{loss.algorithm} {loss.us:.1f} us"
        )
    algorithms = {count: overrides_of(losses)} if losses else {}
    profile.write(path, profile.text_of(machine, made_by, costs, algorithms))
    say(f"wrote {path}; ranks use it where {profile.VARIABLE}={path} says so, the same contents on all of them")
    return path


def default_path() -> Path:
    """Where a profile is written; no rank looks there by itself."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(home) if os.path.isabs(home) else Path.home() / ".config"  # as the XDG specification says
    return folder / "collectives" / "profile.json"


def measure_costs(cores: Sequence[int], seconds: float, say: Say) -> dict[str, int]:
    """Costs by their names in a file, as far as they were measured."""
    found = _memory_costs()
    with _without_settings():
        if len(cores) > 1:  # on one core nothing is apart, so only what a thread does alone is measured
            apart, latency = _job(2, _MAPPED, seconds / 3, "shm")
            found |= mapped_costs(apart, latency, found["reduce_byte_ps"])
            tcp, _ = _job(2, _TCP, seconds / 3, "tcp")
            found |= tcp_costs(tcp, apart[_LONE], found["reduce_byte_ps"])
            with _only_on(cores[:2]):
                crowded, _ = _job(_CROWD, _CROWDED, seconds / 3, "shm")
            found |= crowded_costs(crowded, apart[_LONE], _CROWD)
    costs = {}
    for name, (low, high) in profile.COSTS.items():
        value = found.get(name, math.nan)
        if low <= value <= high:  # false for what was not measured, too
            costs[name] = round(value)
            say(f"  {name:<28} {costs[name]:>12}")
        else:
            say(f"  {name:<28} {'as built in':>12}")
    return costs


def mapped_costs(times: Times, latency_ns: float, reduce_byte_ps: float) -> dict[str, float]:
    """From two ranks that share memory, each on a core of its own.

    Args:
        latency_ns: of a flag.
    """
    ring = 1e3 * _per_byte(times, "ring", _SMALL, _LARGE)  # each byte is sent and received, half of them are added
    return {
        "host_latency_ns": latency_ns,
        "host_bytes_per_ms": 1e6 / _per_byte(times, "two_shot", _SMALL, _LARGE),
        "host_swapped_bytes_per_ms": 1e6 / _per_byte(times, "one_shot", 4 << 10, _SMALL),
        "host_shared_bytes_per_ms": 1e6 / _per_byte(times, "one_shot", 4 << 10, _SMALL, symmetric=True),
        # Two messages, of which each costs both ranks something, in place of one meeting.
        "mapped_message_ns": (times[Kind("ring", 8)] - times[_LONE] + latency_ns) / 4,
        "mapped_byte_ps": (ring - reduce_byte_ps / 2) / 2,
    }


def tcp_costs(times: Times, call_ns: float, reduce_byte_ps: float) -> dict[str, float]:
    """From two ranks that share no memory, each on a core of its own.

    Args:
        call_ns: what a call of ranks that share memory takes.
    """
    message = times[_LONE] - call_ns - _LOOPBACK_NS
    byte = 1e3 * _per_byte(times, "ring", _SMALL, _LARGE) - reduce_byte_ps / 2
    return {
        "send_message_ns": _OF_MESSAGE * message,
        "receive_message_ns": (1 - _OF_MESSAGE) * message,
        "send_byte_ps": _OF_BYTE * byte,
        "receive_byte_ps": (1 - _OF_BYTE) * byte,
    }


def crowded_costs(times: Times, call_ns: float, ranks: int) -> dict[str, float]:
    """From `ranks` ranks on half as many cores.

    Args:
        call_ns: what a call of ranks with a core each takes.
    """
    meeting = times[_LONE] - call_ns
    return {
        "crowded_latency_ns": meeting,
        "crowded_bytes_per_ms": 2e6 * (ranks - 1) / ranks / _per_byte(times, "two_shot", _SMALL, _LARGE),
        "crowded_shared_bytes_per_ms": 1e6 * (ranks - 1) / _per_byte(times, "one_shot", 4 << 10, _SMALL),
        "resume_crowded_ns": meeting,
    }


def compare(text: str, ranks: int, seconds: float) -> list[Loss]:
    """Where `auto` loses in a job of so many ranks on this host.

    Args:
        text: the profile with which auto counts.
    """
    with _without_settings(), tempfile.TemporaryDirectory(prefix="tune") as folder:
        file = Path(folder, "profile.json")
        file.write_text(text, encoding="utf-8")
        os.environ[profile.VARIABLE] = str(file)
        losses: list[Loss] = spawn(_compare, ranks, (seconds,), transport="shm")[0]
    return losses


def overrides_of(losses: Sequence[Loss]) -> str:
    """The text of an override for each of them."""
    blocks: dict[str, list[str]] = {}
    for loss in losses:
        low = 0 if loss.nbytes == _SIZES[0] else loss.nbytes // 4
        high = "" if loss.nbytes == _SIZES[-1] else str(loss.nbytes * 4)
        blocks.setdefault(loss.collective, []).append(f"{low}-{high}={loss.algorithm}")
    return ";".join(f"{collective}:{','.join(ranges)}" for collective, ranges in blocks.items())


def _per_byte(times: Times, algorithm: str, low: int, high: int, *, symmetric: bool = False) -> float:
    """Nanoseconds of a further byte; not a number where noise makes it none."""
    slope = (times[Kind(algorithm, high, symmetric)] - times[Kind(algorithm, low, symmetric)]) / (high - low)
    return slope if slope > 0 else math.nan


def _memory_costs() -> dict[str, float]:
    """Of one thread in its cache."""
    a, b, c = (np.ones(_SMALL, np.float32) for _ in range(3))
    copies = [_seconds_of(lambda: np.copyto(a, b), 20) for _ in range(_BLOCKS)]
    additions = [_seconds_of(lambda: np.add(a, b, out=c), 20) for _ in range(_BLOCKS)]
    copy, addition = (1e12 * statistics.median(found) / a.nbytes for found in (copies, additions))  # ps of a byte
    return {"host_copy_bytes_per_ms": 1e9 / copy, "copy_byte_ps": copy, "reduce_byte_ps": addition / 2}


def _job(ranks: int, kinds: Sequence[Kind], seconds: float, transport: str) -> tuple[dict[Kind, float], float]:
    found: tuple[dict[Kind, float], float] = spawn(_time_kinds, ranks, (kinds, seconds), transport=transport)[0]
    return found


def _time_kinds(comm: Communicator, kinds: Sequence[Kind], seconds: float) -> tuple[dict[Kind, float], float]:
    """On each rank: nanoseconds of a call of each kind, and of a flag where there are two ranks that share memory."""
    calls: list[Call] = []
    for kind in kinds:
        shape = max(1, kind.nbytes // 4)
        x = comm.empty(shape, np.float32) if kind.symmetric else np.empty(shape, np.float32)
        x[:] = 0
        calls.append(lambda x=x, algorithm=kind.algorithm: comm.all_reduce(x, algorithm=algorithm))  # type: ignore[misc]
    times = _medians(comm, calls, time.monotonic() + seconds)
    latency = math.nan
    if comm.size == 2 and comm.local_size == 2:
        rounds = [_core._flag_latency(comm, 1 - comm.rank, 1000, 30.0) for _ in range(_BLOCKS)]
        latency = statistics.median(rounds)
    return {kind: 1e9 * time for kind, time in zip(kinds, times, strict=True)}, latency


def _compare(comm: Communicator, seconds: float) -> list[Loss]:
    """On each rank: what rank 0 has found."""
    losses: list[Loss] = []
    end = time.monotonic() + seconds
    for nbytes in _SIZES:
        for collective in _COLLECTIVES:
            if not comm.broadcast_object(time.monotonic() < end):
                return losses
            if (loss := _compare_one(comm, collective, nbytes, end)) is not None:
                losses.append(loss)
    return sorted(losses, key=lambda loss: _COLLECTIVES.index(loss.collective))


def _compare_one(comm: Communicator, collective: str, nbytes: int, end: float) -> Loss | None:
    found = comm.explain(collective, nbytes=nbytes)
    names = [candidate.algorithm for candidate in found.candidates if not candidate.unsupported]
    call = _caller(comm, collective, nbytes)
    times = _medians(comm, [call(name) for name in names], end, blocks=3)
    best = names[comm.broadcast_object(times.index(min(times)))]
    if not comm.broadcast_object(min(times) * CLEARLY < times[names.index(found.chosen)]):
        return None
    # One fast block is no proof: the two in turn, again and again.
    pairs = list(zip(*_blocks(comm, [call(found.chosen), call(best)], end, _BLOCKS), strict=True))
    clear = sum(own > CLEARLY * other for own, other in pairs)
    if not comm.broadcast_object(len(pairs) >= 3 and clear > 0.8 * len(pairs)):
        return None
    own, other = (1e6 * statistics.median(block) for block in zip(*pairs, strict=True))
    return Loss(collective, nbytes, found.chosen, own, best, other)


def _caller(comm: Communicator, collective: str, nbytes: int) -> Callable[[str], Call]:
    """Calls of a collective by the name of an algorithm. `nbytes`: what a rank gives or gets, whichever is more."""
    count = max(1, nbytes // 4)
    share = max(1, count // comm.size)
    lengths = {"all_gather": share, "reduce_scatter": share * comm.size, "all_to_all": share * comm.size}
    x = np.zeros(lengths.get(collective, count), np.float32)
    method: Callable[..., object] = getattr(comm, collective)
    return lambda algorithm: lambda: method(x, algorithm=algorithm)


def _medians(comm: Communicator, calls: Sequence[Call], end: float, blocks: int = _BLOCKS) -> list[float]:
    """Seconds of each call, by the clock of this rank."""
    return [statistics.median(found) for found in _blocks(comm, calls, end, blocks)]


def _blocks(comm: Communicator, calls: Sequence[Call], end: float, blocks: int) -> list[list[float]]:
    """For each call its seconds in each block. Rank 0 decides how many calls a block has, and whether it is late."""
    counts = []
    for call in calls:
        call()  # makes schedules, touches memory
        once = _seconds_of(call, 2)
        counts.append(max(1, min(_MOST_CALLS, int(_BLOCK / once))))
    counts = comm.broadcast_object(counts)
    times: list[list[float]] = [[] for _ in calls]
    for block in range(blocks):
        if block and not comm.broadcast_object(time.monotonic() < end):
            break
        for found, call, count in zip(times, calls, counts, strict=True):
            found.append(_seconds_of(call, count))
    return times


def _seconds_of(call: Call, count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


@contextlib.contextmanager
def _without_settings() -> Iterator[None]:
    """While inside, new ranks know no variable of the library, which could change what is measured."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(PREFIX)}
    try:
        yield
    finally:
        os.environ.pop(profile.VARIABLE, None)
        os.environ.update(kept)


@contextlib.contextmanager
def _only_on(cores: Sequence[int]) -> Iterator[None]:
    """While inside, new ranks run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
