"""Tapes whose gradients are reduced over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .as_written import as_written
from .gradient_reduction import GradientReduction, variables_of_layers
from .names import Average, Compression, ReduceOp, global_process_set

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _Distributed:
    """What a distributed tape has besides the class of the tape that it was made of."""

    _reduction: GradientReduction

    @as_written
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """As ``tf.GradientTape.gradient``, of all ranks together."""
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)  # type: ignore[misc]
        flat = self._reduction.reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, flat)

    @as_written
    def register_local_source(self, source: Any) -> None:
        """Leaves the gradient of this variable on its rank, divided by the number of ranks."""
        self._reduction.register_local_source(source)


class _Partial(_Distributed):
    @as_written
    def get_local_and_global_gradients(self, loss: Any, variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Pairs of variable and gradient: those that stay on their rank, and those of all ranks."""
        gradients = self.gradient(loss, list(variables))
        pairs = [(variable, gradient) for variable, gradient in zip(variables, gradients, strict=True)]
        return (
            [pair for pair in pairs if self._reduction.is_local(pair[0])],
            [pair for pair in pairs if not self._reduction.is_local(pair[0])],
        )


@as_written
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
    """A tape that has recorded what ``gradtape`` has, and whose ``gradient`` reduces over all ranks.

    Gradients travel from the last variable on, in collectives of 4 MiB or more that begin while the backward pass still
    runs. All ranks take the gradients of the same variables: where names, shapes or dtypes differ all of them raise
    ``tf.errors.FailedPreconditionError``, with both lists, and can go on.

    Args:
        gradtape: a ``tf.GradientTape``, which may be recording, or be over.
        device_dense, device_sparse: accepted and not used.
        compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups, process_set,
            scale_local_gradients: see ``GradientReduction``. By default gradients are averaged, and IndexedSlices stay
            such: the rows of all ranks.

    Returns:
        a ``tf.GradientTape`` of the class of ``gradtape``, with ``register_local_source(variable)`` besides.

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


@as_written
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
        a tape with ``get_local_and_global_gradients(loss, variables)`` besides: two lists of (variable, gradient).
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
    tape.__dict__ = gradtape.__dict__  # one state: each of the two may begin or end the recording
    tape._reduction = GradientReduction(**options)
    return tape
