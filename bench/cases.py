"""What is measured: the configuration of a run, its cases, and the sizes they have."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Vector collectives with equal parts, out of place: sizes are those of the whole array, as in nccl-tests.
PARTS = ("all_gather", "reduce_scatter", "all_to_all")
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "barrier", *PARTS)
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
OPS = ("sum", "avg", "prod", "min", "max")
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES: dict[str, np.dtype[Any]] = {
    str(d): d
    for d in (
        *map(np.dtype, ("float16", "float32", "float64", "int8", "int16", "int32", "int64")),
        *map(np.dtype, ("uint8", "uint16", "uint32", "uint64", "bool")),
        _BFLOAT16,
    )
}

# Not a library: it times primitives, which have no results; limit.py computes limits from them.
LIMIT = "memcpy"
# Peers that are not compared with ours.
NO_LIBRARIES = (LIMIT, "bare")


class BadRequestError(ValueError):
    """The requested run is not possible; the text says why."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One row, or one per placement: a size measured with one algorithm of ours, or with one way of a peer.

    Attributes:
        level: what calls and reads the clock: "python" or "c".
        tensors: how many the elements are spread over; more than one is a list in one fused call.
    """

    algorithm: str
    count: int
    nbytes: int
    peer: str | None = None
    level: str = "python"
    tensors: int = 1

    @property
    def has_results(self) -> bool:
        """Whether the case has results to check."""
        return self.peer != LIMIT


@dataclasses.dataclass(frozen=True)
class Config:
    """A run, as plain values that can be pickled and written as JSON.

    Attributes:
        duration: seconds of measuring per case.
        timeout: seconds that starting and each collective may take.
        tensors: when more than 1, lists of so many tensors are measured beside one of the same size.
        show: where progress goes: "" for nowhere, "-" for a bar on stderr, else the file to write the fraction to.
    """

    collective: str
    algorithms: tuple[str, ...]
    every_algorithm: bool
    sizes: tuple[int, ...]
    ranks: int
    transport: str
    memory: str
    dtype: str
    op: str
    check: bool
    timeout: float
    duration: float
    seed: int
    levels: tuple[str, ...] = ("python",)
    tensors: int = 1
    peer: str | None = None
    show: str = ""

    @property
    def element(self) -> np.dtype[Any]:
        """The NumPy type of `dtype`."""
        return DTYPES[self.dtype]

    @property
    def rewrites(self) -> bool:
        """Whether the collective has a payload at all."""
        return self.collective != "barrier"

    def to_json(self) -> dict[str, Any]:
        """As a dictionary that `from_json` takes."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Config:
        """The inverse of `to_json`."""
        tuples = {key: tuple(values[key]) for key in ("algorithms", "sizes", "levels")}
        return Config(**{**values, **tuples})


def counts(config: Config) -> list[int]:
    """Elements per size, without duplicates: at least one (for each part). A barrier has one case without elements."""
    if not config.rewrites:
        return [0]
    parts = config.ranks if config.collective in PARTS else 1
    return sorted({max(1, nbytes // config.element.itemsize // parts) * parts for nbytes in config.sizes})


def given_and_gotten(collective: str, count: int, ranks: int) -> tuple[int, int]:
    """Elements that a rank gives, and that it gets, if the whole array has so many."""
    given = count // ranks if collective == "all_gather" else count
    return given, count // ranks if collective == "reduce_scatter" else count


def tensor_lengths(count: int, tensors: int) -> list[int]:
    """`count` elements spread over so many tensors as in a real model: a few hold most of them."""
    shares = np.random.default_rng(tensors).lognormal(sigma=2.0, size=tensors)
    ends = np.cumsum(shares / shares.sum()) * (count - tensors) + np.arange(1, tensors + 1)
    ends[-1] = count
    return [int(n) for n in np.diff(ends.astype(np.int64), prepend=0)]
