"""What runs in processes with fake devices (fake_devices.py); the tests say what for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import collectives
import numpy as np
from collectives import BackendError, _core
from fake_devices import DeviceArray, Fake, bitwise_equal, collective
from reducing import MEANINGFUL, model, numpy_dtype, samples
from threaded import on_ranks

Array = np.ndarray[Any, Any]
fake = Fake()


def uneven(n: int, seed: int) -> list[int]:
    """Lengths of parts, some of them 0."""
    return [int(c) for c in np.random.default_rng(seed).integers(0, 40, n)]


def problem(name: str, n: int, dtype: str, op: str, count: int, root: int) -> tuple[list[Array], list[int], list[int]]:
    """Inputs of all ranks, lengths of their outputs, and lengths of parts."""
    counts: list[int] = []
    gives = gets = [count] * n
    if name in ("all_gather", "gather"):
        counts = uneven(n, count)
        gives, gets = counts, [sum(counts)] * n
    elif name in ("reduce_scatter", "scatter"):
        counts = uneven(n, count)
        gives, gets = [sum(counts)] * n, counts
    elif name == "all_to_all":
        counts = uneven(n * n, count)
        gives = [sum(counts[r * n : r * n + n]) for r in range(n)]
        gets = [sum(counts[r::n]) for r in range(n)]
    elif name == "barrier":
        gives = gets = [0] * n
    if name == "gather":
        gets = [g if r == root else 0 for r, g in enumerate(gets)]
    if name == "scatter":
        gives = [g if r == root else 0 for r, g in enumerate(gives)]
    return [samples(dtype, gives[r], 100 * n + r, op) for r in range(n)], list(gets), counts


def expected(name: str, algorithm: str, op: str, root: int, inputs: list[Array], counts: list[int]) -> list[Any]:
    """The results of the same algorithm on the host; None where a rank gets none."""
    n = len(inputs)
    if name in ("all_reduce", "reduce", "broadcast"):

        def body(comm: Any) -> Any:
            r = comm.rank
            out = np.zeros_like(inputs[r])
            if name == "all_reduce":
                comm.all_reduce(inputs[r], op, out=out, algorithm=algorithm)
            elif name == "reduce":
                comm.reduce(inputs[r], op, root, out=out if r == root else None, algorithm=algorithm)
            else:
                out[:] = inputs[r]
                comm.broadcast(out, root, algorithm=algorithm)
            return out if name != "reduce" or r == root else None

        return on_ranks(n, body)
    borders = np.cumsum([0, *counts])
    if name == "reduce_scatter":
        return on_ranks(n, lambda comm: comm.reduce_scatter(inputs[comm.rank], op, counts=counts, algorithm=algorithm))
    if name in ("all_gather", "gather"):
        return [np.concatenate(inputs) if name == "all_gather" or r == root else None for r in range(n)]
    if name == "scatter":
        return [inputs[root][borders[r] : borders[r + 1]] for r in range(n)]
    if name == "all_to_all":
        parts = [np.split(inputs[r], np.cumsum(counts[r * n : r * n + n])[:-1]) for r in range(n)]
        return [np.concatenate([parts[q][r] for q in range(n)]) for r in range(n)]
    return [None] * n


def run_collective(
    name: str,
    algorithm: str,
    n: int,
    dtype: str,
    op: str,
    count: int,
    devices: Sequence[int],
    *,
    root: int = 0,
    in_place: bool = False,
    chunk_bytes: int = 4 << 20,
    pieces: int = 1,
) -> None:
    """One collective on fake devices, against the host. `pieces`: arrays of each rank."""
    inputs, gets, counts = problem(name, n, dtype, op, count, root)
    want = expected(name, algorithm, op, root, inputs, counts)
    streams = [fake.stream(devices[r]) for r in range(n)]
    item = numpy_dtype(dtype).itemsize

    def arrays(r: int, length: int) -> list[DeviceArray]:
        borders = [length * i // pieces for i in range(pieces + 1)]
        return [DeviceArray(fake, devices[r], (high - low) * item) for low, high in itertools.pairwise(borders)]

    given = [arrays(r, inputs[r].size) for r in range(n)]
    got = given if in_place else [arrays(r, gets[r]) for r in range(n)]
    for r in range(n):
        at = 0
        for array in given[r]:
            array.produce(inputs[r][at : at + array.nbytes // item], streams[r])
            at += array.nbytes // item
    collective(
        name, algorithm, op, root, count if not counts else sum(counts), counts, dtype,
        [(devices[r], streams[r], given[r], got[r]) for r in range(n)], chunk_bytes,
    )  # fmt: skip
    seen = [
        [array.consume(np.empty(array.nbytes // item, numpy_dtype(dtype)), streams[r]) for array in got[r]]
        for r in range(n)
    ]
    fake.finish()
    fake.check()
    for r in range(n):
        if want[r] is not None:
            where = f"{name} {algorithm} n={n} {dtype} {op} count={count} root={root} devices={list(devices)} rank {r}"
            result = np.concatenate(seen[r])
            assert bitwise_equal(result, np.ascontiguousarray(want[r])), f"{where}:\n{result}\n{want[r]}"


def every_algorithm(name: str) -> None:
    """Every algorithm of a collective, 1 to 9 ranks, on as many devices and on fewer."""
    for entry in _core._algorithms(name):
        algorithm = entry["name"]
        ran = 0
        for n in range(1, 10):
            for spread in (range(n), [r % 2 for r in range(n)], [0] * n):
                for count, chunk in ((1, 4 << 20), (7 * n + 3, 4 << 20), (1537, 1024)):
                    fake.seed(n + count)
                    try:
                        run_collective(
                            name, algorithm, n, "float32", "sum", count, list(spread),
                            root=n // 2, in_place=name in ("all_reduce", "broadcast") and count % 2 == 1,
                            chunk_bytes=chunk,
                        )  # fmt: skip
                        ran += 1
                    except ValueError as error:
                        assert "cannot be used here" in str(error), error
        print(algorithm, ran)


def every_type(name: str, algorithm: str) -> None:
    """All dtypes with all ops, in several arrays, without and with chunks."""
    for i, (dtype, op) in enumerate(MEANINGFUL):
        if op == "premul_sum":
            continue
        n = 2 + i % 4
        run_collective(
            name, algorithm, n, dtype, op, 129 + i, [r % 3 for r in range(n)],
            root=i % n, in_place=name == "all_reduce" and bool(i % 2), chunk_bytes=4096 if i % 3 else 512,
            pieces=1 + i % 3,
        )  # fmt: skip


def replicas(
    combination: str,
    algorithm: str,
    packs: int,
    shapes: Sequence[tuple[str, str, int]],
    devices: Sequence[int],
    destinations: Sequence[int],
    *,
    one_stream: bool = False,
    in_place: bool = False,
) -> None:
    """_reduce_device_replicas against _reduce_replicas."""
    n = len(devices)
    streams = [fake.stream(device) for device in devices]
    if one_stream:
        streams = streams[:1] * n
    values = [[samples(dtype, count, 31 * t + r, op) for r in range(n)] for t, (dtype, op, count) in enumerate(shapes)]
    pairs = [(v, op, len(destinations)) for v, (_, op, _) in zip(values, shapes, strict=True)]
    want = _core._reduce_replicas(combination, packs, pairs)
    assert want is not None
    tensors = []
    kept = []
    for v, (dtype, op, count) in zip(values, shapes, strict=True):
        sources = [DeviceArray(fake, devices[r], v[r].nbytes) for r in range(n)]
        results = [
            sources[d] if in_place and destinations.index(d) == i else DeviceArray(fake, devices[d], v[0].nbytes)
            for i, d in enumerate(destinations)
        ]
        for r in range(n):
            sources[r].produce(v[r], streams[r])
        kept.append((sources, results))
        addresses = [a.pointer for a in sources], [a.pointer for a in results]
        tensors.append((op, dtype, count, *addresses, list(destinations)))
    _core._reduce_device_replicas(combination, packs, algorithm, tensors, list(devices), streams)
    got = [
        [a.consume(np.empty_like(v[0]), streams[d]) for a, d in zip(results, destinations, strict=True)]
        for (_, results), v in zip(kept, values, strict=True)
    ]
    fake.finish()
    fake.check()
    for t, (dtype, op, count) in enumerate(shapes):
        for i in range(len(destinations)):
            where = f"{combination} {packs} {dtype} {op} {count} devices={list(devices)} destination {i}"
            assert bitwise_equal(got[t][i], want[t][i]), f"{where}\n{got[t][i]}\n{want[t][i]}"


ORDERS = (("canonical", "two_shot"), ("canonical", "reduce_to_one"), ("halves", "hierarchical_copy"), ("chain", "ring"))


def replicas_of_all_types() -> None:
    for combination, algorithm in ORDERS:
        for i, (dtype, op) in enumerate(MEANINGFUL):
            if op == "premul_sum":
                continue
            n = 1 + i % 7
            for devices in ([0] * n, [r % 3 for r in range(n)]):
                shapes = [(dtype, op, 1 + i), (dtype, op, 200)]
                replicas(combination, algorithm, 1 + i % 3, shapes, devices, list(range(n)), in_place=bool(i % 2))


def replicas_to_some() -> None:
    """One destination, several on one replica, more than a kernel takes; tensors of no elements."""
    mixed = [("float32", "sum", 33), ("bfloat16", "avg", 77), ("int64", "max", 5), ("float32", "sum", 0)]
    for combination, algorithm in ORDERS:
        for n in range(1, 10):
            for devices in ([0] * n, [r % 2 for r in range(n)]):
                for one_stream in (False, True) if len(set(devices)) == 1 else (False,):
                    for to in ([n - 1], [0, 0, n // 2], list(range(n))):
                        replicas(combination, algorithm, 2, mixed, devices, to, one_stream=one_stream)
    replicas("canonical", "two_shot", 1, [("float32", "sum", 10)], [0] * 64, [0] * 70)


def back_to_back() -> None:
    """Calls on the same devices share bounce buffers and scratch, although their streams and arrays are unrelated."""
    for devices in ([0, 1, 2], [0, 0]):
        for algorithm in ("one_shot", "two_shot", "ring", "hierarchical_copy", "reduce_to_one"):
            calls = []
            n = len(devices)
            for i in range(4):
                values = [samples("int32", 300, 10 * i + r) for r in range(n)]
                streams = [fake.stream(device) for device in devices]
                arrays = [DeviceArray(fake, device, 1200) for device in devices]
                for array, v, stream in zip(arrays, values, streams, strict=True):
                    array.produce(v, stream)
                ranks = [(devices[r], streams[r], [arrays[r]], [arrays[r]]) for r in range(n)]
                collective("all_reduce", algorithm, "sum", 0, 300, [], "int32", ranks, 256)
                got = [a.consume(v, s) for a, v, s in zip(arrays, values, streams, strict=True)]
                calls.append((arrays, values, got))
            fake.finish()
            fake.check()
            for _, values, got in calls:
                for result in got:
                    assert bitwise_equal(result, np.sum(values, axis=0, dtype=np.int32)), algorithm


def delayed_producers(rounds: int) -> None:
    """Producers that are late, on streams of their own, and consumers right after; nothing waits for a device."""
    before = {name: fake.calls(name) for name in ("event_query", "release")}
    for i in range(rounds):
        fake.seed(i)
        shapes = [("float32", "sum", 100)]
        if i % 2:
            replicas("canonical", "two_shot", 1, shapes, [0] * 4, [0, 1, 2, 3])
        else:
            replicas("chain", "ring", 1, shapes, [0, 1, 0], [0, 1, 2])
    assert {name: fake.calls(name) for name in before} == before


def no_host_wait() -> None:
    """Calls return while all of their work is still to be done."""
    for devices in ([0, 0], [0, 1]):
        arrays = [DeviceArray(fake, device, 400) for device in devices]
        streams = [fake.stream(device) for device in devices]
        tensors = [("sum", "float32", 100, [a.pointer for a in arrays], [a.pointer for a in arrays], [0, 1])]
        _core._reduce_device_replicas("canonical", 1, "two_shot", tensors, devices, streams)
        before = fake.pending()
        assert before > 4
        _core._reduce_device_replicas("canonical", 1, "two_shot", tensors, devices, streams)
        assert fake.pending() > before + 4
        fake.finish()
        fake.check()


def caches() -> None:
    """The second call of a kind makes nothing anew, and everything can be given back."""
    for devices in ([0, 0, 0], [0, 1, 2]):
        for _ in range(2):
            replicas("chain", "ring", 1, [("float32", "sum", 1000)], devices, [0])
            live = fake.live()
        replicas("chain", "ring", 1, [("float32", "sum", 1000)], devices, [0])
        assert fake.live() == live
    _core._device_drop_caches()
    assert fake.live() == dict.fromkeys(live, 0)


def growing() -> None:
    """Memory that became too small is released once no call uses it."""
    for count in (10, 1000, 100_000, 1_000_000, 10):
        replicas("chain", "ring", 1, [("float32", "sum", count)], [0, 1], [0])
    replicas("chain", "ring", 1, [("float32", "sum", 10)], [0, 1], [0])
    assert fake.live()["memory"] == 1  # for the result of the replica that has no destination


def capture() -> None:
    """On one device a graph can be recorded; between devices, and through the host, it is refused."""
    arrays = [DeviceArray(fake, 0, 400) for _ in range(2)]
    streams = [fake.stream(0) for _ in range(2)]
    tensors = [("sum", "float32", 100, [a.pointer for a in arrays], [a.pointer for a in arrays], [0, 1])]
    fake.capture(streams[0], True)
    refused(lambda: _core._reduce_device_replicas("canonical", 1, "two_shot", tensors, [0, 0], streams), "record both")
    fake.capture(streams[1], True)
    _core._reduce_device_replicas("canonical", 1, "two_shot", tensors, [0, 0], streams)
    fake.check()
    other = fake.stream(1)
    fake.capture(other, True)
    refused(
        lambda: _core._reduce_device_replicas("canonical", 1, "two_shot", tensors, [0, 1], [streams[0], other]),
        "cannot be recorded",
    )
    fake.capture(other, False)
    fake.finish()
    buffer = _core._PinnedBuffer(400)
    fake.capture(streams[0], True)
    refused(lambda: buffer.copy_in(0, arrays[0].pointer, 400, streams[0], 0), "cannot be recorded")
    fake.capture(streams[0], False)
    fake.check()


def refused(call: Callable[[], Any], text: str) -> None:
    try:
        call()
    except BackendError as error:
        assert text in str(error), error
    else:
        raise AssertionError("no error")


def injected(devices: Sequence[int], combination: str, algorithm: str) -> None:
    """Each call in turn fails: a BackendError, nothing is left, and the next call is right."""
    n = len(devices)
    streams = [fake.stream(device) for device in devices]
    arrays = [DeviceArray(fake, device, 4000) for device in devices]
    tensors = [("sum", "float32", 1000, [a.pointer for a in arrays], [arrays[0].pointer], [0])]

    def call() -> None:
        _core._reduce_device_replicas(combination, 1, algorithm, tensors, list(devices), streams)

    begin = fake.calls()
    call()
    total = fake.calls() - begin
    fake.finish()
    _core._device_drop_caches()
    assert total > n
    failed = 0
    for k in range(1, total + 1):
        fake.seed(k)
        fake.fail(k)
        try:
            call()
        except BackendError as error:
            failed += 1
            assert "cudaErrorIllegalAddress" in str(error) and " failed: " in str(error), error
        fake.fail(0)
        fake.finish()
        fake.check()
        _core._device_drop_caches()
        assert set(fake.live().values()) == {0}, f"call {k}: {fake.live()}"
        replicas(combination, algorithm, 1, [("float32", "sum", 1000)], devices, [0])
        _core._device_drop_caches()
    # The device of the thread is put back, and old memory is released, where no caller can be told that it failed.
    assert failed >= total * 0.8, f"{failed} of {total}"


def out_of_memory() -> None:
    fake.fail(1, 2, "allocate")
    try:
        replicas("chain", "ring", 1, [("float32", "sum", 1000)], [0, 1], [0])
    except BackendError as error:
        assert "allocating" in str(error) and "free memory" in str(error), error
    else:
        raise AssertionError("no error")
    fake.finish()


def staged() -> None:
    """Through pinned memory: device to host, a change there, and back, in the order of the caller's stream."""
    for i in range(200):
        fake.seed(i)
        stream = fake.stream(i % 2)
        array = DeviceArray(fake, i % 2, 4000)
        values = np.arange(1000, dtype=np.float32) + i
        array.produce(values, stream)
        buffer = _core._PinnedBuffer(4000)
        buffer.copy_in(0, array.pointer, 4000, stream, i % 2)
        buffer.wait(20.0)
        host = np.frombuffer(buffer, np.float32)
        assert bitwise_equal(host, values)
        host *= 2
        buffer.copy_out(0, array.pointer, 4000, stream, i % 2)
        del host, buffer
        got = array.consume(values, stream)
        if i % 3 == 0:
            fake.finish()
            assert bitwise_equal(got, 2 * values)
        fake.check()
    _core._device_drop_caches()
    assert fake.live()["pinned"] == 0


def waiting() -> None:
    """A device that does not finish is a DeadlineError; events order other streams."""
    first, second = fake.stream(0), fake.stream(1)
    array = DeviceArray(fake, 0, 40)
    other = DeviceArray(fake, 1, 40)
    values = np.arange(10, dtype=np.float32)
    for _ in range(100):
        array.produce(values, first)
    event = _core._DeviceEvent(first, 0)
    try:
        event.wait(0.0)
    except collectives.DeadlineError as error:
        assert "device 0 has not finished" in str(error)
        assert error.age is not None
    else:
        raise AssertionError("no error")
    event.stream_wait(second, 1)
    _core._device_copy(other.pointer, array.pointer, 40, second, 1)
    got = other.consume(values, second)
    event.wait(-1.0)
    assert event.done()
    fake.finish()
    fake.check()
    assert bitwise_equal(got, values)
    assert _core._device_of(array.pointer) == 0 and _core._device_of(other.pointer) == 1
    assert _core._device_of(values.ctypes.data) == -1


def the_checker_sees() -> None:
    """What the other tests lean on: unordered accesses, and everything else that must not be, are errors."""

    def must(text: str) -> None:
        found = fake.errors()
        assert text in found, found

    a, b = fake.stream(0), fake.stream(0)
    array = DeviceArray(fake, 0, 40)
    values = np.arange(10, dtype=np.float32)
    array.produce(values, a)
    array.consume(values, b)
    must("reads the result of")
    array.produce(values, b)
    must("overwrites the result of")
    fake.finish()
    fake.check()
    array.consume(values, a)
    array.produce(values, b)
    must("overwrites what is read by")
    fake.finish()
    array.produce(values, a)
    _core._DeviceEvent(a, 0).stream_wait(b, 0)
    array.consume(values, b)
    fake.finish()
    fake.check()
    gone = DeviceArray(fake, 0, 40)
    pointer = gone.pointer
    del gone
    _core._device_copy(array.pointer, pointer, 40, a, 0)
    must("memory that no device has")
    far = DeviceArray(fake, 1, 40)
    tensors = [("sum", "float32", 10, [array.pointer, far.pointer], [array.pointer], [0])]
    _core._reduce_device_replicas("canonical", 1, "two_shot", tensors, [0, 0], [a, a])
    must("cannot access memory of device 1")
    tensors = [("sum", "float32", 9, [array.pointer + 2], [array.pointer], [0])]
    _core._reduce_device_replicas("canonical", 1, "two_shot", tensors, [0], [a])
    must("not aligned")
    fake.finish()


def reference() -> None:
    """The fake computes what the model in Python says, so that it does not only agree with itself."""
    for dtype, op in MEANINGFUL:
        if op == "premul_sum":
            continue
        values = [samples(dtype, 50, r, op) for r in range(3)]
        arrays = [DeviceArray(fake, 0, v.nbytes) for v in values]
        stream = fake.stream(0)
        for array, v in zip(arrays, values, strict=True):
            array.produce(v, stream)
        tensors = [(op, dtype, 50, [a.pointer for a in arrays], [arrays[0].pointer], [0])]
        _core._reduce_device_replicas("canonical", 1, "two_shot", tensors, [0] * 3, [stream] * 3)
        got = arrays[0].consume(values[0], stream)
        fake.finish()
        fake.check()
        want = model(dtype, op, values, 3.0)
        same = got.view(np.uint8) == want.view(np.uint8)
        with np.errstate(invalid="ignore"):
            assert (same.reshape(50, -1).all(axis=1) | (got != got)).all(), f"{dtype} {op}"
