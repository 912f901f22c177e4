"""Python objects: what arrives is what was sent, arrays travel outside the pickle, and all ranks learn of a failure."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import collectives
import ml_dtypes
import numpy as np
import pytest
import tiers
from collectives._calls import objects as _objects
from pool import Outcome, Pools

TRANSPORTS = ("local", "shm", "tcp")
GROUPS = [(n, transport) for n in (1, 2, 3, 5) for transport in TRANSPORTS]
SEVERAL = [(n, transport) for n, transport in GROUPS if n > 1]
BIG = 5_000_000  # bytes

here = threading.local()  # .rank: of the thread, since the ranks of a local group share everything else


@dataclasses.dataclass
class Model:
    """An ordinary class with arrays inside."""

    name: str
    weights: dict[str, np.ndarray[Any, Any]]


class Series(list):
    """A subclass of a built-in type, with an attribute."""

    unit = ""


class Tagged(np.ndarray):
    """A subclass of an array, with an attribute that its pickle keeps."""

    tag = ""

    def __reduce__(self) -> Any:
        function, arguments, state = super().__reduce__()
        return function, arguments, (state, self.tag)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[0])
        self.tag = state[1]


class Picky:
    """Cannot be unpickled on one rank."""

    def __init__(self, suspect: int) -> None:
        self.suspect = suspect

    def __setstate__(self, state: dict[str, int]) -> None:
        if here.rank == state["suspect"]:
            raise LookupError(f"rank {here.rank} does not take it")
        self.__dict__.update(state)


class Unpicklable:
    """Raises the given error when it is pickled."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


class MuteError(Exception):
    """An error that cannot even be printed."""

    def __str__(self) -> str:
        raise ValueError("no words")


def samples(seed: int) -> Iterator[tuple[str, Any]]:
    """Objects by name; the same for the same seed."""
    rng = np.random.default_rng(seed)
    read_only = rng.random(10)
    read_only.flags.writeable = False
    whole = rng.random(2000)
    series = Series([seed, 2])
    series.unit = "s"
    tagged = rng.random((2, 3)).view(Tagged)
    tagged.tag = f"tag {seed}"
    shared = rng.random(5)
    yield "None", None
    yield "empty", [(), {}, "", b"", set(), np.zeros(0), np.zeros((3, 0, 2), "f4")]
    yield "text", f"rank {seed}, \u00e4\u03a9\U0001f600"
    yield "integer", seed * 10**40
    yield "nested", {"a": {"b": [rng.random((3, 4)), {"c": (rng.integers(0, 9, 7), None)}]}, seed: rng.random(())}
    yield "big", {"x": rng.random(BIG // 8), "y": rng.integers(0, 255, (BIG // 1000, 1000), np.uint8), "z": "end"}
    yield "big bytes", [rng.bytes(BIG), bytearray(rng.bytes(1000))]
    yield "dtypes", [rng.integers(0, 2, 9).astype(t) for t in ("?", "i1", "u2", ">i4", "f2", "c16", "U3", "S2", "O")]
    yield "other dtypes", [np.ones(3, ml_dtypes.bfloat16), np.array(["2026-11-21"], "M8[D]"), np.zeros(2, "i4,f8")]
    yield "layouts", [np.asfortranarray(rng.random((30, 40))), rng.random((30, 40))[::2, ::3], rng.random((3, 4)).T]
    yield "long doubles", [np.zeros(1, "i1"), rng.random(100).astype(np.longdouble), np.zeros(1, "i1"), whole]
    yield "read-only", read_only
    yield "read-only and big", [read_only, np.broadcast_to(np.float64(seed), 1000), whole, rng.bytes(5000)]
    yield "overlapping", [whole, whole[:100], whole[50:1000], whole[1000:1001], rng.random(7)]
    yield "twice", [shared, shared, {"again": shared}]
    yield "many arrays", [rng.random(i % 4) for i in range(700)]
    yield "model", Model(f"model {seed}", {"w": rng.random((64, 32)).astype("f4"), "b": np.zeros(32, "f4")})
    yield "subclasses", [series, tagged, np.ma.masked_array([1, 2, 3], [0, 1, 0])]
    yield "an error", ValueError("text", seed)


def difference(a: Any, b: Any, path: str = "") -> str:
    """Where two objects differ; empty when they do not."""
    if type(a) is not type(b):
        return f"{path}: {type(a)} and {type(b)}"
    if isinstance(a, np.ndarray):
        for what in ("dtype", "shape"):
            if getattr(a, what) != getattr(b, what):
                return f"{path}: {what} {getattr(a, what)} and {getattr(b, what)}"
        for flag in ("WRITEABLE", "ALIGNED"):
            # An array with stride 0 is pickled as a new one.
            if a.flags[flag] != b.flags[flag] and 0 not in a.strides:
                return f"{path}: {flag} {a.flags[flag]} and {b.flags[flag]}"
        if a.flags.f_contiguous and not b.flags.f_contiguous:
            return f"{path}: not in Fortran order"
        if isinstance(a, np.ma.MaskedArray):
            return difference(a.mask, b.mask, path + ".mask") or difference(a.filled(), b.filled(), path + ".data")
        if not np.array_equal(a, b):
            return f"{path}: values differ"
        return difference(getattr(a, "tag", ""), getattr(b, "tag", ""), path + ".tag")
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{path}: keys {list(a)} and {list(b)}"
        return next((text for key in a if (text := difference(a[key], b[key], f"{path}[{key!r}]"))), "")
    if isinstance(a, (list, tuple)):
        if len(a) != len(b) or getattr(a, "unit", "") != getattr(b, "unit", ""):
            return f"{path}: other lengths or attributes"
        return next((text for i in range(len(a)) if (text := difference(a[i], b[i], f"{path}[{i}]"))), "")
    if isinstance(a, BaseException):
        return difference(a.args, b.args, path + ".args")
    if isinstance(a, Model):
        return difference(vars(a), vars(b), path)
    return "" if a == b else f"{path}: {str(a)[:50]!r} and {str(b)[:50]!r}"


def compare(label: str, got: Any, sent: Any) -> list[str]:
    text = difference(sent, got)
    return [f"{label}: {text}"] if text else []


def same_object(label: str, got: Any, own: Any) -> list[str]:
    return [] if got is own else [f"{label}: not the object itself on its own rank"]


def flat(reports: list[list[str]]) -> list[str]:
    return [text for report in reports for text in report]


def test_the_comparison_sees_differences() -> None:
    for (name, a), (_, b) in zip(samples(1), samples(2), strict=True):
        assert difference(a, a) == ""
        if name not in ("None", "empty", "other dtypes"):
            assert difference(a, b), name


# --- without ranks --------------------------------------------------------------------------------------------------


def test_arrays_are_not_copied_into_the_pickle_nor_out_of_it() -> None:
    array = np.arange(BIG, dtype=np.uint8)
    parts = _objects._pickle({"x": array, "y": array[:10], "z": "text"})
    assert len(parts) == 3
    assert parts[0].size < 500
    assert parts[1].ctypes.data == array.ctypes.data
    fresh = [part.copy() for part in parts]
    result = _objects._unpickle(fresh)
    assert result["x"].ctypes.data == fresh[1].ctypes.data
    assert difference(result["x"], array) == ""


def test_only_what_cannot_be_sent_from_its_place_is_copied() -> None:
    whole = np.zeros(100, np.uint8)
    read_only = np.frombuffer(b"text", np.uint8)
    parts = [whole[50:60], whole[:20], whole[10:30], whole[20:25], whole[60:], read_only, whole[55:55]]
    writable = _objects._writable(parts)
    assert [a is b for a, b in zip(writable, parts, strict=True)] == [True, True, False, True, True, False, True]
    assert all(np.array_equal(a, b) for a, b in zip(writable, parts, strict=True))
    assert all(a.flags.writeable for a in writable)


@pytest.mark.parametrize("sizes", [[0], [1], [16], [17, 0, 0, 5], [3] * 9, [1000, 1, 64]])
def test_packing(sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 256, size, np.uint8) for size in sizes]
    packed = _objects._packed(parts)
    assert packed.size == _objects._packed_size(parts)
    assert packed.size % 16 == 0
    unpacked = _objects._unpack(packed, len(parts))
    assert [a.tobytes() for a in unpacked] == [a.tobytes() for a in parts]
    assert all((a.ctypes.data - packed.ctypes.data) % 16 == 0 for a in unpacked)


# --- broadcast ------------------------------------------------------------------------------------------------------


def broadcasts(comm: Any) -> list[str]:
    failures = []
    for i, (name, sent) in enumerate(samples(3)):
        root = i % comm.size
        got = comm.broadcast_object(sent if comm.rank == root else "ignored", root)
        if comm.rank == root:
            failures += same_object(name, got, sent)
        else:
            failures += compare(f"rank {comm.rank}, {name}", got, sent)
    got = comm.broadcast_object(("rank", comm.rank))
    return failures + compare("default root", got, ("rank", 0))


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_broadcast(pools: Pools, n: int, transport: str) -> None:
    failures = flat(pools.get(n, transport).run(broadcasts))
    assert not failures, "\n".join(failures)


def sequence(comm: Any) -> int:
    """The number of this collective in the communicator."""
    work = comm.barrier(async_op=True)
    work.wait()
    return int(work._work.sequence)


def count_broadcasts(comm: Any) -> dict[str, int]:
    counts = {}
    objects = {
        "None": None,
        "arrays": [np.zeros(100), np.zeros(200)],
        "fits": b"x" * 4000,
        "large": b"x" * 4096,
        "large arrays": [np.zeros(BIG), np.zeros(100)],
        "many arrays": [np.zeros(1) for _ in range(511)],
    }
    for name, obj in objects.items():
        before = sequence(comm)
        comm.broadcast_object(obj if comm.rank == 0 else None)
        counts[name] = sequence(comm) - before - 1
    return counts


def test_a_small_object_takes_one_broadcast(pools: Pools) -> None:
    for counts in pools.get(2, "shm").run(count_broadcasts):
        assert counts == {"None": 1, "arrays": 1, "fits": 1, "large": 2, "large arrays": 2, "many arrays": 3}


def around_the_limit(comm: Any) -> list[str]:
    """Sizes around that up to which one broadcast is enough, and numbers of buffers around what its list takes."""
    sent = [b"x" * size for size in range(4000, 4100)]
    sent += [[np.full(i % 2, i) for i in range(count)] for count in range(500, 520)]
    sent += [[np.full(3000, 7, np.uint8), b"x" * size] for size in range(900, 1100, 3)]
    failures = []
    for i, obj in enumerate(sent):
        failures += compare(str(i), comm.broadcast_object(obj if comm.rank == 0 else None), obj)
    return failures


def test_sizes_around_the_limit(pools: Pools) -> None:
    assert not flat(pools.get(2, "shm").run(around_the_limit))


def write_to_what_came(comm: Any) -> list[str]:
    """Arrays belong to the receiver: all ranks write theirs at once."""
    for count in (10, 100_000):
        mine = np.zeros(count) if comm.rank == 0 else None
        got = comm.broadcast_object({"x": mine})["x"]
        got += comm.rank + 1
        comm.barrier()
        if not (got == comm.rank + 1).all():
            return [f"rank {comm.rank} has {got[:3]}"]
    return []


@pytest.mark.parametrize(("n", "transport"), [(3, "local"), (3, "shm")])
def test_received_arrays_can_be_written(pools: Pools, n: int, transport: str) -> None:
    assert not flat(pools.get(n, transport).run(write_to_what_came))


# --- failures -------------------------------------------------------------------------------------------------------


def check_failure(outcomes: list[Outcome], suspect: int, kind: type[Exception], call: str, word: str) -> None:
    """The suspect raises its own error, all others one that names it; all communicators can still be used."""
    for rank, outcome in enumerate(outcomes):
        error = outcome.error
        assert outcome.usable, f"rank {rank} is broken: {outcome.text}"
        if rank == suspect:
            assert isinstance(error, kind), outcome.text
            assert not isinstance(error, collectives.CollectivesError)
        else:
            assert isinstance(error, collectives.CollectivesError), outcome.text
            assert (error.rank, error.peer, error.collective) == (rank, suspect, call)
            for part in (f"rank {suspect} could not pickle", kind.__name__, word):
                assert part in str(error)


def broadcast_lambda(comm: Any, root: int) -> None:
    comm.broadcast_object((lambda: 0) if comm.rank == root else None, root)


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_a_root_that_cannot_pickle(pools: Pools, n: int, transport: str) -> None:
    group = pools.get(n, transport)
    for root in {0, n - 1}:
        outcomes = group.outcomes(broadcast_lambda, root)
        kind = type(outcomes[root].error)
        assert issubclass(kind, Exception)
        assert "lambda" in str(outcomes[root].error)
        check_failure(outcomes, root, kind, "broadcast_object", "lambda")
    assert not flat(group.run(write_to_what_came))


def broadcast_failing(comm: Any, kind: type[Exception], text: str) -> None:
    comm.broadcast_object([np.zeros(BIG), Unpicklable(kind(text))] if comm.rank == 0 else None)


@pytest.mark.parametrize(
    ("kind", "text", "word"),
    [
        (MuteError, "", "MuteError"),
        (ValueError, "\u00e4" * 100_000, "\u00e4" * 900),
        (KeyError, "\ud800", "KeyError"),
    ],
    ids=["mute", "long", "surrogate"],
)
def test_errors_with_odd_texts(pools: Pools, kind: type[Exception], text: str, word: str) -> None:
    # Threads, since such errors cannot all be sent to the test. A rank makes the error: one that stood in the list
    # above would keep its traceback, and by it the communicator, for as long as the tests run.
    check_failure(pools.get(3, "local").outcomes(broadcast_failing, kind, text), 0, kind, "broadcast_object", word)


def broadcast_picky(comm: Any, suspect: int) -> int:
    here.rank = comm.rank
    return int(comm.broadcast_object(Picky(suspect) if comm.rank == 0 else None).suspect)


@pytest.mark.parametrize(("n", "transport"), SEVERAL)
def test_a_rank_that_cannot_unpickle(pools: Pools, n: int, transport: str) -> None:
    group = pools.get(n, transport)
    outcomes = group.outcomes(broadcast_picky, n - 1)
    assert [o.value for o in outcomes[:-1]] == [n - 1] * (n - 1)
    assert isinstance(outcomes[-1].error, LookupError), outcomes[-1].text
    assert all(o.usable for o in outcomes)
    assert not flat(group.run(write_to_what_came))


BAD_ROOTS = [(3, ValueError, "root 3 is out of range"), (-1, ValueError, "root -1"), ("0", TypeError, "root is '0'")]


@pytest.mark.parametrize("call", ["broadcast_object", "gather_object", "scatter_object"])
@pytest.mark.parametrize(("root", "kind", "word"), BAD_ROOTS)
def test_a_bad_root(pools: Pools, call: str, root: Any, kind: type[Exception], word: str) -> None:
    assert word in pools.get(3, "shm").run(bad_root, call, root, kind)[0]


def bad_root(comm: Any, call: str, root: Any, kind: type[Exception]) -> str:
    """Only one rank makes the call: it fails before anything is sent, so no rank waits."""
    text = ""
    before = sequence(comm)
    if comm.rank == 0:
        with pytest.raises(kind) as caught:
            getattr(comm, call)([0] * comm.size, root)
        text = str(caught.value)
    assert sequence(comm) == before + 1
    return text


# --- gathering and scattering ---------------------------------------------------------------------------------------


def gathers(comm: Any, divisor: int) -> list[str]:
    """Every rank contributes another object."""
    failures = []
    every = [list(samples(r)) for r in range(comm.size)]
    for i, (name, _) in enumerate(every[comm.rank]):
        if (i + comm.size) % divisor:
            continue
        root = i % comm.size
        # Objects of different kinds at once, so that the sizes differ much.
        sent = [every[r][(i + r) % len(every[r])][1] for r in range(comm.size)]
        mine = sent[comm.rank]
        results = {"all_gather": comm.all_gather_object(mine), "gather": comm.gather_object(mine, root)}
        if comm.rank != root and results.pop("gather") is not None:
            failures.append(f"rank {comm.rank}: gather_object gives a result where it should not")
        for call, result in results.items():
            label = f"rank {comm.rank}, {call}, {name}"
            if len(result) != comm.size:
                failures.append(f"{label}: {len(result)} objects")
                continue
            failures += same_object(label, result[comm.rank], mine)
            failures += flat([compare(f"{label} of {r}", result[r], sent[r]) for r in range(comm.size)])
        scattered = comm.scatter_object(sent if comm.rank == root else None, root)
        failures += compare(f"rank {comm.rank}, scatter, {name}", scattered, mine)
        if comm.rank == root:
            failures += same_object("scatter", scattered, mine)
    return failures


@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_gather_and_scatter(pools: Pools, n: int, transport: str) -> None:
    failures = flat(pools.get(n, transport).run(gathers, tiers.few(2, full=1)))
    assert not failures, "\n".join(failures)


def gather_unpicklable(comm: Any, call: str, suspects: list[int]) -> None:
    mine = Unpicklable(ValueError(f"not from rank {comm.rank}")) if comm.rank in suspects else np.zeros(1000)
    getattr(comm, call)(mine)


@pytest.mark.parametrize("call", ["all_gather_object", "gather_object"])
@pytest.mark.parametrize(("n", "transport"), GROUPS)
def test_one_rank_cannot_pickle(pools: Pools, n: int, transport: str, call: str) -> None:
    group = pools.get(n, transport)
    check_failure(group.outcomes(gather_unpicklable, call, [n - 1]), n - 1, ValueError, call, f"not from rank {n - 1}")
    assert not flat(group.run(write_to_what_came))


def test_two_ranks_cannot_pickle(pools: Pools) -> None:
    """Each of them raises its own error, and the others get one that names the first."""
    outcomes = pools.get(3, "shm").outcomes(gather_unpicklable, "all_gather_object", [1, 2])
    assert isinstance(outcomes[2].error, ValueError)
    assert "not from rank 2" in str(outcomes[2].error)
    check_failure(outcomes[:2], 1, ValueError, "all_gather_object", "not from rank 1")


def gather_picky(comm: Any, suspect: int) -> int:
    here.rank = comm.rank
    return len(comm.all_gather_object(Picky(suspect) if comm.rank == 0 else None))


@pytest.mark.parametrize(("n", "transport"), SEVERAL)
def test_one_rank_cannot_unpickle(pools: Pools, n: int, transport: str) -> None:
    group = pools.get(n, transport)
    outcomes = group.outcomes(gather_picky, n - 1)
    assert [o.value for o in outcomes[:-1]] == [n] * (n - 1)
    assert isinstance(outcomes[-1].error, LookupError), outcomes[-1].text
    assert all(o.usable for o in outcomes)
    assert not flat(group.run(write_to_what_came))


def scatter_wrongly(comm: Any, make: Callable[[int], Any]) -> None:
    comm.scatter_object(make(comm.size) if comm.rank == 1 else None, 1)


def too_few(size: int) -> Any:
    return [0] * (size - 1)


def no_list(size: int) -> Any:
    return "x" * size


def nothing(size: int) -> Any:
    return None


def with_lambda(size: int) -> Any:
    return [np.zeros(1000)] * (size - 1) + [Unpicklable(OverflowError("no"))]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (too_few, ValueError, ["objs has 2 objects", "3 ranks"]),
        (no_list, TypeError, ["objs is of type str", "list of 3 objects"]),
        (nothing, TypeError, ["objs is of type NoneType", "list of 3 objects"]),
        (with_lambda, OverflowError, ["no"]),
    ],
)
def test_scatter_of_what_cannot_be(
    pools: Pools, transport: str, make: Callable[[int], Any], kind: type[Exception], words: list[str]
) -> None:
    group = pools.get(3, transport)
    outcomes = group.outcomes(scatter_wrongly, make)
    assert type(outcomes[1].error) is kind, outcomes[1].text
    for rank, outcome in enumerate(outcomes):
        assert outcome.usable
        for word in words:
            assert word in str(outcome.error)
        if rank != 1:
            assert isinstance(outcome.error, collectives.CollectivesError), outcome.text
            assert (outcome.error.rank, outcome.error.peer, outcome.error.collective) == (rank, 1, "scatter_object")
    assert not flat(group.run(write_to_what_came))
