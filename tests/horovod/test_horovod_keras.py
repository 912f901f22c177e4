"""Optimizers, callbacks and layers of Keras 3 over two ranks, against one process that takes the joined batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiers
from horovod_ranks import Ranks

Call = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    """Calls a function on all ranks: "callback.schedules" is `schedules` of horovod_callback_checks.py."""
    ranks = Ranks(2)

    def called(name: str, *args: Any) -> list[Any]:
        module, _, function = name.partition(".")
        return ranks.call(f"horovod_{module}_checks", function, *args)

    try:
        yield called
        assert ranks.leave() == [0, 0]
    finally:
        ranks.destroy()


# The model, the optimizer, and whether it runs eagerly.
FITS = [
    ("dense", "adam", False),
    ("embedding", "adam", False),
    ("embedding", "momentum", True),
    ("dense", "decay", True),
]
MORE_FITS = [("dense", "adam", True), ("embedding", "decay", False), ("embedding", "sgd", False)]


@pytest.mark.parametrize(("kind", "name", "eager"), FITS + MORE_FITS * tiers.few(0, full=1))
def test_fit(call, kind, name, eager):
    call("keras.fit", kind, name, eager)


# The model, whether the sum of the passes is divided, and whether it runs eagerly.
PASSES = [("dense", False, False), ("embedding", True, False), ("embedding", False, True)]
MORE_PASSES = [("dense", True, False), ("dense", False, True), ("dense", True, True), ("embedding", True, True)]


@pytest.mark.parametrize(("kind", "average", "eager"), PASSES + MORE_PASSES * tiers.few(0, full=1))
def test_several_passes_for_a_step(call, kind, average, eager):
    call("keras.passes", kind, average, eager)


def test_passes_that_leave_out_variables(call):
    call("keras.passes_that_leave_out_variables")


def test_options_of_reductions(call):
    call("keras.options_of_reductions")


def test_custom_loop(call):
    call("keras.custom_loop")


def test_local_gradients(call):
    call("keras.local_gradients")


def test_configs(call):
    call("keras.configs")


def test_an_optimizer_keeps_its_state(call):
    call("keras.keeps_state")


def test_refused_optimizers(call):
    expected = [
        ("TypeError: DistributedOptimizer: optimizer is of type tensorflow.python", "by DistributedGradientTape(tape)"),
        ("TypeError: DistributedOptimizer: optimizer is the class Adam",),
        ("TypeError: PartialDistributedOptimizer: optimizer is of type builtins.str",),
        ("ValueError: DistributedOptimizer: 'adam", "wrap it once"),
        ("ValueError: DistributedOptimizer: backward_passes_per_step is 0",),
        ("TypeError: DistributedOptimizer: backward_passes_per_step is 1.5",),
        ("TypeError: DistributedOptimizer: op is 'sum'",),
        ("NotImplementedError: process_set is [0]",),
        ("ValueError: When passing `grads` without `variables`",),
    ]
    for texts in call("keras.refused"):
        for text, parts in zip(texts, expected, strict=True):
            assert text.startswith(parts[0]) and all(part in text for part in parts), text


@pytest.mark.parametrize(("wrap", "eager"), [("inside", False), ("outside", True)])
def test_an_overflow_on_one_rank_is_one_of_all(call, wrap, eager):
    call("scale.overflow", wrap, eager)
    call("scale.overflow_in_a_loop", wrap)


def test_compile_puts_a_loss_scale_around_it(call):
    call("scale.compile_wraps_for_half")


def test_keras_does_not_choose_xla(call):
    call("scale.never_by_xla")


def test_saved_and_loaded(call, tmp_path):
    call("saving.saves_and_loads", str(tmp_path))


def test_saved_and_loaded_with_other_optimizers(call, tmp_path):
    call("saving.saves_other_optimizers", str(tmp_path))


def test_values_and_names(call):
    call("saving.values")


@pytest.mark.parametrize("built", [True, False])
def test_broadcast_callback(call, built):
    call("callback.broadcast_callback", built)


def test_broadcast_of_what_was_loaded(call):
    call("callback.broadcast_of_what_was_loaded")


def test_ranks_that_number_layers_otherwise(call):
    call("callback.ranks_that_number_layers_otherwise")


def test_broadcast_leaves_local_variables(call):
    call("callback.broadcast_leaves_local_variables")


def test_metric_average(call):
    call("callback.metric_average")


def test_metrics_that_differ(call):
    for text in call("callback.metrics_that_differ"):
        assert text.startswith("FailedPreconditionError"), text
        assert "'a'" in text and "'b'" in text, text


def test_warm_up(call):
    call("callback.warm_up")


def test_schedules(call):
    call("callback.schedules")


def test_momentum_correction(call):
    call("callback.momentum_correction")


def test_refused_rates(call):
    expected = [
        "TypeError: LearningRateScheduleCallback: initial_lr is None",
        "ValueError: LearningRateWarmupCallback: the learning rate of 'own' is <",
        "ValueError: LearningRateWarmupCallback: the number of batches in an epoch is not known",
        "ValueError: BestModelCheckpoint: filepath is not set",
    ]
    for texts in call("callback.rates_refused"):
        for text, start in zip(texts, expected, strict=True):
            assert text.startswith(start), text


def test_best_model(call, tmp_path):
    call("callback.best_model", str(tmp_path))


# Where masks and axis=1 come together, older releases of Keras count wrongly.
@pytest.mark.pairwise
@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize(("axis", "masked"), [(1, False), (-1, False), (-1, True)])
def test_batch_norm(call, axis, masked, function):
    call("norm.batch_norm", axis, masked, function)


def test_batch_norm_of_halves_and_doubles(call):
    call("norm.batch_norm_of_halves_and_doubles")


def test_batch_norm_of_ranks_without_examples(call):
    call("norm.batch_norm_of_none")


def test_batch_norm_in_fit(call, tmp_path):
    call("norm.batch_norm_in_fit", str(tmp_path))
