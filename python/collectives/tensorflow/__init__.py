"""TensorFlow: the cross-device ops of its strategies over the engine of this library, and a multi-worker strategy.

>>> import tensorflow as tf, collectives.tensorflow as ct
>>> strategy = tf.distribute.MirroredStrategy(cross_device_ops=ct.RingAllReduce())

Several workers, from ``TF_CONFIG``: ``ct.MultiWorkerMirroredStrategy()``. A strategy that exists: ``ct.plug(strategy,
ct.RingAllReduce())``. It needs TensorFlow 2.16 or later, which ``pip install 'collectives[tensorflow]'`` brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import tensorflow as _tensorflow  # noqa: F401
except ModuleNotFoundError as e:
    if e.name != "tensorflow":  # TensorFlow is there and lacks something itself
        raise
    raise ImportError(
        "collectives.tensorflow needs TensorFlow 2.16 or later, which is not installed here: "
        "pip install 'collectives[tensorflow]'"
    ) from e

from .cross_device_ops import HierarchicalCopyAllReduce, NcclAllReduce, ReductionToOneDevice, RingAllReduce
from .plug import plug

if TYPE_CHECKING:
    from .multi_worker import MultiWorkerMirroredStrategy

__all__ = [
    "HierarchicalCopyAllReduce",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "ReductionToOneDevice",
    "RingAllReduce",
    "plug",
]


def __getattr__(name: str) -> Any:
    if name == "MultiWorkerMirroredStrategy":  # on first use: replicas of one process do without it
        from .multi_worker import MultiWorkerMirroredStrategy

        return MultiWorkerMirroredStrategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
