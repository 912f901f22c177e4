"""Dense collectives, in which all ranks have arrays of the same lengths: all_reduce, reduce, broadcast, barrier.

The compiled methods handle one plain array. All other calls come here: lists, asynchronous calls, arrays that are not
contiguous, and wrong arguments, for which this module raises the errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays.operands import Operands
from ..work import Work
from .arguments import check_dtypes, check_factor, check_options, check_outputs, is_plain, plain, same_memory

if TYPE_CHECKING:
    from ..communicator import Communicator


def start(
    comm: Communicator,
    collective: str,
    x: Any,
    op: Any,
    root: Any,
    out: Any,
    algorithm: Any,
    deterministic: Any,
    async_op: Any,
    timeout: Any,
    name: Any,
    factor: Any,
) -> Any:
    """One collective call with any arguments: checks them, copies arrays that are not plain, and starts it."""
    op = "sum" if op is None else op
    root = 0 if root is None else root
    algorithm = "auto" if algorithm is None else algorithm
    check_options(comm.size, op, root, algorithm, timeout, name)
    check_factor(op, factor)
    # Whether this rank gets a result.
    written = collective != "reduce" or root == comm.rank
    operands = Operands([] if collective == "barrier" else x, out, written)
    inputs, outputs = operands.inputs, operands.outputs
    check_dtypes(inputs, collective, op)
    if out is not None:
        check_outputs(inputs, outputs)
    read_only = [i for i, a in enumerate(outputs) if not a.flags.writeable]
    if read_only and (written or out is not None):
        which = "the array" if len(outputs) == 1 else f"tensor {read_only[0]}"
        raise ValueError(f"{which} is read-only and would be written; pass a writable array, or out=")
    contiguous_in = [plain(a) for a in inputs]
    if outputs is inputs:
        contiguous_out = contiguous_in
    else:
        # An input that overlaps an output is copied: the output is written before all inputs are read.
        contiguous_in = [
            i.copy() if np.shares_memory(i, o) and not same_memory(i, o) else i
            for i, o in zip(contiguous_in, outputs, strict=True)
        ]
        contiguous_out = [o if is_plain(o) else np.empty(o.shape, o.dtype.newbyteorder("=")) for o in outputs]
    work = comm._start(
        collective,
        contiguous_in,
        contiguous_out,
        op,
        int(root),
        algorithm,
        bool(deterministic),
        timeout,
        name,
        bool(async_op),
        None,
        factor,
    )

    def finish() -> Any:
        for target, source in zip(outputs, contiguous_out, strict=True):
            if target is not source and written:
                target[...] = source
        return None if collective == "barrier" else operands.result()

    pending = Work(work, finish)
    return pending if async_op else pending.result()
