"""TensorFlow's own collectives between processes: its ring over gRPC, on one host too.

It is installed, and then used, by

    python bench/peers/tensorflow.py --install [DIRECTORY]
    python bench/allreduce.py --vs tensorflow[=DIRECTORY]

Timed is a `tf.function` of one op, `tf.raw_ops.CollectiveReduceV2`, until its result is there. That is the op which
`MultiWorkerMirroredStrategy` puts into graphs, without the new key that the strategy has all workers agree on in each
call; small tensors take about 1.4 times as long there. TensorFlow reads the array of the bench as it is, without a
copy, by DLPack. The result is a new tensor.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from peers import install, launched
from peers.launched import abort

if TYPE_CHECKING:
    from cases import Array, Config


__all__ = [
    "LEVELS",
    "NAME",
    "abort",
    "command",
    "fetch",
    "join",
    "locate",
    "prepare",
    "unsupported",
    "ways",
]

NAME = "tensorflow"
LEVELS = ("python",)
REQUIREMENTS = ["tensorflow>=2.21"]

_OPS = {"sum": "Add", "avg": "Add", "prod": "Mul", "min": "Min", "max": "Max"}
_REDUCED = ("bfloat16", "float16", "float32", "float64", "int32", "int64")
_SENT = ("bool", "float16", "float32", "float64", "int32", "int64")
_SUBDIVIDED_FROM = 8 << 20  # bytes
_SHARED = 1024  # bytes that hold what rank 0 shares
_GROUP = 1 << 20  # above the keys that TensorFlow uses itself, which count from 1

_last: dict[str, Any] = {}  # the result of the last call
_instances = itertools.count(_GROUP)  # all ranks make the same functions in the same order
_world: dict[str, int] = {}


def locate(directory: Path | None) -> Path:
    """See `peers.Peer`."""
    return launched.locate(NAME, directory)


def unsupported(config: Config) -> str:
    """See `peers.Peer`."""
    if config.collective not in ("all_reduce", "broadcast"):
        return f"{config.collective} of TensorFlow is not measured"
    if config.ranks < 2:
        return "TensorFlow's collectives between processes need at least 2 ranks"
    if config.dtype not in (_REDUCED if config.collective == "all_reduce" else _SENT):
        return f"TensorFlow has no {config.collective} of {config.dtype}"
    return ""


def command(environment: Path, config: Config, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """See `peers.Peer`."""
    return launched.command(environment, config, program, {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"})


def join() -> tuple[int, int, Callable[[Any], Any]]:
    """See `peers.Peer`."""
    import numpy as np
    import tensorflow as tf

    rank, size, ports = launched.place()
    addresses = [f"127.0.0.1:{port}" for port in ports]
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    # As many threads as a rank has cores: more would compete with those of other ranks.
    tf.config.threading.set_intra_op_parallelism_threads(launched.cores_each(size))
    experimental = tf.distribute.experimental
    ring = experimental.CommunicationOptions(implementation=experimental.CommunicationImplementation.RING)
    tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)  # connects the workers
    _world.update(rank=rank, size=size)

    def share(value: Any) -> Any:
        words = np.frombuffer(json.dumps(value).encode().ljust(_SHARED), np.int32)
        return json.loads(_function("broadcast", "", "int32", words.size, -1)(tf.constant(words)).numpy().tobytes())

    return rank, size, share


def ways(collective: str, nbytes: int, ranks: int) -> list[str]:
    """See `peers.Peer`. "subdivided" sends a tensor as several rings, which overlap; below 8 MiB that gains nothing."""
    if collective == "all_reduce" and nbytes >= _SUBDIVIDED_FROM:
        return ["default", "subdivided"]
    return ["default"]


def prepare(way: str, collective: str, x: Array, op: str, *out: Array) -> Callable[[], object]:
    """See `peers.Peer`."""
    import numpy as np
    import tensorflow as tf

    function = _function(collective, op, x.dtype.name, x.size, 8 if way == "subdivided" else -1)
    raw = x.view(np.uint16) if x.dtype.name == "bfloat16" else x  # NumPy does not export bfloat16 by DLPack
    tensor = tf.experimental.dlpack.from_dlpack(raw.__dlpack__())

    def call() -> None:
        _last["result"] = function(tensor)

    return call


@functools.cache
def _function(collective: str, op: str, dtype: str, count: int, subdivisions: int) -> Any:
    """The collective on a tensor of that length, traced. `subdivisions`: the most there may be, -1 for none."""
    import tensorflow as tf

    instance = next(_instances)
    keys = {"group_size": _world["size"], "group_key": _GROUP, "instance_key": instance, "communication_hint": "ring"}

    def reduce(x: Any) -> Any:
        if dtype == "bfloat16":
            x = tf.bitcast(x, tf.bfloat16)
        return tf.raw_ops.CollectiveReduceV2(
            input=x,
            ordering_token=[],
            merge_op=_OPS[op],
            final_op="Div" if op == "avg" else "Id",
            max_subdivs_per_device=subdivisions,
            **keys,
        )

    def broadcast(x: Any) -> Any:
        if _world["rank"] == 0:
            return tf.raw_ops.CollectiveBcastSendV2(input=x, **keys)
        return tf.raw_ops.CollectiveBcastRecvV2(T=x.dtype, shape=[count], **keys)

    traced = tf.function(reduce if collective == "all_reduce" else broadcast, autograph=False)
    return traced.get_concrete_function(tf.TensorSpec([count], tf.uint16 if dtype == "bfloat16" else dtype))


def fetch(x: Array) -> None:
    """See `peers.Peer`."""
    import numpy as np

    np.copyto(x, _last["result"].numpy())


if __name__ == "__main__":
    sys.exit(install.main(NAME, REQUIREMENTS))
