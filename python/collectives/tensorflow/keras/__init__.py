"""For programs that use Horovod with Keras: ``import collectives.tensorflow.keras as hvd``.

>>> import collectives.tensorflow.keras as hvd
>>> hvd.init()
>>> model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size())), "mse")
>>> model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Most names are those of ``collectives.tensorflow``. ``allreduce``, ``allgather``, ``broadcast`` and ``reducescatter``
differ here: they accept a value and return a NumPy array, in eager mode. docs/horovod.md has a table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras as _keras

from .. import (
    Average,
    Compression,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    SyncBatchNormalization,
    allgather_object,
    barrier,
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from .._training import calls as _calls
from .._training.names import ABSENT as _ABSENT
from .._training.names import absent as _absent
from .._training.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from .._training.optimizer import distribute as _distribute
from . import callbacks

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "Product",
    "ReduceOp",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Combines a value over all ranks, by default their average.

    Args:
        value: a number, an array, or another value that TensorFlow can convert to a tensor; of the same shape and dtype
            on all ranks.
        Others: see ``collectives.tensorflow.allreduce``; the errors are the same, too.

    Returns:
        a NumPy array.

    Example:
        >>> hvd.allreduce(float(hvd.rank()), op=hvd.Sum)
    """
    return _calls.allreduce(
        value,
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    ).numpy()


def allgather(value: Any, name: str | None = None) -> Any:
    """Joins the values of all ranks along axis 0, in whose length they may differ, into a NumPy array.

    See ``collectives.tensorflow.allgather``.
    """
    return _calls.allgather(value, name).numpy()


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of rank ``root_rank``, as a NumPy array. See ``collectives.tensorflow.broadcast``."""
    return _calls.broadcast(value, root_rank, name).numpy()


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> Any:
    """Combines a value over all ranks; returns this rank's rows of the result, as a NumPy array.

    See ``collectives.tensorflow.reducescatter``.
    """
    return _calls.reducescatter(value, name=name, op=op).numpy()


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
) -> Any:
    """``keras.saving.load_model``, with an optimizer that reduces its gradients and continues from its saved state.

    The model may have been saved with a plain or with a distributed optimizer. Load it on all ranks, or on rank 0 and
    send the variables of model and optimizer to the others by ``broadcast_variables``.

    Args:
        filepath: of a complete model.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: as ``keras.saving.load_model`` takes them.
        compression: of the gradients.

    Returns:
        the model; one that was saved without an optimizer has none.

    Example:
        >>> model = hvd.load_model("model.keras")
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = _keras.saving.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        _distribute(model.optimizer, compression=compression, call="load_model")
        model.jit_compile = False  # XLA cannot compile our ops
    return model


def __getattr__(name: str) -> Any:
    if name in _ABSENT:
        raise _absent(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
