"""Arguments of the training API other than tensors: reductions, compression, process sets; and names that it lacks."""

from __future__ import annotations

import enum
from typing import Any

import tensorflow as tf

__all__ = [
    "ABSENT",
    "Average",
    "Compression",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "absent",
    "check_process_set",
    "global_process_set",
]


class ReduceOp(enum.Enum):
    """How values are combined. ``Average``, ``Sum`` and so on are the same objects under Horovod's names."""

    AVERAGE = "avg"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "prod"


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT


class Compressor:
    """Casts floating tensors to another dtype for sending. Use one of ``Compression``, or a subclass."""

    dtype: tf.DType | None = None

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and the context for ``decompress``."""
        if cls.dtype is None or not tensor.dtype.is_floating:
            return tensor, None
        return tf.cast(tensor, cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """The tensor in its original dtype."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""


class FP16Compressor(Compressor):
    """float16: half the bytes, values up to 65504. The engine sums in float32 and rounds once."""

    dtype = tf.float16


class BF16Compressor(Compressor):
    """bfloat16: half the bytes, the range of float32, 8 bits of precision."""

    dtype = tf.bfloat16


class Compression:
    """Values for ``compression=``: ``none``, ``fp16`` or ``bf16``. Integers are never cast."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


class _World:
    """The process set of all ranks; there are no others."""

    process_set_id = 0

    def __repr__(self) -> str:
        return "global_process_set"


global_process_set = _World()


def check_process_set(process_set: Any) -> None:
    """Raises ``NotImplementedError`` for any but that of all ranks."""
    if process_set is not global_process_set and process_set not in (None, 0):
        raise NotImplementedError(
            f"process_set is {process_set!r}; process sets are not there yet, only global_process_set. Use "
            "collectives.Communicator.new_group(ranks), whose calls take eager tensors"
        )


_GROUPS = "process sets are not there yet. Use collectives.Communicator.new_group(ranks), which takes eager tensors"
_ELASTIC = (
    "elastic training is not there yet. Use collectives.Communicator.shrink() to continue without a rank that died, or "
    "keras.callbacks.BackupAndRestore and start again"
)
_TIMELINE = (
    "timelines are not there. Use the recorder: collectives.dump_recorder(file), docs/recorder.md, or TensorFlow's "
    "profiler, which shows the ops CollectivesStart and CollectivesWait"
)
_HOOK = "sessions and hooks of TensorFlow 1 are not supported. Use broadcast_variables(model.variables, root_rank=0)"

# Names of Horovod and SMDDP that are missing, and what to use instead.
ABSENT = {
    "Adasum": "adaptive summation is not there yet. Use op=Average, with the learning rate scaled for it",
    "BroadcastGlobalVariablesHook": _HOOK,
    "ProcessSet": _GROUPS,
    "add_process_set": _GROUPS,
    "broadcast_object_fn": "sessions of TensorFlow 1 are not supported. Use broadcast_object(obj, root_rank=0)",
    "data": "Horovod's data service is not there. Use that of TensorFlow: tf.data.experimental.service",
    "elastic": _ELASTIC,
    "gpu_available": "this API uses no GPU, since TensorFlow gives plug-ins no stream. Use tf.config",
    "join": (
        "join() is not there yet. Give all ranks equally many batches, for example by dataset.repeat().take(steps), "
        "or let a rank without data reduce zeros"
    ),
    "process_set": _GROUPS,
    "remove_process_set": _GROUPS,
    "run": "jobs are started from the command line: collectives run -n 4 train.py; from Python by collectives.spawn",
    "start_timeline": _TIMELINE,
    "stop_timeline": _TIMELINE,
}


def absent(name: str) -> NotImplementedError:
    """The error for the use of one of these names."""
    return NotImplementedError(f"collectives.tensorflow.{name}: {ABSENT[name]}")
