"""The methods of a communicator for vector collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast, overload

from .. import _core
from .._arrays.per_rank import PerRank
from .._devices import dispatch
from ..work import Work
from .arguments import Array, Arrays, Out, Parts
from .layout import Counts, Splits
from .options import CallOptions, CollectiveKeywords
from .vector import Means

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..communicator import Communicator


class VectorKeywords(CollectiveKeywords, total=False):
    """Arguments that do not decide about the type of a result."""

    counts: Counts


class SplitKeywords(VectorKeywords, total=False):
    """The same of all_to_all."""

    out_counts: Counts


class ReductionKeywords(VectorKeywords, total=False):
    """The same of reductions."""

    deterministic: bool
    factor: float | None


class VectorCalls(_core.Communicator):
    """The part of ``Communicator`` in which ranks give or get parts of an array.

    A result is of the kind of ``x``: of an array an array, of a list a list. With ``out=`` it is that; with
    ``async_op=True`` the result of a ``Work``. A ``PerRank`` has the parts of one array apart, without a copy.
    """

    @overload
    def all_gather(
        self, x: Arrays, *, out: None = None, async_op: Literal[False] = False, **rest: Unpack[VectorKeywords]
    ) -> Arrays: ...
    @overload
    def all_gather(
        self, x: Arrays, *, out: Out, async_op: Literal[False] = False, **rest: Unpack[VectorKeywords]
    ) -> Out: ...
    @overload
    def all_gather(
        self, x: Arrays, *, out: None = None, async_op: Literal[True], **rest: Unpack[VectorKeywords]
    ) -> Work[Arrays]: ...
    @overload
    def all_gather(
        self, x: Arrays, *, out: Out, async_op: Literal[True], **rest: Unpack[VectorKeywords]
    ) -> Work[Out]: ...
    def all_gather(
        self,
        x: Any,
        *,
        out: Any = None,
        counts: Counts = None,
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Joins the arrays of all ranks along axis 0, in rank order; every rank gets the result.

        Args:
            x: an array, or a list of arrays of one dtype (one fused collective). Shapes may differ between ranks in
                the length of axis 0; an array of no dimensions counts as one of one row.
            out: where the result goes; a new array otherwise. ``x`` may be this rank's part of it.
            counts: the rows of each rank, or one number when all have the same (for a list of arrays: such an entry
                for each). Without it the ranks exchange their lengths first.
            algorithm, async_op, timeout, name, stream: see ``all_reduce``.

        Raises:
            MismatchError: ranks disagree in dtype, in dimensions other than the first, or in counts.
        """
        return self._run_vector("all_gather", x, out, counts, async_op, timeout, name, stream, algorithm)

    @overload
    def gather(
        self,
        x: Arrays,
        root: int = 0,
        *,
        out: None = None,
        async_op: Literal[False] = False,
        **rest: Unpack[VectorKeywords],
    ) -> Arrays | None: ...
    @overload
    def gather(
        self, x: Arrays, root: int = 0, *, out: Out, async_op: Literal[False] = False, **rest: Unpack[VectorKeywords]
    ) -> Out | None: ...
    @overload
    def gather(
        self, x: Arrays, root: int = 0, *, out: None = None, async_op: Literal[True], **rest: Unpack[VectorKeywords]
    ) -> Work[Arrays | None]: ...
    @overload
    def gather(
        self, x: Arrays, root: int = 0, *, out: Out, async_op: Literal[True], **rest: Unpack[VectorKeywords]
    ) -> Work[Out | None]: ...
    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        counts: Counts = None,
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Joins the arrays of all ranks along axis 0 on ``root``; the other ranks get None. See ``all_gather``."""
        return self._run_vector("gather", x, out, counts, async_op, timeout, name, stream, algorithm, "sum", root)

    # Without ``x`` the root decides what this rank gets.
    @overload
    def scatter(
        self,
        x: PerRank,
        root: int = 0,
        *,
        out: None = None,
        async_op: Literal[False] = False,
        **rest: Unpack[CollectiveKeywords],
    ) -> Array: ...
    @overload
    def scatter(
        self,
        x: PerRank,
        root: int = 0,
        *,
        out: None = None,
        async_op: Literal[True],
        **rest: Unpack[CollectiveKeywords],
    ) -> Work[Array]: ...
    @overload
    def scatter(
        self,
        x: Arrays,
        root: int = 0,
        *,
        out: None = None,
        async_op: Literal[False] = False,
        **rest: Unpack[VectorKeywords],
    ) -> Arrays: ...
    @overload
    def scatter(
        self,
        x: None = None,
        root: int = 0,
        *,
        out: None = None,
        async_op: Literal[False] = False,
        **rest: Unpack[VectorKeywords],
    ) -> Any: ...
    @overload
    def scatter(
        self,
        x: Arrays | PerRank | None = None,
        root: int = 0,
        *,
        out: Out,
        async_op: Literal[False] = False,
        **rest: Unpack[VectorKeywords],
    ) -> Out: ...
    @overload
    def scatter(
        self, x: Arrays, root: int = 0, *, out: None = None, async_op: Literal[True], **rest: Unpack[VectorKeywords]
    ) -> Work[Arrays]: ...
    @overload
    def scatter(
        self,
        x: None = None,
        root: int = 0,
        *,
        out: None = None,
        async_op: Literal[True],
        **rest: Unpack[VectorKeywords],
    ) -> Work[Any]: ...
    @overload
    def scatter(
        self,
        x: Arrays | PerRank | None = None,
        root: int = 0,
        *,
        out: Out,
        async_op: Literal[True],
        **rest: Unpack[VectorKeywords],
    ) -> Work[Out]: ...
    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Any = None,
        counts: Counts = None,
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Splits ``x`` of rank ``root`` along axis 0; rank i gets part i.

        Args:
            x: an array or a list of arrays of one dtype on the root, None elsewhere.
            root: whose array is split.
            out: where the part of this rank goes; a new array otherwise.
            counts: the rows of each rank, given on the root; equal parts otherwise.
            algorithm, async_op, timeout, name, stream: see ``all_reduce``. The root first sends shapes and dtype to
                the others.
        """
        return self._run_vector("scatter", x, out, counts, async_op, timeout, name, stream, algorithm, "sum", root)

    @overload
    def reduce_scatter(
        self,
        x: PerRank,
        op: str = "sum",
        *,
        out: None = None,
        async_op: Literal[False] = False,
        **rest: Unpack[ReductionKeywords],
    ) -> Array: ...
    @overload
    def reduce_scatter(
        self,
        x: PerRank,
        op: str = "sum",
        *,
        out: None = None,
        async_op: Literal[True],
        **rest: Unpack[ReductionKeywords],
    ) -> Work[Array]: ...
    @overload
    def reduce_scatter(
        self,
        x: Arrays,
        op: str = "sum",
        *,
        out: None = None,
        async_op: Literal[False] = False,
        **rest: Unpack[ReductionKeywords],
    ) -> Arrays: ...
    @overload
    def reduce_scatter(
        self,
        x: Arrays | PerRank,
        op: str = "sum",
        *,
        out: Out,
        async_op: Literal[False] = False,
        **rest: Unpack[ReductionKeywords],
    ) -> Out: ...
    @overload
    def reduce_scatter(
        self,
        x: Arrays,
        op: str = "sum",
        *,
        out: None = None,
        async_op: Literal[True],
        **rest: Unpack[ReductionKeywords],
    ) -> Work[Arrays]: ...
    @overload
    def reduce_scatter(
        self,
        x: Arrays | PerRank,
        op: str = "sum",
        *,
        out: Out,
        async_op: Literal[True],
        **rest: Unpack[ReductionKeywords],
    ) -> Work[Out]: ...
    def reduce_scatter(
        self,
        x: Any,
        op: str = "sum",
        *,
        out: Any = None,
        counts: Counts = None,
        factor: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Reduces ``x`` over all ranks and splits the result along axis 0; rank i gets part i.

        Args:
            x: an array of the same shape on all ranks, or a list of arrays of one dtype (one fused collective).
            op: see ``all_reduce``.
            out: where the part of this rank goes; a new array otherwise. It may be this rank's part of ``x``.
            counts: the rows of each rank, the same on all ranks; equal parts otherwise.
            factor, algorithm, deterministic, async_op, timeout, name, stream: see ``all_reduce``.

        Raises:
            MismatchError: ranks disagree, for example in the length of ``x``.
            ValueError: axis 0 cannot be split evenly, or the counts do not add up to its length.
        """
        return self._run_vector(
            "reduce_scatter", x, out, counts, async_op, timeout, name, stream, algorithm, op, 0, deterministic, factor
        )

    @overload
    def all_to_all(
        self, x: Parts, *, out: None = None, async_op: Literal[False] = False, **rest: Unpack[SplitKeywords]
    ) -> Parts: ...
    @overload
    def all_to_all(
        self, x: Parts, *, out: Out, async_op: Literal[False] = False, **rest: Unpack[SplitKeywords]
    ) -> Out: ...
    @overload
    def all_to_all(
        self, x: Parts, *, out: None = None, async_op: Literal[True], **rest: Unpack[SplitKeywords]
    ) -> Work[Parts]: ...
    @overload
    def all_to_all(
        self, x: Parts, *, out: Out, async_op: Literal[True], **rest: Unpack[SplitKeywords]
    ) -> Work[Out]: ...
    def all_to_all(
        self,
        x: Any,
        *,
        out: Any = None,
        counts: Counts = None,
        out_counts: Counts = None,
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Splits ``x`` along axis 0 and gives part i to rank i; returns what all ranks gave to this one, in rank order.

        Args:
            x: an array, or a list of arrays of one dtype (one fused collective).
            out: where the result goes; a new array otherwise.
            counts: how many rows go to each rank; all ranks pass it or none. Equal parts otherwise, of the same length
                on all ranks.
            out_counts: how many rows come from each rank, where this rank knows; needs counts. The ranks compare it
                with what is given.
            algorithm, async_op, timeout, name, stream: see ``all_reduce``.

        Raises:
            MismatchError: ranks disagree, for example in the length of ``x`` when there are no counts, or what one
                gives is not what ``out_counts`` of another says.
            ValueError: axis 0 cannot be split evenly, or the counts do not add up to its length.
        """
        splits = counts if out_counts is None else Splits(counts, out_counts)
        return self._run_vector("all_to_all", x, out, splits, async_op, timeout, name, stream, algorithm)

    def _general_vector(
        self, collective: str, x: Any, out: Any, counts: Any, options: CallOptions, exchanged: Any = None
    ) -> Any:
        """Called by the compiled ``_run_vector`` for what it does not run; ``exchanged``: see ``vector.Means``."""
        return dispatch.vector(cast("Communicator", self), collective, x, out, counts, options, Means(exchanged))
