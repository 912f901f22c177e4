"""What the ranks do in test_device_arrays.py, in processes that have loaded the fake devices."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import collectives
import numpy as np
import pytest
from collectives import MismatchError, _core
from collectives._devices import staging
from collectives._devices.backend import DeviceWork
from conformance import Array, reduced, values, wrong
from device_arrays import OnDevice, copied, fake, make, never_staged, read, staged, stream
from threaded import in_threads, on_ranks

SHAPES = [(), (0,), (1,), (3, 0, 2), (7,), (4, 5), (97, 129)]


def arrays(dtype: str, shape: tuple[int, ...], n: int, seed: int = 0) -> list[Array]:
    count = int(np.prod(shape, dtype=int))
    return [values(dtype, False, count, rank, seed).reshape(shape) for rank in range(n)]


def check(label: str, found: Any, exact: Array, loose: Array | None = None) -> None:
    text = wrong(read(found), exact, np.zeros(exact.shape) if loose is None else loose)
    assert not text, f"{label}: {text}"


def whole(comm: Any, dtype: str) -> None:
    """In place, out=, asynchronous, rooted."""
    n = comm.size
    for index, shape in enumerate(SHAPES):
        every = arrays(dtype, shape, n)
        mine, root = every[comm.rank], index % n
        exact, loose, _ = reduced(every, "sum")
        label = f"{dtype} {shape}"

        x = make(mine, comm.rank)
        assert comm.all_reduce(x) is x
        check(f"in place {label}", x, exact, loose)

        x, out = make(mine, comm.rank), make(np.zeros_like(mine), comm.rank)
        assert comm.all_reduce(x, "sum", out=out) is out
        check(f"out {label}", out, exact, loose)
        check(f"x beside out {label}", x, mine)

        x = make(mine, comm.rank)
        work = comm.all_reduce(x, async_op=True)
        assert work.result() is x
        check(f"asynchronous {label}", x, exact, loose)

        x = make(mine, comm.rank)
        assert comm.broadcast(x, root) is x
        check(f"broadcast {label}", x, every[root])

        x = make(mine, comm.rank)
        assert comm.reduce(x, "sum", root) is x
        check(f"reduce {label}", x, exact if comm.rank == root else mine, loose if comm.rank == root else None)


def a_list(comm: Any, sequence: Callable[[Any], Any]) -> None:
    every = [arrays("float32", shape, comm.size, seed) for seed, shape in enumerate(SHAPES)]
    given = sequence(make(a[comm.rank], comm.rank) for a in every)
    comm.all_reduce(given)  # whatever is asked once
    before = len([e for e in comm.recorder() if e["collective"] == "all_reduce"])
    given = sequence(make(a[comm.rank], comm.rank) for a in every)
    assert comm.all_reduce(given) is given
    for x, inputs in zip(given, every, strict=True):
        exact, loose, _ = reduced(inputs, "sum")
        check(str(x.shape), x, exact, loose)
    assert len([e for e in comm.recorder() if e["collective"] == "all_reduce"]) == before + 1


def parts(comm: Any, dtype: str) -> None:
    rank, n = comm.rank, comm.size
    rows = [values(dtype, False, 2 * (r + 1), r).reshape(r + 1, 2) for r in range(n)]
    joined = np.concatenate(rows)
    mine = make(rows[rank], rank)
    check("all_gather", comm.all_gather(mine), joined)
    check("all_gather, counts", comm.all_gather(mine, counts=[r + 1 for r in range(n)]), joined)
    out = make(np.zeros_like(joined), rank)
    assert comm.all_gather(mine, out=out) is out
    check("all_gather into out", out, joined)
    pending = comm.all_gather(mine, async_op=True)
    check("all_gather, asynchronous", pending.result(), joined)
    first, second = comm.all_gather([mine, mine])
    check("all_gather of a list", first, joined)
    check("all_gather of a list", second, joined)

    got = comm.gather(mine, n - 1)
    if rank == n - 1:
        check("gather", got, joined)
    else:
        assert got is None

    if isinstance(mine, OnDevice):  # the input lies in the output, in its place or in another
        for begin in (sum(range(1, rank + 1)), 0, len(joined) - rank - 1):
            held = np.zeros_like(joined)
            held[begin : begin + rank + 1] = rows[rank]
            both = OnDevice(held, on=rank)
            x = OnDevice(rows[rank], on=rank)
            x.changes = {"data": (both.pointer + begin * held[0].nbytes, False)}
            comm.all_gather(x, out=both)
            check("all_gather inside", both, joined)

    given = arrays(dtype, (2 * n, 3), n)
    part = slice(2 * rank, 2 * rank + 2)
    x = make(given[rank], rank)
    exact, loose, _ = reduced(given, "sum")
    check("reduce_scatter", comm.reduce_scatter(x), exact[part], loose[part])
    check("all_to_all", comm.all_to_all(x), np.concatenate([w[part] for w in given]))


def scattered(comm: Any, dtype: str) -> None:
    """Staged, since receivers may not show an array."""
    rank, n = comm.rank, comm.size
    given = arrays(dtype, (2 * n, 3), n)
    part = slice(2 * rank, 2 * rank + 2)
    x = make(given[rank], rank)
    out = make(np.zeros_like(given[0][part]), rank)
    assert comm.scatter(x if rank == 0 else None, 0, out=out) is out
    check("scatter", out, given[0][part])


def prefixes(comm: Any, dtype: str) -> None:
    """Staged, as neither NCCL nor peers have them."""
    rank = comm.rank
    for shape in SHAPES:
        every = arrays(dtype, shape, comm.size)
        x = make(every[rank], rank)
        assert comm.scan(x) is x
        exact, loose, _ = reduced(every[: rank + 1], "sum")
        check(f"scan {shape}", x, exact, loose)

        x, out = make(every[rank], rank), make(np.zeros_like(every[rank]), rank)
        result = comm.exscan(x, out=out, async_op=True).result()
        check(f"x beside out {shape}", x, every[rank])
        if rank == 0:
            assert result is None and comm.exscan(x) is None
            check(f"out {shape}", out, np.zeros_like(every[rank]))
        else:
            exact, loose, _ = reduced(every[:rank], "sum")
            assert result is out and comm.exscan(x) is x
            check(f"exscan {shape}", out, exact, loose)
            check(f"exscan in place {shape}", x, exact, loose)


def messages(comm: Any) -> None:
    array = np.arange(100000, dtype=np.float64)
    if comm.rank == 0:
        comm.send([make(array), make(array[:3])], 1)
    elif comm.rank == 1:
        x = [make(np.zeros(100000), 1), make(np.zeros(3), 1)]
        pending = comm.recv(x, 0, async_op=True)
        assert pending.result() is x
        check("long", x[0], array)
        check("short", x[1], array[:3])
    rank, right, left = comm.rank, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    mine = make(array + rank, rank)
    check("sendrecv", comm.sendrecv(mine, right, left), array + left)
    check("sent", mine, array + rank)
    out = make(np.zeros(100000), rank)
    came, source = comm.sendrecv(mine, right, out=out)
    assert (came, source) == (out, left)
    check("sendrecv into out, from any", out, array + left)
    check("sendrecv in place", comm.sendrecv(mine, right, left, out=mine), array + left)
    pending = comm.recv(out, tag=1, async_op=True)
    comm.send(make(array * 2, rank), rank, 1)
    came, source = pending.result()
    assert (came, source) == (out, rank)
    check("from any, which is this rank", out, array * 2)


def threads(n: int, dtype: str, how: str) -> None:
    def work(comm: Any) -> None:
        whole(comm, dtype)
        parts(comm, dtype)

    with staged() if how == "staged" else never_staged():
        on_ranks(n, work)


def other_shapes(how: str) -> None:
    """As many elements in other shapes: refused, with both shapes, unless the ranks were told not to compare them."""

    def work(comm: Any) -> Any:
        x = make(np.ones((3, 2) if comm.rank else (2, 3), np.float32), comm.rank)
        comm.all_reduce([make(np.ones(4, np.float32), comm.rank), x])
        return float(read(x)[0, 0])

    with staged() if how == "staged" else never_staged():
        for error in on_ranks(2, work, (MismatchError,)):
            assert "tensor 1: rank 0 has shape (2, 3), rank 1 has shape (3, 2)" in str(error), error
        group = collectives.local_group(2, compare_shapes=False)
        assert in_threads([functools.partial(work, comm) for comm in group]) == [2, 2]
        for comm in group:
            comm.close()


def one_work(how: str) -> None:
    """Dense and vector collectives, and messages, have one handle; only what is in a stream cannot call back."""

    def work(comm: Any) -> None:
        x, first = make(np.full(2, comm.rank + 1.0), comm.rank), comm.rank == 0
        for call, exact in (
            (comm.all_reduce, [3.0, 3.0]),
            (comm.all_gather, [3.0, 3.0, 3.0, 3.0]),
            (functools.partial(comm.gather, root=0), [3.0] * 4 if first else None),
        ):
            pending = call(x, async_op=True)
            assert type(pending) is DeviceWork
            if how == "peers":
                assert pending.algorithm == "peers"
                with pytest.raises(NotImplementedError, match="a call by peers ends in the order of its stream"):
                    pending.add_done_callback(print)
                result = pending.result()
            else:
                assert pending.algorithm != "peers"
                result = pending.future().result(60)
            if exact is None:
                assert result is None
            else:
                check("one work", result, np.array(exact))
        if how == "staged":
            other = 1 - comm.rank
            coming = comm.recv(x, other, async_op=True)
            assert type(coming) is DeviceWork
            comm.send(make(np.full(2, 7.0 + comm.rank), comm.rank), other)
            check("message", coming.future().result(60), np.full(2, 7.0 + other))

    with staged() if how == "staged" else never_staged():
        on_ranks(2, work)


def explicit_stream() -> None:
    """The array shows one stream, and its values come in another, which the caller names."""

    class TorchStream:
        cuda_stream = stream(1)

    x = OnDevice(np.full(3, 5.0), on=1)
    x.changes = {"stream": stream(0)}
    on_ranks(1, lambda comm: comm.all_reduce(x, stream=TorchStream()))
    check("explicit", x, np.full(3, 5.0))
    fake().check()


def nothing_is_waited_for_behind() -> None:
    """The copy back, and what is put into the stream behind the call, is left to the device."""

    def work(comm: Any) -> None:
        x = OnDevice(np.ones(3))
        pending = comm.all_reduce(x, async_op=True)
        late = OnDevice(np.ones(3), on=5)
        pending.wait()
        assert fake().pending() >= 1
        check("late", late, np.ones(3))

    on_ranks(1, work)


def work_orders_the_present_stream() -> None:
    """What the caller's library does after wait() in another stream comes after the result."""
    from collectives._arrays import device_interface

    kept = device_interface.Interface.current_stream
    device_interface.Interface.current_stream = lambda self, device: stream(7)  # type: ignore[method-assign]
    try:

        def work(comm: Any) -> None:
            x = OnDevice(np.full(3, 2.0), on=0)
            comm.all_reduce(x, async_op=True).wait()
            x.stream = stream(7)
            check("in another stream", x, np.full(3, 2.0))

        on_ranks(1, work)
    finally:
        device_interface.Interface.current_stream = kept  # type: ignore[method-assign]


def memory_is_used_again() -> None:
    def work(comm: Any) -> None:
        x = make(np.ones(1000))

        def calls() -> dict[str, int]:
            for _ in range(30):
                comm.all_reduce(x)
                fake().finish()
            # What the last call holds is let go of by the next that finds the device through with it.
            last = _core._DeviceEvent(x.stream, 0)
            fake().finish()
            staging.hold(last, (x.stream, 0), None)
            del last
            return fake().live()

        calls()
        gc.collect()  # what the cases before have left
        before = fake().live()
        assert calls() == before

    on_ranks(1, work)


def without_the_wait() -> None:
    """The ranks then reduce what is not there yet: the tests of results fail."""
    kept = staging._wait
    staging._wait = lambda *_: None  # type: ignore[assignment]
    try:

        def work(comm: Any) -> bool:
            seen = []
            for _ in range(20):
                out = make(np.zeros(1000), comm.rank)
                comm.all_reduce(make(np.ones(1000), comm.rank), out=out)
                seen.append(bool((read(out) == 2).all()))
            return all(seen)

        with staged():
            assert not all(on_ranks(2, work))
    finally:
        staging._wait = kept


def without_the_stream() -> None:
    """A copy in a stream that is not the array's: the fake sees it."""
    x = OnDevice(np.ones(3), on=0)
    x.changes = {"stream": stream(3)}
    on_ranks(1, lambda comm: comm.all_reduce(x))
    fake().finish()
    assert "not ordered" in fake().errors()


def a_graph_is_recorded() -> None:
    import collectives

    x = OnDevice(np.ones(3), on=0)
    fake().finish()
    (comm,) = collectives.local_group(1)
    before = copied()
    fake().capture(x.stream, True)
    try:
        comm.all_reduce(x)
    except collectives.BackendError as error:
        assert "CUDA graph" in str(error)
    else:
        raise AssertionError("accepted")
    finally:
        fake().capture(x.stream, False)
    assert copied() == before
    comm.close()
