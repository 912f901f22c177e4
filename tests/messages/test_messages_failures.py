"""Messages that cannot arrive: sides that disagree, ranks that die, leave or come late, forks, and closing."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import numpy as np
import pool
import pytest
from pool import NOTICED, TRANSPORTS, Pools

PROCESSES = ["shm", "tcp"]
LARGE = 1 << 20  # elements


def ones(*counts: int, dtype: Any = np.float32) -> list[Any]:
    return [np.ones(c, dtype) for c in counts]


# What is sent, what is expected, and what the text calls the difference.
KINDS: dict[str, tuple[list[Any], list[Any], list[str]]] = {
    "longer": (ones(100), ones(101), ["elements", "100", "101"]),
    "shorter": (ones(101), ones(100), ["elements", "100", "101"]),
    "nothing": (ones(0), ones(1), ["elements", "0", "1"]),
    "something": (ones(1), ones(0), ["elements", "0", "1"]),
    "dtype": (ones(100), ones(100, dtype=np.int32), ["dtype", "float32", "int32"]),
    "dtype of the same bytes": (ones(100), ones(50, dtype="f8"), ["dtype", "float32", "float64", "elements"]),
    "small and large": (ones(10), ones(LARGE), ["elements", "10", str(LARGE)]),
    "large and small": (ones(LARGE), ones(10), ["elements", "10", str(LARGE)]),
    "large ones": (ones(LARGE), ones(LARGE + 1), ["elements", str(LARGE), str(LARGE + 1)]),
    "dtype of large ones": (ones(LARGE), ones(LARGE, dtype="i4"), ["dtype", "float32", "int32"]),
    "lists": (ones(4, 4), ones(8), ["tensors", "1", "2"]),
    "lists of the same total": (ones(3, 5, 7), ones(3, 7, 5), ["same total but different lengths"]),
    "large lists of the same total": (ones(LARGE, 5, 7), ones(LARGE, 7, 5), ["same total but different lengths"]),
}


def disagree(comm: Any, kind: str, source: int, dest: int, in_turn: bool) -> dict[str, Any]:
    """One side sends what the other does not expect. The errors that each rank gets, and when."""
    sent, expected, _ = KINDS[kind]
    expected = [np.full_like(a, 3) for a in expected]
    before = [a.tobytes() for a in expected]
    others = comm.dup()  # so that ranks can meet although comm fails
    report: dict[str, Any] = {}
    began = time.monotonic()
    # Something else is on its way at the same time, which the texts must not mistake for what failed.
    unrelated = comm.all_reduce(np.ones(77), async_op=True) if comm.rank != dest else None
    others.barrier()

    def hear(moment: str, call: Any) -> None:
        try:
            report["returned " + moment] = call()
        except Exception as error:
            report[moment] = (type(error).__name__, str(error), getattr(error, "peer", None))

    if comm.rank == source:
        work = comm.send(sent, dest, 4, async_op=True)
        if in_turn:
            until_sent(work)
            others.barrier()
        else:
            hear("first", work.wait)
    elif in_turn:
        others.barrier()
    if comm.rank == dest:
        hear("first", lambda: comm.recv(expected, source, 4))
    report["took"] = time.monotonic() - began
    others.barrier()
    # The next call, whichever it is; a short message would be on its way at once.
    hear("again", lambda: comm.send(np.ones(1), {source: dest, dest: source}.get(comm.rank, source)))
    hear("third", lambda: comm.barrier())
    if unrelated is not None:
        hear("beside", unrelated.wait)
    report["untouched"] = before == [a.tobytes() for a in expected]
    # No other rank is concerned.
    assert others.all_reduce(np.ones(5))[0] == comm.size
    others.close()
    return report


def until_sent(work: Any) -> None:
    """Until a short message has gone; nothing but this rank's own looking is needed for that."""
    end = time.monotonic() + 10
    while not work.done():
        assert time.monotonic() < end
        time.sleep(0.001)  # a poll, so that a receiver that reads too early would be seen


def cases() -> list[Any]:
    found = []
    for transport in TRANSPORTS:
        for index, (kind, (sent, _, _)) in enumerate(KINDS.items()):
            short = sum(a.nbytes for a in sent) <= 64 << 10
            for in_turn in (False, True) if short else (False,):
                n = (2, 3, 5)[index % 3]
                found.append(pytest.param(n, transport, kind, in_turn, id=f"{transport}-{n}-{kind}-{in_turn}"))
    return found


@pytest.mark.pairwise
@pytest.mark.parametrize(("n", "transport", "kind", "in_turn"), cases())
def test_both_sides_name_the_mismatch(pools: Pools, n: int, transport: str, kind: str, in_turn: bool) -> None:
    source, dest = (n - 1, 0) if list(KINDS).index(kind) % 2 else (0, n - 1)
    reports = pools.get(n, transport).run(disagree, kind, source, dest, in_turn, limit=30)
    text = "\n".join(str(r) for r in reports)
    for rank, report in enumerate(reports):
        moments = [m for m in ("first", "again", "third", "beside") if m in report]
        assert "third" in moments, text
        assert "again" in moments or rank not in (source, dest), text
        assert ("first" in moments) or rank != dest, text
        if rank == source:
            # A short message may be gone before a failure is noticed; the next call has the error then.
            assert ("first" in moments) or "returned first" in report or in_turn, text
        assert report["took"] < NOTICED, text
        assert report["untouched"], text
        for moment in moments:
            name, message, peer = report[moment]
            assert name == "MismatchError", text
            for word in KINDS[kind][2]:
                assert re.search(rf"\b{re.escape(word)}\b", message), f"{word!r} is missing on rank {rank}: {text}"
            assert not re.search(r"\b77\b", message), text
            if "same total" not in message:
                assert {int(r) for r in re.findall(r"rank (\d+) has", message)} == {source, dest}, text
            assert peer in (source, dest), text
            assert rank not in (source, dest) or peer == source + dest - rank, text


def wait_for_victim(comm: Any, kind: str) -> None:
    pool.say("ready")
    if comm.rank == 1:
        pool.hear()
        return
    x = np.ones(LARGE)
    if comm.rank == 2:
        comm.recv(x, 0)  # concerns the others only, but the communicator has failed
    elif kind == "send":
        comm.send(x, 1)
    elif kind == "recv":
        comm.recv(x, 1, 5)
    elif kind == "short recv":
        comm.recv(x[:1], 1)
    elif kind == "recv from any":
        comm.recv(x)  # rank 2 could still send, but the communicator has failed
    else:
        works = [comm.recv(np.ones(LARGE), 1, async_op=True), comm.send(x, 1, async_op=True)]
        works.append(comm.recv(x[:3], 2, async_op=True))
        for work in works[1:]:
            with pytest.raises(Exception, match="rank 1") as info:
                work.wait()
            assert type(info.value).__name__ == "PeerError"
        works[0].wait()


@pytest.mark.parametrize("kind", ["send", "recv", "short recv", "recv from any", "several"])
@pytest.mark.parametrize("transport", PROCESSES)
def test_death_while_others_wait(pools: Pools, transport: str, kind: str) -> None:
    group = pools.get(3, transport)
    group.start(wait_for_victim, kind)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[2].await_sleep()
    since = time.monotonic()
    group.ranks[1].signal(signal.SIGKILL)
    outcomes = group.collect(20)
    for survivor in (0, 2):
        error: Any = outcomes[survivor].error
        assert type(error).__name__ == "PeerError", outcomes[survivor]
        assert (error.rank, error.peer) == (survivor, 1)
        assert error.collective == ("send" if kind == "send" and survivor == 0 else "recv")
        assert error.sequence is None
        assert outcomes[survivor].ended - since < NOTICED
        assert not outcomes[survivor].usable


def leave(comm: Any, rounds: int) -> None:
    """Rank 1 sends and leaves at once; what it has sent arrives, what it has not sent never will."""
    for i in range(rounds):
        group = comm.dup()
        if comm.rank == 1:
            group.send(np.full(100, i), 0)
            group.close()
        elif comm.rank == 0:
            expected = group.recv(np.zeros(100, np.int64), 1)
            assert (expected == i).all()
            call = group.recv if i % 2 else group.send
            with pytest.raises(Exception, match=r"rank 1 .*has left the group before this message") as info:
                call(np.ones(LARGE), 1)
            assert type(info.value).__name__ == "PeerError"
            assert info.value.peer == 1  # type: ignore[attr-defined]
        group.close()
    comm.barrier()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_left(pools: Pools, transport: str) -> None:
    pools.get(3, transport).run(leave, 20)


def nobody_comes(comm: Any, sending: bool) -> list[Any]:
    group = comm.dup()
    began = time.monotonic()
    found = []
    if comm.rank == 0:
        call = group.send if sending else group.recv
        with pytest.raises(Exception, match=r"to|from") as info:
            call(np.ones(LARGE), 1, 6, timeout=0.5, name="halo")
        found = [type(info.value).__name__, str(info.value), info.value.peer]  # type: ignore[attr-defined]
        assert 0.4 < time.monotonic() - began < 0.5 + NOTICED
    comm.barrier()
    with pytest.raises(Exception, match="halo") as later:
        group.recv(np.ones(1), (comm.rank + 1) % comm.size)
    assert type(later.value).__name__ == "DeadlineError"
    group.close()
    return found


@pytest.mark.parametrize("sending", [True, False])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_deadline(pools: Pools, transport: str, sending: bool) -> None:
    name, text, peer = pools.get(3, transport).run(nobody_comes, sending)[0]
    assert name == "DeadlineError"
    assert f"{'send to' if sending else 'recv from'} rank 1, tag 6 'halo' has waited 0.5" in text
    assert peer == 1


def slices(comm: Any) -> None:
    """A wait with a timeout leaves the message pending."""
    if comm.rank == 0:
        y = np.zeros(5)
        work = comm.recv(y, 1, async_op=True)
        with pytest.raises(TimeoutError, match=r"0\.1 s"):
            work.wait(0.1)
        assert not work.done()
        comm.barrier()
        assert work.result(20) is y
        assert y[0] == 9
    else:
        comm.barrier()
        if comm.rank == 1:
            comm.send(np.full(5, 9.0), 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_wait_with_timeout(pools: Pools, transport: str) -> None:
    pools.get(2, transport).run(slices)


def close_unmet(comm: Any, sending: bool) -> None:
    """Nothing hangs: the message fails, and the others get the error when they call."""
    import collectives

    group = comm.dup()
    if comm.rank == 0:
        call = group.send if sending else group.recv
        works = [call(np.ones(LARGE), 1, tag, async_op=True) for tag in range(3)]
        group.close()
        for work in works:
            assert work.done()
            with pytest.raises(collectives.ClosedError, match="closed the communicator with"):
                work.wait(5)
        with pytest.raises(collectives.ClosedError, match="make a new group"):
            group.recv(np.ones(1), 1)
    comm.barrier()
    if comm.rank != 0:
        with pytest.raises(collectives.CollectivesError, match="rank 0") as info:
            group.recv(np.ones(LARGE), 0)
        assert isinstance(info.value, (collectives.ClosedError, collectives.PeerError))
        group.close()
    assert comm.all_reduce(np.ones(3))[0] == comm.size


@pytest.mark.parametrize("sending", [True, False])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_with_messages_in_flight(pools: Pools, transport: str, sending: bool) -> None:
    pools.get(3, transport).run(close_unmet, sending)


def fork_and_send(comm: Any) -> list[str]:
    """Every rank forks with messages in flight; the child may not call, the parent goes on."""
    import collectives

    comm.barrier()
    other = 1 - comm.rank
    y = np.zeros(300_000)
    work = comm.recv(y, other, async_op=True)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        texts = []
        for call in (lambda: comm.send(np.ones(3), other), lambda: comm.recv(np.ones(3), other), work.wait):
            try:
                call()
                texts.append("no error")
            except collectives.ForkedError as error:
                texts.append(f"ForkedError {error}")
            except BaseException as error:
                texts.append(repr(error))
        comm.close()
        os.write(write, "\n".join(texts).encode())
        os._exit(0)
    os.close(write)
    text = b""
    while piece := os.read(read, 65536):
        text += piece
    os.close(read)
    os.waitpid(child, 0)
    comm.send(np.full(300_000, comm.rank + 1.0), other)
    work.wait()
    assert (y == other + 1).all()
    return text.decode().split("\n")


@pytest.mark.parametrize("transport", PROCESSES)
def test_fork(pools: Pools, transport: str) -> None:
    for texts in pools.get(2, transport).run(fork_and_send, limit=30):
        assert len(texts) == 3
        assert all(t.startswith("ForkedError") and "spawn" in t for t in texts), texts


def receive_for_ever(comm: Any) -> None:
    pool.say("ready")
    comm.recv(np.ones(3), 1 - comm.rank)


@pytest.mark.parametrize("transport", PROCESSES)
def test_ctrl_c(pools: Pools, transport: str) -> None:
    group = pools.get(2, transport)
    group.start(receive_for_ever)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[1].await_sleep()
    group.ranks[0].signal(signal.SIGINT)
    first, second = group.collect(20)
    assert isinstance(first.error, KeyboardInterrupt), first
    assert type(second.error).__name__ == "PeerError", second
    assert "Ctrl-C" in str(second.error)
