"""What the ranks of test_horovod.py and test_horovod_failures.py run: the training API of collectives.tensorflow."""

from __future__ import annotations

import os
from typing import Any

import collectives
import collectives.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod_ranks import said

DTYPES = ["uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
EVERYTHING = ["float16", "float32", "int32"]  # of which every way to call is tried
SIZES = [17, 32, 81, 12, 15]


def values(dtype: str, shape: tuple[int, ...], rank: int) -> Any:
    """Numbers that a rank has; their sums over a few ranks are exact in every dtype."""
    numbers = np.random.default_rng(rank).integers(1, 9, shape)
    return tf.cast(tf.constant(numbers), dtype)


def numpy(value: Any) -> Any:
    """Tensors as arrays, bfloat16 as float32, which NumPy and pickle know."""
    if isinstance(value, tf.IndexedSlices):
        return numpy(value.values), numpy(value.indices)
    if isinstance(value, (list, tuple)):
        return type(value)(map(numpy, value))
    return (tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value).numpy()


def both(functions: dict[str, Any]) -> dict[str, Any]:
    """What functions without arguments give in eager mode, which is the same in one `tf.function` of all of them."""
    eager = {name: numpy(function()) for name, function in functions.items()}
    traced = tf.function(lambda: {name: function() for name, function in functions.items()})()
    tf.nest.map_structure(np.testing.assert_array_equal, eager, {name: numpy(traced[name]) for name in eager})
    return eager


def identity() -> dict[str, Any]:
    ops = [hvd.rank_op, hvd.size_op, hvd.local_rank_op, hvd.local_size_op, hvd.process_set_included_op]
    built = [hvd.mpi_built, hvd.gloo_built, hvd.ccl_built, hvd.cuda_built, hvd.rocm_built, hvd.ddl_built]
    return {
        "rank": (hvd.rank(), hvd.tensorflow.rank(), collectives.tensorflow.tensorflow.rank()),
        "size": hvd.size(),
        "local": (hvd.local_rank(), hvd.local_size()),
        "cross": (hvd.cross_rank(), hvd.cross_size()),
        "ops": [int(tf.function(op)()) for op in ops],
        "built": {type(function()) for function in built},
        "nccl": hvd.nccl_built(),
        "homogeneous": hvd.is_homogeneous(),
        "initialized": hvd.is_initialized(),
    }


def allreduce(dtypes: list[str]) -> dict[str, Any]:
    fp16, bf16 = hvd.Compression.fp16, hvd.Compression.bf16
    functions: dict[str, Any] = {}
    for dtype in dtypes:
        x = values(dtype, (5, 3), hvd.rank())
        cases: dict[str, Any] = {
            op: lambda x=x, op=op: hvd.allreduce(x, op=getattr(hvd, op))  # type: ignore[misc]
            for op in ("Sum", "Average", "Min", "Max", "Product")
        }
        cases["default"] = lambda x=x: hvd.allreduce(x)  # type: ignore[misc]
        cases["average=False"] = lambda x=x: hvd.allreduce(x, average=False)  # type: ignore[misc]
        cases["scaled"] = lambda x=x: hvd.allreduce(  # type: ignore[misc]
            x, op=hvd.Sum, prescale_factor=1.5, postscale_factor=0.75, name="scaled"
        )
        cases["fp16"] = lambda x=x: hvd.allreduce(x, compression=fp16, op=hvd.Sum)  # type: ignore[misc]
        cases["bf16"] = lambda x=x: hvd.allreduce(x, compression=bf16, op=hvd.Sum)  # type: ignore[misc]
        # SMDDP's order of arguments.
        cases["smddp"] = lambda x=x: hvd.allreduce(x, 0, 1, hvd.Compression.none, hvd.ReduceOp.SUM)  # type: ignore[misc]
        cases["smddp average"] = lambda x=x: hvd.allreduce(x, param_index=0, num_params=1)  # type: ignore[misc]
        cases["oob"] = lambda x=x: hvd.oob_allreduce(x)  # type: ignore[misc]
        chosen = cases if dtype in EVERYTHING else ("Sum", "Average", "scaled")
        functions |= {f"{dtype} {name}": cases[name] for name in chosen}
        functions[f"{dtype} input"] = lambda x=x: x  # which is left alone
    return both(functions)


def groups() -> dict[str, Any]:
    rank = hvd.rank()
    shapes = [("float32", (3,)), ("int32", ()), ("float16", (2, 2)), ("float32", (0, 4)), ("float32", (6, 2))]
    mixed = [values(dtype, shape, rank + i) for i, (dtype, shape) in enumerate(shapes)]
    slices = tf.IndexedSlices(tf.fill([rank + 1, 2], float(rank + 1)), tf.range(rank + 1), tf.constant([9, 2]))
    rows = [tf.fill([SIZES[(rank + i) % 5], 2], rank) for i in range(3)]
    assert hvd.grouped_allgather([]) == []
    return both(
        {
            "allreduce": lambda: hvd.grouped_allreduce(mixed, op=hvd.Sum, name="mixed"),
            "with slices": lambda: hvd.grouped_allreduce([mixed[0], slices], op=hvd.Sum),
            "slices": lambda: hvd.allreduce(slices),
            "allgather": lambda: hvd.grouped_allgather(rows, name="rows"),
            "reducescatter": lambda: hvd.grouped_reducescatter([values("float32", (7, 2), rank), mixed[4]]),
        }
    )


def moves() -> dict[str, Any]:
    rank, size = hvd.rank(), hvd.size()
    dtypes = [*DTYPES, "uint16", "int16", "bool"]

    def cast(x: Any, dtype: str) -> Any:
        return tf.cast(tf.cast(x, tf.int32) % 2 if dtype == "bool" else x, dtype)

    splits = [(rank + i) % 3 for i in range(size)]
    last = [0] * (size - 1) + [2 if rank == 0 else 0]
    return both(
        {
            "allgather": lambda: [hvd.allgather(cast(tf.fill([SIZES[rank], 2], rank), d)) for d in dtypes],
            "scalar": lambda: hvd.allgather(tf.constant(rank)),
            "broadcast": lambda: [hvd.broadcast(cast(tf.fill([3], rank + 1), d), size - 1) for d in dtypes],
            "even": lambda: hvd.alltoall(tf.range(2 * size) + 100 * rank),
            "splits": lambda: hvd.alltoall(tf.fill([sum(splits), 2], rank), splits=splits),
            "tensor of splits": lambda: hvd.alltoall(tf.fill([sum(splits)], True), splits=tf.constant(splits)),
            "nothing": lambda: hvd.alltoall(tf.zeros([0, 4]), splits=[0] * size),
            "to the last": lambda: hvd.alltoall(tf.fill([sum(last)], 7), splits=last),
            "reducescatter": lambda: hvd.reducescatter(values("float32", (4 * size + size // 2, 2), rank)),
            "sum of integers": lambda: hvd.reducescatter(values("int32", (size + 1,), rank), op=hvd.Sum),
            "average of integers": lambda: hvd.reducescatter(values("int64", (size + 1,), rank)),
            "overlap": lambda: hvd.overlap(tf.constant(rank)),
        }
    )


def objects_and_variables() -> dict[str, Any]:
    rank, size = hvd.rank(), hvd.size()
    variables = [
        tf.Variable(tf.fill([3], float(rank)), name="w"),
        tf.Variable(tf.fill([2, 2], rank), name="n"),
        tf.Variable([rank == 1, False], name="flag"),
    ]
    hvd.broadcast_variables(variables, root_rank=1)
    after = [numpy(v.read_value()) for v in variables]
    for v in variables:
        v.assign(tf.cast(tf.zeros(v.shape), v.dtype) if v.dtype == tf.bool else v + tf.cast(rank, v.dtype))

    @tf.function
    def in_function() -> Any:
        hvd.broadcast_variables(iter(variables), root_rank=0)
        return [v.read_value() for v in variables]

    in_graph = numpy(in_function())
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("x", initializer=[float(rank)], use_resource=True)
        everything = hvd.broadcast_global_variables(size - 1)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(everything)
        old = session.run(variable)
    hvd.barrier()
    return {
        "after": after,
        "in function": in_graph,
        "graph": old,
        "returned": numpy(hvd.broadcast_(lambda: variables[:1], root_rank=0)),
        "object": hvd.broadcast_object({"from": rank, "list": [1] * rank}, root_rank=1),
        "objects": hvd.allgather_object({"from": rank}, name="all"),
    }


def gradients() -> dict[str, Any]:
    """Of a loss that weighs the elements of the results, differently on each rank, in both modes."""
    rank, size = hvd.rank(), hvd.size()

    def weight(y: Any) -> Any:
        return tf.cast(tf.reshape(tf.range(tf.size(y)), tf.shape(y)) + 10 * rank, y.dtype)

    def loss_of(function: Any, inputs: Any) -> Any:
        results = [y for y in tf.nest.flatten(function(*inputs)) if y.dtype.is_floating]
        return sum(tf.reduce_sum(y * weight(y)) for y in results)

    def by_tape(function: Any, inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = loss_of(function, inputs)
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, inputs)]

    x = tf.constant([[1.0, 2.0], [3.0, float(rank)], [5.0, 6.0 + rank]])
    y = tf.constant([2.0, 3.0 + rank])
    mine = tf.fill([rank + 1, 2], 1.0)
    splits = [(rank + i) % 3 for i in range(size)]
    cases: dict[str, tuple[Any, list[Any]]] = {
        op: (lambda x, op=op: hvd.allreduce(x, op=getattr(hvd, op)), [x])
        for op in ("Sum", "Average", "Min", "Max", "Product")
    }
    cases |= {
        "scaled": (lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25), [x]),
        "group": (lambda x, y: hvd.grouped_allreduce([x, y]), [x, y]),
        "allgather": (hvd.allgather, [mine]),
        "grouped allgather": (lambda a, b: hvd.grouped_allgather([a, b]), [mine, y]),
        "broadcast": (lambda x: hvd.broadcast(x, 1), [x]),
        "alltoall": (lambda x: hvd.alltoall(x, splits=splits), [tf.fill([sum(splits), 2], 1.0)]),
        "reducescatter sum": (lambda x: hvd.reducescatter(x, op=hvd.Sum), [x]),
        "reducescatter average": (hvd.reducescatter, [x]),
    }
    found = both({name: lambda case=case: by_tape(*case) for name, case in cases.items()})  # type: ignore[misc]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, (function, inputs) in cases.items():
            given = [tf.constant(value.numpy()) for value in inputs]
            gradients = session.run(tf.gradients(loss_of(function, given), given))
            for one, other in zip(gradients, found[name], strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6)
    return found


# --- disagreements -----


def disagreements() -> dict[str, tuple[str, Any]]:
    """The error of each, and the result of the call after it."""
    rank, size = hvd.rank(), hvd.size()
    other = rank == size - 1
    device = tf.ones([3, 2])
    variable = tf.Variable([float(rank)], name="other" if other else "w")

    @tf.function
    def in_function(x: Any) -> Any:
        first = hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="first")
        return first, hvd.allreduce(x, name="second"), hvd.allreduce(x * 2, name="third")

    def partly(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * x)
        return hvd.DistributedGradientTape(tape).gradient(loss, [variable])

    cases: dict[str, Any] = {
        "shape": lambda: hvd.allreduce(tf.ones([3 + other]), name="x"),
        "dimensions": lambda: hvd.allreduce(tf.ones([2, 3] if other else [3, 2]), name="x"),
        "dtype": lambda: hvd.allreduce(tf.ones([3], tf.float64 if other else tf.float32), name="x"),
        "op": lambda: hvd.allreduce(tf.ones([3]), op=hvd.Sum if other else hvd.Max),
        "name": lambda: hvd.allreduce(tf.ones([3]), name="b" if other else "a"),
        "root": lambda: hvd.broadcast(tf.ones([3]), rank),
        "broadcast": lambda: hvd.broadcast(tf.ones([3 + other]), 0),
        "gathered dimensions": lambda: hvd.allgather(tf.ones([rank + 1, 3 + other])),
        "gathered dtype": lambda: hvd.allgather(tf.ones([2], tf.int32 if other else tf.float32)),
        "alltoall": lambda: hvd.alltoall(tf.ones([size, 3 + other])),
        "reducescatter": lambda: hvd.reducescatter(tf.ones([size + other, 3])),
        "collective": lambda: hvd.allgather(tf.ones([3])) if other else hvd.allreduce(tf.ones([3])),
        "variables": lambda: hvd.broadcast_variables([variable], 0),
        "tape": lambda: partly(1.0),
        "tape in function": lambda: tf.function(partly)(1.0),
        "group": lambda: hvd.grouped_allreduce([device] * (2 + other), name="g"),
        "in a function": lambda: in_function(tf.ones([4 + other])),
        "objects": lambda: hvd.broadcast_object(1, rank),
    }
    found = {}
    for name, case in cases.items():
        error = said(case)
        found[name] = error, float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name=f"after {name}"))
        if name == "in a function":  # the same function goes on, too
            assert [float(y[0]) for y in in_function(tf.ones([4]))] == [size, 1, 2]
    return found


def many_disagreements(times: int) -> tuple[int, int]:
    """How many descriptors this process has before and after."""
    rank = hvd.rank()
    counts = []
    for i in range(times):
        error = said(lambda: hvd.allreduce(tf.ones([2 + rank]), name="x"))
        assert error.startswith("FailedPreconditionError"), error
        assert float(hvd.allreduce(tf.constant(float(i)))) == i
        if i in (4, times - 1):
            counts.append(len(os.listdir("/proc/self/fd")))
    return counts[0], counts[1]


def refused() -> dict[str, str]:
    """Calls that are wrong by themselves, which do not reach the other ranks."""
    size = hvd.size()
    x = tf.ones([size + 1, 2])
    slices = tf.IndexedSlices(tf.ones([1, 2]), [0])
    cases: dict[str, Any] = {
        "string": lambda: hvd.allreduce(tf.constant("text"), name="words"),
        "bool": lambda: hvd.allreduce(tf.constant([True]), name="flags"),
        "bool in a group": lambda: hvd.grouped_allreduce([x, tf.constant(True)], name="g"),
        "string gathered": lambda: hvd.allgather(tf.constant(["text"]), name="words"),
        "string variable": lambda: hvd.broadcast_variables([tf.Variable("text", name="words")], 0),
        "no variable": lambda: hvd.broadcast_variables([tf.ones([2])], 0),
        "not even": lambda: hvd.alltoall(x),
        "splits too large": lambda: hvd.alltoall(x, splits=[size + 1] * size),
        "splits negative": lambda: hvd.alltoall(x, splits=[-1, size + 2] + [0] * (size - 2)),
        "splits too few": lambda: hvd.alltoall(x, splits=[size + 1]),
        "splits of floats": lambda: hvd.alltoall(x, splits=[1.0] * size),
        "scalar to all": lambda: hvd.alltoall(tf.constant(1.0)),
        "scalar scattered": lambda: hvd.reducescatter(tf.constant(1.0), name="scalar"),
        "scalar in a group": lambda: hvd.grouped_reducescatter([x, tf.constant(1.0)]),
        "slices by max": lambda: hvd.allreduce(slices, op=hvd.Max),
        "slices scaled": lambda: hvd.allreduce(slices, prescale_factor=2.0),
        "slices by max in a group": lambda: hvd.grouped_allreduce([x, slices], op=hvd.Min),
        "op and average": lambda: hvd.allreduce(x, average=True, op=hvd.Sum),
        "op": lambda: hvd.allreduce(x, op="sum"),
        "root": lambda: hvd.broadcast(x, size),
        "process set": lambda: hvd.allreduce(x, process_set=object()),
        "process_set_id": lambda: hvd.size_op(process_set_id=10),
        "global variables": lambda: hvd.broadcast_global_variables(0),
        "object in a function": lambda: tf.function(lambda: hvd.broadcast_object(1))(),
        "no tape": lambda: hvd.DistributedGradientTape(x),
        "predivide": lambda: hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0),
        "join": lambda: hvd.join(),
        "Adasum": lambda: hvd.Adasum,
        "elastic": lambda: hvd.elastic.run,
        "process sets": lambda: hvd.init(process_sets=[[0]]) if hvd.shutdown() is None else None,
    }
    found = {name: said(case) for name, case in cases.items()}
    found["before init"] = said(hvd.rank)
    found["tape before init"] = said(hvd.allreduce, x)
    found["MPI"] = said(hvd.init, [0, 1])
    hvd.init()
    total = float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum))
    return {**found, "after all": str(total)}


def again_and_again(times: int) -> list[int]:
    @tf.function
    def traced(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    found = []
    for _ in range(times):
        hvd.init()
        hvd.init()
        found.append(int(traced(hvd.rank() + 1)))
        hvd.shutdown()
        hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init()
    return found


def after_a_death() -> tuple[str, str]:
    return said(lambda: hvd.allreduce(tf.ones([3]))), said(lambda: hvd.allreduce(tf.ones([3])))


def after_a_disagreement(goes_on: bool) -> list[str]:
    first = said(lambda: hvd.allreduce(tf.ones([3 + hvd.rank()])))
    if not goes_on:
        return [first]
    return [first, said(lambda: hvd.allreduce(tf.ones([3]))), said(lambda: hvd.broadcast_object(1))]
