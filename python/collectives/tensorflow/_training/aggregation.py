"""Sums the gradients of several calls of an optimizer, and reduces them over the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from .._indexed_slices import flattened
from .gradient_reduction import GradientReduction, key_of, variables_of_layers

__all__ = ["Aggregation", "trained_by"]


class Aggregation:
    """The gradients of one optimizer.

    Args:
        backward_passes_per_step: number of calls of ``step`` for one update.
        average_aggregated_gradients: whether the sum of those calls is divided by their number.
        local_layers: layers whose gradients stay on their rank.
        call: the name of the caller, for errors.
        options: of ``GradientReduction``.

    Attributes:
        counter: calls since the last update, a variable.
        reduction: over the ranks.
    """

    def __init__(
        self,
        *,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        local_layers: Any = None,
        call: str,
        **options: Any,
    ) -> None:
        if isinstance(backward_passes_per_step, bool) or not isinstance(backward_passes_per_step, int):
            raise TypeError(f"{call}: backward_passes_per_step is {backward_passes_per_step!r}; an integer is accepted")
        if backward_passes_per_step < 1:
            raise ValueError(f"{call}: backward_passes_per_step is {backward_passes_per_step}; 1 or more is accepted")
        self.reduction = GradientReduction(call=call, **options)
        self._passes = backward_passes_per_step
        self._average = average_aggregated_gradients
        self._local_layers = local_layers
        with tf.init_scope():
            self.counter = tf.Variable(0, dtype=tf.int64, trainable=False, name="passes")
        self._sums: dict[int, _Dense | _Rows] = {}  # by the key of the model's variable
        self._inside = False

    def step(
        self, optimizer: Any, update: Callable[[Any, Any], None], gradients: Sequence[Any], variables: Any
    ) -> None:
        """Handles a call of ``optimizer.apply``: sums its gradients, and every k-th time reduces and applies them.

        Args:
            optimizer: the outermost optimizer, for example a ``LossScaleOptimizer`` around the distributed one.
            update: ``apply`` without a reduction.
            gradients, variables: as given to ``apply``.
        """
        gradients = list(gradients)
        if self._inside:  # an optimizer around this one has reduced the gradients already
            update(gradients, variables)
            return
        if variables is None:
            known = trained_by(optimizer) if optimizer.built else []
        else:
            known = variables = list(variables)
        if not gradients or len(gradients) != len(known) or all(gradient is None for gradient in gradients):
            update(gradients, variables)  # Keras raises the error
            return
        if not optimizer.built:
            with keras.name_scope(optimizer.name, caller=optimizer):
                optimizer.build(known)
        for variable in variables_of_layers(self._local_layers):
            self.reduction.register_local_source(variable)
        if self._passes == 1:
            self._reduce_and_update(update, gradients, known)
            return
        for gradient, variable in zip(gradients, known, strict=True):
            if gradient is not None:
                self._add(gradient, variable)
        self.counter.assign_add(1)

        def leave() -> Any:
            self.counter.assign(0)
            self._reduce_and_update(update, [self._pop(variable) for variable in known], known)
            return tf.constant(True)

        tf.cond(self.counter >= self._passes, leave, lambda: tf.constant(False))

    def _reduce_and_update(self, update: Callable[[Any, Any], None], gradients: list[Any], variables: Any) -> None:
        with self._marked():
            update(self.reduction.reduce(gradients, variables), variables)

    @contextlib.contextmanager
    def _marked(self) -> Iterator[None]:
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _add(self, gradient: Any, variable: Any) -> None:
        key = key_of(variable)
        if isinstance(gradient, tf.IndexedSlices) and self.reduction.sparse_as_dense:
            gradient = tf.convert_to_tensor(gradient)
        if key not in self._sums:
            kind = _Rows if isinstance(gradient, tf.IndexedSlices) else _Dense
            with tf.init_scope():
                self._sums[key] = kind(gradient.dtype, variable)
        self._sums[key].add(gradient)

    def _pop(self, variable: Any) -> Any:
        """The sum of a variable's gradients, reset to 0; None where there have been none.

        It is reset before the reduction, so a reduction that fails loses one step only.
        """
        held = self._sums.get(key_of(variable))
        return None if held is None else held.pop(self._passes if self._average else 1)


def trained_by(optimizer: Any) -> list[Any]:
    """The variables that an optimizer was built for; in older Keras, a wrapping optimizer does not store them."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return list(optimizer._trainable_variables)


class _Dense:
    """The sum of dense gradients."""

    def __init__(self, dtype: tf.DType, variable: Any) -> None:
        self._sum = tf.Variable(tf.zeros(variable.shape, dtype), trainable=False, name="sum_of_gradients")

    def add(self, gradient: Any) -> None:
        if isinstance(gradient, tf.IndexedSlices):
            self._sum.scatter_add(gradient)
        else:
            self._sum.assign_add(gradient)

    def pop(self, divisor: int) -> Any:
        total = self._sum.read_value()
        self._sum.assign(tf.zeros_like(total))
        return total if divisor == 1 else total / tf.cast(divisor, total.dtype)


class _Rows:
    """The rows of all gradients that are IndexedSlices, as one pass over a larger batch would give them.

    Rows of equal index are not summed, since optimizers square row by row.
    """

    def __init__(self, dtype: tf.DType, variable: Any) -> None:
        self._shape = tf.TensorShape(variable.shape)
        row = self._shape[1:]
        self._values = tf.Variable(tf.zeros([0, *row], dtype), trainable=False, shape=[None, *row], name="rows")
        self._indices = tf.Variable(tf.zeros([0], tf.int64), trainable=False, shape=[None], name="indices")

    def add(self, gradient: Any) -> None:
        if not isinstance(gradient, tf.IndexedSlices):
            raise ValueError(
                "backward_passes_per_step: the gradient of a variable is IndexedSlices in one pass and a tensor in "
                "another; pass sparse_as_dense=True"
            )
        gradient = flattened(gradient)
        indices = tf.cast(gradient.indices, tf.int64)
        self._values.assign(tf.concat([self._values.read_value(), gradient.values], 0))
        self._indices.assign(tf.concat([self._indices.read_value(), indices], 0))

    def pop(self, divisor: int) -> Any:
        values, indices = self._values.read_value(), self._indices.read_value()
        self._values.assign(values[:0])
        self._indices.assign(indices[:0])
        if divisor != 1:
            values /= tf.cast(divisor, values.dtype)
        return tf.IndexedSlices(values, indices, tf.constant(self._shape.as_list(), tf.int64))
