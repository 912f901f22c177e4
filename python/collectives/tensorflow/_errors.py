"""Turns errors of the engine into those of TensorFlow, for calls that are no ops; ops raise the same errors."""

from __future__ import annotations

import tensorflow as tf

from .. import errors

__all__ = ["as_tensorflow"]

_KINDS: tuple[tuple[type[errors.CollectivesError], type[tf.errors.OpError]], ...] = (
    (errors.DeadlineError, tf.errors.DeadlineExceededError),
    (errors.PeerError, tf.errors.UnavailableError),
    (errors.MismatchError, tf.errors.InvalidArgumentError),
)


def as_tensorflow(error: errors.CollectivesError, more: str = "", *, renewable: bool = False) -> tf.errors.OpError:
    """The error of TensorFlow for one of the engine.

    Args:
        more: text to append.
        renewable: whether the group continues after a mismatch; see ``_ops.Group``.
    """
    made = next((made for kind, made in _KINDS if isinstance(error, kind)), tf.errors.FailedPreconditionError)
    if renewable and isinstance(error, errors.MismatchError):
        made = tf.errors.FailedPreconditionError
    result: tf.errors.OpError = made(None, None, f"{error}{more}")
    return result
