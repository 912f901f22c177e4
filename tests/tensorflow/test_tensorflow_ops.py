"""The native ops for TensorFlow: in eager mode, in functions and in graphs, between threads that are ranks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import collectives
import numpy as np
import pytest
import tensorflow as tf
from collectives import _core
from collectives.cross_device_ops import HierarchicalCopyAllReduce, ReductionToOneDevice, RingAllReduce
from collectives.tensorflow import _ops
from tensorflow_ranks import DTYPES, numbers, on_ranks, returned, same_bits

COMBINATIONS = {"canonical": ReductionToOneDevice, "halves": HierarchicalCopyAllReduce, "chain": RingAllReduce}


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_reduce_replicas_has_the_bits_of_cross_device_ops(combination, in_function):
    """All dtypes in one op."""
    for replicas in (1, 2, 3, 8):
        arrays = [
            [numbers(shape, dtype, 100 * k + r) for r in range(replicas)]
            for k, (dtype, shape) in enumerate([(d, s) for d in DTYPES for s in ((3, 5), (), (0, 2))])
        ]
        tensors = [[tf.constant(a) for a in values] for values in arrays]
        before = _ops.replica_bytes()

        def reduce(tensors):
            return _ops.reduce_replicas(tensors, "sum", combination, 2 if combination == "chain" else 1)

        results = (tf.function(reduce) if in_function else reduce)(tensors)
        read = sum(a.nbytes for values in arrays for a in values) if replicas > 1 else 0
        assert _ops.replica_bytes() - before == read
        ops = COMBINATIONS[combination](2) if combination == "chain" else COMBINATIONS[combination]()
        expected = ops.batch_reduce("sum", [(values, [0]) for values in arrays])
        for values, result, (wanted,) in zip(arrays, results, expected, strict=True):
            assert result.shape == values[0].shape
            assert same_bits(result, wanted)


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("kept", [None, 0, 1], ids=["nothing", "first", "second"])
def test_the_result_takes_the_place_of_a_value(combination, kept):
    """Values that only the reduction needs are overwritten, others are not, and the result is the same."""
    for replicas in (2, 3, 5, 9):
        arrays = [[numbers((1000,), d, 10 * k + r) for r in range(replicas)] for k, d in enumerate(DTYPES[:4])]
        tensors = [[tf.constant(a) for a in values] for values in arrays]
        expected = _ops.reduce_replicas(tensors, "sum", combination)

        @tf.function
        def reduce(tensors):
            temporary = [[tf.reverse(t, [0]) for t in values] for values in tensors]
            results = _ops.reduce_replicas(temporary, "sum", combination)
            return [tf.reverse(t, [0]) for t in results], [] if kept is None else [t[kept] for t in temporary]

        results, others = reduce(tensors)
        if combination == "chain":  # its order depends on the position
            for result, wanted in zip(results, expected, strict=True):
                assert np.allclose(result.numpy().astype("f8"), wanted.numpy().astype("f8"), 0.05)
        else:
            assert all(same_bits(r, e) for r, e in zip(results, expected, strict=True))
        assert all(same_bits(o, values[kept][::-1]) for o, values in zip(others, arrays, strict=False))


def test_the_gradient_of_reduce_replicas():
    values = [tf.constant([1.0, 2.0]), tf.constant([3.0, 5.0])]
    for op, scale in (("sum", 1.0), ("avg", 0.5)):
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = _ops.reduce_replicas([values], op, "canonical")[0] * [10.0, 100.0]
        for gradient in tape.gradient(result, values):
            assert gradient.numpy().tolist() == [10 * scale, 100 * scale]


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives_between_ranks(size, in_function):
    def work(group):
        def step(seed):
            fused = [
                numbers((4, 3), tf.float32, seed),
                numbers((0, 2), tf.float32, seed),
                numbers((), tf.float32, seed),
            ]
            reduced = _ops.all_reduce(group, [tf.constant(a) for a in fused], "sum", names=["a", "b", "c"])
            (root,) = _ops.broadcast(group, [tf.constant(fused[0])], root=size - 1)
            gathered = _ops.all_gather(group, tf.fill([group.rank, 2], group.rank))
            boolean = _ops.all_gather(group, tf.constant([group.rank == 0]))
            return reduced, root, gathered, boolean

        return (tf.function(step) if in_function else step)(group.rank)

    inputs = [[numbers(s, tf.float32, r) for s in ((4, 3), (0, 2), ())] for r in range(size)]
    for reduced, root, gathered, boolean in returned(on_ranks(size, work)):
        for k, result in enumerate(reduced):
            assert np.allclose(result, sum(inputs[r][k] for r in range(size)))
            assert result.shape == inputs[0][k].shape
        assert same_bits(root, inputs[size - 1][0])
        assert gathered.numpy().tolist() == [[r, r] for r in range(size) for _ in range(r)]
        assert boolean.numpy().tolist() == [r == 0 for r in range(size)]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_dtypes_travel(dtype):
    def work(group):
        x = tf.constant(numbers((33,), dtype, group.rank))
        return _ops.all_reduce(group, [x], "sum")[0], _ops.broadcast(group, [x])[0]

    first, second = (numbers((33,), dtype, r) for r in range(2))
    for total, root in returned(on_ranks(2, work)):
        assert total.dtype == dtype
        # numpy rounds halves after each addition; of two there is one
        assert same_bits(total, first + second)
        assert same_bits(root, first)


def test_shapes_are_known_in_graphs():
    def work(group):
        @tf.function(input_signature=[tf.TensorSpec([None, 3])])
        def step(x):
            (y,) = _ops.all_reduce(group, [x], "sum")
            (z,) = _ops.all_reduce(group, [tf.ones([2, 4])], "sum")
            gathered = _ops.all_gather(group, x)
            assert y.shape.as_list() == [None, 3] and z.shape.as_list() == [2, 4]
            assert gathered.shape.as_list() == [None, 3]
            return y, z, gathered

        return [t.shape.as_list() for t in step(tf.ones([5, 3]))]

    assert returned(on_ranks(2, work)) == [[[5, 3], [2, 4], [10, 3]]] * 2


def test_results_take_the_place_of_inputs_that_nobody_needs():
    """An input that is needed afterwards is left alone; one that is not is not copied."""

    def work(group):
        @tf.function
        def step(x):
            temporary = x * 2
            (y,) = _ops.all_reduce(group, [temporary], "sum")
            (z,) = _ops.all_reduce(group, [x], "sum")
            return y, z, x + 0

        x = tf.fill([10], float(group.rank + 1))
        y, z, after = step(x)
        return y.numpy()[0], z.numpy()[0], after.numpy()[0], x.numpy()[0]

    assert returned(on_ranks(2, work)) == [(6, 3, 1, 1), (6, 3, 2, 2)]


def test_only_starts_are_stateful():
    """Anything else that is would be put into one chain with them, so that one collective could be in flight."""

    def work(group):
        @tf.function
        def step(x):
            return _ops.all_reduce(group, _ops.reduce_replicas([[x, x]], "sum", "canonical"), "sum")[0]

        operations = step.get_concrete_function(tf.ones(3)).graph.get_operations()
        return {o.type: o.op_def.is_stateful for o in operations if o.type.startswith("Collectives")}

    expected = {"CollectivesReduceReplicas": False, "CollectivesStart": True, "CollectivesWait": False}
    assert returned(on_ranks(1, work)) == [expected]


def test_many_in_flight_in_nested_functions_and_conditionals():
    def work(group):
        @tf.function
        def inner(x):
            return _ops.all_reduce(group, [x], "sum")[0]

        @tf.function
        def step(x, flag):
            first = [inner(x + k) for k in range(5)]
            second = tf.cond(flag, lambda: inner(x), lambda: -_ops.all_reduce(group, [x, x], "max")[0])
            third = [_ops.all_reduce(group, [x * k], "sum")[0] for k in range(20)]
            return tf.add_n(first), second, tf.add_n(third)

        x = tf.constant(1.0 + group.rank)
        return [[float(y) for y in step(x, tf.constant(flag))] for flag in (True, False, True)]

    expected = [[35.0, 3.0, 570.0], [35.0, -2.0, 570.0], [35.0, 3.0, 570.0]]
    assert returned(on_ranks(2, work)) == [expected] * 2


def test_starts_of_a_graph_of_tensorflow_1_are_ordered():
    def work(group):
        graph = tf.Graph()
        with graph.as_default():
            x = tf.compat.v1.placeholder(tf.float32, [2])
            results = [_ops.all_reduce(group, [x * k], "sum" if k % 2 else "max")[0] for k in range(8)]
            if group.rank == 1:
                results = results[::-1]  # fetched in another order
        with tf.compat.v1.Session(graph=graph) as session:
            for _ in range(20):
                values = session.run(results, {x: [1.0, 1.0 + group.rank]})
        return [v.tolist() for v in (values if group.rank == 0 else values[::-1])]

    expected = [[2.0 * k, 3.0 * k] if k % 2 else [k, 2.0 * k] for k in range(8)]
    assert returned(on_ranks(2, work)) == [expected] * 2


def test_graphs_of_tensorflow_1_are_freed():
    (communicator,) = collectives.local_group(1)
    group = _ops.Group(communicator)
    graph = tf.Graph()
    with graph.as_default():
        _ops.all_reduce(group, [tf.ones(2)], "sum")
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None
    communicator.close()


def test_results_that_nobody_needs():
    """The collective is waited for all the same, in nested functions and conditionals too, and its errors are seen."""
    passed = threading.Event()

    def barrier(group):
        @tf.function
        def inner():
            _ops.all_reduce(group, [tf.zeros(())], "sum")

        @tf.function
        def step(flag):
            inner()
            tf.cond(flag, lambda: (_ops.all_reduce(group, [tf.zeros(())], "max"), 0)[1], lambda: 1)
            return flag

        if group.rank == 1:
            assert not passed.wait(0.5)  # rank 0 cannot pass before this one has come
        step(tf.constant(True))
        passed.set()
        return True

    assert returned(on_ranks(2, barrier)) == [True, True]

    def wrong(group):
        tf.function(lambda: (_ops.all_reduce(group, [tf.ones(1 + group.rank)], "sum", names=["w"]), 0)[1])()

    for error in on_ranks(2, wrong):
        assert isinstance(error, tf.errors.InvalidArgumentError) and "'w'" in error.message


def test_nothing_is_kept_of_collectives_that_are_over():
    def work(group):
        @tf.function
        def step(x):
            (small,) = _ops.all_reduce(group, [x], "sum")
            (large,) = _ops.all_reduce(group, [tf.ones([50_000]) * x], "sum")
            _ops.all_reduce(group, [x + 1], "sum")  # no op uses the result, so none waits
            return small + large[0]

        for _ in range(200):
            total = step(tf.constant(1.0))
        return float(total)

    assert returned(on_ranks(2, work)) == [4.0, 4.0]
    end = time.monotonic() + 20
    while _ops.in_flight() and time.monotonic() < end:
        time.sleep(0.01)  # a poll: a collective that no op waits for ends by itself
    assert _ops.in_flight() == 0


def test_a_collective_that_nobody_waits_for():
    """Its memory is kept until it is over, and then given back; a handle is good once."""

    def work(group):
        started = [
            _ops.native.collectives_start(
                values=[tf.fill([1000], float(k))],
                rows=tf.zeros([0], tf.int64),
                token=group.token(),
                communicator=group.number,
                collective="all_reduce",
            )
            for k in range(30)
        ]
        waited = _ops.native.collectives_wait(handle=started[7].handle, results=started[7].results)
        with pytest.raises(tf.errors.InternalError, match="twice"):
            _ops.native.collectives_wait(handle=started[7].handle, results=started[7].results)
        del started
        (after,) = _ops.all_reduce(group, [tf.ones(3)], "sum")
        with pytest.raises(tf.errors.FailedPreconditionError, match="no collective has the handle"):
            _ops.native.collectives_wait(handle=tf.constant(1 << 40, tf.int64), results=[after])
        return waited[0].numpy()[0], after.numpy()[0]

    assert returned(on_ranks(2, work)) == [(14.0, 2.0)] * 2


def test_a_single_inter_op_thread_is_enough():
    """Eight collectives of each of two ranks in flight, whose results the ranks want in opposite order."""
    code = """
import threading, collectives, tensorflow as tf
from collectives.tensorflow import _ops
def work(communicator):
    group = _ops.Group(communicator)
    @tf.function
    def step(x):
        results = [_ops.all_reduce(group, [x + k], "sum")[0] for k in range(8)]
        return results if group.rank == 0 else results[::-1]
    for _ in range(50):
        total = float(tf.add_n(step(tf.constant(float(communicator.rank)))))
    assert total == 64.0, total
threads = [threading.Thread(target=work, args=(c,)) for c in collectives.local_group(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("done")
"""
    environ = {**os.environ, "TF_NUM_INTEROP_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-3000:]


def test_the_library_needs_no_symbol_of_tensorflow():
    path = Path(_core.__file__).with_name("_tensorflow.so")
    listing = subprocess.run(["nm", "-DC", "--undefined-only", path], capture_output=True, text=True, check=True).stdout
    symbols = [line.split(maxsplit=1)[-1] for line in listing.splitlines()]
    assert any("collectives::" in s for s in symbols)  # those of the engine
    theirs = ("TF_", "TFE_", "TSL_", "tensorflow::", "tsl::", "absl::", "Eigen::", "google::")
    assert not [s for s in symbols if s.startswith(theirs)]
    needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    assert "libcollectives_core.so" in needed and "libtensorflow" not in needed


def test_import_collectives_imports_no_tensorflow():
    code = "import sys, collectives; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_tensorflow_the_import_says_what_to_install():
    code = """
import sys
sys.modules["tensorflow"] = None
try:
    import collectives.tensorflow
except ImportError as error:
    assert "pip install" in str(error) and "collectives-comm[tensorflow]" in str(error), error
else:
    raise SystemExit("no ImportError")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
