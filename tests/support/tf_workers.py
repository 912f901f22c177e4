"""Workers of a TF_CONFIG as real processes, which stay for many checks and leave by themselves: see `served`.

The functions that they run use `strategy()`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
from collections.abc import Iterable
from typing import Any

from served import Served, ServedJob, answer, begin, free_ports, portable

LIMIT = 120.0  # seconds for one call; tracing on a busy machine takes many
# Seconds from the end of main to that of the process. What this finds is a process that waits for another. To unload
# TensorFlow alone takes the interpreter 1.6 to 2 s; where six did so on two cores, up to 10 were seen.
LEAVING = 60.0
TASKS = (("worker", 0), ("worker", 1))
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
IMPORTED = ("tensorflow", "collectives.tensorflow", "pytest", "tf_workers")

# --- in the process of a worker -------------------------------------------------------------------------------------

_made: list[Any] = []
_devices: list[str] = []  # the logical CPUs, where a test has asked for several


def make(**options: Any) -> Any:
    """A new strategy of ours, on all devices; the first one is what `strategy` returns from then on."""
    tf: Any = importlib.import_module("tensorflow")
    ours: Any = importlib.import_module("collectives.tensorflow")
    ours_only = {name: options.pop(name) for name in ("cross_device_ops", "merge_indexed_slices") if name in options}
    ours_only["devices"] = options.pop("devices", _devices or None)
    options.setdefault("timeout_seconds", 60.0)
    made = ours.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(**options), **ours_only
    )
    _made.append(made)
    return made


def strategy() -> Any:
    """The strategy of this process."""
    return _made[0] if _made else make()


def forget() -> None:
    """Drops all strategies."""
    _made.clear()
    gc.collect()


def forget_all_but_latest() -> None:
    """Drops the strategies before the one that was made last."""
    del _made[:-1]
    gc.collect()


def group() -> Any:
    """The group of the engine in which this process is."""
    return importlib.import_module("collectives.tensorflow._job")._jobs[0][1]


def moved() -> int:
    """Bytes that the engine has carried for this process so far."""
    return sum(group().communicator.bytes_by_transport().values())


def starts(function: Any) -> int:
    """How many collectives a concrete function begins, in the functions that it calls too."""
    graphs = [function.graph.as_graph_def()]
    nodes = [*graphs[0].node, *(node for f in graphs[0].library.function for node in f.node_def)]
    return sum(node.op in ("CollectivesStart", "CollectivesStartParts") for node in nodes)


def serve(descriptor: int) -> None:
    """The life of a worker."""
    settings = begin(descriptor)
    tf: Any = importlib.import_module("tensorflow")
    if settings["devices"] > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * settings["devices"])
        _devices[:] = [f"CPU:{i}" for i in range(settings["devices"])]
    answer(_portable)


def _portable(error: BaseException) -> BaseException:
    """Errors of TensorFlow hold ops, which cannot be pickled; their class and their text can."""
    tf: Any = importlib.import_module("tensorflow")
    if isinstance(error, tf.errors.OpError):
        return type(error)(None, None, error.message)
    return portable(error)


# --- in the test ----------------------------------------------------------------------------------------------------


def _config(cluster: dict[str, list[str]], job: str, index: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


class Worker(Served):
    """One process. `task` is what it is called; `variables` of its environment say which part of a job it is."""

    def __init__(self, task: tuple[str, int], devices: int, variables: dict[str, str]) -> None:
        # A whole run of the tests may be made with few threads.
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("COLLECTIVES_", "TF_")) or name == "TF_NUM_INTEROP_THREADS"
        }
        environ.update(QUIET, **variables)
        super().__init__(f"{task[0]} {task[1]}", serve, IMPORTED, environ, QUIET, {"devices": devices}, LIMIT)


class Workers(ServedJob):
    """The processes of one cluster.

    Args:
        tasks: those that there are.
        started: those of them that are started; all by default.
        devices: logical CPUs of each.
        variables: of the environment.
    """

    def __init__(
        self,
        tasks: Iterable[tuple[str, int]] = TASKS,
        *,
        started: Iterable[tuple[str, int]] | None = None,
        devices: int = 1,
        variables: dict[str, str] | None = None,
    ) -> None:
        tasks = list(tasks)
        self.ports = free_ports(len(tasks))
        cluster: dict[str, list[str]] = {}
        for (job, _), port in zip(tasks, self.ports, strict=True):
            cluster.setdefault(job, []).append(f"localhost:{port}")
        super().__init__(
            [
                Worker((job, index), devices, {"TF_CONFIG": _config(cluster, job, index), **(variables or {})})
                for job, index in (tasks if started is None else started)
            ],
            LEAVING,
        )
