"""Callbacks of ``model.fit`` for training on several ranks; use the same ones on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .._training import variables, world
from .._training.names import Average, absent, check_process_set, global_process_set
from .._training.reducing import reduce_all

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Broadcasts the weights and the optimizer's variables of rank ``root_rank`` when a training begins.

    It does so before the first batch if the model is built on all ranks, for example if it has an Input or was loaded;
    it then also builds the optimizer. Otherwise it broadcasts after the first batch, as Horovod does; the ranks have
    then computed the gradients of that batch at different weights. Metrics, and seeds of layers such as Dropout, are
    not broadcast.

    Args:
        root_rank: the same on all ranks.
        device: for Horovod's programs; not used.
        local_variables: variables, or layers, that keep the values of their rank, such as those of
            ``PartialDistributedOptimizer``.

    Raises:
        When the training begins: as ``broadcast_variables``.

    Example:
        >>> model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._local_variables = list(local_variables or ())
        self._done = self._tried = False

    def register_local_var(self, variable: Any) -> None:
        """Excludes this variable from the broadcast."""
        self._local_variables.append(variable)

    def on_train_begin(self, logs: Any = None) -> None:
        """Resets the state, so that each training broadcasts."""
        self._done = self._tried = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Broadcasts before the first batch, if the model is built on all ranks."""
        if self._tried:
            return
        self._tried = True
        if all(variables.allgather_object(bool(self.model.built))):
            optimizer = self.model.optimizer
            if optimizer is not None and not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first batch, if that was not possible before."""
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        self._done = True
        chosen = list(self.model.weights)
        known = {id(variable) for variable in chosen}
        optimizer = self.model.optimizer
        chosen += [v for v in getattr(optimizer, "variables", ()) if id(v) not in known]
        local = {id(variables.plain(one)) for v in self._local_variables for one in getattr(v, "variables", [v])}
        variables.broadcast_variables([v for v in chosen if id(variables.plain(v)) not in local], self.root_rank)


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics of an epoch over all ranks, for the callbacks after it and for ``History``.

    All metrics are reduced in one collective, as float64. Every rank has the same weight, whatever its number of
    examples. Put it before callbacks that use a metric, such as ``ReduceLROnPlateau`` or ``ModelCheckpoint``.

    Args:
        device: for Horovod's programs; not used.
        process_set: ``global_process_set``.

    Raises:
        tf.errors.FailedPreconditionError: ranks have different metrics at the end of an epoch; the text names both.
    """

    def __init__(self, device: str = "", process_set: Any = global_process_set) -> None:
        check_process_set(process_set)
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages ``logs`` in place."""
        numbers = {name: np.asarray(value) for name, value in sorted((logs or {}).items())}
        numbers = {name: value for name, value in numbers.items() if value.dtype.kind in "biuf"}
        if not numbers:
            return
        tensors = [tf.constant(value, tf.float64) for value in numbers.values()]
        averages = reduce_all(world.group(), tensors, list(numbers), Average, call="MetricAverageCallback")
        for name, average in zip(numbers, averages, strict=True):
            logs[name] = average.numpy() if average.shape.rank else float(average)


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to ``initial_lr`` times ``multiplier`` in some of the epochs.

    You can use several of these callbacks for different epochs: outside of its epochs, each leaves the rate as it is.

    Args:
        initial_lr: the rate that is multiplied.
        multiplier: a number, or a function of the epoch, which starts at 0; with ``staircase=False`` of a float.
        start_epoch, end_epoch: the first epoch, and the first one after.
        staircase: whether the rate changes only with epochs, or else with each batch. A number changes with epochs.
        momentum_correction: whether the velocity in ``SGD`` and ``RMSprop`` is scaled with the rate when the rate
            changes (Goyal et al. 2017, "Accurate, Large Minibatch SGD"). Horovod changes ``momentum`` for one batch
            instead, which is the same without ``nesterov``; in Keras 3 it is a constant of the compiled step. The state
            of Adam and others does not depend on the rate.
        steps_per_epoch: batches; needed with ``staircase=False`` where Keras does not know it, as for a generator.

    Raises:
        TypeError: ``initial_lr`` is no number.
        ValueError: when the training begins: the number of batches is not known, or the optimizer has a
            ``LearningRateSchedule`` of its own.

    Example:
        >>> hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=1e-1, start_epoch=30, end_epoch=60)
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if isinstance(initial_lr, bool) or not isinstance(initial_lr, int | float | np.number):
            raise TypeError(f"{name}: initial_lr is {initial_lr!r}; a number is accepted, the learning rate")
        self.initial_lr = float(initial_lr)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.multiplier: Callable[[float], float] = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds the number of batches in an epoch, and checks that the rate can be set."""
        name = type(self).__name__
        _learning_rate(self.model.optimizer, name)
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise ValueError(f"{name}: the number of batches in an epoch is not known; pass steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Stores the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate."""
        ended = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or ended:
            return
        if not self.staircase:
            assert self.steps_per_epoch
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the rate to ``logs``, as ``lr``."""
        if logs is not None:
            logs["lr"] = _learning_rate(self.model.optimizer, type(self).__name__)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old = _learning_rate(optimizer, type(self).__name__)
        new = self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and old > 0.0 and new != old:
            for velocity in _velocities(optimizer):
                velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate, batch by batch, from ``initial_lr / size()`` to ``initial_lr`` in the first epochs.

    Args:
        initial_lr: the rate afterwards: that for a single rank times ``size()``.
        warmup_epochs: the number of these epochs.
        momentum_correction, steps_per_epoch: see ``LearningRateScheduleCallback``; the errors are the same, too.
        verbose: 1: print a line when it is done.

    Example:
        >>> hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.01 * hvd.size(), warmup_epochs=3)
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch
            done = (epoch + 1.0 / self.steps_per_epoch) / warmup_epochs  # 1 in the last batch
            return (done * (world.size() - 1) + 1.0) / world.size()

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the rate to ``logs``, as ``lr``."""
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and epoch + 1 == self.end_epoch:
            rate = _learning_rate(self.model.optimizer, type(self).__name__)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def _learning_rate(optimizer: Any, name: str) -> float:
    """The current rate. Raises ``ValueError`` where it cannot be set."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(inner, "_learning_rate", None)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) or (
        callable(rate) and not isinstance(rate, keras.Variable)
    ):
        raise ValueError(
            f"{name}: the learning rate of '{inner.name}' is {rate!r}, which cannot be set; make the optimizer with a "
            "number"
        )
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def _velocities(optimizer: Any) -> list[Any]:
    """The variables of an optimizer that are proportional to the learning rate."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(optimizer, keras.optimizers.SGD | keras.optimizers.RMSprop):
        return []
    kept = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    return [variable for variable in kept if variable is not None]


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """``keras.callbacks.ModelCheckpoint`` of the best model so far; rank 0 writes it.

    Rank 0 decides by its metrics: put a ``MetricAverageCallback`` before it, so that they are averages of all ranks.

    Args:
        monitor, verbose, save_weights_only, mode, save_freq: see ``keras.callbacks.ModelCheckpoint``.
        filepath: a name that ends with ``.keras``, or with ``.weights.h5`` if only weights are saved. You can also set
            it later, before the training begins.

    Raises:
        ValueError: when the training begins: ``filepath`` is not set.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        *,
        filepath: Any = None,
    ) -> None:
        unset = "unset.weights.h5" if save_weights_only else "unset.keras"
        super().__init__(
            filepath=unset if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks that ``filepath`` is set."""
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint: filepath is not set; pass a name that ends with .keras")
        super().on_train_begin(logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Writes, on rank 0."""
        if world.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes, on rank 0."""
        if world.rank() == 0:
            super().on_epoch_end(epoch, logs)


def __getattr__(name: str) -> Any:
    if name in ("CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"):
        raise absent("elastic")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
