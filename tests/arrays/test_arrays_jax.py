"""Arrays of JAX in the public calls."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import collectives
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from array_kinds import Kind, Refused, exercise, judge_refused
from collectives._arrays import adapt, empty
from conformance import Array
from pool import Pools

jax.config.update("jax_num_cpu_devices", 2)
ONE = type(jnp.ones(1))


def jax_of(a: Array) -> Any:
    with jax.enable_x64(True):
        return jnp.array(a)


def on_the_second(a: Array) -> Any:
    with jax.enable_x64(True):
        return jax.device_put(a, jax.devices()[1])


KINDS = {
    "jax": Kind(jax_of, np.array, ONE, False, ["float32", "float64", "bfloat16", "float16", "int32", "int64", "bool"]),
    "jax second device": Kind(on_the_second, np.array, ONE, False, ["float32", "bfloat16"]),
}


def exercise_kind(comm: Any, name: str) -> list[str]:
    return exercise(comm, KINDS[name])


@pytest.mark.parametrize(("name", "transport"), [("jax", "local"), ("jax second device", "local"), ("jax", "shm")])
def test_every_call(pools: Pools, name: str, transport: str) -> None:
    failures = [text for report in pools.get(2, transport).run(exercise_kind, name) for text in report]
    assert not failures, "\n".join(failures[:20])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.bool_, jnp.int8])
def test_nothing_is_copied(dtype: Any) -> None:
    x = jnp.ones((3, 5), dtype)
    adapted = adapt(x, "x")
    assert adapted.array.ctypes.data == x.unsafe_buffer_pointer()
    assert not adapted.array.flags.writeable
    result = empty((7,), adapted.array.dtype)
    assert adapted.wrap(result).unsafe_buffer_pointer() == result.ctypes.data


def test_results_are_where_the_arguments_were() -> None:
    (comm,) = collectives.local_group(1)
    second = jax.devices()[1]
    mesh = jax.sharding.Mesh(np.array([second]), ("data",))
    named = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    x = jax.device_put(np.arange(6.0, dtype=np.float32), named)
    assert comm.all_reduce(x).sharding == named
    assert adapt(x, "x").wrap(empty((2, 2), np.dtype(np.float32))).devices() == {second}

    free = jnp.ones(3) + 1
    assert not free.committed
    assert not comm.all_reduce(free).committed
    with jax.default_device(second):
        there = jnp.ones(3) + 1
    result = comm.all_reduce(there)
    assert result.devices() == {second}
    assert not result.committed


def test_wide_types_are_not_narrowed() -> None:
    """Made with 64 bits enabled, used where they are not."""
    (comm,) = collectives.local_group(1)
    assert not jax.config.jax_enable_x64
    for dtype in (np.float64, np.int64, np.uint64):
        assert comm.all_reduce(jax_of(np.ones(3, dtype))).dtype == dtype


def test_results_take_part_in_computations() -> None:
    """The memory of a result is JAX's: donating it to a computation, deleting and collecting it do no harm."""
    (comm,) = collectives.local_group(1)
    x = jnp.arange(100_000.0)
    double = jax.jit(lambda a: a * 2, donate_argnums=0)
    for _ in range(10):
        total = double(comm.all_reduce(x + 1))
        again = comm.all_reduce(x)
        again.delete()
        gc.collect()
        assert np.array_equal(total, 2 * (np.arange(100_000, dtype=np.float32) + 1))


def test_a_result_keeps_its_memory() -> None:
    class Watched(bytearray):
        pass

    store = Watched(64 + 4096)
    alive = weakref.ref(store)
    array = np.frombuffer(store, np.uint8)
    start = -array.ctypes.data % 64
    result = adapt(jnp.ones(3), "x").wrap(array[start : start + 4096].view(np.float32))
    assert result.unsafe_buffer_pointer() % 64 == 0
    del store, array
    gc.collect()
    assert alive() is not None
    assert float(result.sum()) == 0
    del result
    gc.collect()
    assert alive() is None


def test_the_argument_may_be_deleted_meanwhile() -> None:
    go = threading.Event()
    results: list[Any] = []

    def early(comm: Any) -> None:
        try:
            x = jnp.arange(100_000.0) + 1
            work = comm.all_reduce(x, async_op=True)
            x.delete()
            del x
            gc.collect()
            rubbish = [jnp.full(100_000, -1.0).block_until_ready() for _ in range(20)]
            go.set()
            results.append(np.array(work.result(30)))
            del rubbish
        finally:
            go.set()

    def late(comm: Any) -> None:
        go.wait(30)
        comm.all_reduce(np.zeros(100_000, np.float32), timeout=30)

    comms = collectives.local_group(2)
    threads = [threading.Thread(target=t, args=(c,)) for t, c in zip((early, late), comms, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(results[0], np.arange(100_000, dtype=np.float32) + 1)


def sharded() -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    return jax.device_put(jnp.arange(8.0), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")))


T = TypeError
REFUSED = {
    "sharded": Refused(lambda c: c.all_reduce(sharded()), T, ["x is a jax.Array", "2 devices", "addressable_shards"]),
    "sharded in a list": Refused(lambda c: c.all_reduce([jnp.ones(2), sharded()]), T, ["x[1]", "2 devices"]),
    "jit": Refused(lambda c: jax.jit(c.all_reduce)(jnp.ones(2)), T, ["x is a", "Tracer", "jax.jit"]),
    "grad": Refused(lambda c: jax.grad(lambda x: c.all_reduce(x).sum())(jnp.ones(2)), T, ["Tracer", "jax.grad"]),
    "vmap": Refused(lambda c: jax.vmap(c.all_reduce)(jnp.ones((2, 3))), T, ["Tracer", "jax.vmap"]),
    "key": Refused(lambda c: c.all_reduce(jax.random.key(0)), T, ["x is a jax.Array of dtype key", "key_data"]),
    "out": Refused(lambda c: c.all_reduce(jnp.ones(2), out=jnp.ones(2)), T, ["out is", "never change", "leave out="]),
    "out in a list": Refused(lambda c: c.all_reduce([jnp.ones(2)], out=[jnp.ones(2)]), T, ["out[0] is", "never"]),
    "another dtype": Refused(lambda c: c.all_reduce([jnp.ones(2), np.ones(2)]), T, ["tensor 1", "float64", "float32"]),
    "int4": Refused(lambda c: c.all_reduce(jnp.ones(3, jnp.int4)), T, ["int4", "accepted"]),
    "deleted": Refused(lambda c: ((x := jnp.ones(2) + 1).delete(), c.all_reduce(x)), RuntimeError, ["deleted"]),
}


@pytest.fixture(scope="module")
def alone() -> Iterator[Any]:
    (comm,) = collectives.local_group(1)
    with comm:
        yield comm


@pytest.mark.parametrize("name", REFUSED)
def test_refused(alone: Any, name: str) -> None:
    judge_refused(alone, REFUSED[name])


def test_another_platform() -> None:
    """Seen from the device of the sharding alone; there is no other platform to try it on."""

    class Device:
        platform = "gpu"

        def __repr__(self) -> str:
            return "cuda:1"

    class Sharding:
        device_set = frozenset({Device()})

    class Elsewhere:
        sharding = Sharding()

    from collectives._arrays.libraries import jax as jax_arrays

    with pytest.raises(TypeError, match=r"x\[4\] is a jax\.Array on device cuda:1.*jax\.device_put"):
        jax_arrays.adapter(jax, jnp.ones(1))(Elsewhere(), "x[4]")


def test_mixed_with_numpy_and_ml_dtypes() -> None:
    (comm,) = collectives.local_group(1)
    host = np.ones(3, ml_dtypes.bfloat16)
    device = jnp.ones(2, jnp.bfloat16)
    results = comm.all_reduce([host, device])
    assert results[0] is host
    assert results[1] is not device
    assert results[1].dtype == jnp.bfloat16
