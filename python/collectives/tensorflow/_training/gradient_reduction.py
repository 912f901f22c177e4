"""The reduction of gradients, for tapes and optimizers."""

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

# Least bytes of a collective of gradients, so that collectives overlap with the backward pass.
BUCKET_BYTES = 4 << 20


class GradientReduction:
    """Reduces the gradients of a tape or an optimizer. Checks and holds its options.

    Args:
        compression: one of ``Compression``.
        sparse_as_dense: whether IndexedSlices are made dense first.
        op: ``Average``, ``Sum``, or another op of ``allreduce``.
        gradient_predivide_factor: only with ``Average``: gradients are divided by this factor before they are summed,
            and by the number of ranks over this factor afterwards.
        num_groups: into how many collectives the gradients are packed; 0: by their size.
        groups: lists of variables whose gradients are reduced in one collective; others are packed by size. A number
            means ``num_groups``.
        process_set: ``global_process_set``.
        scale_local_gradients: whether gradients of local variables are divided by the number of ranks, like those that
            are averaged.
        call: the name of the caller, for errors.

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
        """Keeps the gradient of this variable on its rank from now on."""
        self._local.add(key_of(variable))

    def is_local(self, variable: Any) -> bool:
        """Whether the gradient of this variable stays on its rank."""
        return key_of(variable) in self._local

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients, reduced over all ranks. None stays None; all ranks must have it for the same variables."""
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
        """The positions of gradients that are reduced together, last variables first, as a backward pass makes them."""
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
    """An identity of a variable while it exists; the same for the Keras variable that wraps it."""
    return id(plain(variable))


def _divided(gradient: Any, count: int) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / count, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(count, gradient.dtype)


def variables_of_layers(layers: Any) -> list[Any]:
    """The trainable variables of layers: of None, one layer, or a list of them."""
    if layers is None:
        return []
    if not isinstance(layers, Iterable):
        layers = [layers]
    return [variable for layer in layers for variable in layer.trainable_variables]
