"""Dense collectives, in which all ranks have arrays of the same lengths: all_reduce, reduce, broadcast, scan, barrier.

The compiled methods handle one plain array. All other calls come here: lists, asynchronous calls, arrays that are not
contiguous, and wrong arguments, for which this module raises the errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays.operands import Operands
from ..work import Work
from .arguments import check_dtypes, check_options, check_outputs, gets_result, is_plain, plain, same_memory
from .options import CallOptions

if TYPE_CHECKING:
    from ..communicator import Communicator


def start(comm: Communicator, collective: str, x: Any, out: Any, options: CallOptions) -> Any:
    """One collective call with any arguments: checks them, copies arrays that are not plain, and starts it."""
    check_options(comm.size, options)
    written = gets_result(collective, options.root, comm.rank)
    operands = Operands([] if collective == "barrier" else x, out, written)
    inputs, outputs = operands.inputs, operands.outputs
    check_dtypes(inputs, collective, options.op)
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
    work = comm._start(collective, contiguous_in, contiguous_out, None, options)

    def finish() -> Any:
        for target, source in zip(outputs, contiguous_out, strict=True):
            if target is not source and written:
                target[...] = source
        nothing = collective == "barrier" or (collective == "exscan" and not written)
        return None if nothing else operands.result()

    pending = Work(work, finish)
    return pending if options.async_op else pending.result()
