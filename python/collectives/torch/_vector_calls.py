"""The calls in which ranks give or get parts: all_gather, gather, scatter, reduce_scatter, all_to_all in all forms.

The engine takes the memory of a call as a list of pieces, so a list with one tensor for each rank is not packed.
Tensors on devices are, since the engine's calls on these take one array, or a list of whole tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from .._calls import layout
from .._calls.options import CallOptions
from ..communicator import Communicator
from ..work import Work as EngineWork
from ._calls import Calls, _reduction, together
from ._tensors import arrays, flat, flats, on_device, operation, single


class VectorCalls(Calls):
    """The part of a group's calls in which ranks give or get parts."""

    def _vector(
        self,
        collective: str,
        opts: Any,
        result: Sequence[Any],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        lengths: Sequence[int],
        *,
        op: Any = None,
        root: int = 0,
        timeout: Any = None,
    ) -> Work:
        """One collective.

        Args:
            collective: its name in the engine.
            opts, timeout: as torch gives them.
            result: of its work.
            inputs, outputs: flat pieces of memory, by part, then by tensor.
            lengths: of the parts of all ranks; for all_to_all those that this rank sends, then those that it gets.
        """
        name, factor = ("sum", None) if op is None else operation(op)
        run = _on_device if on_device([*inputs, *outputs]) else _on_host

        def start(asynchronous: Any, limit: float | None) -> Any:
            options = CallOptions(asynchronous, limit, None, None, "auto", name, root, False, factor)
            begun = run(self.comm, collective, inputs, outputs, lengths, options)
            return begun if asynchronous else begun.wait()

        return self._call(collective, opts, result, start, timeout=timeout)

    def _vectors(
        self,
        collective: str,
        opts: Any,
        wholes: Sequence[Tensor],
        parts: Sequence[Tensor],
        *,
        gathers: bool,
        op: Any = None,
    ) -> Work:
        """A collective on several tensors, of which each whole has a part for each rank; one for each dtype."""
        size, result = self.comm.size, wholes if gathers else parts
        name, factor = ("sum", None) if op is None else operation(op)
        flat_wholes, flat_parts = _alike(wholes, parts, "the tensors")
        for i, (whole, part) in enumerate(zip(flat_wholes, flat_parts, strict=True)):
            if whole.numel() != size * part.numel():
                raise ValueError(
                    f"tensor {i} has {part.numel()} elements for each of {size} ranks, and the tensor for all of them "
                    f"{whole.numel()}"
                )
        calls = []
        for dtype in dict.fromkeys(part.dtype for part in flat_parts):
            own = [part for part in flat_parts if part.dtype == dtype]
            of_ranks = [whole.view(size, -1) for whole in flat_wholes if whole.dtype == dtype]
            pieces = [whole[rank] for rank in range(size) for whole in of_ranks]
            calls.append((own, pieces, [piece.numel() for piece in pieces]))
        run = _on_device if on_device(flat_parts) else _on_host

        def start(asynchronous: Any, limit: float | None) -> Any:
            options = CallOptions(True, limit, None, None, "auto", name, 0, False, factor)
            begun = [
                run(self.comm, collective, *((own, pieces) if gathers else (pieces, own)), lengths, options)
                for own, pieces, lengths in calls
            ]
            return together(begun) if asynchronous else together(begun).wait()

        return self._call(collective, opts, result, start)

    # --- all_gather and gather ---

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None, timeout: Any = None) -> Work:
        """The tensors of all ranks, one after the other in one tensor."""
        [whole, part] = flats([output, input], "output and input")
        if whole.numel() != self.comm.size * part.numel():
            raise ValueError(
                f"output has {whole.numel()} elements; {self.comm.size} ranks times {part.numel()} of input are needed"
            )
        return self._call(
            "all_gather",
            opts,
            [output],
            lambda asynchronous, limit: self.comm.all_gather(
                part, out=whole, counts=part.numel(), async_op=asynchronous, timeout=limit
            ),
            timeout=timeout,
        )

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """The tensors of all ranks, each in one of a list; their lengths may differ."""
        outputs = output_tensors if isinstance(input_tensors, Tensor) else single(output_tensors, "output_tensors")
        inputs = [single(input_tensors, "input_tensors")]
        self._check_list(outputs, "output_tensors")
        pieces, own = _alike(outputs, inputs, "output_tensors and input")
        lengths = [piece.numel() for piece in pieces]
        if lengths[self.comm.rank] != own[0].numel():
            raise ValueError(
                f"output_tensors[{self.comm.rank}] has {lengths[self.comm.rank]} elements, and the input of this rank, "
                f"{self.comm.rank}, {own[0].numel()}"
            )
        # In torch the result is a list for each input tensor.
        return self._vector("all_gather", opts, [list(outputs)], own, pieces, lengths, timeout=timeout)

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Work:
        """Several tensors of all ranks: each in one of a list for its rank."""
        self._check_list(output_lists, "output_lists")
        own = flats(input_list, "input_list")
        pieces = [flats(row, f"output_lists[{rank}]") for rank, row in enumerate(output_lists)]
        for rank, row in enumerate(pieces):
            if len(row) != len(own) or any(a.dtype != b.dtype for a, b in zip(row, own, strict=True)):
                raise ValueError(f"output_lists[{rank}] has not as many tensors, of the same dtypes, as input_list")
        everything = [piece for row in pieces for piece in row]
        lengths = [piece.numel() for piece in everything]
        return self._vector("all_gather", opts, output_lists, own, everything, lengths)

    def all_gather_single_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Work:
        """Several tensors of all ranks, those of each one after the other in one tensor."""
        return self._vectors("all_gather", opts, output_lists, input_list, gathers=True)

    def gather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> Work:
        """The tensors of all ranks, in a list on the root."""
        if isinstance(opts, int):
            opts, root = None, opts
        target = opts.rootRank if root is None and opts is not None else root or 0
        [own] = inputs = [flat(single(input_tensors, "input_tensors"), "the input")]
        outputs: Any = []
        if target == self.comm.rank:
            outputs = output_tensors if isinstance(input_tensors, Tensor) else single(output_tensors, "output_tensors")
            self._check_list(outputs, "output_tensors")
        pieces, _ = _alike(outputs, inputs, "output_tensors and input")
        lengths = [piece.numel() for piece in pieces] or [own.numel()] * self.comm.size
        return self._vector("gather", opts, [outputs], inputs, pieces, lengths, root=target, timeout=timeout)

    # --- scatter and reduce_scatter ---

    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> Work:
        """Tensor i of the list of the root, on rank i."""
        if isinstance(opts, int):
            opts, root = None, opts
        source = opts.rootRank if root is None and opts is not None else root or 0
        output = single(output_tensors, "output_tensors")
        inputs: Any = []
        if source == self.comm.rank:
            inputs = input_tensors if isinstance(output_tensors, Tensor) else single(input_tensors, "input_tensors")
            self._check_list(inputs, "input_tensors")
        pieces, own = _alike(inputs, [output], "input_tensors and output")
        lengths = [piece.numel() for piece in pieces] or [own[0].numel()] * self.comm.size
        return self._vector("scatter", opts, [output], pieces, own, lengths, root=source, timeout=timeout)

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> Work:
        """Tensor i of the lists of all ranks, reduced, on rank i; the lengths of these may differ."""
        opts, op = _reduction(opts, op)
        output = single(output_tensors, "output_tensors")
        inputs = input_tensors if isinstance(output_tensors, Tensor) else single(input_tensors, "input_tensors")
        self._check_list(inputs, "input_tensors")
        pieces, own = _alike(inputs, [output], "input_tensors and output")
        lengths = [piece.numel() for piece in pieces]
        return self._vector("reduce_scatter", opts, [output], pieces, own, lengths, op=op, timeout=timeout)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None, timeout: Any = None) -> Work:
        """Part i of the tensors of all ranks, reduced, on rank i."""
        opts, op = _reduction(opts, None)
        name, factor = operation(op)
        [part, whole] = flats([output, input], "output and input")
        if whole.numel() != self.comm.size * part.numel():
            raise ValueError(
                f"input has {whole.numel()} elements; {self.comm.size} ranks times {part.numel()} of output are needed"
            )
        return self._call(
            "reduce_scatter",
            opts,
            [output],
            lambda asynchronous, limit: self.comm.reduce_scatter(
                whole, name, out=part, factor=factor, async_op=asynchronous, timeout=limit
            ),
            timeout=timeout,
        )

    def reduce_scatter_single_coalesced(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        """The same of several tensors."""
        opts, op = _reduction(opts, None)
        return self._vectors("reduce_scatter", opts, input_tensors, output_tensors, gathers=False, op=op)

    # --- all_to_all ---

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: Any = None,
    ) -> Work:
        """Rows of a tensor for each rank, and rows from each rank in another one."""
        [arriving, leaving] = flats([output, input], "output and input")
        sent = _split(input, input_split_sizes, self.comm.size, "input")
        got = _split(output, output_split_sizes, self.comm.size, "output")
        if output_split_sizes or input_split_sizes:
            return self._vector("all_to_all", opts, [output], [leaving], [arriving], [*sent, *got], timeout=timeout)
        if arriving.numel() != leaving.numel():
            raise ValueError(f"input has {leaving.numel()} elements and output {arriving.numel()}; give split sizes")
        return self._call(
            "all_to_all",
            opts,
            [output],
            lambda asynchronous, limit: self.comm.all_to_all(
                leaving, out=arriving, async_op=asynchronous, timeout=limit
            ),
            timeout=timeout,
        )

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Tensor i of a list goes to rank i, and one comes from there; their lengths may differ."""
        self._check_list(output_tensors, "output_tensors")
        self._check_list(input_tensors, "input_tensors")
        arriving, leaving = _alike(output_tensors, input_tensors, "output_tensors and input_tensors")
        lengths = [piece.numel() for piece in (*leaving, *arriving)]
        return self._vector("all_to_all", opts, output_tensors, leaving, arriving, lengths, timeout=timeout)

    def _check_list(self, tensors: Any, what: str) -> None:
        """Raises ValueError unless the list has an entry for each rank."""
        if len(tensors) != self.comm.size:
            raise ValueError(
                f"{what} has {len(tensors)} tensors; the group has {self.comm.size} ranks and each needs one"
            )

    # Names before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _alike(one: Sequence[Tensor], other: Sequence[Tensor], what: str) -> tuple[list[Tensor], list[Tensor]]:
    """Both lists flat, all on one device and of one dtype."""
    both = flats([*one, *other], what)
    return both[: len(one)], both[len(one) :]


def _split(tensor: Tensor, rows: Sequence[int], size: int, what: str) -> list[int]:
    """The elements of each part of a tensor that is split by rows; evenly where none are given."""
    length = tensor.shape[0] if tensor.dim() else 1
    if not rows:
        if length % size:
            raise ValueError(f"the {length} rows of {what} cannot be split evenly over {size} ranks; give split sizes")
        rows = [length // size] * size
    if len(rows) != size or sum(rows) != length or min(rows) < 0:
        raise ValueError(f"the split sizes of {what} are {list(rows)}; {size} that add up to {length} rows are needed")
    width = tensor.numel() // length if length else 0
    return [row * width for row in rows]


def _on_host(
    comm: Communicator,
    collective: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    lengths: Sequence[int],
    options: CallOptions,
) -> EngineWork[Any]:
    """Starts a collective whose memory is a list of pieces."""
    targets = arrays(outputs)
    sources = layout.separate_inputs(arrays(inputs), targets)
    if collective == "all_to_all":
        sent, got = [list(lengths[: comm.size])], [list(lengths[comm.size :])]
        per_rank = len(sources) > 1, len(targets) > 1
        begun = comm._start_negotiated(collective, sources, sent, got, targets, False, per_rank, None, options)
        return EngineWork(begun, None)
    return EngineWork(comm._start(collective, sources, targets, list(lengths), options), None)


def _on_device(
    comm: Communicator,
    collective: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    lengths: Sequence[int],
    options: CallOptions,
) -> EngineWork[Any]:
    """The same with tensors on a device, by the public calls: several pieces are packed first."""
    x = None if not inputs else inputs[0] if len(inputs) == 1 else torch.cat(list(inputs))
    out = None if not outputs else outputs[0] if len(outputs) == 1 else torch.cat(list(outputs))
    if collective == "all_to_all":
        counts: Any = list(lengths[: comm.size])
    else:
        tensors = len(lengths) // comm.size
        counts = [sum(lengths[i : i + tensors]) for i in range(0, len(lengths), tensors)]
    begun = comm._run_vector(
        collective,
        x,
        out,
        counts,
        True,
        options.timeout,
        None,
        None,
        "auto",
        options.op,
        options.root,
        False,
        options.factor,
    )

    def finish() -> None:
        begun.result()
        if out is not None and len(outputs) > 1:
            for target, piece in zip(outputs, out.split([t.numel() for t in outputs]), strict=True):
                target.copy_(piece)

    return EngineWork(begun._work, finish)
