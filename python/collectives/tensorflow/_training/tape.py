"""Gradient tapes that reduce their gradients over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .autograph import do_not_convert
from .gradient_reduction import GradientReduction, variables_of_layers
from .names import Average, Compression, ReduceOp, global_process_set

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _Distributed:
    """The mixin of a distributed tape, put before the class of the given tape."""

    _reduction: GradientReduction

    @do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """As ``tf.GradientTape.gradient``, reduced over all ranks."""
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)  # type: ignore[misc]
        flat = self._reduction.reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, flat)

    @do_not_convert
    def register_local_source(self, source: Any) -> None:
        """Leaves the gradient of this variable on its rank, divided by the number of ranks."""
        self._reduction.register_local_source(source)


class _Partial(_Distributed):
    @do_not_convert
    def get_local_and_global_gradients(self, loss: Any, variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Two lists of (variable, gradient): those that stay on their rank, and those reduced over all ranks."""
        gradients = self.gradient(loss, list(variables))
        pairs = [(variable, gradient) for variable, gradient in zip(variables, gradients, strict=True)]
        return (
            [pair for pair in pairs if self._reduction.is_local(pair[0])],
            [pair for pair in pairs if not self._reduction.is_local(pair[0])],
        )


@do_not_convert
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape with the recording of ``gradtape``, whose ``gradient`` reduces over all ranks.

    Gradients are sent from the last variable on, in collectives of 4 MiB or more that overlap with the backward pass.
    All ranks must compute the gradients of the same variables: where names, shapes or dtypes differ, all of them raise
    ``tf.errors.FailedPreconditionError``, with both lists, and can continue.

    Args:
        gradtape: a ``tf.GradientTape``, which may still be recording.
        device_dense, device_sparse: accepted and not used.
        compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups, process_set,
            scale_local_gradients: see ``GradientReduction``. By default gradients are averaged, and IndexedSlices
            become the IndexedSlices with the rows of all ranks.

    Returns:
        a ``tf.GradientTape`` of the class of ``gradtape``, which also has ``register_local_source(variable)``.

    Example:
        >>> with tf.GradientTape() as tape:
        ...     loss = loss_of(model(images), labels)
        >>> tape = hvd.DistributedGradientTape(tape)
        >>> gradients = tape.gradient(loss, model.trainable_variables)
    """
    return _make(
        _Distributed,
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        call="DistributedGradientTape",
    )


@do_not_convert
def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """``DistributedGradientTape`` that leaves the gradients of some layers on their rank.

    Args:
        local_layers: a layer or a list of them; each rank trains its own.
        Others: see ``DistributedGradientTape``.

    Returns:
        a tape that also has ``get_local_and_global_gradients(loss, variables)``: two lists of (variable, gradient).
    """
    tape = _make(
        _Partial,
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        call="PartialDistributedGradientTape",
    )
    for variable in variables_of_layers(local_layers):
        tape.register_local_source(variable)
    return tape


def _make(kind: type[_Distributed], gradtape: Any, **options: Any) -> Any:
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(f"{options['call']}: {gradtape!r} is no tf.GradientTape")
    made: Any = type(type(gradtape).__name__, (kind, type(gradtape)), {})
    tape = made.__new__(made)
    tape.__dict__ = gradtape.__dict__  # a shared state: both tapes can start or stop the recording
    tape._reduction = GradientReduction(**options)
    return tape
