"""The least time that a collective between two ranks can take, from the times of the primitives that it needs.

The primitives are the functions of peers/memcpy.c, named as there, in microseconds per call as the slower rank took for
them, measured at the same size, in the same placement and within the same run as the collective. What moves between the
cores moves as it does in the collective: cache lines are found where the collective finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import table
from cases import LIMIT
from collectives.bench.text import format_size, number

# As in peers/memcpy.c: what a call of "meet" and of "flag" has to be divided by, the bytes of a half beyond which
# "reduce_half" and "copy_back" take only so many, and those beyond which "receive" does. The rest takes as long per
# byte.
MEETINGS_PER_CALL = 16
FLAGS_PER_CALL = 32
PIECE = 128 << 10
RECEIVED = 512 << 10
# A buffer and the bounce buffers fit a level-2 cache up to here; both ranks' buffers a level-3 cache below the second.
LEVEL_2_UP_TO = 512 << 10
MEMORY_FROM = 16 << 20
# Smaller calls are timed in batches, so that the cost of timing is negligible.
BATCHED_BELOW = 8 << 10
# Above, it is never faster if both ranks reduce everything, and the data do not fit into the cache line of a flag.
REDUCE_ALL_UP_TO = 16 << 10
IN_A_FLAG_UP_TO = 40


def primitives(collective: str, memory: str, transport: str, nbytes: int, ranks: int) -> list[str]:
    """Names of the primitives that `limit_us` needs for this row."""
    if ranks != 2 or collective not in ("all_reduce", "broadcast"):
        return []
    if transport == "tcp":
        if collective == "broadcast":
            return ["send_one_way"]
        return ["exchange", "ping_pong"] if nbytes <= REDUCE_ALL_UP_TO else ["exchange"]
    if nbytes >= MEMORY_FROM and (collective == "broadcast" or memory == "private"):
        return ["update"]
    empty = ["empty"] if nbytes >= BATCHED_BELOW else []
    if collective == "broadcast":
        return [*empty, "flag", "receive"]
    if nbytes <= IN_A_FLAG_UP_TO:
        return ["flag", "meet"]
    if memory == "private" and nbytes > LEVEL_2_UP_TO:
        return [*empty, "flag", "meet", "update", "copy_back"]
    everything = ["reduce_all"] if nbytes <= REDUCE_ALL_UP_TO else []
    return [*empty, "flag", "meet", "push" if memory == "symmetric" else "reduce_half", *everything]


def limit_us(
    primitives: Mapping[str, float], collective: str, memory: str, transport: str, nbytes: int, ranks: int
) -> float | None:
    """Microseconds that the collective takes at least; None where that is not known.

    With S bytes, L the time of a flag between the cores, and all primitives less the cost of timing a call:

    - all_reduce, shared memory, up to 40 bytes: L, since they travel with the flag;
    - private buffers in level-2 caches: 2L + reduce_half, or L + reduce_all if that is less. reduce_half is
      S/2 (1/copy + 1/add-from-peer + 1/copy-from-peer) in bytes per time;
    - private buffers in a level-3 cache: every byte of the own buffer is read and written, and as many cross over:
      update + S/crossing, the latter by copy_back;
    - private buffers in memory: update alone;
    - symmetric memory: 2L + push, or L + reduce_all if that is less;
    - broadcast, shared memory: L + receive, one copy by the receiver from the root's cache; in memory update,
      for the cores can share the work;
    - all_reduce, TCP: exchange, in place as all_reduce is, or half of ping_pong if that is less; broadcast, TCP:
      send_one_way.

    These are the lower bounds of docs/performance.md. They hold for calls that wait for each other: in back-to-back
    broadcasts the root can be ahead.

    Args:
        primitives: microseconds per call by name, as `times` gives them.
        collective: "all_reduce" (the sum of float32) or "broadcast".
        memory: "private" or "symmetric".
        transport: "shm" or "tcp".
        nbytes: of a rank's buffer.
        ranks: only for 2 it is known.
    """
    if ranks != 2 or collective not in ("all_reduce", "broadcast") or transport not in ("shm", "tcp"):
        return None
    try:
        if transport == "tcp":
            return _over_tcp(primitives, collective)
        if nbytes >= MEMORY_FROM and (collective == "broadcast" or memory == "private"):
            return primitives["update"]
        return _through_caches(primitives, collective, memory, nbytes)
    except KeyError:
        return None  # not measured, in this placement


def times(rows: Iterable[Mapping[str, Any]], nbytes: int, placement: str) -> dict[str, float]:
    """The arguments of `limit_us`, from the rows of the bench."""
    here = [row for row in rows if row["peer"] == LIMIT and row["bytes"] == nbytes]
    # The time of an empty call does not depend on the placement.
    return {row["algorithm"]: row["time_us"] for row in here if row["algorithm"] == "empty"} | {
        row["algorithm"]: row["time_us"] for row in here if row["placement"] == placement
    }


def of_row(row: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> float | None:
    """The limit of what the row measured, from the primitives among the rows of the same run."""
    measured = times(rows, row["bytes"], row["placement"])
    place = (row["collective"], row["memory"], row["transport"], row["bytes"], row["ranks"])
    return limit_us(measured, *place)


def as_text(rows: list[dict[str, Any]]) -> str:
    """Ours and the limit, by size and placement."""
    cells = []
    for row in rows:
        least = of_row(row, rows) if row["peer"] is None and row["level"] == "c" else None
        if least is not None:
            times_us = (number(row["time_us"]), number(least))
            cells.append((format_size(row["bytes"]), row["placement"], *times_us, f"{least / row['time_us']:.2f}"))
    header = ("size", "placement", "ours us", "limit us", "limit / ours")
    return table.grid([header, *cells], [False, True, False, False, False])


def _over_tcp(measured: Mapping[str, float], collective: str) -> float:
    if collective == "broadcast":
        return measured["send_one_way"]
    exchange = measured["exchange"]
    return min(exchange, measured.get("ping_pong", 2 * exchange) / 2)


def _through_caches(measured: Mapping[str, float], collective: str, memory: str, nbytes: int) -> float:
    if collective == "all_reduce" and nbytes <= IN_A_FLAG_UP_TO:
        return _latency(measured, 0.0)
    timing = measured["empty"] if nbytes >= BATCHED_BELOW else 0.0  # which every timed call contains once

    def net(name: str) -> float:
        return max(0.0, measured[name] - timing)

    if collective == "broadcast":
        return timing + net("flag") / FLAGS_PER_CALL + net("receive") * nbytes / min(nbytes, RECEIVED)
    flag = _latency(measured, timing)
    pieces = nbytes / 2 / min(nbytes // 8 * 4, PIECE)
    if memory == "private" and nbytes > LEVEL_2_UP_TO:
        return timing + net("update") + 2 * pieces * net("copy_back")
    halves = 2 * flag + (net("push") if memory == "symmetric" else pieces * net("reduce_half"))
    return timing + (min(halves, flag + net("reduce_all")) if "reduce_all" in measured else halves)


def _latency(measured: Mapping[str, float], timing: float) -> float:
    """The latency of a flag: to a rank that polls it already, or that starts when it is set, whichever is less."""
    return max(0.0, min((measured["flag"] - timing) / FLAGS_PER_CALL, (measured["meet"] - timing) / MEETINGS_PER_CALL))
