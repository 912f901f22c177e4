"""The options of a call."""

from __future__ import annotations

from typing import NamedTuple, TypedDict


class CallOptions(NamedTuple):
    """What a caller may say about a call besides the arrays, their lengths and the other rank of a message.

    Public methods pass the options to the compiled ones by position, in this order. What those do not run themselves
    they pass on as this record, and it is what the engine takes. ``csrc/bindings/calls/options.h`` has the same fields.

    Attributes:
        async_op, timeout, name, stream: of every call; see ``Communicator.all_reduce``.
        algorithm: of collectives.
        op: of reductions.
        root: of collectives that have one.
        deterministic, factor: of reductions.
    """

    async_op: bool = False
    timeout: float | None = None
    name: str | None = None
    stream: object = None
    algorithm: str = "auto"
    op: str = "sum"
    root: int = 0
    deterministic: bool = False
    factor: float | None = None


class CallKeywords(TypedDict, total=False):
    """Options that do not decide about the type of a result, as the overloads of public methods name them."""

    timeout: float | None
    name: str | None
    stream: object


class CollectiveKeywords(CallKeywords, total=False):
    """Those of collectives."""

    algorithm: str
