"""CrossDeviceOps against a model in NumPy that combines in the same order, and against the collectives of threads."""

from __future__ import annotations

import enum
import math
import random
from typing import Any

import numpy as np
import pytest
from collectives import _core
from collectives.cross_device_ops import CrossDeviceOps, HierarchicalCopyAllReduce, ReductionToOneDevice, RingAllReduce
from combining import Model
from conformance import DTYPES, INTEGERS, Array, bits, numpy_dtype, reduced, values, wrong
from hypothesis import given, settings
from hypothesis import strategies as st
from pool import Pools

CLASSES: list[type[Any]] = [RingAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice]
OPS = ("sum", "mean", "min", "max", "prod")
SAME_AS = {
    RingAllReduce: "ring",
    HierarchicalCopyAllReduce: "hierarchical_copy",
    ReductionToOneDevice: "reduce_to_one",
}
LARGE = 200_003  # elements of which a few replicas are worth several threads


def replicas(dtype: str, op: str, count: int, n: int, seed: int = 0) -> list[Array]:
    arrays = [values(dtype, op == "prod", count, rank, seed) for rank in range(n)]
    for array in arrays:
        array.flags.writeable = False
    return arrays


def meaningful(dtype: str, op: str) -> bool:
    if dtype == "bool" and op in ("sum", "mean"):
        return False  # TensorFlow adds no booleans
    return bool(_core._has_kernel("sum" if op == "mean" else op, dtype))


def assert_separate(results: list[Array], sources: list[Array]) -> None:
    """Same bits, different memory."""
    for i, result in enumerate(results):
        assert bits(result) == bits(results[0])
        assert result.flags.c_contiguous
        assert result.flags.writeable
        assert not any(np.shares_memory(result, other) for other in [*results[:i], *sources])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", CLASSES)
def test_reduce(kind: type[Any], dtype: str) -> None:
    ops = kind()
    for n in range(1, 10):
        for op in filter(lambda o: meaningful(dtype, o), OPS):
            for count in (1, 5, 1003, 20_011):
                xs = replicas(dtype, op, count, n)
                results = ops.reduce(op, xs)
                what = f"{op} of {n} replicas with {count} elements"
                assert len(results) == n, what
                model = Model(kind, op, numpy_dtype(dtype))(xs)
                assert results[0].dtype == model.dtype, what
                assert bits(results[0]) == bits(model), what
                assert_separate(results, xs)
                if not (op == "mean" and dtype in INTEGERS):
                    exact, loose, _ = reduced(xs, "avg" if op == "mean" else op)
                    assert not wrong(results[0], exact, loose), what


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 17, 33])
def test_large(kind: type[Any], n: int) -> None:
    """With several threads, and with more replicas than have places on the stack."""
    for dtype, op in (("float32", "sum"), ("bfloat16", "mean"), ("int32", "mean"), ("uint8", "max")):
        xs = replicas(dtype, op, LARGE, n)
        model = bits(Model(kind, op, numpy_dtype(dtype))(xs))
        for destinations in (None, [0], range(0, n, 2)):
            results = kind().reduce(op, xs, destinations)
            assert len(results) == (n if destinations is None else len(destinations))
            assert bits(results[0]) == model
            assert_separate(results, xs)


def test_every_replica_counts() -> None:
    """TensorFlow's hierarchical copy forgets the last of an odd number."""
    for kind in CLASSES:
        for n in range(1, 40):
            assert kind().reduce("sum", [np.ones(3)] * n)[0].tolist() == [n] * 3


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("packs", [1, 2, 3, 5, 100_000_000])
def test_packs(n: int, packs: int) -> None:
    sizes = [7, 0, 1000, 1, 65_000, 333]
    xs = [replicas("float32", "sum", size, n, seed) for seed, size in enumerate(sizes)]
    flat = [np.concatenate([x[r] for x in xs]) for r in range(n)]
    for kind in (RingAllReduce, HierarchicalCopyAllReduce):
        results = kind(num_packs=packs).batch_reduce("mean", [(x, None) for x in xs])
        # Empty packs take time in the model only.
        model = Model(kind, "mean", np.dtype(np.float32))(flat, packs if packs <= len(flat[0]) else 1)
        assert bits(np.concatenate([r[-1] for r in results])) == bits(model)


def mixed_batch(n: int, op: str, seed: int) -> list[tuple[list[Array], list[int] | None]]:
    rng = random.Random(seed)
    pairs: list[tuple[list[Array], list[int] | None]] = []
    for i in range(100):
        dtype = rng.choice([d for d in DTYPES if meaningful(d, op)])
        count = rng.choice([0, 1, 3, 17, 500, 4096, 20_000])
        to = None if rng.random() < 0.5 else rng.sample(range(n), rng.randint(1, n))
        pairs.append((replicas(dtype, op, count, n, seed=seed * 100 + i), to))
    return pairs


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("kind", CLASSES)
def test_fused_batches(kind: type[Any], op: str) -> None:
    for n in (1, 2, 3, 5, 8):
        for packs in (1, 3) if kind is RingAllReduce else (1,):
            pairs = mixed_batch(n, op, n)
            ops = kind(num_packs=packs) if kind is RingAllReduce else kind()
            results = ops.batch_reduce(op, pairs)
            assert [len(r) for r in results] == [n if to is None else len(to) for _, to in pairs]
            for dtype in {xs[0].dtype for xs, _ in pairs}:
                of_dtype = [i for i, (xs, _) in enumerate(pairs) if xs[0].dtype == dtype]
                flat = [np.concatenate([pairs[i][0][r] for i in of_dtype]) for r in range(n)]
                model = Model(kind, op, dtype)(flat, packs)
                assert bits(np.concatenate([results[i][0] for i in of_dtype])) == bits(model), dtype
            for (xs, _), made in zip(pairs, results, strict=True):
                assert_separate(made, xs)


def all_reduced(comm: Any, algorithm: str, op: str, tensors: list[list[Array]]) -> list[bytes]:
    """Each tensor by itself, then all in one list."""
    alone = [comm.all_reduce(t[comm.rank].copy(), op, algorithm=algorithm) for t in tensors]
    together = comm.all_reduce([t[comm.rank].copy() for t in tensors], op, algorithm=algorithm)
    return [bits(a) for a in (*alone, *together)]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("kind", CLASSES)
def test_same_bits_as_the_collectives(pools: Pools, kind: type[Any], n: int) -> None:
    ops = kind()
    for dtype in DTYPES:
        for op in ("sum", "mean", "prod", "min"):
            if not meaningful(dtype, op) or (op == "mean" and dtype in INTEGERS):
                continue
            tensors = [replicas(dtype, op, count, n, seed) for seed, count in enumerate((1, 20, 997, 70_001))]
            name = "avg" if op == "mean" else op
            theirs = pools.get(n, "local").run(all_reduced, SAME_AS[kind], name, tensors)[0]
            alone = [ops.reduce(op, t)[0] for t in tensors]
            together = [r[0] for r in ops.batch_reduce(op, [(t, None) for t in tensors])]
            assert [bits(a) for a in (*alone, *together)] == theirs, f"{op} of {dtype}"


def test_order_shows() -> None:
    """The three classes do differ: values that lose their low bits in one order only."""
    xs = [np.full(1000, v, np.float32) for v in (1e8, 1.0, -1e8, 1.0, 3.0)]
    seen = {kind: kind().reduce("sum", xs)[0] for kind in CLASSES}
    assert len(set(seen[RingAllReduce].tolist())) > 1  # every part starts at another replica
    assert len({bits(result) for result in seen.values()}) >= 2
    # 16-bit partial results: rounded once by one device, more often by the others.
    halves = [np.full(1000, v, np.float16) for v in (2048, 1, 1, 1, 1)]
    assert ReductionToOneDevice().reduce("sum", halves)[0][0] == 2052
    assert HierarchicalCopyAllReduce().reduce("sum", halves)[0][0] == 2052
    assert RingAllReduce().reduce("sum", halves)[0][0] == 2048


class ReduceOp(enum.Enum):
    """As in tf.distribute."""

    SUM = "SUM"
    MEAN = "MEAN"


@pytest.mark.parametrize("kind", CLASSES)
def test_ops_by_name(kind: type[Any]) -> None:
    xs = [np.array([1.0, 2.0]), np.array([3.0, 6.0])]
    ops = kind()
    for op, expected in ((ReduceOp.SUM, [4, 8]), (ReduceOp.MEAN, [2, 4]), ("Sum", [4, 8]), ("MAX", [3, 6])):
        assert ops.reduce(op, xs)[0].tolist() == expected


def test_means_of_integers() -> None:
    for dtype in INTEGERS:
        wide = np.float32 if np.dtype(dtype).itemsize < 4 else np.float64
        top = np.iinfo(dtype).max
        xs = [np.array([top, 1, 7], dtype), np.array([top, 2, 8], dtype), np.array([0, 4, 9], dtype)]
        wrapped = np.add.reduce(xs, dtype=np.dtype(dtype))
        for destinations, many in ((None, 3), ([1], 1)):
            results = ReductionToOneDevice().reduce("mean", xs, destinations)
            assert len(results) == many
            assert_separate(results, xs)
            assert results[0].dtype == wide
            assert results[0].tolist() == (wrapped.astype(wide) / wide(3)).tolist()


@pytest.mark.parametrize("kind", CLASSES)
def test_shapes_without_elements_or_dimensions(kind: type[Any]) -> None:
    ops = kind()
    for shape in ((), (0,), (3, 0, 2), (1, 1)):
        for dtype in ("float32", "int32"):
            for op in OPS:
                results = ops.reduce(op, [np.full(shape, 4, dtype)] * 3)
                assert [type(r) for r in results] == [np.ndarray] * 3
                expected = {"sum": 12, "mean": 4, "min": 4, "max": 4, "prod": 64}[op]
                assert all(r.shape == shape and (r == expected).all() for r in results)
    batch = ops.batch_reduce("sum", [([np.ones(0)] * 2, None), ([np.ones(())] * 2, [1]), ([np.ones(0)] * 2, None)])
    assert [[r.tolist() for r in made] for made in batch] == [[[], []], [2.0], [[], []]]


def layouts(x: Array) -> list[Array]:
    """The same values in memory of every kind."""
    wide = np.zeros((*x.shape, 2), x.dtype)
    wide[..., 0] = x
    odd = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    odd[...] = x
    return [
        x,
        wide[..., 0],
        np.array(x, order="F"),
        np.array(x[::-1])[::-1],
        x.astype(x.dtype.newbyteorder(">")),
        odd,
        x.view(np.memmap),
    ]


@pytest.mark.parametrize("kind", CLASSES)
def test_layouts(kind: type[Any]) -> None:
    xs = layouts(np.arange(12, dtype=np.float32).reshape(3, 4))
    kept = [bits(x) for x in xs]
    for op in ("sum", "mean"):
        results = kind().reduce(op, xs)
        factor = len(xs) if op == "sum" else 1
        assert results[0].tolist() == (factor * xs[0]).tolist()
        assert_separate(results, xs)
        assert all(r.dtype.isnative and type(r) is np.ndarray for r in results)
    assert [bits(x) for x in xs] == kept
    assert kind().gather(xs, 1)[0].tolist() == np.concatenate(xs, 1).tolist()
    assert kind().broadcast(xs[1], [0, 1])[1].tolist() == xs[0].tolist()


def test_layouts_within_batches() -> None:
    xs = [x.T for x in replicas("float64", "sum", 12, 3)]
    pairs = [(tuple(x.reshape(3, 4) for x in xs), None), ([x.reshape(3, 4).T for x in xs], (2, 0))]
    first, second = RingAllReduce().batch_reduce("sum", pairs)
    assert [len(first), len(second)] == [3, 2]
    assert np.allclose(first[0].T, second[0], rtol=1e-14)


def test_broadcast() -> None:
    for dtype in (*DTYPES, "complex128", "datetime64[s]", "S3"):
        for count in (0, 1, 1000, 300_001):
            x = np.resize(np.arange(1000).astype(numpy_dtype(dtype)), count)
            for destinations in ([0], [3, 1, 2], np.arange(9)):
                results = ReductionToOneDevice().broadcast(x, destinations)
                assert [(r.dtype, r.shape) for r in results] == [(x.dtype, x.shape)] * len(destinations)
                assert bits(results[0]) == bits(x)
                assert_separate(results, [x])


@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    axis=st.integers(-4, 3),
    dtype=st.sampled_from(["float32", "bool", "int16", "complex128"]),
    some=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_gather(shape: list[int], lengths: list[int], axis: int, dtype: str, some: bool) -> None:
    axis = axis % (2 * len(shape)) - len(shape)
    xs = []
    for length in lengths:
        shape[axis] = length
        xs.append((np.arange(math.prod(shape)).reshape(shape) * 7 + len(xs)).astype(dtype))
    destinations = [len(xs) - 1] if some else None
    results = HierarchicalCopyAllReduce().gather(xs, axis, destinations)
    expected = np.concatenate(xs, axis)
    assert len(results) == (1 if some else len(xs))
    assert all(r.shape == expected.shape and r.dtype == expected.dtype for r in results)
    assert bits(results[0]) == bits(expected)
    assert_separate(results, xs)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_large_gather(axis: int) -> None:
    shape = [40, 50, 60]
    xs = []
    for i, length in enumerate((3, 200, 0, 71)):
        shape[axis] = length
        xs.append(np.random.default_rng(i).standard_normal(shape))
    results = RingAllReduce().gather(xs, axis)
    assert bits(results[0]) == bits(np.concatenate(xs, axis))
    assert_separate(results, xs)


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32", "complex128"])
def test_gather_of_short_runs(dtype: str) -> None:
    xs = [np.arange(100_000).reshape(-1, 1).astype(dtype) + i for i in range(3)]
    results = RingAllReduce().gather(xs, 1)
    assert bits(results[0]) == bits(np.concatenate(xs, 1))
    assert_separate(results, xs)


@given(
    shape=st.lists(st.integers(0, 40), max_size=3),
    n=st.integers(1, 12),
    dtype=st.sampled_from(DTYPES),
    op=st.sampled_from(OPS),
    kind=st.sampled_from(CLASSES),
    data=st.data(),
)
@settings(deadline=None, max_examples=200)
def test_any_shape(shape: list[int], n: int, dtype: str, op: str, kind: type[Any], data: st.DataObject) -> None:
    if not meaningful(dtype, op):
        return
    to = data.draw(st.none() | st.lists(st.integers(0, n - 1), min_size=1, max_size=n))
    xs = [x.reshape(shape) for x in replicas(dtype, op, math.prod(shape), n)]
    results = kind().reduce(op, xs, to)
    assert len(results) == (n if to is None else len(to))
    model = Model(kind, op, numpy_dtype(dtype))([x.reshape(-1) for x in xs]).reshape(shape)
    assert (results[0].shape, results[0].dtype) == (model.shape, model.dtype)
    assert bits(results[0]) == bits(model)
    assert_separate(results, xs)


ONES = [np.ones(2)] * 3


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda o: o.reduce("sum", []), ValueError, "values is empty"),
        (lambda o: o.reduce("sum", np.ones((2, 2))), TypeError, "values is of type ndarray; a list or tuple"),
        (lambda o: o.reduce("sum", None), TypeError, "values is of type NoneType"),
        (lambda o: o.reduce("sum", [1.0, 2.0]), TypeError, "value 0 is of type float; a numpy.ndarray"),
        (lambda o: o.reduce("sum", [np.ones(2), [1, 1]]), TypeError, "value 1 is of type list"),
        (lambda o: o.reduce("sum", [np.ones(2), np.ones(3)]), ValueError, r"value 1 has shape \(3,\) and value 0 has"),
        (lambda o: o.reduce("sum", [np.ones(2), np.ones((2, 1))]), ValueError, r"value 1 has shape \(2, 1\)"),
        (
            lambda o: o.reduce("sum", [np.ones(2), np.ones(2), np.ones(2, np.float32)]),
            TypeError,
            "value 2 has dtype float32 and value 0 has float64",
        ),
        (lambda o: o.reduce("sum", [np.array(["a"])]), TypeError, "value 0 has dtype <U1, which cannot be reduced"),
        (lambda o: o.reduce("sum", [np.array([None])]), TypeError, "dtype object"),
        (lambda o: o.reduce("avg", ONES), ValueError, "op is 'avg'; sum, mean, min, max and prod are accepted"),
        (lambda o: o.reduce(3, ONES), TypeError, "op is 3 of type int; sum, mean"),
        (lambda o: o.reduce("sum", [np.ones(2, bool)] * 2), TypeError, "sum of bool has no meaning; use max"),
        (lambda o: o.reduce("mean", [np.ones(2, bool)] * 2), TypeError, "mean of bool has no meaning"),
        (lambda o: o.reduce("sum", ONES, []), ValueError, "destinations is empty"),
        (lambda o: o.reduce("sum", ONES, [0, 3]), ValueError, r"destinations\[1\] is 3; .* 0 to 2"),
        (lambda o: o.reduce("sum", ONES, [-1]), ValueError, r"destinations\[0\] is -1"),
        (lambda o: o.reduce("sum", ONES, ["cpu"]), TypeError, r"destinations\[0\] is 'cpu' of type str"),
        (lambda o: o.reduce("sum", ONES, [True]), TypeError, r"destinations\[0\] is True"),
        (lambda o: o.reduce("sum", ONES, 1), TypeError, "destinations is of type int; a sequence"),
        (lambda o: o.batch_reduce("sum", []), ValueError, "the batch is empty"),
        (lambda o: o.batch_reduce("sum", 5), TypeError, "pairs is of type int"),
        (lambda o: o.batch_reduce("sum", [ONES]), TypeError, r"pair 0 is of type list; a \(values, destinations\)"),
        (
            lambda o: o.batch_reduce("sum", [(ONES, None), (ONES[:2], None)]),
            ValueError,
            "pair 1: there are 2 values and pair 0 has 3",
        ),
        (lambda o: o.batch_reduce("sum", [(ONES, None), (ONES, [7])]), ValueError, r"pair 1: destinations\[0\] is 7"),
        (lambda o: o.batch_reduce("sum", [(ONES, None), ([], None)]), ValueError, "pair 1: values is empty"),
        (
            lambda o: o.batch_reduce("sum", [(ONES, None), ([np.ones(1), np.ones(1), np.ones(4)], None)]),
            ValueError,
            r"pair 1: value 2 has shape \(4,\)",
        ),
        (lambda o: o.batch_reduce("mean", [(ONES, None), ([np.ones(1, bool)] * 3, None)]), TypeError, "pair 1: mean"),
        (lambda o: o.broadcast(np.ones(2), None), TypeError, "destinations is of type NoneType"),
        (lambda o: o.broadcast(np.ones(2), []), ValueError, "destinations is empty"),
        (lambda o: o.broadcast(np.ones(2), [-2]), ValueError, r"destinations\[0\] is -2; .* from 0 on"),
        (lambda o: o.broadcast(3, [0]), TypeError, "value is of type int; a numpy.ndarray"),
        (lambda o: o.broadcast(np.array([{}]), [0]), TypeError, "value has dtype object, which holds Python objects"),
        (lambda o: o.gather([], 0), ValueError, "values is empty"),
        (lambda o: o.gather([np.ones(())], 0), ValueError, "axis is 0 and value 0 has 0 dimensions; there is none"),
        (lambda o: o.gather([np.ones(2)], 1), ValueError, "axis is 1 and value 0 has 1 dimensions; -1 to 0"),
        (lambda o: o.gather([np.ones(2)], "0"), TypeError, "axis is '0' of type str; an integer"),
        (lambda o: o.gather([np.ones((2, 3)), np.ones((2, 2))], 0), ValueError, r"value 1 has shape \(2, 2\) and"),
        (lambda o: o.gather([np.ones((2, 3)), np.ones(2)], 0), ValueError, r"value 1 has shape \(2,\) and"),
        (lambda o: o.gather([np.ones(2), np.ones(2, int)], 0), TypeError, "value 1 has dtype int64 and value 0"),
        (lambda o: o.gather([np.ones(2)], 0, [1]), ValueError, r"destinations\[0\] is 1"),
        (lambda o: RingAllReduce(0), ValueError, "num_packs is 0; a number from 1"),
        (lambda o: HierarchicalCopyAllReduce(num_packs=-2), ValueError, "num_packs is -2"),
        (lambda o: RingAllReduce(1.5), TypeError, "num_packs is 1.5 of type float"),
        (lambda o: ReductionToOneDevice(-1), ValueError, "reduce_to_device is -1"),
        (lambda o: ReductionToOneDevice("gpu"), TypeError, "reduce_to_device is 'gpu' of type str"),
        (lambda o: ReductionToOneDevice(3).reduce("sum", ONES), ValueError, "is 3 and there are 3 values; 0 to 2"),
        (lambda o: CrossDeviceOps(), TypeError, "abstract"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], words: str) -> None:
    for kind in CLASSES:
        ops = kind()
        with pytest.raises(error, match=words) as caught:
            call(ops)
        assert not isinstance(caught.value, AssertionError)
        assert ops.reduce("sum", ONES)[2].tolist() == [3, 3]  # nothing is broken


def test_reduce_to_a_device_that_exists() -> None:
    for device in (None, 0, 2, np.int64(1)):
        assert ReductionToOneDevice(device).reduce("sum", ONES, [1])[0].tolist() == [3, 3]


def test_the_core_refuses_what_has_no_meaning() -> None:
    """Python does not ask for it; the core must not crash all the same."""
    with pytest.raises(TypeError, match="avg of int32 has no meaning"):
        _core._reduce_replicas("canonical", 1, [([np.ones(3, np.int32)] * 2, "avg", 1)])
    with pytest.raises(ValueError, match="unknown combination"):
        _core._reduce_replicas("sideways", 1, [([np.ones(3)] * 2, "sum", 1)])
