// Docstrings of the methods of _core.Communicator: the keywords that they share, and the long one.
#pragma once

#define SHARED_KEYWORDS "algorithm='auto', deterministic=False, async_op=False, timeout=None, name=None, stream=None"

namespace collectives {

inline constexpr const char* kAllReduceDoc =
    "all_reduce($self, x, op='sum', *, out=None, factor=None, " SHARED_KEYWORDS
    ")\n--\n\n"
    R"doc(Reduces ``x`` over all ranks; every rank gets the result, with the same bits.

Args:
    x: an array, or a list of arrays of one dtype, which is one fused collective; of the same shapes on all ranks.
        It is reduced in place where it can be: arrays that never change, as those of JAX, give a new array.
    op: "sum", "avg" (not for integers), "prod", "min", "max", "premul_sum"; and, as NumPy has them, "logical_and",
        "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor".
    out: where the result goes, of the same shapes and dtype; ``x`` is then left alone.
    factor: for "premul_sum", by which ``x`` of this rank is multiplied first.
    algorithm: "auto", or the name of one; docs/using.md has a table.
    deterministic: whether values are combined in one order that does not depend on sizes, lists or transports.
    async_op: whether a ``Work`` is returned at once. Leave the arrays alone until it is done.
    timeout: seconds; by default that of the communicator.
    name: what errors and the recorder call it.
    stream: of CUDA, for arrays on a device, in whose order they are read and written; by default the current one
        of their library.

Returns:
    ``out`` where it is given, else ``x`` (or the new array); with ``async_op`` a ``Work`` whose ``result()`` is that.

Raises:
    TypeError, ValueError: the call is wrong by itself. Nothing was sent, and the communicator goes on.
    MismatchError: ranks disagree about the call; all of them raise it.
    PeerError: a rank died or left. DeadlineError: one did not come within ``timeout``.
    ClosedError, ForkedError: the communicator is closed, or belongs to the parent of this process.
    After these the communicator cannot be used any more, but for ``shrink``.

Example:
    >>> gradient = np.full(1000, comm.rank, np.float32)
    >>> comm.all_reduce(gradient, op="avg")
    >>> total = comm.all_reduce([w, b], out=[np.empty_like(w), np.empty_like(b)]))doc";

}  // namespace collectives
