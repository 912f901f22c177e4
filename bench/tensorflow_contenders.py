"""What bench/tensorflow_step.py measures, in the processes that load TensorFlow: a model under a strategy.

A step is forward, backward, the all-reduce of all gradients by ``ReplicaContext.all_reduce`` and the update, in one
``tf.function``, as an optimizer of Keras does it. The all-reduce part is a ``tf.function`` that holds only the
batch-reduce of gradients of the model's shapes. They lie in variables, one on each device (constants would be folded,
and dozens of arguments take Python longer than TensorFlow takes for the rest), and are written anew before each call,
outside the time. All reduced values on all devices are its results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_model as model

Wait = Callable[[], None]


def forward(ws: Any, x: Any, labels: Any) -> Any:
    """The sum of the losses of these examples, over the size of the whole batch."""
    for i in range(0, len(ws), 2):
        x = tf.matmul(x, ws[i]) + ws[i + 1]
        if i + 2 < len(ws):
            x = tf.nn.relu(x)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)
    return tf.reduce_sum(each) / model.BATCH


class UnderStrategy:
    """The model under a strategy of ``tf.distribute``.

    Args:
        strategy: it is this process's part of `replicas` replicas.
        reduces: whether there is an all-reduce at all. Without, what is measured is what goes around it.
    """

    def __init__(self, strategy: Any, *, reduces: bool = True) -> None:
        self._strategy = strategy
        self._reduces = reduces
        self._replicas = strategy.num_replicas_in_sync
        with strategy.scope():
            self._variables = [tf.Variable(w) for w in model.weights()]
        x, labels = model.data()
        part = model.BATCH // self._replicas

        def spread(values: Callable[[int], Any]) -> Any:
            return strategy.experimental_distribute_values_from_function(
                lambda context: values(context.replica_id_in_sync_group)
            )

        self._x = spread(lambda r: tf.constant(x[r * part : (r + 1) * part]))
        self._labels = spread(lambda r: tf.constant(labels[r * part : (r + 1) * part]))
        self._base = [
            spread(lambda r, k=k: tf.constant(model.gradients(r)[k]))  # type: ignore[misc]
            for k in range(len(model.SHAPES))
        ]
        with strategy.scope():
            self._gradients = [
                tf.Variable(tf.zeros(shape), trainable=False, synchronization=tf.VariableSynchronization.ON_READ)
                for shape in model.SHAPES
            ]
        self._step = tf.function(self._trace_step)
        self._write = tf.function(self._trace_write)
        self._reduce = tf.function(self._trace_reduce).get_concrete_function()  # faster to call from Python

    def _trace_step(self) -> Any:
        def update(strategy: Any, gradients: Any) -> None:
            for variable, gradient in zip(self._variables, gradients, strict=True):
                strategy.extended.update(variable, lambda v, g: v.assign_sub(model.RATE * g), args=(gradient,))

        def of_replica(x: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = forward(self._variables, x, labels)
            gradients = tape.gradient(loss, self._variables)
            context = tf.distribute.get_replica_context()
            if self._reduces:
                gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            context.merge_call(update, args=(gradients,))
            return loss

        return self._strategy.experimental_local_results(self._strategy.run(of_replica, args=(self._x, self._labels)))

    def _trace_write(self, scale: Any) -> None:
        def of_replica(base: Any) -> None:
            for variable, values in zip(self._gradients, base, strict=True):
                variable.assign(values * scale)

        self._strategy.run(of_replica, args=(self._base,))

    def _trace_reduce(self) -> Any:
        gradients = self._strategy.run(lambda: [variable.read_value() for variable in self._gradients])
        reduced = gradients
        if self._reduces:
            reduced = self._strategy.extended.batch_reduce_to(
                tf.distribute.ReduceOp.SUM, list(zip(gradients, self._variables, strict=True))
            )
        return [one for value in reduced for one in self._strategy.experimental_local_results(value)]

    def losses(self) -> list[float]:
        """This process's part of the loss, of the first steps."""
        return [sum(float(loss) for loss in self._step()) for _ in range(model.CHECKED_STEPS)]

    def count_wrong(self, scale: float) -> int:
        """Elements of reduced gradients, over all devices of this process, that are not the sum."""
        if not self._reduces:
            return 0
        self._write(tf.constant(scale))
        found = self._reduce()
        here = len(self._strategy.experimental_local_results(self._base[0]))
        expected = [total for total in model.total(self._replicas, scale) for _ in range(here)]
        return sum(int(np.count_nonzero(value.numpy() != total)) for value, total in zip(found, expected, strict=True))

    def time_steps(self, iterations: int, wait: Wait) -> list[int]:
        """Nanoseconds of each step."""
        return _timed(_nothing, self._step, iterations, wait)

    def time_reductions(self, iterations: int, wait: Wait, fresh: bool) -> list[int]:
        """Nanoseconds of each batch-reduce, of gradients that are written anew before each, or always the same."""
        scales = [tf.constant(float(1 << i)) for i in range(4)]
        self._write(scales[0])
        write = (lambda i: self._write(scales[i % 4])) if fresh else _nothing
        return _timed(write, self._reduce, iterations, wait)


class UnderTape:
    """The model as in programs for Horovod: a plain loop whose tape reduces, and variables of one process.

    Args:
        horovod: the module collectives.tensorflow, initialized.
    """

    def __init__(self, horovod: Any) -> None:
        self._horovod = horovod
        rank, ranks = horovod.rank(), horovod.size()
        part = model.BATCH // ranks
        self._variables = [tf.Variable(w) for w in model.weights()]
        x, labels = (tf.constant(values[rank * part : (rank + 1) * part]) for values in model.data())
        self._x, self._labels = x, labels
        self._base = [tf.constant(g) for g in model.gradients(rank)]
        self._gradients = [tf.Variable(tf.zeros(shape), trainable=False) for shape in model.SHAPES]
        self._step = tf.function(self._trace_step)
        self._write = tf.function(self._trace_write)
        self._reduce = tf.function(self._trace_reduce).get_concrete_function()

    def _trace_step(self) -> Any:
        with tf.GradientTape() as tape:
            loss = forward(self._variables, self._x, self._labels)
        tape = self._horovod.DistributedGradientTape(tape, op=self._horovod.Sum)
        for variable, gradient in zip(self._variables, tape.gradient(loss, self._variables), strict=True):
            variable.assign_sub(model.RATE * gradient)
        return loss

    def _trace_write(self, scale: Any) -> None:
        for variable, values in zip(self._gradients, self._base, strict=True):
            variable.assign(values * scale)

    def _trace_reduce(self) -> Any:
        gradients = [variable.read_value() for variable in self._gradients]
        return self._horovod.grouped_allreduce(gradients, op=self._horovod.Sum)

    def losses(self) -> list[float]:
        """See ``UnderStrategy``."""
        return [float(self._step()) for _ in range(model.CHECKED_STEPS)]

    def count_wrong(self, scale: float) -> int:
        """See ``UnderStrategy``."""
        self._write(tf.constant(scale))
        expected = model.total(self._horovod.size(), scale)
        return sum(
            int(np.count_nonzero(value.numpy() != total)) for value, total in zip(self._reduce(), expected, strict=True)
        )

    def time_steps(self, iterations: int, wait: Wait) -> list[int]:
        """Nanoseconds of each step."""
        return _timed(_nothing, self._step, iterations, wait)

    def time_reductions(self, iterations: int, wait: Wait, fresh: bool) -> list[int]:
        """Nanoseconds of each all-reduce of a group; see ``UnderStrategy``."""
        scales = [tf.constant(float(1 << i)) for i in range(4)]
        self._write(scales[0])
        write = (lambda i: self._write(scales[i % 4])) if fresh else _nothing
        return _timed(write, self._reduce, iterations, wait)


class UnderDTensor:
    """The model with DTensor: replicated weights, the batch in as many parts as there are devices."""

    def __init__(self, replicas: int) -> None:
        from tensorflow.experimental import dtensor

        mesh = dtensor.create_mesh([("batch", replicas)], devices=[f"CPU:{i}" for i in range(replicas)])
        replicated = {rank: dtensor.Layout.replicated(mesh, rank=rank) for rank in (1, 2)}
        self._variables = [
            dtensor.DVariable(dtensor.copy_to_mesh(tf.constant(w), replicated[w.ndim])) for w in model.weights()
        ]
        x, labels = model.data()
        self._x, self._labels = (
            dtensor.pack(
                [tf.constant(part) for part in np.split(values, replicas)],
                dtensor.Layout(["batch", *[dtensor.UNSHARDED] * (values.ndim - 1)], mesh),
            )
            for values in (x, labels)
        )
        self._step = tf.function(self._trace_step)

    def _trace_step(self) -> Any:
        with tf.GradientTape() as tape:
            loss = forward(self._variables, self._x, self._labels)
        for variable, gradient in zip(self._variables, tape.gradient(loss, self._variables), strict=True):
            variable.assign_sub(model.RATE * gradient)
        return loss

    def losses(self) -> list[float]:
        """The loss of the first steps."""
        return [float(self._step().numpy()) for _ in range(model.CHECKED_STEPS)]

    def count_wrong(self, scale: float) -> int:
        """Raises: DTensor has no all-reduce to call separately."""
        return 0

    def time_steps(self, iterations: int, wait: Wait) -> list[int]:
        """Nanoseconds of each step."""

        # DTensor returns before the step is done.
        return _timed(_nothing, lambda: self._step().numpy(), iterations, wait)


def _nothing(_: int) -> None:
    pass


def _timed(prepare: Callable[[int], None], function: Callable[[], Any], iterations: int, wait: Wait) -> list[int]:
    times = []
    now = time.perf_counter_ns
    for i in range(iterations):
        prepare(i)
        wait()
        begin = now()
        result = function()
        times.append(now() - begin)
        del result  # so that freeing it is not in the next time
    return times
