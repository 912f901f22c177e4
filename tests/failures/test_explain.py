"""The one paragraph after a failure: who is missing from what, what it did last, and where its Python code is."""

from __future__ import annotations

import importlib
import os
import re
import signal
import socket
import stat
import threading
import time
from typing import Any

import collectives
import numpy as np
import pool
import pytest
from pool import Pools
from stderr_of import a_function_that_never_stops, read

LIMIT = 60.0
PROCESSES = ["shm", "tcp"]
MISSING = "is missing from all_reduce #2 'gradient' (4.0 MiB float32), which ranks 0, 2 entered"
Capture = pytest.CaptureFixture[str]


def a_function_that_takes_long() -> None:
    pool.say("ready")
    pool.hear()


def spoil_connections() -> None:
    """What others get from this rank makes no sense, and it lives."""
    pool.say("ready")
    pool.hear()
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as link:
                    if link.family in (socket.AF_INET, socket.AF_INET6):
                        link.send(b"\xff" * 4096)
        except OSError:
            continue  # the descriptor of the listing, or a socket that has no peer
    pool.hear()


def fail(comm: Any, how: str, timeout: float) -> list[Any]:
    """Rank 1 comes late, or not at all."""
    comm.all_reduce(np.ones(3), name="first")
    comm.broadcast(np.ones(5), name="weights")
    if comm.rank == 1:
        if how == "another":
            pool.say("ready")
            pool.hear()
            comm.reduce(np.ones(3), root=0)
        if how == "without a handler":
            signal.signal(importlib.import_module("collectives._core")._stack_signal(), signal.SIG_DFL)
        if how == "busy":
            a_function_that_never_stops("ready")
        elif how == "spoils":
            spoil_connections()
        else:
            a_function_that_takes_long()
    else:
        pool.say("ready")  # for `await_ready`
    began = time.monotonic()
    try:
        comm.all_reduce(np.ones(1 << 20, np.float32), name="gradient", timeout=timeout)
    except collectives.CollectivesError as error:
        return [type(error).__name__, str(error), time.monotonic() - began]
    return ["returned"]


def await_ready(group: Any) -> None:
    """Rank 1 is where it stays, and the others have begun to call, or are about to."""
    for rank in group.ranks:
        assert rank.event() == "ready"


def close(group: Any) -> None:
    """All ranks end; the explanations of those that may speak are then complete."""
    group.broken = False
    group.close()


@pytest.mark.parametrize("how", ["sleeping", "busy"])
@pytest.mark.parametrize("transport", PROCESSES)
def test_the_stack_of_a_rank_that_does_something_else(groups: Any, transport: str, how: str, capfd: Capture) -> None:
    group = groups(3, transport)
    group.start(fail, how, 6.0)
    await_ready(group)
    end = time.monotonic() + LIMIT
    for r in (0, 2):
        assert group.ranks[r].outcome(end).value[0] == "DeadlineError"
    text = read(capfd, " in fail\n")
    group.ranks[1].tell("go on")
    assert group.ranks[1].outcome(end).value[0] in ("DeadlineError", "PeerError")
    close(group)
    text += capfd.readouterr().err
    assert text.count("is missing from") == 1, text
    line, _, stack = text.partition("\n")
    assert re.match(
        rf"collectives: rank 1 \(host .*, pid {group.ranks[1].pid}\) {re.escape(MISSING)} [\d.]+ s ago;", line
    )
    assert "was broadcast #1 'weights'; it is alive, and its main thread is at (innermost call first):" in line
    function = "a_function_that_never_stops" if how == "busy" else "a_function_that_takes_long"
    assert f"in {function}\n" in stack
    assert "Traceback" not in text


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_stopped_rank_has_no_stack(groups: Any, transport: str, capfd: Capture) -> None:
    group = groups(3, transport)
    group.start(fail, "sleeping", 6.0)
    await_ready(group)
    group.ranks[1].signal(signal.SIGSTOP)
    try:
        end = time.monotonic() + LIMIT
        for r in (0, 2):
            assert group.ranks[r].outcome(end).value[0] == "DeadlineError"
        text = read(capfd, "SIGCONT lets it go on\n")
    finally:
        group.ranks[1].signal(signal.SIGCONT)
    assert f"{MISSING} " in text
    assert "its process is stopped (SIGSTOP or the like), so it has no Python stack to show" in text
    assert "in fail" not in text


def test_a_rank_without_a_handler_is_not_asked(groups: Any, capfd: Capture) -> None:
    group = groups(3, "shm")
    group.start(fail, "without a handler", 6.0)
    await_ready(group)
    end = time.monotonic() + LIMIT
    for r in (0, 2):
        assert group.ranks[r].outcome(end).value[0] == "DeadlineError"
    text = read(capfd, "it is alive, and shows no Python stack, since it has no signal handler for that any more")
    assert f"{MISSING} " in text
    group.ranks[1].tell("go on")
    assert group.ranks[1].outcome(end).value[0] in ("DeadlineError", "PeerError")


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_killed_rank(groups: Any, transport: str, capfd: Capture) -> None:
    group = groups(3, transport)
    group.start(fail, "sleeping", LIMIT)
    await_ready(group)
    group.ranks[0].await_sleep()
    group.ranks[2].await_sleep()
    group.ranks[1].signal(signal.SIGKILL)
    end = time.monotonic() + LIMIT
    for r in (0, 2):
        assert group.ranks[r].outcome(end).value[0] == "PeerError"
    text = read(capfd, MISSING)
    close(group)
    text += capfd.readouterr().err
    assert text.count("is missing from") == 1, text
    assert re.search(rf"rank 1 \(host .*, pid {group.ranks[1].pid}\) died and is missing from", text)
    assert "broadcast #1 'weights'" in text


def test_a_rank_that_cannot_be_reached_is_not_said_to_have_died(groups: Any, capfd: Capture) -> None:
    group = groups(3, "tcp")
    group.start(fail, "spoils", LIMIT)
    await_ready(group)
    group.ranks[0].await_sleep()
    group.ranks[2].await_sleep()
    group.ranks[1].tell("go on")
    end = time.monotonic() + LIMIT
    for r in (0, 2):
        assert group.ranks[r].outcome(end).value[0] == "PeerError"
    text = read(capfd, MISSING)
    assert re.search(
        rf"rank 1 \(host .*, pid {group.ranks[1].pid}\) cannot be reached any more and {MISSING[:10]}", text
    )
    assert "died" not in text


@pytest.mark.parametrize("transport", PROCESSES)
def test_another_collective(groups: Any, transport: str, capfd: Capture) -> None:
    group = groups(3, transport)
    group.start(fail, "another", LIMIT)
    await_ready(group)
    group.ranks[0].await_sleep()
    group.ranks[2].await_sleep()
    group.ranks[1].tell("go on")
    end = time.monotonic() + LIMIT
    outcomes = [group.ranks[r].outcome(end) for r in range(3)]
    before = "; before it both called broadcast #1 'weights', all_reduce #0 'first'"
    assert type(outcomes[1].error).__name__ == "MismatchError", outcomes[1]
    assert before in str(outcomes[1].error)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.value[0] == "MismatchError"
        assert before in outcome.value[1]
    text = read(capfd, "ranks disagree")
    close(group)
    text += capfd.readouterr().err
    assert text.count("ranks disagree") == 1, text
    assert text.startswith("collectives: all_reduce #2 'gradient' (4.0 MiB float32): ranks disagree")


said = threading.Event()  # by rank 0


def leave_one_out(comm: Any) -> list[Any]:
    comm.all_reduce(np.ones(3), name="first")
    if comm.rank == 1:
        a_thread_at_work()
        return ["late"]
    with pytest.raises(collectives.DeadlineError):
        comm.all_reduce(np.ones(3, np.int64), timeout=0.5)
    comm.close()  # all is said
    if comm.rank == 0:
        said.set()
    return ["failed"]


def a_thread_at_work() -> None:
    assert said.wait(LIMIT)


def test_threads(pools: Pools, capfd: Capture) -> None:
    importlib.import_module("collectives._startup.recorder").prepare()  # as local_group() does
    said.clear()  # an earlier test may have set it
    assert pools.get(3, "local").run(leave_one_out) == [["failed"], ["late"], ["failed"]]
    text = capfd.readouterr().err
    assert text.count("is missing from") == 1, text
    assert "rank 1 is missing from all_reduce #" in text
    assert "(24 B int64), which ranks 0, 2 entered" in text
    assert "'first'" in text
    assert re.search(r"its thread \d+ is at", text)
    assert "in a_thread_at_work\n" in text


def wait_in_a_function_of_its_own(number: int, ready: threading.Event, over: threading.Event) -> None:
    """Its name says whose stack is shown."""
    code = f"def function_{number}():\n    ready.set()\n    assert over.wait(LIMIT)\n"
    names: dict[str, Any] = {"ready": ready, "over": over, "LIMIT": LIMIT}
    exec(code, names)
    names[f"function_{number}"]()


def test_threads_that_are_looked_at_at_the_same_time(capfd: Capture) -> None:
    """Worlds in one process: each asks for the stack of its own missing rank."""
    importlib.import_module("collectives._startup.recorder").prepare()  # as local_group() does
    count = 6
    over, begin = threading.Event(), threading.Barrier(count)

    def rank_0(comm: Any, name: str) -> None:
        begin.wait(LIMIT)
        with pytest.raises(collectives.DeadlineError):
            comm.all_reduce(np.ones(3), name=name, timeout=0.5)
        comm.close()  # all is said

    def rank_1(comm: Any, number: int, ready: threading.Event) -> None:
        comm.all_reduce(np.ones(3), name="first")
        wait_in_a_function_of_its_own(number, ready, over)

    threads, waiting, worlds = [], [], [collectives.local_group(2) for _ in range(count)]
    for number, world in enumerate(worlds):
        ready = threading.Event()
        threads.append(threading.Thread(target=rank_1, args=(world[1], number, ready)))
        threads[-1].start()
        world[0].all_reduce(np.ones(3), name="first")
        assert ready.wait(LIMIT)
        waiting.append(threading.Thread(target=rank_0, args=(world[0], f"call {number}")))
    try:
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for world in worlds:
            world[1].close()
    text = capfd.readouterr().err
    paragraphs = text.split("collectives: ")[1:]
    assert len(paragraphs) == count, text
    for number in range(count):
        [mine] = [p for p in paragraphs if f"'call {number}'" in p]
        assert re.findall(r"in function_(\d+)\n", mine) == [str(number)], text


def leave(comm: Any) -> list[str]:
    comm.all_reduce(np.ones(3), name="first")
    if comm.rank == 1:
        pool.say("ready")
        pool.hear()
        comm.close()
        return []
    pool.say("ready")
    with pytest.raises(collectives.PeerError) as info:
        comm.barrier()
    return [str(info.value)]


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_rank_that_has_left(groups: Any, transport: str, capfd: Capture) -> None:
    group = groups(3, transport)
    group.start(leave)
    await_ready(group)
    group.ranks[0].await_sleep()
    group.ranks[2].await_sleep()
    group.ranks[1].tell("go on")
    outcomes = [group.ranks[r].outcome(time.monotonic() + LIMIT) for r in range(3)]
    for r in (0, 2):
        assert "has left the group" in outcomes[r].value[0], outcomes[r]
    close(group)
    text = capfd.readouterr().err
    assert text.count("collectives:") == 1, text
    assert "has left the group and is missing from barrier #1, which rank" in text
    assert "all_reduce #0 'first'" in text


def receive_from_rank_1(comm: Any, timeout: float) -> str:
    comm.barrier()
    if comm.rank == 1:
        a_function_that_takes_long()
        return ""
    pool.say("ready")
    try:
        comm.recv(np.zeros(3), 1, timeout=timeout)
    except collectives.CollectivesError as error:
        return type(error).__name__
    return "returned"


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_message_is_the_matter_of_two_ranks(groups: Any, transport: str, capfd: Capture) -> None:
    group = groups(3, transport)
    group.start(receive_from_rank_1, 6.0)
    await_ready(group)
    end = time.monotonic() + LIMIT
    for r in (0, 2):
        assert group.ranks[r].outcome(end).value == "DeadlineError"
    text = read(capfd, " in receive_from_rank_1\n")
    group.ranks[1].tell("go on")
    assert group.ranks[1].outcome(end).error is None
    close(group)
    text += capfd.readouterr().err
    assert re.search(
        r"rank 1 \(.*\) is missing from recv from rank 1, tag 0 \(24 B \w+\), which rank 0 entered [\d.]+ s", text
    )
    assert "nothing was heard" not in text


def fail_in_groups(comm: Any) -> None:
    """Works in the world and in two groups, several of each, all waiting for rank 1."""
    group, other = comm.dup(), comm.split(0)
    comm.barrier()
    pool.say("ready")
    if comm.rank == 1:
        pool.hear()
    works = [c.all_reduce(np.ones(n), async_op=True) for c in (comm, group, other) for n in (3, 5)]
    for work in works:
        with pytest.raises(collectives.PeerError):
            work.wait()


@pytest.mark.parametrize("transport", PROCESSES)
def test_one_paragraph_for_all_groups(groups: Any, transport: str, capfd: Capture) -> None:
    group = groups(3, transport)
    group.start(fail_in_groups)
    for rank in group.ranks:
        assert rank.event() == "ready"
    group.ranks[0].await_sleep()
    group.ranks[2].await_sleep()
    group.ranks[1].signal(signal.SIGKILL)
    end = time.monotonic() + LIMIT
    for r in (0, 2):
        outcome = group.ranks[r].outcome(end)
        assert outcome.error is None, outcome.text
    close(group)
    text = capfd.readouterr().err
    assert text.count("collectives:") == 1, text
    assert "rank 1" in text


def interrupt_or_close(comm: Any, how: str) -> str:
    pool.say("ready")
    if comm.rank == 1:
        pool.hear()
    if how == "close" and comm.rank == 0:
        work = comm.barrier(async_op=True)
        comm.close()
        assert work.done()
        return "closed"
    try:
        for _ in range(2):
            comm.barrier()
    except (collectives.CollectivesError, KeyboardInterrupt) as error:
        return type(error).__name__
    return "returned"


@pytest.mark.parametrize("how", ["Ctrl-C", "close"])
@pytest.mark.parametrize("transport", PROCESSES)
def test_nothing_is_said(groups: Any, transport: str, how: str, capfd: Capture) -> None:
    group = groups(3, transport)
    group.start(interrupt_or_close, how)
    for rank in group.ranks:
        assert rank.event() == "ready"
    if how == "Ctrl-C":
        group.ranks[0].await_sleep()
        group.ranks[0].signal(signal.SIGINT)
    end = time.monotonic() + LIMIT
    assert group.ranks[0].outcome(end).value in ("KeyboardInterrupt", "closed")
    group.ranks[1].tell("go on")
    for r in (1, 2):
        assert group.ranks[r].outcome(end).value in ("PeerError", "ClosedError")
    close(group)
    assert "collectives:" not in capfd.readouterr().err
