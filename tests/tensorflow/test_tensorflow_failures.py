"""What workers get when one of them disagrees, dies, never comes or goes away: an error in time, and a clean exit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tf_worker_checks as checks
from pool import NOTICED
from served import say
from tf_workers import TASKS, Workers, forget, forget_all_but_latest, make, strategy

TIMEOUT = 4.0  # seconds, of collectives where a worker is missing
LATE = NOTICED  # seconds that noticing and telling may take beyond it
ONE_THREAD = {"TF_NUM_INTEROP_THREADS": "1"}


@pytest.fixture
def start() -> Iterator[Callable[..., Workers]]:
    made: list[Workers] = []

    def start(**settings: Any) -> Workers:
        made.append(Workers(variables=ONE_THREAD, **settings))
        return made[-1]

    yield start
    for workers in made:
        workers.destroy()


def reduce_unlike(what: str) -> None:
    """A sum whose tensor is not alike on the workers."""
    import tensorflow as tf

    s = strategy()
    alike = what not in ("shape", "dtype") or checks.rank() == 0
    shape = [4, 3] if alike or what == "dtype" else [3, 4]  # of the same size, so that only the shape differs
    value = tf.ones(shape, tf.float32 if alike or what == "shape" else tf.int32)

    @tf.function
    def run() -> Any:
        def in_replica() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", [tf.identity(value, name="suspect"), tf.ones([5])])

        return s.run(in_replica)

    run()


def variable_unlike() -> None:
    """A variable whose initial value has another shape on each worker."""
    import tensorflow as tf

    with strategy().scope():
        tf.Variable(tf.zeros([2 + checks.rank()]), name="weights")


def steps(timeout: float) -> float:
    """Reduces again and again until it fails; seconds from the start of the last step."""
    import tensorflow as tf

    s = make(timeout_seconds=timeout)

    @tf.function
    def step() -> Any:
        return s.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([100_000])))

    step()
    say("under way")
    while True:
        step()


def again() -> tuple[float, int]:
    """Another strategy, under which a variable is made and reduced; the sum, and how many replicas take part."""
    import tensorflow as tf

    s = make()
    with s.scope():
        v = tf.Variable(1.0 + checks.rank())  # that of rank 0 everywhere

    @tf.function
    def run() -> Any:
        return s.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", v + checks.rank()))

    return float(run()), s.num_replicas_in_sync


def never(timeout: float) -> None:
    make(timeout_seconds=timeout)


def drop_and_reduce(timeout: float) -> float:
    """Worker 1 drops its strategy, worker 0 reduces; what the error says, and the seconds that it took."""
    import tensorflow as tf

    s = make(timeout_seconds=timeout)
    s.reduce("SUM", tf.constant(1.0), axis=None)
    mine = checks.rank()
    if mine == 1:
        del s
        forget()
        return 0.0
    began = time.monotonic()
    try:
        s.reduce("SUM", tf.constant(1.0), axis=None)
    except tf.errors.DeadlineExceededError as error:
        assert "rank 1" in error.message, error.message
    return time.monotonic() - began


@pytest.mark.parametrize("what", ["shape", "dtype"])
def test_tensors_that_differ(start, what):
    from tensorflow.errors import InvalidArgumentError

    workers = start()
    for outcome in workers.outcomes(reduce_unlike, what):
        assert isinstance(outcome.error, InvalidArgumentError), outcome.text
        text = outcome.error.message
        assert "rank 0" in text and "rank 1" in text
        assert what == "dtype" or "Shape mismatch" in text, text
        assert "suspect" in text or what == "dtype", text  # with another dtype it is in another pack
        assert ("(4, 3)" in text and "(3, 4)" in text) or ("float32" in text and "int32" in text), text
    assert workers.leave() == [0, 0]


def test_another_strategy_after_a_mismatch(start):
    """More than once, and also when the last one failed on initial values."""
    from tensorflow.errors import InvalidArgumentError

    workers = start()
    for what in ("shape", "dtype", None):
        disagree = (reduce_unlike, what) if what else (variable_unlike,)
        for outcome in workers.outcomes(*disagree):
            assert isinstance(outcome.error, InvalidArgumentError), outcome.text
        assert workers.run(again) == [(3.0, 2)] * 2
        workers.run(forget_all_but_latest)
    assert workers.leave() == [0, 0]


def test_no_other_strategy_without_a_worker(start):
    """Killed after the mismatch, so that the group cannot be renewed."""
    from tensorflow.errors import UnavailableError

    workers = start()
    workers.outcomes(reduce_unlike, "shape")
    first, second = workers.processes
    second.kill()
    assert second.process.wait() != 0
    first.tell((again, ()))
    outcome = first.outcome()
    assert isinstance(outcome.error, UnavailableError), outcome.text or outcome.value
    assert f"worker 1 at localhost:{workers.ports[1]}" in outcome.error.message
    assert workers.leave()[0] == 0


def unequal_devices() -> None:
    """Worker 1 has two logical CPUs, worker 0 one."""
    import tensorflow as tf

    devices = 1 + json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    make(devices=[f"CPU:{i}" for i in range(devices)])


def test_different_numbers_of_devices(start):
    workers = start()
    for outcome in workers.outcomes(unequal_devices):
        assert isinstance(outcome.error, ValueError), outcome.text
        text = str(outcome.error)
        assert "same number of devices" in text and "worker 0" in text and "has 1" in text and "has 2" in text
    assert workers.leave() == [0, 0]


def test_initial_values_that_differ(start):
    from tensorflow.errors import InvalidArgumentError

    workers = start()
    for outcome in workers.outcomes(variable_unlike):
        assert isinstance(outcome.error, InvalidArgumentError), outcome.text
        assert "weights" in outcome.error.message and "rank 1" in outcome.error.message
    assert workers.leave() == [0, 0]


def test_opposite_graph_orders(start):
    from tensorflow.errors import InvalidArgumentError

    workers = start()
    for outcome in workers.outcomes(checks.opposite_orders, False, limit=90):
        assert isinstance(outcome.error, InvalidArgumentError), outcome.text
    assert workers.leave() == [0, 0]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_is_killed_in_mid_step(start, victim):
    """Worker 0 is also the one in which TensorFlow's coordination service runs."""
    from tensorflow.errors import UnavailableError

    workers = start()
    workers.start(steps, 30.0)
    for worker in workers.processes:
        worker.event()
    survivor = workers.processes[1 - victim]
    workers.processes[victim].kill()
    killed = time.monotonic()
    outcome = survivor.outcome()
    assert isinstance(outcome.error, UnavailableError), outcome.text or outcome.error
    assert f"rank {victim}" in outcome.error.message
    assert outcome.ended - killed < LATE
    assert workers.leave()[1 - victim] == 0


@pytest.mark.parametrize("present", TASKS)
def test_a_worker_never_comes(start, present):
    from tensorflow.errors import DeadlineExceededError

    workers = start(started=[present])
    missing = 1 - TASKS.index(present)
    began = time.monotonic()
    (outcome,) = workers.outcomes(never, TIMEOUT)
    assert isinstance(outcome.error, DeadlineExceededError), outcome.text or outcome.error
    assert f"worker {missing} at localhost:{workers.ports[missing]}" in outcome.error.message
    assert outcome.ended - began < TIMEOUT + 30  # TensorFlow is imported first
    assert workers.leave() == [0]


def test_a_worker_that_drops_its_strategy_leaves_the_others_to_their_deadline(start):
    workers = start()
    took, nothing = workers.run(drop_and_reduce, TIMEOUT)
    assert TIMEOUT - 0.5 < took < TIMEOUT + LATE and nothing == 0
    assert workers.leave() == [0, 0]
