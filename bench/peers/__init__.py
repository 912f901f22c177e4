"""The libraries to compare with, a file each.

A peer file is loaded in two places: by the bench, which starts the ranks as the peer wants them started, and in every
rank, where it takes part in the same run as ours does. Run by itself it installs what it needs:

    python bench/peers/NAME.py --install [DIRECTORY]
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from cases import Array, Config


class PeerMissingError(Exception):
    """The peer is not installed; the text says how to get it."""


@dataclasses.dataclass(frozen=True)
class CCall:
    """A call of a C function: up to eight integers or pointers as arguments, and 0 as its result when all is well.

    Attributes:
        address: of the function.
        keep: what has to live as long as the call is used.
        before: of a function of the same arguments, or 0. It brings about what the call should find, instead of the
            rewriting of `x`, before the ranks meet for a round; it is not timed.
    """

    address: int
    arguments: tuple[int, ...]
    keep: object = None
    before: int = 0


class Peer(Protocol):
    """The interface of a peer file.

    Attributes:
        NAME: of the file.
        REQUIREMENTS: the packages that are installed for it, as pip takes them.
        LEVELS: where it can be timed: "python", with `prepare`, and "c", with `prepare_c`.
    """

    NAME: str
    REQUIREMENTS: list[str]
    LEVELS: tuple[str, ...]

    def locate(self, directory: Path | None) -> Path:
        """Its environment: `directory`, or where it installs itself. Raises PeerMissingError."""

    def unsupported(self, config: Config) -> str:
        """Why it cannot do the requested run, or empty when it can."""

    def command(self, environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
        """The command and the environment variables that start the Python program `program` as the ranks."""

    def join(self) -> tuple[int, int, Callable[[Any], Any]]:
        """In a rank: its number, the number of ranks, and a function that gives all ranks the value of rank 0."""

    def abort(self) -> None:
        """In a rank that failed: ends all ranks."""

    def ways(self, collective: str, nbytes: int, ranks: int) -> list[str]:
        """Names of the settings to measure at this size; the best one is what ours is compared with."""

    def prepare(self, way: str, collective: str, x: Array, op: str, *out: Array) -> Callable[[], object]:
        """The collective on `x`, in place, as a function without arguments. Where LEVELS has "python".

        out: one array, where the result goes, of the collectives of parts, gather and scatter; none of the others. Of
            gather it is used on the root only, of scatter `x` is.
        """

    def prepare_c(self, way: str, collective: str, x: Array, op: str, *out: Array) -> CCall:
        """The same as a C function. Where LEVELS has "c"."""

    def fetch(self, x: Array) -> None:
        """Copies the result of the last call into `x`, where the peer does not work in place; never timed."""


def names() -> list[str]:
    """All peers there are files for."""
    shared = ("__init__", "install", "launched", "loops", "mpi")
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in shared)


def load(name: str) -> Peer:
    """The peer of that name."""
    return cast("Peer", importlib.import_module(f"peers.{name}"))
