"""The launchers that may have started this process: a file each in this folder, found by being there.

A file has one object, ``LAUNCHER``. ``find_job`` gives the rank, the size, and how the ranks meet (torchrun.py,
openmpi.py); of a launcher that gives no place to meet it is enough to name its variables (flux.py). Then a rendezvous
has to be set, and without one `collectives.init` is refused: each process would be a world of one.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from ..environment import Environment

_MAX_SIZE = 1 << 20
_OURS = ("COLLECTIVES_RANK", "COLLECTIVES_SIZE", "COLLECTIVES_RENDEZVOUS")
INSTEAD = f"Or set {', '.join(_OURS)} and COLLECTIVES_TOKEN yourself (docs/environment.md)"


class Job(Protocol):
    """What a launcher says of the job that this process is in.

    Attributes:
        RANK_VARIABLE, SIZE_VARIABLE: where it says so, for errors.
    """

    @property
    def RANK_VARIABLE(self) -> str: ...

    @property
    def SIZE_VARIABLE(self) -> str: ...

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def size(self) -> int:
        """The number of processes."""

    def meet(
        self, *, token: str | bytes | None, timeout: float | None, **arguments: Any
    ) -> AbstractContextManager[Environment]:
        """The launch environment, agreed with the other ranks; to be left when all have connected.

        Args:
            token, timeout, arguments: as for `read_environment`.
        """


class Launcher:
    """A launcher, by what it tells its processes.

    Args:
        name: as its users write it.
        size_variable: the variable that it sets to the number of its processes; "" where it has none.
        rank_variable: the one that it sets to the number of a process; "" where it has none.
    """

    STAGE: ClassVar[int] = 1
    """In which order launchers are asked. Those of stage 0 start ranks by agents, which another launcher may have
    started. Those of stage 2 are variables that people set by hand as well. Those of stage 3 count where there is no
    other: they give nodes and processes to the others."""

    def __init__(self, name: str, size_variable: str, rank_variable: str = "") -> None:
        self.name = name
        self.size_variable = size_variable
        self.rank_variable = rank_variable

    def find_job(self, variables: Mapping[str, str]) -> Job | None:
        """The job that this process is in; None where this launcher did not start it, or it alone.

        Raises:
            ValueError: it did start it, with variables that cannot be.
        """
        if (place := self.place(variables)) is None:
            return None
        from ..launched import Launched

        return Launched(self.name, *place, self.rank_variable, self.size_variable)

    def place(self, variables: Mapping[str, str]) -> tuple[int, int] | None:
        """Rank and size, as the two variables say; None where they are not set, or there is one process.

        Raises:
            ValueError: they cannot be.
        """
        rank, size = variables.get(self.rank_variable, ""), variables.get(self.size_variable, "")
        if not rank or not size or size == "1":
            return None
        if not (rank.isascii() and rank.isdigit() and size.isascii() and size.isdigit()):
            raise ValueError(
                f"{self.rank_variable} is {rank!r} and {self.size_variable} {size!r}, by {self.name}: that is no rank "
                f"and no number of processes. {INSTEAD}"
            )
        if not int(rank) < int(size) <= _MAX_SIZE:
            raise ValueError(
                f"{self.name} says {self.rank_variable} {rank} and {self.size_variable} {size}, which cannot be. "
                f"{INSTEAD}"
            )
        return int(rank), int(size)


@functools.cache
def launchers() -> tuple[Launcher, ...]:
    """All that there are files for, by their stages, and then by the names of the files."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [importlib.import_module(f"{__name__}.{name}").LAUNCHER for name in names]
    return tuple(sorted(found, key=lambda launcher: launcher.STAGE))


def find_job(environ: Mapping[str, str] | None = None) -> Job | None:
    """The job of the launcher that started this process; None where our own variables say the rank, or none
    is known.

    Args:
        environ: the variables to read, ``os.environ`` by default.

    Raises:
        ValueError: a launcher's variables cannot be, or two launchers say different things.
    """
    variables = os.environ if environ is None else environ
    own = variables.get("COLLECTIVES_SIZE")
    if variables.get("COLLECTIVES_RANK") or own == "1":
        return None
    found: list[tuple[Launcher, Job]] = []
    for launcher in launchers():
        if launcher.STAGE < 3 or not found:
            job = launcher.find_job(variables)
            if job is not None:
                found.append((launcher, job))
    if not found:
        return None
    # Of those that say the same, one that has a place to meet.
    found.sort(key=lambda pair: (pair[0].STAGE, not getattr(pair[1], "place", True)))
    (launcher, job), *others = found
    for other, said in others:
        around = said.size == getattr(job, "agents", 0)  # the other has started the agents of this one
        if not around and (said.rank, said.size) != (job.rank, job.size):
            raise _disagreement(_described(launcher.name, job), _described(other.name, said))
    if own and own != str(job.size):
        raise _disagreement(_described(launcher.name, job), f"COLLECTIVES_SIZE is {own}")
    return job


def _described(name: str, job: Job) -> str:
    return f"{name} says rank {job.rank} of {job.size} ({job.RANK_VARIABLE}, {job.SIZE_VARIABLE})"


def _disagreement(one: str, other: str) -> ValueError:
    return ValueError(
        f"{one}, and {other}: which is meant? Unset the variables of the one that did not start this program, or set "
        "COLLECTIVES_RANK, COLLECTIVES_SIZE and COLLECTIVES_RENDEZVOUS (docs/running.md)"
    )


def refuse_world_of_one(variables: Mapping[str, str]) -> None:
    """Raises ValueError where a launcher has started this process with others."""
    for launcher in launchers():
        size = variables.get(launcher.size_variable, "")
        if size.isascii() and size.isdigit() and int(size) > 1:
            raise ValueError(
                f"{launcher.size_variable} is {size}: {launcher.name} has started {size} processes, but nothing says "
                "which rank this one is, and each of them would be a world of its own. Set COLLECTIVES_RANK, "
                "COLLECTIVES_SIZE, COLLECTIVES_RENDEZVOUS and COLLECTIVES_TOKEN (docs/running.md), start the "
                "program by `collectives run` or torchrun, or call init(size=1) where a world of one is meant"
            )
