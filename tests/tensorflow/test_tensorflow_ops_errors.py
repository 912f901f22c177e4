"""What the native ops for TensorFlow say when ranks disagree, die or are late, and of wrong arguments."""

from __future__ import annotations

import gc

import collectives
import pytest
import tensorflow as tf
from collectives import _core
from collectives.tensorflow import _ops
from tensorflow_ranks import on_ranks, returned


def test_errors_of_other_collectives_keep_their_names():
    def work(group):
        tensors = [tf.ones(4), tf.ones(2 + group.rank)]
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"tensor 1 \('y'\)"):
            _ops.all_reduce(group, tensors, "sum", names=["x", "y"])
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            _ops.all_reduce(group, [tf.ones(3), tf.ones(3)], "sum", names=["p", "q"])
        assert "failed before" in caught.value.message
        assert "tensor 1 ('y')" in caught.value.message and "'q'" not in caught.value.message

    returned(on_ranks(2, work))


def test_a_disagreement_over_more_tensors_than_a_report_holds():
    """What does not fit is not made up."""

    def work(group):
        tensors = [tf.ones([1, 1, 3, 100], tf.float64 if group.rank else tf.float32)] * 900
        _ops.all_reduce(group, tensors, "sum", names=[f"v{i}" for i in range(900)])

    for error in on_ranks(2, work):
        assert isinstance(error, tf.errors.InvalidArgumentError)
        assert "rank 1 has float64" in error.message and "has shape" not in error.message


def test_a_disagreement_names_tensor_and_ranks():
    def shapes(group):
        tensors = [tf.ones(4), tf.ones([2, 3] if group.rank else [3, 2])]
        return _ops.all_reduce(group, tensors, "sum", names=["dense/bias", "dense/kernel"])

    def rows(group):
        return _ops.all_gather(group, tf.ones([1 + group.rank, 2 + group.rank]), name="rows")

    def dtypes(group):
        x = tf.ones(4, tf.float64 if group.rank else tf.float32)
        return _ops.all_reduce(group, [x], "sum", names=["dense/bias"])

    for work, words in (
        (shapes, ["Shape mismatch in tensor 1 ('dense/kernel')", "rank 0 has shape (3, 2)", "rank 1 has shape (2, 3)"]),
        (rows, ["'rows'", "Shape mismatch in ", "rank 0 has shape (?, 2)", "rank 1 has shape (?, 3)"]),
        (dtypes, ["dense/bias", "rank 0 has float32", "rank 1 has float64"]),
    ):
        for in_function in (False, True):
            for error in on_ranks(2, tf.function(work, autograph=False) if in_function else work):
                assert isinstance(error, tf.errors.InvalidArgumentError), error
                assert all(word in error.message for word in words), error.message


def test_a_rank_that_does_not_come():
    def work(group):
        if group.rank == 0:
            _ops.all_reduce(group, [tf.ones(4)], "sum", names=["w"], timeout=0.3)

    (error, _) = on_ranks(2, work)
    assert isinstance(error, tf.errors.DeadlineExceededError) and "rank 1" in error.message and "w" in error.message


def test_a_rank_that_leaves():
    def work(group):
        if group.rank == 1:
            group.communicator.close()
        else:
            tf.function(lambda: _ops.all_reduce(group, [tf.ones(4)], "sum"))()

    (error, _) = on_ranks(2, work)
    assert isinstance(error, tf.errors.UnavailableError) and "rank 1" in error.message


def test_a_communicator_that_is_gone():
    (communicator,) = collectives.local_group(1)
    group = _ops.Group(communicator)
    function = tf.function(lambda: _ops.all_reduce(group, [tf.ones(4)], "sum")).get_concrete_function()
    number = group.number
    assert _core._number_of(communicator) == number
    communicator.close()
    with pytest.raises(tf.errors.FailedPreconditionError, match="closed"):
        function()
    del communicator
    group.communicator = None
    gc.collect()
    with pytest.raises(tf.errors.FailedPreconditionError, match=f"communicator {number} does not exist"):
        function()


def test_wrong_arguments():
    (communicator,) = collectives.local_group(1)
    group = _ops.Group(communicator)
    for call, text in (
        (
            lambda: _ops.all_reduce(group, [tf.ones(2), tf.ones(2, tf.int32)], "sum", names=["a", "b"]),
            "'b' is of type int32",
        ),
        (lambda: _ops.all_reduce(group, [tf.constant(["a"])], "sum", names=["words"]), "'words' has an element type"),
        (lambda: _ops.all_reduce(group, [tf.ones(2, tf.int32)], "avg"), "avg"),
        (lambda: _ops.all_reduce(group, [tf.ones(2)], "most"), "most"),
        (lambda: _ops.broadcast(group, [tf.ones(2)], root=3), "root 3"),
        (lambda: _ops._gather_rows(group, tf.ones(()), tf.ones([1], tf.int64), None, None), "0 dimensions"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            call()
    communicator.close()


def test_values_of_replicas_that_are_not_alike():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"tensor 'w' differs .* replica 0 and replica 1"):
        _ops.reduce_replicas([[tf.ones(2), tf.ones(3)]], "sum", "canonical", names=["w"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="has no meaning"):
        _ops.reduce_replicas([[tf.constant(1)] * 2], "avg", "canonical")
