"""The least time that a collective between two ranks can take, from the times of what it cannot do without.

The primitives are the functions of peers/memcpy.c, named as there, in microseconds per call as the slower rank took for
them, measured with the same size, in the same placement and within the same run as the collective. Bytes of the
collective move between cores at the speed of primitives that found their cache lines where the collective finds them.
"""

from __future__ import annotations

from collections.abc import Mapping

FLAGS_PER_CALL = 32  # of the primitive "flag": kRoundTrips there and back, in peers/memcpy.c
PIECE = 256 << 10  # bytes: kPiece there; no more goes through a box at once, and the rest takes as long per byte
# The input and a box stay in a level-2 cache up to here, the inputs of all ranks in a level-3 cache below the second.
LEVEL_2_UP_TO = 512 << 10
MEMORY_FROM = 16 << 20
SMALL = 8 << 10  # bytes up to which latency decides


def primitives(collective: str, memory: str, transport: str, nbytes: int, ranks: int) -> list[str]:
    """Names of the primitives that `limit_us` needs for this row."""
    if ranks != 2 or collective not in ("all_reduce", "broadcast"):
        return []
    small = nbytes <= SMALL
    if transport == "tcp":
        if collective == "broadcast":
            return ["send_one_way"]
        return ["exchange", "ping_pong"] if small else ["exchange"]
    if collective == "broadcast":
        return ["empty", "flag", "receive"]
    if memory == "symmetric":
        return ["empty", "flag", "push", *(["copy_out", "add_from_peer"] if small else [])]
    if nbytes <= LEVEL_2_UP_TO:
        return ["empty", "flag", "copy_out", "add_from_peer", "copy_back"]
    return ["empty", "flag", "update", "copy_back"] if nbytes < MEMORY_FROM else ["empty", "update"]


def limit_us(
    primitives: Mapping[str, float], collective: str, memory: str, transport: str, nbytes: int, ranks: int
) -> float | None:
    """Microseconds that the collective takes at least; None where that is not known.

    With S bytes, L the time of a flag from one core to the other, and the primitives less the cost of timing a call,
    per byte:

    - all_reduce, shared memory, private buffers that fit in the level-2 cache: the less of
      2L + S/2 (copy_out + add_from_peer + copy_back), each rank reducing one half, and
      L + S (copy_out + add_from_peer), each rank reducing all;
    - the same in the level-3 cache: every byte of the own buffer is read and written, and as many cross over:
      S (update + copy_back);
    - the same in memory: S update;
    - all_reduce, symmetric memory: 2L + S push, or what each rank reducing all takes, if that is less;
    - broadcast, shared memory: L + S receive, one copy by the receiver;
    - all_reduce, TCP: the exchange of S bytes in both directions at once, or half of a ping-pong, if that is less;
    - broadcast, TCP: S bytes in one direction.

    The formulas, and how they compare with measurements, are those of docs/performance.md.

    Args:
        primitives: microseconds per call by name.
        memory: "private" or "symmetric".
        transport: "shm" or "tcp".
        nbytes: of a rank's buffer.
        ranks: only 2 is known.
    """
    if ranks != 2 or collective not in ("all_reduce", "broadcast") or transport not in ("shm", "tcp"):
        return None
    try:
        if transport == "tcp":
            return _over_tcp(primitives, collective)
        return _over_memory(primitives, collective, memory, nbytes)
    except KeyError:
        return None  # a primitive was not measured in this placement


def _over_tcp(times: Mapping[str, float], collective: str) -> float:
    if collective == "broadcast":
        return times["send_one_way"]
    return min(times["exchange"], times["ping_pong"] / 2 if "ping_pong" in times else times["exchange"])


def _over_memory(times: Mapping[str, float], collective: str, memory: str, nbytes: int) -> float:
    timing = times["empty"]  # of a call, which everything that was timed has once

    def net(name: str) -> float:
        return max(0.0, times[name] - timing)

    def half(name: str) -> float:
        """Of S/2 bytes, from a primitive that took at most PIECE of them."""
        piece = min(nbytes // 8 * 4, PIECE)
        return net(name) * (nbytes / 2 / piece) if piece else 0.0

    if collective == "all_reduce" and memory == "private" and nbytes >= MEMORY_FROM:
        return timing + net("update")
    flag = net("flag") / FLAGS_PER_CALL
    if collective == "broadcast":
        return timing + flag + net("receive")
    if memory == "private" and nbytes > LEVEL_2_UP_TO:
        return timing + net("update") + 2 * half("copy_back")
    candidates = []
    if memory == "symmetric":
        candidates.append(2 * flag + net("push"))
    else:
        candidates.append(2 * flag + half("copy_out") + half("add_from_peer") + half("copy_back"))
    if "copy_out" in times:
        candidates.append(flag + 2 * (half("copy_out") + half("add_from_peer")))
    return timing + min(candidates)
