"""TensorFlow on the engine of this library: cross-device ops for its strategies, and a multi-worker strategy.

>>> import tensorflow as tf, collectives.tensorflow as ct
>>> strategy = tf.distribute.MirroredStrategy(cross_device_ops=ct.RingAllReduce())

For several workers, from ``TF_CONFIG``, use ``ct.MultiWorkerMirroredStrategy()``; to change a strategy that exists,
``ct.plug(strategy, ct.RingAllReduce())``.

Programs for Horovod and SMDDP, with one process for each rank, change their import line; the names are the same:

>>> import collectives.tensorflow as hvd
>>> hvd.init()
>>> tape = hvd.DistributedGradientTape(tape)

docs/horovod.md has a table of them; ``collectives.tensorflow.keras`` has the callbacks.

It needs TensorFlow 2.16 or later, which ``pip install 'collectives-comm[tensorflow]'`` brings.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from .._distribution import install_command as _install_command

try:
    import tensorflow as _tensorflow  # noqa: F401
except ModuleNotFoundError as e:
    if e.name != "tensorflow":  # TensorFlow is installed, but one of its own imports fails
        raise
    raise ImportError(
        "collectives.tensorflow needs TensorFlow 2.16 or later, which is not installed here: "
        + _install_command("tensorflow")
    ) from e

from ._training import gradients as _gradients  # noqa: F401  (registers them)
from ._training.calls import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    oob_allreduce,
    overlap,
    reducescatter,
)
from ._training.names import ABSENT as _ABSENT
from ._training.names import Average, Compression, Max, Min, Product, ReduceOp, Sum, global_process_set
from ._training.names import absent as _absent
from ._training.tape import DistributedGradientTape, PartialDistributedGradientTape
from ._training.variables import (
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
)
from ._training.world import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    rocm_built,
    shutdown,
    size,
    size_op,
)
from .cross_device_ops import HierarchicalCopyAllReduce, NcclAllReduce, ReductionToOneDevice, RingAllReduce
from .plug import plug

if TYPE_CHECKING:
    from ._training.batch_norm import SyncBatchNormalization
    from ._training.optimizer import DistributedOptimizer, PartialDistributedOptimizer
    from .multi_worker import MultiWorkerMirroredStrategy

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HierarchicalCopyAllReduce",
    "Max",
    "Min",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "Product",
    "ReduceOp",
    "ReductionToOneDevice",
    "RingAllReduce",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "oob_allreduce",
    "overlap",
    "plug",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
]

# Imported on first use: some need Keras, which not every program uses.
_LATER = {
    "DistributedOptimizer": "._training.optimizer",
    "MultiWorkerMirroredStrategy": ".multi_worker",
    "PartialDistributedOptimizer": "._training.optimizer",
    "SyncBatchNormalization": "._training.batch_norm",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name], __name__), name)
    if name == "keras":
        return importlib.import_module(".keras", __name__)
    if name == "tensorflow":  # SMDDP's programs also write sdp.tensorflow.rank()
        return sys.modules[__name__]
    if name in _ABSENT:
        raise _absent(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
