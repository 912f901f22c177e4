"""The processes of bench/tensorflow_step.py that load TensorFlow. They execute commands of the starting process.

One process holds all contenders for 2 replicas, another those for 8 (one cannot hold both: TensorFlow's collective ops
take the second group for the first). Of workers there are three pairs of processes: TensorFlow's own strategy, ours
over shared memory, and ours over TCP.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_BARRIER_TIMEOUT = 60.0


class Barrier:
    """For two workers, in memory that both have mapped: none starts its clock before the other is there."""

    def __init__(self, counters: Any, index: int) -> None:
        self._counters = counters
        self._index = index

    def __call__(self) -> None:
        """Waits for the other."""
        self._counters[self._index] += 1
        mine = self._counters[self._index]
        end = time.monotonic() + _BARRIER_TIMEOUT
        while self._counters[1 - self._index] < mine:
            os.sched_yield()
            if time.monotonic() > end:
                raise TimeoutError(f"the other worker did not come to a barrier within {_BARRIER_TIMEOUT:g} s")


def main(connection: Connection, environment: dict[str, str], kind: str, counters: Any, index: int, log: str) -> None:
    """Answers commands until the connection ends or says "stop". What fails is sent back as text."""
    # Hides TensorFlow's messages about drivers and instruction sets, unless this fails.
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)  # before TensorFlow reads it
    wait = Barrier(counters, index) if counters is not None else _no_wait
    contenders: dict[tuple[str, str], Any] = {}
    try:
        contenders = replicas(int(kind.split()[0])) if kind.endswith("replicas") else worker(kind)
        connection.send(("done", sorted(contenders)))
        while True:
            command, *arguments = connection.recv()
            if command == "stop":
                break
            connection.send(("done", _execute(command, contenders, wait, *arguments)))
    except EOFError:
        pass  # the starting process is gone
    except BaseException:
        connection.send(("failed", traceback.format_exc()))
        raise


def _no_wait() -> None:
    pass


def _execute(command: str, contenders: dict[tuple[str, str], Any], wait: Callable[[], None], *arguments: Any) -> Any:
    if command == "time":
        key, part, iterations, fresh = arguments
        contender = contenders[key]
        if part == "step":
            return contender.time_steps(iterations, wait)
        return contender.time_reductions(iterations, wait, fresh)
    before = _moved()
    if command == "losses":
        result = contenders[arguments[0]].losses()
    else:
        assert command == "check", command
        key, scale = arguments
        result = contenders[key].count_wrong(scale)
    moved = {name: total - before.get(name, 0) for name, total in _moved().items()}
    return result, {name: n for name, n in moved.items() if n}


def _moved() -> dict[str, int]:
    """The bytes that our engine has moved so far: over replicas, and by transport."""
    from collectives.tensorflow import _job, _ops
    from collectives.tensorflow._training import world

    moved = {"replicas": _ops.replica_bytes()}
    for group in [*(group for _, group in _job._jobs), *world._groups]:
        for transport, count in group.communicator.bytes_by_transport().items():
            moved[transport] = moved.get(transport, 0) + count
    return moved


def replicas(n: int) -> dict[tuple[str, str], Any]:
    """All contenders on n logical CPUs of this process, by group and name."""
    import collectives.tensorflow as ours
    import tensorflow as tf
    from tensorflow_contenders import UnderDTensor, UnderStrategy

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * n)
    devices = [f"CPU:{i}" for i in range(n)]
    ways: dict[str, Any] = {
        "tf one device": tf.distribute.ReductionToOneDevice(),
        "tf hierarchical copy": tf.distribute.HierarchicalCopyAllReduce(),
        "tf default": None,  # TensorFlow's collective ops, as a ring
        "one device": ours.ReductionToOneDevice(),
        "hierarchical copy": ours.HierarchicalCopyAllReduce(),
        "ring": ours.RingAllReduce(),
    }
    made: dict[str, Any] = {
        name: UnderStrategy(tf.distribute.MirroredStrategy(devices, cross_device_ops=ops)) for name, ops in ways.items()
    }
    made["no all-reduce"] = UnderStrategy(tf.distribute.MirroredStrategy(devices), reduces=False)
    made["tf dtensor"] = UnderDTensor(n)
    return {(f"{n} replicas", name): contender for name, contender in made.items()}


def worker(kind: str) -> dict[tuple[str, str], Any]:
    """The contenders of a pair of workers: "tf", or a transport of ours."""
    import tensorflow as tf
    from tensorflow_contenders import UnderStrategy, UnderTape

    if kind == "tf":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        return {
            ("2 workers", "tf ring"): UnderStrategy(strategy),
            ("2 workers", "no all-reduce"): UnderStrategy(strategy, reduces=False),
        }
    import collectives.tensorflow as ours
    from collectives.tensorflow import _job

    strategy = UnderStrategy(ours.MultiWorkerMirroredStrategy())
    # In the same two processes, so that both use the same cores.
    ours.init(comm=_job._jobs[0][1].communicator.dup())
    return {("2 workers", kind): strategy, ("2 workers", f"{kind} tape"): UnderTape(ours)}
