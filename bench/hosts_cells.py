"""What bench/hosts.py measures: settings of hosts, cells of a table, contenders, and what the wire allows.

A size S is in bytes and means, as in nccl-tests,

- all_reduce, broadcast, reduce: the array of each rank;
- all_gather, gather: the array with the parts of all ranks; each gives S / n;
- reduce_scatter, scatter: the array that is divided; each rank gets S / n (of reduce_scatter each gives S);
- all_to_all: what each rank gives, S / n of it to each;
- barrier: nothing.

Where S is divided into parts, it is rounded down to whole elements, and each part has one at least: of 8 bytes between
8 ranks 32 move.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from collectives import _core
from collectives.bench import calls

K, M = 1 << 10, 1 << 20
GBIT = 10**9
DTYPE = np.dtype(np.float32)
COLLECTIVES = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("gather", "scatter", "barrier"),
)
PEERS = ("gloo", "openmpi")
SHAPES = ((2, 2), (4, 2), (8, 1))  # of the suite: hosts, and ranks on each
RATES = (GBIT, None)
SIZES = (8, 8 * K, 256 * K, 4 * M)
# What a port lets through at once after a pause. With less it does not reach its rate, since timers are late: with
# 16 KiB a flow of 1 Gbit/s takes nearly twice its time, with this what the headers of packets explain. What goes
# beyond would pass for speed.
BURST = 128 << 10  # bytes
LATENCY = "2us"  # between hosts that are on one machine: what the kernel does besides is the processors' work
_UNITS = {"": 0, "k": 3, "m": 6, "g": 9}
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """So many hosts with so many ranks each, and what each port passes in each direction.

    Attributes:
        rate: bits per second; None: as fast as it goes.
    """

    hosts: int
    ranks: int
    rate: int | None

    def __str__(self) -> str:
        return f"{self.hosts}x{self.ranks} {rate_as_text(self.rate)}"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of the table: every contender does this in turn."""

    setting: Setting
    collective: str
    size: int

    @property
    def count(self) -> int:
        """Elements of the whole array."""
        if self.collective == "barrier":
            return 0
        parts = self.setting.hosts * self.setting.ranks if calls.COLLECTIVES[self.collective].in_parts else 1
        return max(1, self.size // DTYPE.itemsize // parts) * parts

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.count * DTYPE.itemsize

    @property
    def rest(self) -> float:
        """Seconds before each call in which ports can let a burst through again; short calls do not use it up."""
        rate = self.setting.rate
        return 0.0 if rate is None or self.nbytes <= BURST // 8 else BURST * 8 / rate

    @property
    def wire_us(self) -> float | None:
        """See ``wire_us``."""
        s = self.setting
        return wire_us(self.collective, self.nbytes, s.hosts, s.ranks, s.rate, BURST)


@dataclasses.dataclass(frozen=True)
class Contender:
    """One algorithm of ours, or a peer in one of the ways in which it is measured."""

    peer: str | None
    algorithm: str

    def __str__(self) -> str:
        if self.peer is None:
            return self.algorithm
        return self.peer if self.algorithm == "default" else f"{self.peer} ({self.algorithm})"


AUTO = Contender(None, "auto")


def wire_us(collective: str, nbytes: int, hosts: int, ranks: int, rate: int | None, burst: int = 0) -> float | None:
    """The least microseconds that a collective can take because each host has one port; None where nothing limits it.

    A port passes `rate` bits per second in each direction, both at once, and all ranks of a host share it; inside of a
    host nothing is counted, nor are latencies and the headers of packets. With h hosts of L ranks, S bytes and R bytes
    per second:

    - broadcast: S has to enter each host without the root. reduce: what a host adds to the sum is S bytes that no other
      knows, and leaves it. S / R.
    - gather: what the other hosts have, (h - 1) / h of S, enters that of the root. scatter: it leaves there.
      all_gather: as much enters each host. reduce_scatter: each host owes the others its share of all their parts, and
      the sum over its own ranks is as long as the share of one. (h - 1) / h S / R.
    - all_reduce: a reduce_scatter and an all_gather are the least, since each element takes h - 1 transfers to be added
      up and h - 1 to be known by all (Patarasuk and Yuan 2009), and h ports share these: 2 (h - 1) / h S / R.
    - all_to_all: each of L ranks has S bytes, of which (h - 1) / h go to other hosts, and nothing can be summed:
      L (h - 1) / h S / R.
    - barrier: no bytes, no limit.

    Of these bytes a port that has paused lets `burst` through at once.

    Args:
        nbytes: S, as above.
        hosts, ranks: how many hosts, and on each how many ranks.
        rate: bits per second.
        burst: bytes.
    """
    if rate is None or collective == "barrier":
        return None
    apart = (hosts - 1) / hosts
    whole = 1.0 if hosts > 1 else 0.0
    passes = {
        "all_reduce": 2 * apart,
        "broadcast": whole,
        "reduce": whole,
        "all_gather": apart,
        "reduce_scatter": apart,
        "all_to_all": ranks * apart,
        "gather": apart,
        "scatter": apart,
    }
    return max(0.0, passes[collective] * nbytes - burst) * 8 / rate * 1e6


def algorithms(collective: str) -> list[str]:
    """The names of all registered algorithms."""
    return [str(known["name"]) for known in _core._algorithms(collective)]


def unsupported(cell: Cell, algorithm: str) -> str:
    """Why an algorithm does not apply, or nothing."""
    s = cell.setting
    hosts = [rank // s.ranks for rank in range(s.hosts * s.ranks)]
    return str(_core._unsupported(cell.collective, algorithm, len(hosts), hosts=hosts, count=cell.count))


def cells_of(
    shapes: Iterable[tuple[int, int]], rates: Iterable[int | None], collectives: Iterable[str], sizes: Iterable[int]
) -> list[Cell]:
    """All of them, so that neighbours share a shape, and with it their processes. A barrier has one size."""
    rates, collectives, sizes = list(rates), list(collectives), list(sizes)
    return [
        Cell(Setting(*shape, rate), collective, size)
        for shape in shapes
        for rate in rates
        for collective in collectives
        for size in (sizes if collective != "barrier" else [0])
    ]


def cell_of(row: Row) -> Cell:
    """The cell of a row."""
    return Cell(Setting(row["hosts"], row["ranks"], row["rate"]), row["collective"], row["size"])


def by_cell(rows: Iterable[Row]) -> dict[Cell, dict[Contender, Row]]:
    """Rows by cell and contender."""
    found: dict[Cell, dict[Contender, Row]] = {}
    for row in rows:
        found.setdefault(cell_of(row), {})[Contender(row["peer"], row["algorithm"])] = row
    return found


def parse_rate(text: str) -> int | None:
    """Bits per second from "1gbit", "100mbit" or "2.5gbit", as tc reads them (k is 1000); None from "unlimited".

    Raises:
        ValueError: the text is something else.
    """
    if text == "unlimited":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text.strip().lower())
    rate = float(match[1]) * 10 ** _UNITS[match[2]] if match else 0.0
    if not rate or rate != int(rate):
        raise ValueError(f"{text!r} is no rate of a port; 1gbit, 100mbit and the like are accepted, and unlimited")
    return int(rate)


def rate_as_text(rate: int | None) -> str:
    """The inverse of ``parse_rate``."""
    if rate is None:
        return "unlimited"
    unit = next(unit for unit in ("g", "m", "k", "") if rate >= 10 ** _UNITS[unit])
    return f"{rate / 10 ** _UNITS[unit]:g}{unit}bit"
