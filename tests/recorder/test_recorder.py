"""The recorder: what it keeps of the last calls, how it is dumped, and what errors carry."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import collectives
import numpy as np
import pool
import pytest
from pool import Pools
from recorder_files import await_file

LIMIT = 60.0
TIMEOUT = 6.0  # so long that no rank is taken for missing because it was not run for a moment
PROCESSES = ["shm", "tcp"]


def record(comm: Any) -> list[dict[str, Any]]:
    began = time.time()
    comm.all_reduce(np.ones(10, np.float32), op="max")
    comm.all_reduce([np.ones(3), np.ones((2, 2))], name="a list, " + "named " * 20)
    comm.all_reduce(np.ones(70_000), async_op=True, name='"quoted\\ \n\u00e9').wait()
    comm.broadcast(np.ones(5, np.int8), 1, algorithm="auto")
    comm.barrier()
    if comm.rank == 0:
        comm.send(np.ones(7, np.int16), 1, tag=5)
    else:
        comm.recv(np.ones(7, np.int16), 0, tag=5)
    found: list[dict[str, Any]] = comm.recorder()[-6:]  # of perhaps a thousand
    assert all(began - 1 <= entry["posted"] <= time.time() + 1 for entry in found)
    return found


@pytest.mark.parametrize("transport", ["local", *PROCESSES])
def test_entries(pools: Pools, transport: str) -> None:
    for rank, entries in enumerate(pools.get(2, transport).run(record)):
        first, fused, asynchronous, broadcast, barrier, message = entries
        assert [e["sequence"] for e in entries[:5]] == list(range(first["sequence"], first["sequence"] + 5))
        assert {e["state"] for e in entries} == {"done"}
        assert {e["communicator"] for e in entries} == {0}
        assert (first["collective"], first["op"], first["dtype"]) == ("all_reduce", "max", "float32")
        assert (first["elements"], first["bytes"], first["tensors"], first["name"]) == (10, 40, 1, None)
        assert isinstance(first["algorithm"], str)
        assert (fused["elements"], fused["bytes"], fused["tensors"]) == (7, 56, 2)
        assert fused["name"] == ("a list, " + "named " * 20)[:47]
        assert asynchronous["name"] == '"quoted\\ \n\u00e9'
        assert asynchronous["posted"] <= asynchronous["started"] <= asynchronous["ended"]
        assert (broadcast["op"], broadcast["root"], broadcast["dtype"]) == (None, 1, "int8")
        assert (barrier["dtype"], barrier["bytes"]) == (None, 0)
        assert (message["collective"], message["sequence"]) == (["send", "recv"][rank], None)
        assert (message["peer"], message["tag"], message["bytes"]) == (1 - rank, 5, 14)


def call_often(comm: Any) -> list[list[Any]]:
    """Ordinary calls that are alike, mixed with others that differ from them in their descriptions alone."""
    x, y = np.ones(2), np.ones(3)
    for i in range(1500):
        if i % 3 == 0:
            comm.all_reduce(x)
        elif i % 3 == 1:
            comm.all_reduce(x if i % 2 else y, name=f"call {i}")
        else:
            comm.all_reduce(x, async_op=True, name=f"call {i}").wait()
    return [[e["sequence"], e["name"], e["elements"], e["state"]] for e in comm.recorder()]


def test_the_last_thousand_are_kept(groups: Any) -> None:
    for entries in groups(2, "shm").run(call_often):
        wanted = [[i, f"call {i}" if i % 3 else None, 3 if i % 6 == 4 else 2, "done"] for i in range(500, 1500)]
        assert entries == wanted


def call_the_same_after_many(comm: Any) -> list[list[Any]]:
    """The description of the call that is made again is older than all that is kept."""
    x = np.ones(2)
    comm.all_reduce(x)
    for i in range(2500):
        comm.all_reduce(np.ones(3), async_op=True, name=f"call {i}").wait()
    for _ in range(3):
        comm.all_reduce(x)
    return [[e["sequence"], e["name"], e["elements"]] for e in comm.recorder()[-4:]]


def test_a_call_like_one_long_ago(groups: Any) -> None:
    wanted = [[2500, "call 2499", 3], [2501, None, 2], [2502, None, 2], [2503, None, 2]]
    assert groups(2, "shm").run(call_the_same_after_many) == [wanted, wanted]


def groups_too(comm: Any) -> list[list[Any]]:
    group = comm.dup()
    group.all_reduce(np.ones(1))
    comm.all_reduce(np.ones(1))
    result = [[e["communicator"] > 0, e["collective"]] for e in group.recorder()[-2:]]
    assert [e["sequence"] for e in group.recorder()] == [e["sequence"] for e in comm.recorder()]
    group.close()
    return result


def test_groups_share_the_recorder(groups: Any) -> None:
    assert groups(2, "shm").run(groups_too)[0] == [[True, "all_reduce"], [False, "all_reduce"]]


def test_read_while_it_is_written() -> None:
    """What a reader gets is complete, whatever the writer does."""
    comm = collectives.local_group(1)[0]
    stop = threading.Event()
    written = [0]

    def write() -> None:
        while not stop.is_set():
            for n in (1, 2, 3):
                comm.all_reduce(np.ones(n, np.float64), name=f"{n} elements", async_op=True).wait()
                comm.all_reduce(np.ones(n, np.int8))
            written[0] += 6

    writer = threading.Thread(target=write)
    writer.start()
    try:
        end = time.monotonic() + LIMIT
        looks = 0
        while (looks < 30 or written[0] < 3000) and time.monotonic() < end:
            looks += 1
            entries = comm.recorder()
            numbers = [e["sequence"] for e in entries]
            assert numbers == sorted(set(numbers))
            for entry in entries:
                if entry["name"] is not None:
                    assert entry["name"] == f"{entry['elements']} elements"
                    assert entry["dtype"] == "float64"
                else:
                    assert entry["dtype"] == "int8"
    finally:
        stop.set()
        writer.join()
    assert written[0] >= 3000
    comm.close()


def test_dump_recorder(tmp_path: Path) -> None:
    group = collectives.local_group(2)
    threads = [threading.Thread(target=comm.all_reduce, args=(np.ones(4),), kwargs={"name": "g"}) for comm in group]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    collectives.dump_recorder(tmp_path / "dump.json")
    text = io.StringIO()
    collectives.dump_recorder(text)
    for ranks in (json.loads((tmp_path / "dump.json").read_text()), json.loads(text.getvalue())):
        mine = [r for r in ranks if r["size"] == 2 and r["entries"] and r["entries"][-1]["name"] == "g"]
        assert [r["rank"] for r in mine] == [0, 1]
        assert {r["pid"] for r in mine} == {os.getpid()}
    for comm in group:
        comm.close()


# --- failures -------------------------------------------------------------------------------------------------------


def fail(comm: Any, timeout: float) -> list[Any]:
    comm.all_reduce(np.ones(3), name="before")
    x = np.ones(1 << 20, np.float32)
    if comm.rank == 1:
        pool.say("ready")
        pool.hear()
    try:
        comm.all_reduce(x, name="gradient", timeout=timeout)
    except collectives.CollectivesError as error:
        return [type(error).__name__, str(error), error.host, error.pid, error.bytes_done]
    return ["returned"]


@pytest.mark.parametrize("transport", PROCESSES)
def test_dump_and_error_after_a_failure(groups: Any, transport: str, tmp_path: Path) -> None:
    group = groups(3, transport, variables={"COLLECTIVES_RECORDER_DIR": str(tmp_path)})
    group.start(fail, TIMEOUT)
    assert group.ranks[1].event() == "ready"
    end = time.monotonic() + LIMIT
    outcomes = [group.ranks[r].outcome(end) for r in (0, 2)]
    waited = []
    for rank, outcome in zip((0, 2), outcomes, strict=True):
        name, text, host, pid, done = outcome.value
        assert name == "DeadlineError", outcome
        assert (host, pid) == (os.uname().nodename, group.ranks[1].pid)
        assert 0 <= done < 4 << 20
        assert "of 4.0 MiB were done" in text
        dumped = await_file(tmp_path, rank)
        assert "gradient" in dumped["why"]
        states = [(e["name"], e["state"]) for e in dumped["entries"]]
        assert states[-2:] == [("before", "done"), ("gradient", "failed")]
        waited.append(dumped["entries"][-1]["ended"] - dumped["entries"][-1]["posted"])
    assert max(waited) >= TIMEOUT - 0.1  # the other may have come later
    assert not list(tmp_path.glob("*.part"))


def test_a_dump_follows_no_link(groups: Any, tmp_path: Path) -> None:
    """In a folder that others may write to, they could have it write into any file of the user."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "shared"
    folder.mkdir()
    group = groups(2, "shm", variables={"COLLECTIVES_RECORDER_DIR": str(folder)})
    final = folder / f"collectives-recorder-rank0-pid{group.ranks[0].pid}.json"
    for taken in (final, *(Path(f"{final}.{number}.part") for number in range(100))):
        taken.symlink_to(precious)
    group.start(fail, TIMEOUT)
    assert group.ranks[1].event() == "ready"
    assert group.ranks[0].outcome(time.monotonic() + LIMIT).value[0] == "DeadlineError"
    end = time.monotonic() + LIMIT
    while final.is_symlink() and time.monotonic() < end:
        time.sleep(0.01)  # a poll: what another process writes cannot be waited for
    assert await_file(folder, 0)["entries"][-1]["name"] == "gradient"
    assert precious.read_text() == "mine"


def fail_alone(comm: Any) -> list[Any]:
    if comm.rank == 1:
        return []
    with pytest.raises(collectives.DeadlineError) as info:
        comm.all_reduce(np.ones(3), timeout=0.3)
    return [info.value.host, info.value.pid, info.value.bytes_done]


def test_threads_are_peers_of_this_process(groups: Any) -> None:
    assert groups(2, "local").run(fail_alone)[0] == [os.uname().nodename, os.getpid(), 12]  # its own part


def receive_half(comm: Any) -> list[Any]:
    x = np.ones(1 << 20, np.int8)
    if comm.rank == 1:
        comm.send(x[: 1 << 19], 0, tag=1)
        pool.say("ready")
        pool.hear()
        return []
    comm.recv(x[: 1 << 19], 1, tag=1)
    with pytest.raises(collectives.DeadlineError, match=r"0 B of 1\.0 MiB were done") as info:
        comm.recv(x, 1, tag=2, timeout=0.5)
    return [info.value.collective, info.value.peer, info.value.bytes_done]


@pytest.mark.parametrize("transport", PROCESSES)
def test_messages_carry_it_too(groups: Any, transport: str) -> None:
    group = groups(2, transport)
    group.start(receive_half)
    assert group.ranks[1].event() == "ready"
    assert group.ranks[0].outcome(time.monotonic() + LIMIT).value == ["recv", 1, 0]
