"""How gradients are reduced, by tapes and optimizers alike."""

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

__all__ = ["BUCKET_BYTES", "GradientReduction", "key_of", "variables_of_layers"]

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

    Attributes:
        sparse_as_dense: as given.
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
        self.sparse_as_dense = sparse_as_dense
        self._op = op
        self._predivide = gradient_predivide_factor
        self._num_groups = num_groups
        self._groups = None if groups is None else [[key_of(v) for v in members] for members in groups]
        self._scale_local = scale_local_gradients
        self._local: set[int] = set()

    def register_local_source(self, variable: Any) -> None:
        """From now on the gradient of this variable stays on its rank."""
        self._local.add(key_of(variable))

    def is_local(self, variable: Any) -> bool:
        """Whether that has been said of it."""
        return key_of(variable) in self._local

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks together; None stays None, which all ranks have for the same variables."""
        results = list(gradients)
        given = [k for k, gradient in enumerate(gradients) if gradient is not None]
        for k in given:
            if self.sparse_as_dense and isinstance(gradients[k], tf.IndexedSlices):
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
            parts = [[k for k in chosen if keys.get(key_of(variables[k])) == n] for n in range(len(self._groups))]
            parts.append([k for k in chosen if key_of(variables[k]) not in keys])
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


def key_of(variable: Any) -> int:
    """By which a variable is known as long as it exists, whether Keras has wrapped it or not."""
    return id(plain(variable))


def _divided(gradient: Any, count: int) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / count, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(count, gradient.dtype)


def variables_of_layers(layers: Any) -> list[Any]:
    """The variables that layers train; None, one layer, or a list of them."""
    if layers is None:
        return []
    if not isinstance(layers, Iterable):
        layers = [layers]
    return [variable for layer in layers for variable in layer.trainable_variables]
