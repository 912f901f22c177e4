"""Optimizers of Keras 3 whose gradients are reduced over the ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .aggregation import Aggregation, trained_by
from .keras_hooks import aggregation_of, install
from .names import Average, Compression, ReduceOp, global_process_set

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "distribute"]

# Where Keras stores the arguments of exclude_from_weight_decay(); they are not part of a config.
_EXCLUDED = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


class _Distributed:
    """The mixin of a distributed optimizer, put before the class of the given optimizer."""

    _collectives_options: dict[str, Any]
    _agg_helper: Aggregation

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._agg_helper = Aggregation(**self._collectives_options)

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As ``apply`` of the optimizer's own class, with gradients reduced over all ranks."""
        self._agg_helper.step(self, super().apply, grads, trainable_variables)  # type: ignore[misc]

    def register_local_source(self, variable: Any) -> None:
        """Leaves the gradient of this variable on its rank, divided by the number of ranks."""
        self._agg_helper.reduction.register_local_source(variable)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A new optimizer like ``optimizer``, whose ``apply`` first reduces the gradients over all ranks.

    ``apply_gradients`` and ``model.fit`` call ``apply``, in eager mode and in functions. The new optimizer starts with
    the state of the given one, which is not changed. It is of a subclass of its class, with the same name and config.
    So Keras can load a saved model without this library, with the plain optimizer;
    ``collectives.tensorflow.keras.load_model`` makes that a distributed one again. ``type(made).from_config`` makes
    distributed ones, with these options.

    With ``backward_passes_per_step=k`` each rank sums its gradients; every k-th call reduces and applies them.
    IndexedSlices keep their rows. ``iterations`` and learning-rate schedules count updates, not calls, so Adam works as
    with a batch k times as large; Horovod counts calls. ``_agg_helper.counter`` is the number of calls since the last
    update. A saved model does not contain the sums of gradients.

    With mixed_float16, ``model.compile`` wraps an optimizer into a ``LossScaleOptimizer``. Gradients are then reduced
    before it checks whether they are finite, so all ranks skip the same steps. If you wrap it yourself, you can put
    either one into the other.

    ``model.compile(jit_compile="auto")``, the default, does not choose XLA for a model with such an optimizer.

    Args:
        optimizer: a ``keras.optimizers.Optimizer`` of Keras 3.
        name: of the new optimizer; by default that of the given one.
        use_locking, device_dense, device_sparse: accepted and not used.
        backward_passes_per_step: number of calls for one update.
        average_aggregated_gradients: whether the sum of those calls is divided by their number.
        compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups, process_set,
            scale_local_gradients: see ``GradientReduction``. By default gradients are averaged over the ranks.

    Returns:
        the optimizer, which also has ``register_local_source(variable)``.

    Raises:
        TypeError: ``optimizer`` is no optimizer of Keras 3.
        ValueError: it is distributed already, or a number is out of range.
        RuntimeError: Keras runs on another backend than TensorFlow.
        When gradients are reduced: as ``DistributedGradientTape``.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size()))
        >>> model.compile(optimizer, "mse")
    """
    return _wrapped(
        optimizer,
        name,
        call="DistributedOptimizer",
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """``DistributedOptimizer`` that leaves the gradients of some layers on their rank.

    Args:
        local_layers: a layer or a list of them; each rank trains its own. They need not be built yet.
        Others: see ``DistributedOptimizer``.
    """
    return _wrapped(
        optimizer,
        name,
        call="PartialDistributedOptimizer",
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        local_layers=local_layers,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def _wrapped(optimizer: Any, name: str | None, **options: Any) -> Any:
    _check(optimizer, options)
    return _copied(_subclass(type(optimizer), options), optimizer, name)


def distribute(optimizer: Any, **options: Any) -> None:
    """Makes an optimizer a distributed one in place, for example that of a model that was just loaded."""
    _check(optimizer, options)
    object.__setattr__(optimizer, "__class__", _subclass(type(optimizer), options))
    optimizer._agg_helper = Aggregation(**options)


def _check(optimizer: Any, options: dict[str, Any]) -> None:
    """Raises the errors of ``DistributedOptimizer``; ``Aggregation`` checks the options."""
    call = options["call"]
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        kind = type(optimizer)
        what = (
            f"the class {optimizer.__name__}"
            if isinstance(optimizer, type)
            else f"of type {kind.__module__}.{kind.__name__}"
        )
        raise TypeError(
            f"{call}: optimizer is {what}; an object of keras.optimizers.Optimizer (Keras {keras.__version__}) is "
            "accepted, as keras.optimizers.Adam(). For any other, compute gradients by DistributedGradientTape(tape) "
            "and apply them as you do without this library"
        )
    if keras.config.backend() != "tensorflow":
        raise RuntimeError(f"{call}: Keras runs on {keras.config.backend()}; set KERAS_BACKEND=tensorflow")
    if aggregation_of(optimizer) is not None:
        raise ValueError(f"{call}: '{optimizer.name}' reduces its gradients already; wrap it once")
    Aggregation(**options)
    install()


def _subclass(kind: type, options: dict[str, Any]) -> type:
    """A distributed subclass of ``kind`` that Keras saves under the name of ``kind``."""
    own = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    made = type(kind.__name__, (_Distributed, kind), {**own, "_collectives_options": options})
    registered = keras.saving.get_registered_name(kind)
    if ">" in registered:
        package, name = registered.split(">", 1)
        for one in (made, kind):  # Keras loads the class that was registered last
            keras.saving.register_keras_serializable(package, name)(one)
    return made


def _copied(kind: Any, optimizer: Any, name: str | None = None, with_state: bool = True) -> Any:
    """An optimizer of this class, with the config and the state of another."""
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    rate = getattr(optimizer, "_learning_rate", None)
    if "learning_rate" in config and (
        callable(rate) or isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    ):
        config["learning_rate"] = rate  # the object itself, since a function may not be serializable
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        del config["inner_optimizer"]
        inner = optimizer.inner_optimizer
        made = kind(_copied(type(inner), inner, with_state=False), **config)
    else:
        made = kind.from_config(config)
    for attribute in _EXCLUDED:
        if hasattr(optimizer, attribute):
            setattr(made, attribute, getattr(optimizer, attribute))
    if with_state:
        if optimizer.built:
            made.build(trained_by(optimizer))
        for new, old in zip(made.variables, optimizer.variables, strict=True):
            new.assign(old)
    return made
