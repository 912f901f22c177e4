"""NCCL that fails, hangs or refuses: every rank raises a typed error in time, and ncclCommAbort is called once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import nccl_fake
import numpy as np
import pool
import pytest
from deaths import assert_noticed, kill
from nccl_fake import await_aborts, call, count, fail, set_to, start
from pool import NOTICED

REFUSED = "made up by the test"
INTERNAL, USAGE, REMOTE = 3, 5, 6
VICTIM = 1


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nccl_fake.build(tmp_path_factory.mktemp("nccl"))


@pytest.fixture
def make(groups: Any, fake: Path, tmp_path: Path) -> Any:
    def made(size: int, settings: str = "", transport: str = "nccl", **more: str) -> Any:
        return groups(size, transport, variables={**nccl_fake.variables(fake, tmp_path, settings), **more})

    return made


def raised(fn: Any, *arguments: Any, **more: Any) -> Any:
    """The error of the library that a call raises."""
    from collectives import CollectivesError

    with pytest.raises(CollectivesError) as caught:
        fn(*arguments, **more)
    return caught.value


def ones() -> Any:
    return np.ones(6, np.float32)


# Each call of NCCL and of the device that a collective makes, and the collective.
STEPS = [
    ("ncclGroupStart", "all_reduce"),
    ("ncclGroupEnd", "all_reduce"),
    ("ncclAllReduce", "all_reduce"),
    ("ncclReduce", "reduce"),
    ("ncclBroadcast", "broadcast"),
    ("ncclAllGather", "all_gather"),
    ("ncclReduceScatter", "reduce_scatter"),
    ("ncclSend", "all_to_all"),
    ("ncclRecv", "all_to_all"),
    ("ncclRedOpCreatePreMulSum", "premul_sum"),
    ("ncclCommGetAsyncError", "all_reduce"),
    ("event_create", "all_reduce"),
    ("event_record", "all_reduce"),
    ("event_query", "all_reduce"),
]


def one_call(comm: Any, collective: str) -> None:
    x = ones()
    more: dict[str, Any] = {}
    if collective == "premul_sum":
        collective, more = "all_reduce", {"op": "premul_sum", "factor": 2.0}
    if collective in ("all_gather", "reduce_scatter"):
        more["counts"] = [6]
    if collective == "all_to_all":
        more["counts"] = [6]
    call(comm, collective, [x], [x.copy()], **more)


def fail_at_each_step(comm: Any) -> None:
    from collectives import BackendError

    for function, collective in STEPS:
        one = comm.dup()
        call(one, "barrier", [], [])
        if function == "event_create":
            set_to("keep", 0)
            start(one, "barrier", [], [])  # takes the event that there is
        aborts, starts, ends = count("ncclCommAbort"), count("ncclGroupStart"), count("ncclGroupEnd")
        if function == "ncclCommGetAsyncError":
            set_to("call_polls", 2)
        if function == "event_create":
            set_to("stuck", 1)
            start(one, "barrier", [], [])
        fail(function, 0, INTERNAL, REFUSED)
        error = raised(one_call, one, collective)
        assert type(error) is BackendError, (function, error)
        set_to("stuck", 0)
        set_to("call_polls", 0)
        text = str(error)
        if function.startswith("nccl"):
            assert "internal error" in text and REFUSED in text and "NCCL_DEBUG" in text, text
        else:
            assert "fakeError" in text, text
        assert error.rank == 0
        await_aborts(aborts + 1)
        assert nccl_fake.library().fake_depth() == 0, function
        failed_start = function == "ncclGroupStart"
        assert count("ncclGroupEnd") - ends == count("ncclGroupStart") - starts - failed_start, function
        again = raised(one_call, one, "all_reduce")
        assert type(again) is BackendError and ("internal error" in str(again) or "fakeError" in str(again))
        # The engine's side has failed with it, as on the other ranks.
        assert type(raised(one.barrier)) is BackendError
        one.close()
        assert count("ncclCommAbort") == aborts + 1, function
        assert count("ncclCommDestroy") == 0


def test_each_call_that_fails(make: Any) -> None:
    make(1).run(fail_at_each_step)


def fail_to_start(comm: Any, function: str, code: int, text: str) -> list[str]:
    if comm.rank == VICTIM or function == "ncclGetUniqueId":
        fail(function, 0, code, text)
    error = raised(start, comm, "all_reduce", [ones()], [ones()])
    if function == "ncclCommInitRankConfig":
        await_aborts(count(function) - (1 if comm.rank == VICTIM else 0))
    return [type(error).__name__, str(error)]


@pytest.mark.parametrize("function", ["ncclGroupStart", "ncclCommInitRankConfig", "ncclCommGetAsyncError"])
def test_making_it_fails(make: Any, function: str) -> None:
    own, other = reversed(make(2).run(fail_to_start, function, USAGE, "Duplicate GPU detected : rank 1 and rank 0"))
    assert own[0] == "BackendError"
    assert "invalid usage" in own[1] and "Duplicate GPU" in own[1] and "device of its own" in own[1], own[1]
    assert other[0] == "BackendError" and "rank 1" in other[1] and "Duplicate GPU" in other[1], other[1]


def test_there_is_no_id(make: Any) -> None:
    for kind, text in make(2).run(fail_to_start, "ncclGetUniqueId", 2, "no socket"):
        assert kind == "BackendError" and "id" in text


def fail_later(comm: Any, settings: dict[str, int], timeout: float | None) -> list[Any]:
    x = ones()
    call(comm, "all_reduce", [x], [x])
    for name, value in settings.items():
        set_to(name, value)
    pending = [start(comm, "all_reduce", [x], [x], name=name, timeout=timeout) for name in ("first", "second")]
    errors = [raised(work.wait) for work in pending]
    assert all(work.done() for work in pending)
    await_aborts(1)
    later = raised(start, comm, "all_reduce", [x], [x])
    comm.close()
    assert count("ncclCommAbort") == 1
    return [(type(error).__name__, str(error), error.name, error.peer) for error in (*errors, later)]


def test_an_asynchronous_error(make: Any) -> None:
    settings = {"stuck": 1, "async_error": REMOTE, "async_error_after": 3}
    for first, second, later in make(2).run(fail_later, settings, None):
        assert first[0] == second[0] == later[0] == "PeerError"
        assert "remote process exited" in first[1] and "'first'" in first[1]
        assert (first[2], second[2]) == ("first", "second")


def test_a_deadline(make: Any) -> None:
    since = time.monotonic()
    for first, _second, later in make(2).run(fail_later, {"stuck": 1}, 1.0):
        assert first[0] == later[0] == "DeadlineError"
        assert "longer than its timeout of 1 s" in first[1] and "NCCL_DEBUG" in first[1]
    assert time.monotonic() - since < 1 + 20


def progress_for_ever(comm: Any) -> str:
    x = ones()
    call(comm, "all_reduce", [x], [x])
    set_to("call_polls", 1 << 30)
    error = raised(start, comm, "all_reduce", [x], [x], timeout=1.0)
    assert type(error).__name__ == "DeadlineError"
    await_aborts(1)
    return str(error)


def test_progress_without_end(make: Any) -> None:
    for text in make(2).run(progress_for_ever):
        assert "in progress" in text, text


def wait_for_victim(comm: Any, settings: dict[str, int]) -> str:
    x = ones()
    call(comm, "all_reduce", [x], [x])
    for name, value in settings.items():
        set_to(name, value)
    pool.say("ready")
    if comm.rank == VICTIM:
        for name in settings:
            set_to(name, 0)
        set_to("stuck", 1)
        start(comm, "all_reduce", [x], [x], name="step 3")
        pool.say("in it")
        pool.hear()
    try:
        work = start(comm, "all_reduce", [x], [x], name="step 3")
        pool.say("in it")
        work.wait()
    finally:
        await_aborts(1)
    return "returned"


@pytest.mark.parametrize("settings", [{"stuck": 1}, {"hang": 1}, {"call_polls": 1 << 30}], ids=lambda s: next(iter(s)))
def test_a_rank_is_killed(make: Any, settings: dict[str, int]) -> None:
    """The others wait for the device, inside NCCL, or for NCCL to make progress."""
    group = make(3)
    group.start(wait_for_victim, settings)
    for rank in group.ranks:
        assert rank.event() == "ready"
    assert group.ranks[VICTIM].event() == "in it"
    if "stuck" in settings:
        assert [group.ranks[r].event() for r in (0, 2)] == ["in it", "in it"]
    since = kill(group, VICTIM)
    outcomes = group.collect(20)
    assert isinstance(outcomes[VICTIM].error, pool.RankDied)
    assert_noticed(outcomes, VICTIM, since, NOTICED)
    for rank in (0, 2):
        error = outcomes[rank].error
        assert "all_reduce by NCCL 'step 3'" in str(error), error


def disagree(comm: Any, how: str) -> list[Any]:
    x = ones()
    call(comm, "all_reduce", [x], [x])
    before = count("ncclAllReduce")
    other = comm.rank == VICTIM
    if how == "op":
        error = raised(start, comm, "all_reduce", [x], [x], op="max" if other else "sum")
    elif how == "dtype":
        y = x.astype(np.float64) if other else x
        error = raised(start, comm, "all_reduce", [y], [y])
    elif how == "elements":
        y = x[:5] if other else x
        error = raised(start, comm, "all_reduce", [y], [y], name="gradients")
    elif how == "shape":
        error = raised(start, comm, "all_reduce", [x], [x], shapes=[(3, 2) if other else (2, 3)])
    elif how == "root":
        error = raised(start, comm, "reduce", [x], [x], root=comm.rank)
    elif how == "collective":
        error = raised(start, comm, "broadcast" if other else "all_reduce", [x], [x])
    elif other:
        error = raised(comm.all_reduce, x)
    else:
        error = raised(start, comm, "all_reduce", [x], [x])
    assert count("ncclAllReduce") == before, "nothing was put into the stream"
    return [type(error).__name__, str(error)]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("op", "op: rank 0 has sum, rank 1 has max"),
        ("dtype", "dtype: rank 0 has float32, rank 1 has float64"),
        ("elements", "tensor 0: rank 0 has 6 elements, rank 1 has 5"),
        ("shape", "tensor 0: rank 0 has shape (2, 3), rank 1 has shape (3, 2)"),
        ("root", "root: rank 0 has 0, rank 1 has 1"),
        ("collective", "collective: rank 0 has all_reduce, rank 1 has broadcast"),
        ("memory", "algorithm: rank 0 has nccl, rank 1 has auto"),
    ],
)
def test_a_mismatch(make: Any, how: str, words: str) -> None:
    for kind, text in make(2).run(disagree, how):
        assert kind == "MismatchError"
        assert words in text, text


def message_mismatch(comm: Any) -> str:
    x = ones()
    call(comm, "all_reduce", [x], [x])
    set_to("stuck", 1)
    if comm.rank == 0:
        work = start(comm, "send", [x], [], peer=1)
        return str(raised(work.wait))
    return str(raised(start, comm, "recv", [], [x[:4]], peer=0))


def test_a_mismatch_of_messages(make: Any) -> None:
    for text in make(2).run(message_mismatch):
        assert "elements" in text and "message from rank 0 to rank 1" in text, text


def late(comm: Any) -> str:
    x = ones()
    call(comm, "all_reduce", [x], [x])
    if comm.rank == VICTIM:
        pool.hear()
        return ""
    error = raised(start, comm, "all_reduce", [x], [x], timeout=1.0)
    pool.say("over")
    return f"{type(error).__name__} {error.peer}"


def test_a_rank_that_does_not_come(make: Any) -> None:
    group = make(3)
    group.start(late)
    for rank in (0, 2):
        assert group.ranks[rank].event() == "over"
    group.ranks[VICTIM].tell("go")
    outcomes = group.collect(20)
    assert [outcomes[rank].value for rank in (0, 2)] == [f"DeadlineError {VICTIM}"] * 2


def one_device(comm: Any) -> list[Any]:
    from collectives._devices import nccl

    try:
        answer: Any = nccl.wanted(comm, 0)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    made = count("ncclCommInitRankConfig")
    if answer is True:
        x = np.full(3, comm.rank + 1.0)
        call(comm, "all_reduce", [x], [x], device=0)
        assert x.tolist() == [3, 3, 3]
    comm.barrier()
    return [answer, made]


def test_two_ranks_on_one_device(make: Any) -> None:
    for answer, made in make(2).run(one_device):
        assert made == 0, "NCCL was not asked"
        assert answer.startswith("BackendError") and "ranks 0 and 1 are on the same device, 0000:00:00.0" in answer
        assert "NCCL_HOSTID" in answer and 'transport="auto"' in answer


def test_two_ranks_on_one_device_without_need(make: Any) -> None:
    assert make(2, transport="auto").run(one_device) == [[False, 0], [False, 0]]


def own_host(comm: Any) -> list[Any]:
    os.environ["NCCL_HOSTID"] = f"host {comm.rank}"
    return one_device(comm)


def test_two_ranks_on_one_device_that_say_they_are_apart(make: Any) -> None:
    assert make(2).run(own_host) == [[True, 1], [True, 1]]


def test_a_new_nccl_may_have_two_ranks_on_a_device(groups: Any, tmp_path: Path) -> None:
    library = nccl_fake.build(tmp_path / "new", "FAKE_NCCL_VERSION=23003")
    variables = nccl_fake.variables(library, tmp_path)
    assert groups(2, "nccl", variables={**variables, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}).run(one_device) == [
        [True, 1],
        [True, 1],
    ]


def devices_by_other_numbers(comm: Any) -> list[Any]:
    set_to("bus_offset", comm.rank)
    return one_device(comm)


def test_devices_are_known_by_their_place_on_the_bus(make: Any) -> None:
    assert make(2, transport="auto").run(devices_by_other_numbers) == [[True, 1], [True, 1]]


def no_nccl(comm: Any) -> str:
    from collectives._devices import nccl

    if comm.rank == VICTIM:
        nccl.status = lambda: {"why": "there is none", "code": 0, "version": ""}  # type: ignore[assignment]
    error = raised(nccl.wanted, comm, comm.rank)
    assert type(error).__name__ == "BackendError"
    comm.barrier()  # it goes on without
    return str(error)


def test_one_rank_has_no_nccl(make: Any) -> None:
    for text in make(2).run(no_nccl):
        assert "rank 1 cannot use NCCL: there is none" in text


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_other_transports_do_without(make: Any, transport: str) -> None:
    assert make(2, transport=transport).run(one_device) == [[False, 0], [False, 0]]


def bad_calls(comm: Any) -> None:
    from collectives._calls.options import CallOptions
    from collectives._devices import nccl

    x = ones()
    operands = nccl_fake.operands([x])
    error = raised(nccl.run, comm, "send", operands, [], None, CallOptions(stream=0), device=comm.rank, peer=0)
    assert "make a collective on device arrays before" in str(error)
    call(comm, "all_reduce", [x], [x])
    calls = len(comm.recorder())
    for op, dtype, words in (
        ("sum", "int16", "has no int16"),
        ("bitwise_xor", "int32", "has no bitwise_xor of int32"),
        ("logical_xor", "bool", "has no logical_xor of bool"),
        ("sum", "float8_e5m2", ""),
    ):
        y = np.zeros(4, nccl_fake.dtype_of(dtype))
        assert words in nccl.lacks("all_reduce", op, dtype)
        assert bool(words) == bool(nccl.lacks("all_reduce", op, dtype))
        if words:
            error = raised(start, comm, "all_reduce", [y], [y], op=op)
            assert words in str(error) and "transport" in str(error)
    for collective, inputs, outputs, more, words in (
        ("all_reduce", [x], [x[:3]], {}, "output 0 of all_reduce has 3 elements; its lengths say 6"),
        ("all_gather", [x], [x], {"counts": [6, 6]}, "output 0 of all_gather has 6 elements; its lengths say 12"),
        (
            "all_gather",
            [x],
            [np.zeros(12, np.float32)],
            {"counts": [6, 6, 6]},
            "3 lengths are no multiple of the 2 parts",
        ),
        ("broadcast", [x], [x], {"root": 2}, "root 2 is out of range"),
        ("send", [x], [], {"peer": 7}, "peer 7 is out of range"),
        ("all_reduce", [x], [], {}, "0 outputs were given for 1 tensors"),
        ("all_reduce", [x], [x], {"op": "premul_sum"}, "needs a factor"),
    ):
        with pytest.raises(ValueError, match=words):
            start(comm, collective, inputs, outputs, **more)
    assert len(comm.recorder()) == calls, "what is wrong by itself does not count"
    call(comm, "all_reduce", [x], [x])


def test_bad_calls(make: Any) -> None:
    make(2).run(bad_calls)


def fork(comm: Any) -> None:
    x = ones()
    call(comm, "all_reduce", [x], [x])
    before = count("ncclGroupStart")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            error = raised(start, comm, "all_reduce", [x], [x])
            comm.close()
            named = type(error).__name__ == "ForkedError"
            code = 0 if named and count("ncclGroupStart") == before and count("ncclCommAbort") == 0 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    call(comm, "all_reduce", [x], [x])


def test_a_forked_child(make: Any) -> None:
    make(2).run(fork)


def close_early(comm: Any) -> list[int]:
    x = ones()
    call(comm, "all_reduce", [x], [x])
    work = start(comm, "all_reduce", [x], [x])
    comm.close()
    assert work.wait(0)  # what was in flight is done
    error = raised(start, comm, "all_reduce", [x], [x])
    assert type(error).__name__ == "ClosedError", error
    return [count("ncclCommFinalize"), count("ncclCommDestroy"), count("ncclCommAbort")]


def test_closing(make: Any) -> None:
    assert make(2).run(close_early) == [[1, 1, 0], [1, 1, 0]]


def close_badly(comm: Any) -> list[int]:
    x = ones()
    call(comm, "all_reduce", [x], [x])
    fail("ncclCommFinalize", 0, INTERNAL)
    comm.close()
    return [count("ncclCommFinalize"), count("ncclCommDestroy"), count("ncclCommAbort")]


def test_closing_fails(make: Any) -> None:
    assert make(2).run(close_badly) == [[1, 0, 1], [1, 0, 1]]
