"""Tapes whose gradients are reduced over the ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from .checks import as_reducible
from .names import Average, Compression, ReduceOp, Sum, check_process_set, global_process_set
from .reducing import reduce_all
from .variables import plain, variable_name
from .world import group

__all__ = ["BUCKET_BYTES", "DistributedGradientTape", "GradientReduction", "PartialDistributedGradientTape"]

# Gradients leave in collectives of at least so many bytes, while the backward pass makes the next.
BUCKET_BYTES = 4 << 20


class GradientReduction:
    """What a tape or an optimizer does with gradients: its options, checked, and the reduction.

    Args:
        compression: one of ``Compression``.
        sparse_as_dense: whether IndexedSlices are made dense first.
        op: ``Average``, ``Sum``, or another that ``allreduce`` takes.
        gradient_predivide_factor: with ``Average`` only: gradients are divided by it before they are summed, and by
            what is left of the number of ranks afterwards.
        num_groups: into how many collectives the gradients go; 0: by their size.
        groups: lists of variables whose gradients travel together; what is in none travels by size. A number: as
            ``num_groups``.
        process_set: ``global_process_set``.
        scale_local_gradients: whether gradients of local variables are divided by the number of ranks, as those that
            are averaged.
        call: who calls this, for errors.
    """

    def __init__(
        self,
        *,
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: Any = global_process_set,
        scale_local_gradients: bool = True,
        call: str,
    ) -> None:
        check_process_set(process_set)
        if not isinstance(op, ReduceOp):
            raise TypeError(f"{call}: op is {op!r}; Average, Sum, Min, Max and Product are accepted")
        if gradient_predivide_factor != 1.0 and op is not Average:
            raise ValueError(f"{call}: gradient_predivide_factor goes with op=Average only, which it splits")
        if isinstance(groups, int) and not isinstance(groups, bool):
            num_groups, groups = groups, None
        if num_groups < 0:
            raise ValueError(f"{call}: num_groups is {num_groups}; 0 or more is accepted")
        self._call = call
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._op = op
        self._predivide = gradient_predivide_factor
        self._num_groups = num_groups
        self._groups = None if groups is None else [[_key(v) for v in members] for members in groups]
        self._scale_local = scale_local_gradients
        self._local: set[int] = set()

    def register_local_source(self, variable: Any) -> None:
        """From now on the gradient of this variable stays on its rank."""
        self._local.add(_key(variable))

    def is_local(self, variable: Any) -> bool:
        """Whether that has been said of it."""
        return _key(variable) in self._local

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks together; None stays None, which all ranks have for the same variables."""
        results = list(gradients)
        given = [k for k, gradient in enumerate(gradients) if gradient is not None]
        for k in given:
            if self._sparse_as_dense and isinstance(gradients[k], tf.IndexedSlices):
                results[k] = tf.convert_to_tensor(gradients[k])
            if self.is_local(variables[k]) and self._scale_local and self._op is Average:
                results[k] = _divided(results[k], group().size)
        shared = [k for k in given if not self.is_local(variables[k])]
        for members in self._members(shared, variables):
            names = [variable_name(variables[k]) or f"gradient {k}" for k in members]
            reduced = self._reduce(
                [as_reducible(results[k], n, self._call) for k, n in zip(members, names, strict=True)], names
            )
            for k, value in zip(members, reduced, strict=True):
                results[k] = value
        return results

    def _members(self, chosen: list[int], variables: Sequence[Any]) -> Iterable[list[int]]:
        """What is reduced together, from the last variables on, as a backward pass comes to them."""
        if self._num_groups > 0:
            count = min(self._num_groups, len(chosen)) or 1
            borders = [len(chosen) * i // count for i in range(count + 1)]
            parts = [chosen[a:b] for a, b in itertools.pairwise(borders)]
        elif self._groups is not None:
            keys = {key: number for number, members in enumerate(self._groups) for key in members}
            parts = [[k for k in chosen if keys.get(_key(variables[k])) == n] for n in range(len(self._groups))]
            parts.append([k for k in chosen if _key(variables[k]) not in keys])
        else:
            parts = [chosen]
        return sorted((part for part in parts if part), key=max, reverse=True)

    def _reduce(self, tensors: list[Any], names: list[str]) -> list[Any]:
        grouped = self._num_groups > 0 or self._groups is not None
        options: dict[str, Any] = {
            "compression": self._compression,
            "bytes_per_bucket": 0 if grouped else BUCKET_BYTES,
            "call": self._call,
        }
        if self._predivide == 1.0:
            return reduce_all(group(), tensors, names, self._op, **options)
        factors: dict[str, Any] = {
            "prescale_factor": 1.0 / self._predivide,
            "postscale_factor": self._predivide / group().size,
        }
        return reduce_all(group(), tensors, names, Sum, **factors, **options)


def _key(variable: Any) -> int:
    return id(plain(variable))


def _divided(gradient: Any, count: int) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / count, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(count, gradient.dtype)


class _Distributed:
    """What a distributed tape has besides the class of the tape that it was made of."""

    _reduction: GradientReduction

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

    def register_local_source(self, source: Any) -> None:
        """Leaves the gradient of this variable on its rank, divided by the number of ranks."""
        self._reduction.register_local_source(source)


class _Partial(_Distributed):
    def get_local_and_global_gradients(self, loss: Any, variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Pairs of variable and gradient: those that stay on their rank, and those of all ranks."""
        gradients = self.gradient(loss, list(variables))
        pairs = [(variable, gradient) for variable, gradient in zip(variables, gradients, strict=True)]
        return (
            [pair for pair in pairs if self._reduction.is_local(pair[0])],
            [pair for pair in pairs if not self._reduction.is_local(pair[0])],
        )


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


def variables_of_layers(layers: Any) -> list[Any]:
    """The variables that layers train; None, one layer, or a list of them."""
    if layers is None:
        return []
    if not isinstance(layers, Iterable):
        layers = [layers]
    return [variable for layer in layers for variable in layer.trainable_variables]


def _make(kind: type[_Distributed], gradtape: Any, **options: Any) -> Any:
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(f"{options['call']}: {gradtape!r} is no tf.GradientTape")
    made: Any = type(type(gradtape).__name__, (kind, type(gradtape)), {})
    tape = made.__new__(made)
    tape.__dict__ = gradtape.__dict__  # one state: each of the two may begin or end the recording
    tape._reduction = GradientReduction(**options)
    return tape
