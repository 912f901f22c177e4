"""Profiles: what ``collectives tune`` has measured of a kind of machine, in a file that ``COLLECTIVES_PROFILE`` names.

A profile holds costs, with which the choice of algorithms counts in place of built-in ones, and algorithms that it
takes for some calls. Nothing is measured inside a job, and all ranks count with the same: each tells the others the
digest of its file, and what is wrong with it, when the job starts. A file belongs to one kind of machine, that is one
model of processor and one number of processors, so equal nodes of a cluster share one.

The file is JSON with one key a line, so that errors can quote the line.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .. import _core
from . import overrides
from .overrides import Override

VARIABLE = "COLLECTIVES_PROFILE"
FORMAT = 1
COSTS: dict[str, tuple[int, int]] = _core._profile_costs()  # by name, the least and the most that are accepted
_TEXTS = ("made_by", "cpu")
_OVERRIDES = re.compile(r"algorithm(?:_(\d{1,7})_ranks)?", re.ASCII)
_MOST_BYTES = 1 << 16
_MOST_SHOWN = 200  # characters of a line or a path
_MOST_RANKS = 8  # that an error lists
_AGAIN = "run `collectives tune` on such a machine, and name the file that it writes"


class Machine(NamedTuple):
    """A kind of machine.

    Attributes:
        cpu: model of its processors, in the words of the kernel.
        cores: how many processors the kernel has, whether or not this process may use them.
    """

    cpu: str
    cores: int


class ProfileOverride(NamedTuple):
    """An override for groups of so many ranks, all on one host; for all groups where `ranks` is 0."""

    override: Override
    ranks: int


@dataclass(frozen=True)
class Profile:
    """What a file says, or why it cannot be used.

    Attributes:
        path: of the file, ``""`` for no profile.
        digest: of the contents.
        problem: why it cannot be used, with the line of the file; ``""`` where it can.
        machine: on which it was made.
        costs: by their names in the file.
        overrides: in the order of the file.
    """

    path: str = ""
    digest: str = ""
    problem: str = ""
    machine: Machine | None = None
    costs: Mapping[str, int] = field(default_factory=dict)
    overrides: tuple[ProfileOverride, ...] = ()

    def __str__(self) -> str:
        return f"{_shortened(self.path)} (digest {self.digest})" if self.path else ""

    def introduction(self) -> dict[str, str]:
        """What other ranks are told of it."""
        return {"profile": _shortened(self.path), "profile_digest": self.digest, "profile_problem": self.problem}

    def refuse_problem(self) -> None:
        """Raises ValueError where it cannot be used, for a process without others."""
        if self.problem:
            raise ValueError(f"{VARIABLE} is {_shortened(self.path)!r}, which cannot be used: {self.problem}")


def read(path: str, machine: Machine | None = None) -> Profile:
    """The profile of a file; never raises, since a file that cannot be used is an error of all ranks.

    Args:
        machine: the one that it has to be of; by default this one.
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        return Profile(path, problem=f"it cannot be read: {getattr(error, 'strerror', None) or error}")
    digest = hashlib.sha256(data).hexdigest()[:16]
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError(f"it has {len(data)} bytes; a profile has at most {_MOST_BYTES}")
        return _File(data.decode("utf-8", "backslashreplace")).profile(path, digest, machine or this_machine())
    except ValueError as error:
        return Profile(path, digest, str(error))


def refuse_differences(infos: Sequence[Mapping[str, Any]]) -> None:
    """Raises the same ValueError on all ranks where they could not count with one profile.

    Args:
        infos: of each process the ``introduction`` of its profile, and its "hostname".
    """
    broken = [info for info in infos if info["profile_problem"]]
    if broken:
        first = broken[0]
        alike = [rank for rank, info in enumerate(infos) if _told(info) == _told(first)]
        raise ValueError(
            f"{VARIABLE} of {_listed(alike)} is {first['profile']!r} on host {first['hostname']}, which cannot be "
            f"used: {first['profile_problem']}"
        )
    by_digest: dict[str, list[int]] = {}
    for rank, info in enumerate(infos):
        by_digest.setdefault(info["profile_digest"], []).append(rank)
    if len(by_digest) > 1:
        each = []
        for digest, ranks in by_digest.items():
            has = f"{infos[ranks[0]]['profile']!r} with digest {digest}" if digest else "none"
            each.append(f"{_listed(ranks)}: {has}")
        raise ValueError(
            f"ranks have different profiles, so they would not choose algorithms alike ({'; '.join(each)}); give every "
            f"rank a {VARIABLE} with the same contents"
        )


def this_machine() -> Machine:
    """The kind of machine that this process runs on."""
    return Machine(_cpu(), os.sysconf("SC_NPROCESSORS_ONLN"))


def text_of(machine: Machine, made_by: str, costs: Mapping[str, int], algorithms: Mapping[int, str]) -> str:
    """The contents of a file.

    Args:
        made_by: for readers.
        algorithms: texts in the syntax of ``COLLECTIVES_ALGORITHM``, by the number of ranks of the one host for which
            they count; 0: for all groups.
    """
    keys: dict[str, Any] = {"format": FORMAT, "made_by": made_by, **machine._asdict(), **costs}
    for ranks, text in algorithms.items():
        keys[f"algorithm_{ranks}_ranks" if ranks else "algorithm"] = text
    return json.dumps(keys, indent=2, ensure_ascii=False) + "\n"


def write(path: Path, text: str) -> None:
    """Writes a file at once, so that no job ever reads half of it; makes its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(unfinished, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of a JSON object."""


class _File:
    """Turns a text into a profile; all errors are ValueError and quote the line."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines() or [""]
        try:
            pairs = json.loads(text, object_pairs_hook=_Pairs)
        except RecursionError:
            raise self._error(1, "it is nested too deeply") from None
        except ValueError as error:  # also of an integer with thousands of digits
            line = min(getattr(error, "lineno", 1), len(self._lines))
            raise self._error(line, f"this is not JSON: {getattr(error, 'msg', error)}") from None
        if not isinstance(pairs, _Pairs):
            raise self._error(1, "a profile is a JSON object, which begins with {")
        self._values: dict[str, Any] = {}
        for key, value in pairs:
            if key in self._values:
                raise self._error(self._line_of(key), f"{key!r} is there twice")
            self._values[key] = value

    def profile(self, path: str, digest: str, machine: Machine) -> Profile:
        self._check_format()
        for key, value in self._values.items():
            self._check(key, value)
        missing = [key for key in Machine._fields if key not in self._values]
        if missing:
            raise ValueError(f"it has no line with {missing[0]!r}, so it is of no machine; {_AGAIN}")
        for key, own in machine._asdict().items():
            if self._values[key] != own:
                raise self._error(self._line_of(key), f"this machine has {own!r}; {_AGAIN}")
        found = []
        for key, value in self._values.items():
            if match := _OVERRIDES.fullmatch(key):
                try:
                    said = overrides.parse(value, key)
                except ValueError as error:
                    raise self._error(self._line_of(key), str(error)) from None
                found += [ProfileOverride(override, int(match[1] or 0)) for override in said]
        costs = {key: value for key, value in self._values.items() if key in COSTS}
        # Those for one number of ranks are closer to a call than those for all.
        return Profile(path, digest, "", machine, costs, tuple(sorted(found, key=lambda one: one.ranks == 0)))

    def _check_format(self) -> None:
        if "format" not in self._values:
            raise self._error(1, f'no line says the format; this version of collectives reads "format": {FORMAT}')
        if not _is_integer(self._values["format"]) or self._values["format"] != FORMAT:
            line = self._line_of("format")
            raise self._error(line, f"this version of collectives reads the format {FORMAT}; {_AGAIN}")

    def _check(self, key: str, value: Any) -> None:
        if key in COSTS:
            low, high = COSTS[key]
            if not _is_integer(value) or not low <= value <= high:
                raise self._error(self._line_of(key), f"{key} is an integer from {low} to {high}")
        elif key == "cores":
            if not _is_integer(value) or value < 1:
                raise self._error(self._line_of(key), "cores is an integer from 1 on")
        elif key in _TEXTS or _OVERRIDES.fullmatch(key):
            if not isinstance(value, str):
                raise self._error(self._line_of(key), f"{key} is a text in quotes")
        elif key != "format":
            known = ["format", *_TEXTS, "cores", *COSTS, "algorithm", "algorithm_2_ranks"]
            similar = difflib.get_close_matches(key, known, n=1)
            meant = f"did you mean {similar[0]}?" if similar else f"known are {', '.join(known)}"
            raise self._error(self._line_of(key), f"there is no such key; {meant}")

    def _line_of(self, key: str) -> int:
        """The last line with the key: of two, that is the one too many."""
        written = re.compile(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:")
        return next((n for n in range(len(self._lines), 0, -1) if written.search(self._lines[n - 1])), 1)

    def _error(self, line: int, what: str) -> ValueError:
        return ValueError(f"line {line} is {_shortened(self._lines[line - 1].strip())!r}: {what}")


def _cpu() -> str:
    """The model of the processors: x86 has a name for it, ARM numbers."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = dict(re.findall(r"^([\w ]+?)\s*:\s*(.*\S)", text.partition("\n\n")[0], re.MULTILINE))
    names = ("model name",) if "model name" in found else ("CPU implementer", "CPU part", "CPU variant", "cpu")
    return " ".join([platform.machine(), *(found[name] for name in names if name in found)])


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def _told(info: Mapping[str, Any]) -> tuple[Any, Any]:
    return info["profile"], info["profile_problem"]


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_RANKS]))
    rest = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"rank{'s' * (len(ranks) > 1)} {shown}{rest}"
