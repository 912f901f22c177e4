"""Measures the cells of bench/hosts.py: all contenders of a cell in turn, in blocks of some calls."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import statistics
from pathlib import Path
from types import TracebackType
from typing import Any

import hosts_ranks
import numpy as np
from hosts_cells import AUTO, Cell, Contender, Row, algorithms, unsupported
from hosts_network import Ports
from hosts_ranks import Ranks, RanksError
from peers import openmpi

# Of blocks: what disturbs one contender for a while is to disturb all. Which ranks share a core changes from block to
# block, and with it the time of a small call by up to twice.
ROUNDS = 10
GIVING_UP = 5  # failures one after the other: something is wrong that concerns all cells
MOST = 100  # calls that count in a block
# Of shorter calls the first of a block does not count: it finds what another contender has left, in caches and in the
# windows of TCP. Of longer ones that is a small part.
LONG = 0.05  # seconds


@dataclasses.dataclass
class Failure:
    """What did not work."""

    cell: Cell
    contender: Contender
    reason: str


class Shape:
    """Hosts of one shape, with the ranks that live on them. A context manager, which removes both.

    Args:
        hosts, ranks: how many hosts, and on each how many ranks.
        peers: by name, the environment of those that take part.
        folder: for files of the ranks.
    """

    def __init__(self, hosts: int, ranks: int, peers: dict[str, Path], folder: Path) -> None:
        self._ranks, self._peers, self._folder = ranks, peers, folder
        self._sets: dict[str, Ranks] = {}
        self._rate: int | None = None
        self._joined = False  # whether the ranks of this library are a job that knows the rate
        self._seed = 0
        self._failed_in_row = 0
        self._lost: set[str | None] = set()  # peers whose ranks do not start
        self.failures: list[Failure] = []
        self._hosts = Ports(hosts)

    def __enter__(self) -> Shape:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._hosts, contextlib.ExitStack() as stack:
            for one in self._sets.values():
                stack.callback(one.close)

    def measure(self, cell: Cell, contenders: list[Contender], duration: float) -> list[Row]:
        """A row for each contender that works; what does not is in ``failures``.

        Args:
            duration: seconds of measuring for each contender.
        """
        if cell.setting.rate != self._rate:
            self._hosts.limit(cell.setting.rate)
            self._rate = cell.setting.rate
            self._joined = False
        checked: dict[Contender, dict[str, Any]] = {}
        blocks: dict[Contender, list[list[float]]] = {}
        for contender in contenders:
            if contender.peer in self._lost:
                continue
            with self._failing(cell, contender):
                checked[contender] = self._check(cell, contender)
                blocks[contender] = [self._block(cell, contender, 1)]
        for number in range(ROUNDS):
            order = [contender for contender in blocks if contender not in self._failed(cell)]
            random.Random(number).shuffle(order)
            for contender in order:
                usual = statistics.median(blocks[contender][-1]) / 1e6
                first = int(usual < LONG)
                count = max(1 + first, min(MOST, round(duration / ROUNDS / usual)))
                with self._failing(cell, contender):
                    blocks[contender].append(self._block(cell, contender, first + count)[first:])
        failed = self._failed(cell)
        return [
            _row(cell, contender, [us for block in found[1:] for us in block], checked[contender])
            for contender, found in blocks.items()
            if contender not in failed
        ]

    def _failed(self, cell: Cell) -> set[Contender]:
        return {failure.contender for failure in self.failures if failure.cell == cell}

    def _check(self, cell: Cell, contender: Contender) -> dict[str, Any]:
        self._seed += 1
        answers = self._ask(cell, contender, do="check", seed=self._seed)
        return {**answers[0], "wrong": sum(answer["wrong"] for answer in answers)}

    def _block(self, cell: Cell, contender: Contender, calls: int) -> list[float]:
        """The microseconds of so many calls, each from when the first rank begins until the last one is done.

        The longest of what ranks see would leave out what is done before the last of them has a core to begin on.
        """
        answers = self._ask(cell, contender, do="block", calls=calls, rest=cell.rest)
        return [
            (max(end for _, end in times) - min(begin for begin, _ in times)) / 1e3
            for times in zip(*(answer["times"] for answer in answers), strict=True)
        ]

    def _ask(self, cell: Cell, contender: Contender, **order: Any) -> list[dict[str, Any]]:
        asked = {**order, **dataclasses.asdict(contender), "collective": cell.collective, "count": cell.count}
        return self._set(contender).ask(asked)

    def _set(self, contender: Contender) -> Ranks:
        name = _set_of(contender)
        if name not in self._sets:
            place = (self._hosts, self._ranks, self._folder)
            if name == "ours":
                self._sets[name] = hosts_ranks.start_ours(*place, "gloo" in self._peers)
                self._joined = False
            else:
                self._sets[name] = hosts_ranks.start_openmpi(*place, self._peers[name])
        if name == "ours" and not self._joined:
            try:
                hosts_ranks.join_ours(self._sets[name], self._hosts, self._rate)
            except RanksError:
                self._sets.pop(name).close()
                raise
            self._joined = True
        return self._sets[name]

    @contextlib.contextmanager
    def _failing(self, cell: Cell, contender: Contender) -> Any:
        """Notes an error, after which the ranks are started anew: their libraries may be in any state."""
        try:
            yield
            self._failed_in_row = 0
        except RanksError as error:
            self._failed_in_row += 1
            if self._failed_in_row >= GIVING_UP:
                raise
            broken = self._sets.pop(_set_of(contender), None)
            if broken is not None:
                broken.close()
            elif contender.peer is None:
                raise  # they do not even start
            else:
                self._lost.add(contender.peer)
            self.failures.append(Failure(cell, contender, str(error)))


def _set_of(contender: Contender) -> str:
    """Whose ranks it needs: Gloo lives in those of this library."""
    return "openmpi" if contender.peer == "openmpi" else "ours"


def contenders_of(cell: Cell, asked: list[str], peers: dict[str, Path]) -> tuple[list[Contender], dict[str, str]]:
    """Who takes part in a cell, and which algorithms do not, with the reasons.

    Args:
        asked: names of algorithms; "all" stands for "auto" and every one that applies.
        peers: those that take part.
    """
    known = algorithms(cell.collective)
    names = ["auto", *known] if asked == ["all"] else [name for name in asked if name in ("auto", *known)]
    left_out = {name: unsupported(cell, name) for name in names if name != AUTO.algorithm}
    left_out = {name: reason for name, reason in left_out.items() if reason}
    ours = [Contender(None, name) for name in names if name not in left_out]
    ways = {name: openmpi.ways_between_hosts() if name == openmpi.NAME else ["default"] for name in peers}
    return ours + [Contender(name, way) for name in peers for way in ways[name]], left_out


def _row(cell: Cell, contender: Contender, times: list[float], checked: dict[str, Any]) -> Row:
    low, median, high = (float(value) for value in np.percentile(times, (25, 50, 75)))
    return {
        "hosts": cell.setting.hosts,
        "ranks": cell.setting.ranks,
        "rate": cell.setting.rate,
        "collective": cell.collective,
        "size": cell.size,
        "bytes": cell.nbytes,
        "peer": contender.peer,
        "algorithm": contender.algorithm,
        "chosen": checked.get("chosen"),
        "time_us": median,
        "time_us_quartiles": [low, high],
        "calls": len(times),
        "wire_us": cell.wire_us,
        "predicted_us": checked.get("predicted_us"),
        "least_us": checked.get("least_us"),
        "wrong": checked["wrong"],
    }
