"""The measurements of `--vs all` by default, and the targets for their results.

Each section is a run of its own against each peer that can take part. An aim is a floor for the best peer's time over
ours (for lists of tensors, of one tensor's time over the list's), at every size of a range.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import limit
from cases import LIMIT, NO_LIBRARIES, PARTS
from collectives.bench.text import format_size, number
from table import Row, grid, pair

K, M = 1 << 10, 1 << 20
# A peer's run has random placements; if only a slow one was seen, there is nothing to judge.
_NO_COMPETITOR = 30.0
_SIZES = (8, 64, K, 8 * K, 64 * K, 512 * K, 4 * M, 32 * M, 128 * M)
_PARTS = (64, *_SIZES[3:-1])


@dataclasses.dataclass(frozen=True)
class Section:
    """One table of the suite: what differs from the options' defaults."""

    title: str
    sizes: tuple[int, ...] = _SIZES
    ranks: int = 2
    collective: str = "all_reduce"
    transport: str = "shm"
    memory: str = "private"
    level: str = "c"
    tensors: int = 1

    def options(self) -> dict[str, object]:
        """As options of the command line."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "title"}

    def rows(self, rows: list[Row]) -> list[Row]:
        """The runs of the section."""
        return [row for row in rows if row["section"] == self.title]


SECTIONS = {
    "private": Section("private buffers", level="both"),
    "symmetric": Section("symmetric memory", sizes=_SIZES[3:], memory="symmetric"),
    "tcp": Section("TCP loopback", transport="tcp", level="both"),
    "crowded": Section("4 ranks, private", ranks=4, sizes=_SIZES[:-1]),
    "crowded_symmetric": Section("4 ranks, symmetric", ranks=4, sizes=_SIZES[4:-1], memory="symmetric"),
    "broadcast": Section("broadcast", collective="broadcast"),
    **{name: Section(name, collective=name, level="both", sizes=_PARTS) for name in PARTS},
    "fused": Section("fused 300 tensors", sizes=(100 * 1000 * 1000,), tensors=300, level="both"),
}


@dataclasses.dataclass(frozen=True)
class Aim:
    """A floor; None for the placement means every one that was seen and is known."""

    section: str
    level: str
    placement: str | None
    first: int
    last: int
    floor: float
    over: str = "best peer"  # or "limit", or "one tensor"


def _row(section: str, level: str, placement: str | None, *floors: tuple[int, int, float]) -> list[Aim]:
    return [Aim(section, level, placement, *floor) for floor in floors]


_TINY, _SMALL, _MIDDLE, _LARGE, _HUGE = (8, K), (8 * K, 8 * K), (64 * K, 512 * K), (4 * M, 4 * M), (32 * M, 128 * M)
AIMS = [
    *_row("private", "c", "near", (*_TINY, 2.0), (*_SMALL, 2.5), (*_MIDDLE, 1.6), (*_LARGE, 1.05), (*_HUGE, 1.8)),
    *_row("private", "c", "far", (*_TINY, 1.1), (*_SMALL, 1.05), (*_MIDDLE, 1.25), (*_LARGE, 1.3), (*_HUGE, 1.3)),
    *_row("private", "python", "near", (*_TINY, 3.0), (*_SMALL, 2.5), (*_MIDDLE, 1.5), (*_LARGE, 1.05), (*_HUGE, 1.8)),
    *_row("symmetric", "c", "near", (*_SMALL, 4.0), (*_MIDDLE, 3.5), (*_LARGE, 2.7), (*_HUGE, 2.0)),
    *_row("symmetric", "c", "far", (*_SMALL, 1.5), (*_MIDDLE, 2.5), (*_LARGE, 3.5), (*_HUGE, 3.0)),
    *_row("tcp", "c", "near", (*_TINY, 1.25), (*_SMALL, 1.25), (*_MIDDLE, 1.05), (*_LARGE, 1.5), (*_HUGE, 2.0)),
    *_row("tcp", "c", "far", (*_TINY, 1.25), (*_SMALL, 1.25), (*_MIDDLE, 1.05), (*_LARGE, 1.5), (*_HUGE, 2.0)),
    Aim("crowded", "c", None, 8, 32 * M, 1.6),
    Aim("crowded_symmetric", "c", None, 64 * K, 32 * M, 2.5),
    Aim("broadcast", "c", None, 8, 128 * M, 0.95),
    Aim("private", "c", None, 8, 4 * M, 0.75, "limit"),
    Aim("private", "c", None, 4 * M + 1, 128 * M, 0.45, "limit"),
    Aim("symmetric", "c", None, 8, 4 * M, 0.80, "limit"),
    Aim("fused", "c", None, 8, 128 * M, 0.90, "one tensor"),
    Aim("fused", "python", None, 8, 128 * M, 0.90, "one tensor"),
]


def aims_as_text(rows: list[Row]) -> str:
    """The aims, and for each the size and placement at which least was reached."""
    header = ("", "level", "cores", "sizes", "over", "aim", "reached", "", "where", "ours", "theirs", "who")
    cells = []
    for aim in AIMS:
        section = SECTIONS[aim.section]
        found = least(rows, aim)
        sizes = format_size(aim.first) + (f" - {format_size(aim.last)}" if aim.last != aim.first else "")
        what = (section.title, aim.level, aim.placement or "any", sizes, aim.over, f"{aim.floor:.2f}")
        if found is None:
            cells.append((*what, "-", "not measured", "", "", "", ""))
            continue
        where = f"{format_size(found.nbytes)} {found.placement}"
        cells.append(
            (
                *what,
                f"{found.ratio:.2f}",
                "" if found.ratio >= aim.floor else "missed",
                where,
                number(found.ours_us),
                number(found.theirs_us),
                found.who,
            )
        )
    left = [True, True, True, False, True, False, False, True, False, False, False, True]
    return grid([header, *cells], left)


# The best peer's time over the limit, private buffers, cores near, on another machine (docs/lab/suites.md). A run in
# which peers are much slower than that is not meaningful: something slowed them down.
_KNOWN = {8 * K: 3.2, 64 * K: 1.9, 512 * K: 1.7, 4 * M: 1.4, 32 * M: 5.1, 128 * M: 3.8}
_SLOWER = 1.5


def doubts_as_text(rows: list[Row]) -> str:
    """Why the run should not be used, a line per size; empty when there is no reason."""
    lines = []
    section = SECTIONS["private"].rows(rows)
    near = [row for row in section if row["level"] == "c" and row["placement"] == "near"]
    for nbytes, known in _KNOWN.items():
        here = [row for row in near if row["bytes"] == nbytes]
        theirs = [row["time_us"] for row in here if row["peer"] not in (None, *NO_LIBRARIES)]
        primitives = [row for row in section if row["against"] == LIMIT]
        ours = next((row for row in here if row["peer"] is None and row["against"] == LIMIT), None)
        floor = limit.of_row(ours, primitives) if ours else None
        if theirs and floor and min(theirs) / floor > _SLOWER * known:
            seen = {row["peer"] for row in here} | {*NO_LIBRARIES}
            unseen = {row["peer"] for row in section if row["level"] == "c" and row["bytes"] == nbytes} - seen
            lines.append(
                f"not to be used: the best peer took {min(theirs) / floor:.1f} times the limit at "
                f"{format_size(nbytes)}, where {known} times is known to be possible"
                + (f" (not seen there: {', '.join(sorted(unseen))})" if unseen else "")
            )
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Result:
    """One ratio: of `theirs_us`, which `who` needs, over `ours_us`."""

    nbytes: int
    placement: str
    ratio: float
    ours_us: float
    theirs_us: float
    who: str


def least(rows: list[Row], aim: Aim) -> Result | None:
    """The lowest ratio among those that the aim is about; None where none was measured."""
    found = [
        result
        for result in _ratios(SECTIONS[aim.section].rows(rows), aim)
        if aim.first <= result.nbytes <= aim.last and aim.placement in (None, result.placement)
    ]
    return min(found, key=lambda result: result.ratio, default=None)


def _ratios(rows: list[Row], aim: Aim) -> Iterator[Result]:
    """By size and placement; of the peers the one that comes closest to ours."""
    # Where the placement is unknown, other programs used the cores.
    known = [row for row in rows if row["level"] == aim.level and row["placement"] != "unknown"]
    places = dict.fromkeys((row["bytes"], row["placement"]) for row in known)
    for nbytes, placement in places:
        here = _at(rows, aim.level, nbytes)
        if aim.over == "one tensor":
            results = [_of_lists([row for row in here if row["placement"] == placement], nbytes, placement)]
        else:
            names = dict.fromkeys(str(row["against"]) for row in here if row["against"])
            wanted = [n for n in names if (n == LIMIT if aim.over == "limit" else n not in NO_LIBRARIES)]
            results = [_against(here, name, nbytes, placement) for name in wanted]
        found = [result for result in results if result is not None]
        if found and min(result.ratio for result in found) < _NO_COMPETITOR:
            yield min(found, key=lambda result: result.ratio)


def _at(rows: list[Row], level: str, nbytes: int) -> list[Row]:
    return [row for row in rows if (row["level"], row["bytes"]) == (level, nbytes)]


def _against(rows: list[Row], name: str, nbytes: int, placement: str) -> Result | None:
    rows = [row for row in rows if row["against"] == name]
    ours, theirs = pair([row for row in rows if row["placement"] == placement])
    if ours is None or theirs is None:
        return None
    time_us = theirs["time_us"]
    if name == LIMIT:
        least = limit.of_row(ours, rows)
        if least is None:
            return None
        time_us = least
    return Result(nbytes, placement, time_us / ours["time_us"], ours["time_us"], time_us, name)


Place = tuple[str, int, str]  # level, bytes, where the cores were


def compared(rows: list[Row], name: str) -> set[Place]:
    """Where both ours and the peer `name`, or all that the limit needs, were measured."""
    places = {(row["level"], row["bytes"], row["placement"]) for row in rows}
    return {place for place in places if _against(_at(rows, *place[:2]), name, *place[1:]) is not None}


def one_placement_only(rows: list[Row], name: str) -> bool:
    """Whether some size that the peer can do was compared with the cores near each other, but not far, or not near."""
    found = compared(rows, name)
    sizes = {(row["level"], row["bytes"]) for row in rows if row["peer"]}
    return any((level, nbytes, where) not in found for level, nbytes in sizes for where in ("near", "far"))


def with_more(rows: list[Row], again: list[Row], name: str) -> list[Row]:
    """The rows of a run, and of another one of the same those of places where the first compared nothing."""
    new = compared(again, name) - compared(rows, name)
    kept = [row for row in rows if (row["level"], row["bytes"], row["placement"]) not in new]
    return kept + [row for row in again if (row["level"], row["bytes"], row["placement"]) in new]


def _of_lists(rows: list[Row], nbytes: int, placement: str) -> Result | None:
    one = [row["time_us"] for row in rows if row["tensors"] == 1]
    lists = [row["time_us"] for row in rows if row["tensors"] > 1]
    if not one or not lists:
        return None
    return Result(nbytes, placement, min(one) / min(lists), min(lists), min(one), "one tensor")
